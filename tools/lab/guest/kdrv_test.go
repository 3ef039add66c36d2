//go:build ugds_lab

package guest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/hw/hwtest"
	"github.com/ugds-store/ugds/driver/hw/kdrv"
	"github.com/ugds-store/ugds/driver/nvme"
)

// kdrvBound binds the nth controller to the module and gives its address.
func kdrvBound(t testing.TB, n int) string {
	t.Helper()
	address := devicesOf(t, classNVMe)[n]
	dir := "/sys/bus/pci/devices/" + address
	if to, err := os.Readlink(dir + "/driver"); err == nil && filepath.Base(to) == kdrv.Module {
		return address
	}
	for _, w := range [][2]string{{dir + "/driver_override", kdrv.Module}, {"/sys/bus/pci/drivers_probe", address}} {
		if err := os.WriteFile(w[0], []byte(w[1]), 0); err != nil {
			t.Fatal(err)
		}
	}
	return address
}

// kdrvOpen opens the nth controller through the module.
func kdrvOpen(t testing.TB, n int) *kdrv.Device {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	d, err := kdrv.Open(ctx, kdrvBound(t, n))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestKdrvConformance runs the suite of the seam.
func TestKdrvConformance(t *testing.T) {
	for _, c := range hwtest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			d := kdrvOpen(t, 0)
			t.Log(d.Describe())
			h := hwtest.Harness{Dev: d, Valid64: nvme.RegCAP, Window: d.Window()}
			address := devicesOf(t, classNVMe)[0]
			h.Remove = func() {
				if err := os.WriteFile("/sys/bus/pci/devices/"+address+"/remove", []byte("1"), 0); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0); err != nil {
						t.Error(err)
					}
				})
			}
			c.Run(t, h)
		})
	}
}
