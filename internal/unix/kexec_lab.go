//go:build ugds_lab

package unix

import "golang.org/x/sys/unix"

// KexecLoad loads a kernel and its RAM disk, for the next reboot with KexecReboot. Only
// the guests of the laboratory do that.
func KexecLoad(kernel, initrd *FD, cmdline string) error {
	return unix.KexecFileLoad(kernel.Int(), initrd.Int(), cmdline, 0)
}

// KexecReboot starts the kernel that was loaded. It returns only with an error.
func KexecReboot() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_KEXEC) }
