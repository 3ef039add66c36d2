package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestFlagsOnce: every flag of every verb is a list, or refused when it is given twice.
func TestFlagsOnce(t *testing.T) {
	lists := 0
	for _, v := range verbs(t) {
		v.InheritedFlags() // puts those of all verbs among its own
		v.Flags().VisitAll(func(f *pflag.Flag) {
			if _, list := f.Value.(pflag.SliceValue); list {
				lists++
				return
			}
			text := f.Value.String()
			switch f.Value.Type() {
			case "string", "SIZE":
				text = "1MiB"
			}
			arg := "--" + f.Name + "=" + text
			if f.Name == "json" { // the others share it
				return
			}
			if err := v.ParseFlags([]string{arg}); err != nil {
				t.Errorf("%s %s: %v", verbName(v), arg, err)
			}
			if err := v.ParseFlags([]string{arg}); err == nil || !strings.Contains(err.Error(), "twice") {
				t.Errorf("%s %s again: %v", verbName(v), arg, err)
			}
		})
	}
	if lists < 5 {
		t.Errorf("only %d lists", lists)
	}
	if _, errs, code := call(t, "", "version", "--json", "--json"); code != 2 || !strings.Contains(errs, "twice") {
		t.Errorf("--json twice: exit %d, %s", code, errs)
	}
}
