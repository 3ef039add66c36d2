package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// covered is what the tests of all guests have run: how often each block of the code
// was, by its line in a cover profile without the count.
type covered map[string]int

// coverMode is the first line of a profile.
const coverMode = "mode: set"

// add takes one line of a profile: "file:from,to statements count".
func (c covered) add(line string) {
	at := strings.LastIndexByte(line, ' ')
	if at < 0 || !strings.Contains(line[:at], ":") {
		return
	}
	if n, err := strconv.Atoi(line[at+1:]); err == nil {
		c[line[:at]] = max(c[line[:at]], n)
	}
}

// write makes a profile for go tool cover, and tells the share of the statements that
// were run, in percent.
func (c covered) write(file string) (percent float64, err error) {
	lines := []string{}
	all, run := 0, 0
	for block, n := range c {
		lines = append(lines, fmt.Sprintf("%s %d", block, n))
		statements, _ := strconv.Atoi(block[strings.LastIndexByte(block, ' ')+1:])
		if all += statements; n > 0 {
			run += statements
		}
	}
	slices.Sort(lines)
	err = os.WriteFile(file, []byte(coverMode+"\n"+strings.Join(lines, "\n")+"\n"), 0o644)
	return 100 * float64(run) / float64(max(all, 1)), err
}
