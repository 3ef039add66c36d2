package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ownModules are the modules of this repository, and the files that kmod's build
// makes of them.
var ownModules = map[string]string{"ugds": "ugds.ko", "ugds_fakegpu": "test/ugds_fakegpu.ko"}

// addOwn builds the repository's module and the one that plays a GPU for the guest's
// kernel, once, and puts them into t. A warning of the compiler is a failure.
func (b *builder) addOwn(t tree, order *[]string) error {
	dir := filepath.Join(b.tmp, "kmod")
	if _, err := os.Stat(dir); err != nil {
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(b.root, "kmod"))); err != nil {
			return err
		}
		cmd := exec.Command("make", "-C", dir, "KDIR="+b.kernel.Headers, "UGDS_TEST=m", "W=1", "modules")
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), "warning:") {
			return fmt.Errorf("build kmod: %w\n%s", err, out)
		}
	}
	for _, name := range []string{"ugds", "ugds_fakegpu"} {
		data, err := os.ReadFile(filepath.Join(dir, ownModules[name]))
		if err != nil {
			return err
		}
		needs, err := moduleNeeds(data)
		if err != nil {
			return err
		}
		for _, n := range needs {
			if err := b.mods.add(t, order, n); err != nil {
				return err
			}
		}
		file := "mods/" + name + ".ko"
		t[file] = treeFile{data: data}
		*order = append(*order, file)
	}
	return nil
}
