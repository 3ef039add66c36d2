package ctl

import (
	"fmt"
	"text/tabwriter"

	"github.com/ugds-store/ugds/driver/probe"
)

const verbCheck = "check"

type checkDoc struct {
	header
	Findings []probe.Finding `json:"findings"`
}

// Check tells what this machine has for the direct path between disks and GPU memory,
// and what to do about what it lacks. It changes nothing. A store works without all
// of it, through the kernel and host memory, so it never fails for what it finds.
func Check(e *Env) error { return e.fail(verbCheck, checkMachine(e)) }

func checkMachine(e *Env) error {
	doc := checkDoc{header: head(verbCheck, nil), Findings: probe.Machine()}
	if e.JSON {
		return e.emit(doc)
	}
	w := tabwriter.NewWriter(e.Stdout, 0, 0, 2, ' ', 0)
	for _, f := range doc.Findings {
		fmt.Fprintf(w, "%s\t%s\t%s\n", Plain(f.Name), f.Verdict, Plain(f.Reason))
		if f.Mend != "" {
			fmt.Fprintf(w, "\t\t→ %s\n", Plain(f.Mend))
		}
	}
	return w.Flush()
}
