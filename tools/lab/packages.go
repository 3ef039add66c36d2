package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// programs are what the lab runs, the packages that they come from, and whether only
// the long form needs them.
var programs = []struct {
	program, pkg string
	long         bool
}{
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
func need() error {
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p.program); err != nil && (options.full || !p.long) {
			missing = append(missing, p.pkg)
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
