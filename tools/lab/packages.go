package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// tool is a program, or a file by its whole path, the package that it comes from, and
// whether only the long form needs it.
type tool struct {
	program, pkg string
	long         bool
}

// there tells whether it is installed.
func (t tool) there() bool {
	if filepath.IsAbs(t.program) {
		_, err := os.Stat(t.program)
		return err == nil
	}
	_, err := exec.LookPath(t.program)
	return err == nil
}

// programs are what the lab runs.
var programs = []tool{
	{"qemu-system-x86_64", "qemu-system-x86", false},
	{"busybox", "busybox-static", false},
	{"xz", "xz-utils", false},
	{"mkfs.ext4", "e2fsprogs", false},
	{"make", "make", false},
	{"gcc", "gcc", false},
	{"perl", "perl", true},
	{"sparse", "sparse", true},
}

// need installs what is missing. Only the superuser can; others are told.
func need(tools []tool) error {
	var missing []string
	for _, t := range tools {
		if !t.there() && (options.full || !t.long) {
			missing = append(missing, t.pkg)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	install := append([]string{"-qq", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends"}, missing...)
	if os.Geteuid() != 0 {
		return fmt.Errorf("missing %s: run as root, apt-get install %s", strings.Join(missing, " "), strings.Join(missing, " "))
	}
	say("install %s", strings.Join(missing, " "))
	for _, args := range [][]string{{"-qq", "update"}, install} {
		cmd := exec.Command("apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}
