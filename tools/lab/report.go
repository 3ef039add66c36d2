package main

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// result is what a boot has shown.
type result struct {
	passed, failed int
	skipped        []string
	faults         []string // what is wrong beside failed tests, one a line
	cover          []string // lines of cover profiles
}

func (r *result) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// ok tells whether all is as it should be.
func (r *result) ok() bool { return r.failed == 0 && len(r.faults) == 0 }

var verdictLine = regexp.MustCompile(`^(\s*)--- (PASS|FAIL|SKIP): (\S+) \(([0-9.]+)s\)`)

// reader goes through what the guest wrote.
type reader struct {
	result
	out     io.Writer // what a person should see
	suite   string    // "" between suites
	said    []string  // of the top-level test that runs
	inLog   bool
	inCover bool
	log     []string
	marks   map[string]bool
	ending  string
}

// read judges the output of a guest with the given suites.
func read(text string, suites []suite, out io.Writer) *result {
	r := &reader{out: out, marks: map[string]bool{}}
	for line := range strings.SplitSeq(text, "\n") {
		r.line(strings.TrimRight(line, "\r"))
	}
	if r.suite != "" {
		r.dump()
		r.fault("suite %s did not end", r.suite)
	}
	for _, s := range suites {
		if !r.marks[s.name] {
			r.fault("suite %s did not run", s.name)
		}
	}
	if !r.marks[markDone] {
		r.fault("the guest was not done")
	}
	r.faults = append(r.faults, kernelFaults(r.log)...)
	return &r.result
}

func (r *reader) line(line string) {
	switch {
	case strings.HasPrefix(line, markSuite):
		r.suite, r.said, r.ending = strings.TrimPrefix(line, markSuite), nil, ""
		r.marks[r.suite] = true
	case strings.HasPrefix(line, markEnd):
		r.endSuite(strings.TrimPrefix(line, markEnd))
	case line == markCover:
		r.inCover = true
	case line == markLog:
		r.inLog, r.inCover = true, false
	case line == markDone:
		r.marks[markDone], r.inLog = true, false
	case strings.HasPrefix(line, "insmod "):
		r.fault("%s", line)
	case r.inCover:
		r.cover = append(r.cover, line)
	case r.inLog:
		r.log = append(r.log, line)
	case r.suite != "":
		r.testLine(line)
	}
}

func (r *reader) testLine(line string) {
	if strings.HasPrefix(line, "=== RUN ") && !strings.Contains(line, "/") {
		r.said = nil
	}
	r.said = append(r.said, line)
	if reason, ok := strings.CutPrefix(strings.TrimSpace(line), "SKIP-COUNTED: "); ok {
		r.skipped = append(r.skipped, r.suite+" "+reason)
	}
	if line == "PASS" || line == "FAIL" {
		r.ending = line
	}
	m := verdictLine.FindStringSubmatch(line)
	if m == nil {
		return
	}
	switch m[2] {
	case "PASS":
		r.passed++
	case "FAIL":
		r.failed++
		if m[1] == "" { // the lines of its subtests follow
			r.dump()
		}
	}
}

// dump shows what a test said.
func (r *reader) dump() {
	fmt.Fprintf(r.out, "=== %s\n%s\n", r.suite, strings.Join(r.said, "\n"))
	r.said = nil
}

func (r *reader) endSuite(text string) {
	name, code, _ := strings.Cut(text, " ")
	if status, err := strconv.Atoi(code); err != nil || status != 0 || r.ending != "PASS" {
		r.dump()
		r.fault("suite %s ended with status %s", name, code)
	}
	r.suite = ""
}

// Marks that a test writes to the kernel's log around faults that it causes: what
// matches the expression is expected between them.
const (
	markExpect  = "ugds-lab: expect "
	markNoMore  = "ugds-lab: no more"
	faultMemory = "DMAR: .*fault|DMAR: DRHD: handling fault"
)

// kernelTrouble is what must not stand in a kernel's log.
var kernelTrouble = regexp.MustCompile(`WARNING: |BUG: |Oops|general protection|kernel panic|Kernel panic|` +
	`unable to handle|use-after-free|refcount_t: |INFO: trying to register|hung_task|blocked for more than|` + faultMemory)

// kernelFaults lists the lines of a kernel's log that no test has expected.
func kernelFaults(log []string) (out []string) {
	var expected *regexp.Regexp
	for _, line := range log {
		if _, text, ok := strings.Cut(line, markExpect); ok {
			expected, _ = regexp.Compile(text)
			continue
		}
		if strings.Contains(line, markNoMore) {
			expected = nil
			continue
		}
		if kernelTrouble.MatchString(line) && (expected == nil || !expected.MatchString(line)) {
			out = append(out, "kernel log: "+line)
		}
	}
	if len(log) == 0 {
		out = append(out, "the kernel's log is missing")
	}
	return out
}
