//go:build ugds_lab

package guest

import (
	"os"
	"syscall"
	"testing"

	"github.com/ugds-store/ugds/driver/hw/kdrv"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/unix"
)

// TestLockdown: once the kernel is locked down, which it stays, nobody gets a controller
// that reaches all memory, not even the superuser, and "ugdsctl check" says why.
func TestLockdown(t *testing.T) {
	const security = "/sys/kernel/security"
	if _, err := os.Stat(security + "/lockdown"); err != nil {
		if err := syscall.Mount("security", security, "securityfs", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	wantFinding(t, checked(t), "lockdown", probe.Good, "off", "")
	address := kdrvAddress(t, healthySSD)
	d, err := kdrv.Open(soon(t), address)
	if err != nil {
		t.Fatal(err)
	}
	translated := d.ID().IOMMU
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	writeSys(t, security+"/lockdown", "integrity")
	wantFinding(t, checked(t), "lockdown", probe.Fallback, "integrity", "IOMMU")
	d, err = kdrv.Open(soon(t), address)
	if err == nil {
		_ = d.Close()
	}
	if translated && err != nil || !translated && unix.ErrnoOf(err) != unix.EACCES {
		t.Errorf("open of a controller, translated %v: %v", translated, err)
	}
	t.Log(err)
}
