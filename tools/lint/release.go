package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

// Package is what go list says about one package.
type Package struct {
	ImportPath string
	Deps       []string
}

// GoList asks the go command for the programs under cmd and what they link.
func GoList(root string) ([]Package, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Deps", "./cmd/...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.Bytes())
	}
	var pkgs []Package
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p Package
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		pkgs = append(pkgs, p)
	}
}

// CheckRelease looks at whole programs: none links a test library, directly or
// through another package.
func CheckRelease(pkgs []Package) []Finding {
	r := report{rule: "release"}
	if len(pkgs) == 0 {
		r.add("cmd", 0, "no program to check")
	}
	for _, p := range pkgs {
		for _, bad := range testLibraries {
			if slices.Contains(p.Deps, Module+"/"+bad) {
				r.add(strings.TrimPrefix(p.ImportPath, Module+"/"), 0, "links %s, which is for tests", bad)
			}
		}
	}
	return r.found
}
