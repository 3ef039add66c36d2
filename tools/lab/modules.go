package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// moduleIndex finds the modules of a kernel by name. The package has no list of
// dependencies, since that is made when it is installed; each module names what it
// needs.
type moduleIndex map[string]string // name → file

func indexModules(dir string) (moduleIndex, error) {
	idx := moduleIndex{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if name, _, ok := strings.Cut(d.Name(), ".ko"); err == nil && ok && d.Type().IsRegular() {
			idx[moduleName(name)] = p
		}
		return err
	})
	return idx, err
}

// moduleName is the form in which modules name each other.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// add puts a module and what it needs into t, and appends the names to order, in
// which they can be loaded. A name without a file is built into the kernel.
func (idx moduleIndex) add(t tree, order *[]string, name string) error {
	name = moduleName(name)
	file := "mods/" + name + ".ko"
	if _, done := t[file]; done || idx[name] == "" {
		return nil
	}
	data, err := readModule(idx[name])
	if err != nil {
		return fmt.Errorf("module %s: %w", name, err)
	}
	t[file] = treeFile{data: data}
	needs, err := moduleNeeds(data)
	if err != nil {
		return fmt.Errorf("module %s: %w", name, err)
	}
	for _, n := range needs {
		if err := idx.add(t, order, n); err != nil {
			return err
		}
	}
	*order = append(*order, file)
	return nil
}

func readModule(file string) ([]byte, error) {
	switch filepath.Ext(file) {
	case ".xz":
		return exec.Command("xz", "-dc", file).Output()
	case ".zst":
		return exec.Command("zstd", "-qdc", file).Output()
	}
	return os.ReadFile(file)
}

// moduleNeeds reads the names of the modules that a module needs.
func moduleNeeds(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	info := f.Section(".modinfo")
	if info == nil {
		return nil, fmt.Errorf("no .modinfo")
	}
	text, err := info.Data()
	if err != nil {
		return nil, err
	}
	for _, field := range strings.Split(string(text), "\x00") {
		if list, ok := strings.CutPrefix(field, "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
