package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// styleScripts are what of the kernel's source its checker of style consists of.
var styleScripts = []string{"checkpatch.pl", "spelling.txt", "const_structs.checkpatch"}

// styleChecker gives the kernel's checker of style. Debian has it in the package of the
// whole source only, so that it is kept in the cache by itself.
func (b *builder) styleChecker() (string, error) {
	b.archive.Lock()
	defer b.archive.Unlock()
	dir := filepath.Join(b.cache, "checkpatch-"+series)
	script := filepath.Join(dir, "checkpatch.pl")
	if _, err := os.Stat(script); err == nil {
		return script, nil
	}
	apt, err := newPrivateApt(filepath.Join(b.cache, "apt"))
	if err == nil {
		err = apt.run("update")
	}
	if err != nil {
		return "", err
	}
	name := "linux-source-" + series
	say("%s: download for its scripts/checkpatch.pl", name)
	source := filepath.Join(b.tmp, name)
	if err := apt.fetch([]string{name}, source); err != nil {
		return "", err
	}
	defer os.RemoveAll(source)
	part := dir + ".part"
	if err := os.MkdirAll(part, 0o755); err != nil {
		return "", err
	}
	// With --occurrence tar stops when it has them all.
	args := []string{"-xf", filepath.Join(source, "usr/src", name+".tar.xz"), "-C", part, "--strip-components=2", "--occurrence"}
	for _, s := range styleScripts {
		args = append(args, name+"/scripts/"+s)
	}
	if out, err := exec.Command("tar", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpack %s: %w\n%s", name, err, out)
	}
	return script, os.Rename(part, dir)
}

// notStyle are kinds of remarks that do not apply here: headers for user space have no
// BIT(), and trace events have a form of their own.
const notStyle = "BIT_MACRO,OPEN_ENDED_LINE,PARENTHESIS_ALIGNMENT"

// checkStyle runs the kernel's checker of style on kmod, at its strictest. Whatever else it
// says is a failure.
func (b *builder) checkStyle() error {
	script, err := b.styleChecker()
	if err != nil {
		return err
	}
	var files []string
	dir := filepath.Join(b.root, "kmod")
	err = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, path); strings.HasSuffix(path, ".c") || strings.HasSuffix(path, ".h") {
			files = append(files, rel)
		}
		return err
	})
	if err != nil {
		return err
	}
	cmd := exec.Command("perl", append([]string{script, "--no-tree", "--strict", "--terse", "--show-types", "--quiet", "--no-summary", "--ignore", notStyle, "-f"}, files...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		return fmt.Errorf("checkpatch.pl: %v\n%s", err, out)
	}
	return nil
}
