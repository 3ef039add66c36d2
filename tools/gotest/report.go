package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// event is one line of go test -json.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// skipMark begins the line that a counted skip prints.
const skipMark = "SKIP-COUNTED: "

// longFlag in the reason of a skip says that the test is one for the night, not
// that something is missing.
const longFlag = "-long"

// slowest is how many of the slow tests are named, slowSeconds from where.
const (
	slowest     = 5
	slowSeconds = 5
)

type timed struct {
	name    string
	seconds float64
}

// report turns events into lines.
type report struct {
	w       io.Writer
	verbose bool
	said    map[string]*strings.Builder // by package and test, until it ended

	passed, failed, skips, long int
	skipped                     []string
	slow                        []timed
}

func newReport(w io.Writer, verbose bool) *report {
	return &report{w: w, verbose: verbose, said: map[string]*strings.Builder{}}
}

func (r *report) read(in io.Reader) error {
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var e event
		if json.Unmarshal(sc.Bytes(), &e) != nil {
			fmt.Fprintf(r.w, "%s\n", sc.Bytes()) // go test itself had something to say
			continue
		}
		r.event(e)
	}
	return sc.Err()
}

func (r *report) event(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.w, e.Output)
	case "output":
		r.output(key, e)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(key, e)
		} else {
			r.endTest(key, e)
		}
		delete(r.said, key)
	}
}

func (r *report) output(key string, e event) {
	if text, ok := strings.CutPrefix(strings.TrimSpace(e.Output), skipMark); ok {
		r.skipped = append(r.skipped, text)
	}
	switch {
	case e.Test == "" && closing(e.Output):
		fmt.Fprint(r.w, e.Output)
		return
	case r.verbose && !noise(e.Output):
		if _, sub, ok := strings.Cut(e.Test, "/"); ok {
			fmt.Fprint(r.w, sub, ": ")
		}
		fmt.Fprint(r.w, e.Output)
		return
	}
	b := r.said[key]
	if b == nil {
		b = new(strings.Builder)
		r.said[key] = b
	}
	b.WriteString(e.Output)
}

// closing tells whether a line is the last one that go test prints for a package.
func closing(line string) bool {
	return strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "FAIL\t")
}

// noise tells whether a line only says that a test began or passed.
func noise(line string) bool {
	line = strings.TrimLeft(line, " ")
	return strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- PASS: ") || line == "PASS\n"
}

func (r *report) endTest(key string, e event) {
	top := !strings.Contains(e.Test, "/")
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		why := lastWords(r.said[key])
		if strings.Contains(why, longFlag) {
			r.long++
			return
		}
		r.skips++
		if b := r.said[key]; b == nil || !strings.Contains(b.String(), skipMark) {
			r.skipped = append(r.skipped, e.Package+" "+e.Test+why)
		}
	case "fail":
		r.failed++
		if b := r.said[key]; b != nil {
			fmt.Fprintf(r.w, "=== %s %s\n%s", e.Package, e.Test, b)
		}
	}
	if top && e.Elapsed >= slowSeconds {
		r.slow = append(r.slow, timed{e.Package + " " + e.Test, e.Elapsed})
	}
}

// lastWords is the reason that a test gave before it was skipped.
func lastWords(b *strings.Builder) string {
	if b == nil {
		return ""
	}
	words := ""
	for line := range strings.Lines(b.String()) {
		if !noise(line) && !strings.Contains(line, "--- SKIP") {
			words = ": " + strings.TrimSpace(line)
		}
	}
	return words
}

func (r *report) endPackage(key string, e event) {
	if e.Action != "fail" {
		return
	}
	// A panic or a leak is told outside any test that ended; so are tests that
	// never ended.
	for k, b := range r.said {
		if k == key || strings.HasPrefix(k, e.Package+" ") {
			fmt.Fprintf(r.w, "=== %s\n%s", k, b)
			delete(r.said, k)
		}
	}
}

func (r *report) summary() {
	for _, s := range r.skipped {
		fmt.Fprintln(r.w, "skipped:", s)
	}
	slices.SortFunc(r.slow, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	for _, s := range r.slow[:min(len(r.slow), slowest)] {
		fmt.Fprintf(r.w, "slow: %.1f s %s\n", s.seconds, s.name)
	}
	fmt.Fprintf(r.w, "%d passed, %d failed, %d skipped", r.passed, r.failed, r.skips)
	if r.long > 0 {
		fmt.Fprintf(r.w, ", %d left to make soak", r.long)
	}
	fmt.Fprintln(r.w)
}
