//go:build ugds_lab

package guest

import (
	"errors"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/hwtest"
	"github.com/ugds-store/ugds/driver/nvme"
)

// TestSeam runs the suite of the hardware seam. What the device sees of
// memory is seen with the controller's own reads and writes.
func TestSeam(t *testing.T) {
	expectFaults(t)
	for _, c := range hwtest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			d := openHW(t, nth(t, classNVMe, 0))
			defer func() {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}()
			var r *raw // its memory stays, so that it is never at an address that was given back
			h := hwtest.Harness{Dev: d, Valid64: nvme.RegCAP, Window: window(d), Soon: time.Minute}
			h.Access = func(addr uint64, p []byte, write bool) error {
				if r == nil {
					r = newRaw(t, d)
				}
				return errors.Join(r.up(), r.access(addr, p, write), r.disable())
			}
			defer func() {
				if r != nil {
					r.free()
				}
			}()
			if r, ok := d.(interface{ Raise(n int) error }); ok {
				h.Raise = func(n int) {
					if err := r.Raise(n); err != nil {
						t.Error(err)
					}
				}
			}
			c.Run(t, h)
		})
	}
}

// window is the size of the register window.
func window(d hw.Device) uint64 {
	if s, ok := d.(interface{ Window() uint64 }); ok {
		return s.Window()
	}
	return 2 * hw.PageSize
}
