package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

type target struct{ dir, name string }

var fuzzFunc = regexp.MustCompile(`(?m)^func (Fuzz[A-Z]\w*)\(`)

// fuzzTargets reads the test files of the packages; building the test binaries
// to ask them would take minutes.
func fuzzTargets(packages []string) ([]target, error) {
	args := append([]string{"list", "-f", "{{.Dir}}{{range .TestGoFiles}} {{.}}{{end}}{{range .XTestGoFiles}} {{.}}{{end}}"}, packages...)
	cmd := exec.Command("go", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.Bytes())
	}
	wd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	var found []target
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		for _, file := range fields[1:] {
			data, err := os.ReadFile(filepath.Join(fields[0], file))
			if err != nil {
				return nil, err
			}
			rel, err := filepath.Rel(wd, fields[0])
			if err != nil {
				return nil, err
			}
			for _, m := range fuzzFunc.FindAllSubmatch(data, -1) {
				found = append(found, target{filepath.ToSlash(rel), string(m[1])})
			}
		}
	}
	return found, nil
}
