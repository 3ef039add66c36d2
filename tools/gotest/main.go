// Command gotest runs go test and prints what a person needs: the closing line
// of each package, everything a failed test said, the tests that were skipped,
// with a count, and the slowest ones.
//
//	gotest [-v] [go test flags] packages...
//	gotest -fuzz-for 4m packages...
//	gotest -fuzz-each 30s packages...
//
// The second form runs every fuzz target of the packages one after the other,
// each for its share of the time that the builds leave; the third gives each that
// time. The exit status is that of the tests.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"
)

func main() {
	args := os.Args[1:]
	if len(args) > 1 && (args[0] == "-fuzz-for" || args[0] == "-fuzz-each") {
		d, err := time.ParseDuration(args[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, "gotest:", err)
			os.Exit(2)
		}
		end := time.Now().Add(d)
		each := func(int) time.Duration { return d }
		if args[0] == "-fuzz-for" {
			each = func(targets int) time.Duration { return share(time.Until(end), targets) }
		}
		os.Exit(fuzz(each, args[2:]))
	}
	verbose := len(args) > 0 && args[0] == "-v"
	if verbose {
		args = args[1:]
	}
	os.Exit(test(verbose, args))
}

// test runs go test with args and reports in its own words.
func test(verbose bool, args []string) int {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = start(cmd)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		return 2
	}
	r := newReport(os.Stdout, verbose)
	readErr := r.read(out)
	err = cmd.Wait()
	r.summary()
	switch {
	case err != nil:
		return 1
	case readErr != nil:
		fmt.Fprintln(os.Stderr, "gotest:", readErr)
		return 2
	case r.skips > 0 && os.Getenv("UGDS_NO_SKIP") == "1":
		fmt.Println("FAIL: tests were skipped although UGDS_NO_SKIP=1")
		return 1
	}
	return 0
}

// start runs cmd and lets it end by itself on an interrupt, which the terminal
// sends to it too.
func start(cmd *exec.Cmd) error {
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM)
	return cmd.Start()
}

// minFuzz is the least time of one target, whatever the builds took.
const minFuzz = 5 * time.Second

// share is the time of one of several targets that have left together.
func share(left time.Duration, targets int) time.Duration {
	return max(left/time.Duration(targets), minFuzz).Round(time.Second)
}

// fuzz builds the test binaries, which takes minutes when instrumented code is
// not cached yet, and then runs each target for the time that each says, given how
// many there are. Inputs are not made shorter meanwhile: from an empty cache that took
// most of the time, and a finding can be made shorter later.
func fuzz(each func(targets int) time.Duration, packages []string) int {
	targets, err := fuzzTargets(packages)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		return 2
	}
	if len(targets) == 0 {
		fmt.Println("FAIL: no fuzz target found")
		return 1
	}
	built := ""
	for _, t := range targets {
		if t.dir == built {
			continue
		}
		built = t.dir
		if text, err := exec.Command("go", "test", "-c", "-o", os.DevNull, "-fuzz=.", "./"+t.dir).CombinedOutput(); err != nil {
			fmt.Printf("%sFAIL: build of %s: %v\n", text, t.dir, err)
			return 1
		}
	}
	long := each(len(targets))
	fmt.Printf("%d fuzz targets, %v each\n", len(targets), long)
	code := 0
	for _, t := range targets {
		fmt.Printf("--- %s %s\n", t.dir, t.name)
		cmd := exec.Command("go", "test", "-run=^$", "-fuzz=^"+t.name+"$", "-fuzztime="+long.String(), "-fuzzminimizetime=0x", "./"+t.dir)
		text, err := cmd.CombinedOutput()
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		switch {
		case err != nil && endOfTime(string(text)):
			fmt.Println("the end of the time was told as a failure (golang/go issue 75804): no finding")
		case err != nil:
			code = 1
		case len(lines) > 3:
			lines = lines[len(lines)-3:]
		}
		fmt.Println(strings.Join(lines, "\n"))
	}
	return code
}

// bareDeadline is all that go test says of a target that failed without an input that
// fails.
var bareDeadline = regexp.MustCompile(`(?m)^--- FAIL: \w+ \([\d.]+s\)\n    context deadline exceeded\nFAIL$`)

// endOfTime tells that go test took the end of -fuzztime for a failure, as it does once
// in a while before Go 1.27. A finding is written to a file, and that is said.
func endOfTime(text string) bool {
	return bareDeadline.MatchString(text) && !strings.Contains(text, "Failing input")
}
