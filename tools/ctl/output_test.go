package ctl

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ugds-store/ugds/internal/base"
)

// TestGrid: the last cell goes on in lines whose other cells are empty, no line is
// wider than the screen unless one word is, and the words are all there. A wide name
// stands alone.
func TestGrid(t *testing.T) {
	long, wide := strings.Repeat("w", 2*screenColumns), strings.Repeat("n", wideName+1)
	text := strings.Repeat("wörd and  ", 40) + long + " end"
	var out bytes.Buffer
	e := &Env{Stdout: &out}
	if err := e.grid(screenColumns, [][]string{{"näme", "x", text}, {"other", "yy", ""}, {wide, "z", "last"}}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	end := lines[len(lines)-3:]
	if want := []string{"other  yy", wide, "       z   last"}; !slices.Equal(end, want) {
		t.Errorf("%q, want %q", end, want)
	}
	lines = lines[:len(lines)-3]
	var words []string
	for i, line := range lines {
		if strings.HasPrefix(line, "näme ") != (i == 0) {
			t.Errorf("line %d: %q", i, line)
		}
		if n := utf8.RuneCountInString(line); n > screenColumns && strings.TrimSpace(line) != long {
			t.Errorf("line %d has %d columns", i, n)
		}
		words = append(words, strings.Fields(strings.TrimPrefix(line, "näme   x"))...)
	}
	if strings.Join(words, " ") != strings.Join(strings.Fields(text), " ") || len(lines) < 7 {
		t.Errorf("%d lines: %q", len(lines), words)
	}
	out.Reset()
	if err := e.grid(0, [][]string{{"key", text}}); err != nil || out.String() != "key  "+text+"\n" {
		t.Errorf("without a limit: %v, %q", err, &out)
	}
}

// flat is text as it was before it was wrapped, with single spaces.
func flat(text string) string { return strings.Join(strings.Fields(text), " ") }

// TestInterruptedDocument: a document says of an interrupt what the text says, whatever a
// wait below made of it.
func TestInterruptedDocument(t *testing.T) {
	late := base.Errorf("verify", "data", base.ErrTimeout, "%w", context.Canceled)
	if got := head("fsck", errors.Join(late, errors.New("close"))).Error; *got != (errorDoc{"interrupted", "interrupted"}) {
		t.Errorf("%+v", got)
	}
	if got := head("fsck", base.Wrap("verify", "data", base.ErrTimeout)).Error; *got != (errorDoc{"timeout", "verify data: timed out"}) {
		t.Errorf("%+v", got)
	}
}

// TestUsageFits: the last line of usage keeps to a terminal for stores of any size.
func TestUsageFits(t *testing.T) {
	var out bytes.Buffer
	d := &usageDoc{Space: usageSpace{FreeSlabs: 1023 * base.GiB, FreeSlots: 1023 * base.MiB}}
	if err := (&Env{Stdout: &out}).usageText(d); err != nil || !strings.Contains(flat(out.String()), "for any value, 1023.0 MiB in slots") {
		t.Errorf("%v, %s", err, &out)
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(line); n > screenColumns+1 { // and the line break
			t.Errorf("%d columns: %q", n, line)
		}
	}
}
