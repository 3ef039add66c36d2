//go:build ugds_lab

package guest

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/mmio"
	"github.com/ugds-store/ugds/internal/unix"
)

// TestKexec starts another kernel while two controllers are in full flight and the others
// are bound, as QEMU's firmware has left them: enabled. It does not come back:
// TestNextKernel tells what that kernel finds.
func TestKexec(t *testing.T) {
	for n := range devicesOf(t, classNVMe) {
		address := kdrvAddress(t, n)
		if n >= 2 {
			continue
		}
		c := another("fly", "UGDS_LAB_ADDRESS="+address)
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		waitFor(out, "flying")
	}
	line, err := os.ReadFile("/proc/cmdline")
	kernel, err2 := unix.Open("/next/kernel", unix.ReadOnly, 0)
	initrd, err3 := unix.Open("/next/initrd", unix.ReadOnly, 0)
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	if err := unix.KexecLoad(kernel, initrd, strings.TrimSpace(string(line))); err != nil {
		t.Fatal(err)
	}
	t.Fatalf("the next kernel did not start: %v", unix.KexecReboot())
}

// The command register in the configuration of a PCI function, and its bit that lets it
// reach memory.
const (
	pciCommand = 4
	busMaster  = 1 << 2
)

// TestNextKernel: after a kexec no controller is enabled or may reach memory.
func TestNextKernel(t *testing.T) {
	for _, address := range devicesOf(t, classNVMe) {
		config, err := os.ReadFile(sysPCI + "devices/" + address + "/config")
		if err != nil || config[pciCommand]&busMaster != 0 {
			t.Errorf("%s: bus mastering is on, %v", address, err)
		}
		withRegisters(t, address, func(bar *mmio.BAR) error {
			cc, err := bar.Load32(nvme.RegCC)
			csts, err2 := bar.Load32(nvme.RegCSTS)
			if t.Logf("%s: CC %#x, CSTS %#x", address, cc, csts); cc&1 != 0 || csts&1 != 0 {
				t.Errorf("%s is enabled", address)
			}
			return errors.Join(err, err2)
		})
	}
}
