//go:build ugds_lab

package guest

import (
	"fmt"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/drivertest"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
)

// zeroDisk zeroes the first bytes of disk n behind the controller's back.
func zeroDisk(t testing.TB, n int, bytes int64) {
	t.Helper()
	monitor(t, fmt.Sprintf(`qemu-io d%d "write -z 0 %d"`, n, bytes))
}

// throttle makes the controller n hang after its next command, until it is called
// with false.
func throttle(t testing.TB, n int, on bool) {
	t.Helper()
	bps := 0
	if on {
		bps = 1 // byte a second
	}
	qmp(t, "block_set_io_throttle", map[string]any{"id": fmt.Sprintf("nvme%d", n), "bps": bps,
		"bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": 0})
}

// isolate makes a controller stop: somebody writes to its registers.
func isolate(t testing.TB, d hw.Device) {
	if err := d.Store32(nvme.RegCC, 0); err != nil {
		t.Error(err)
	}
}

// TestDevice runs the contract's suite on the controller.
func TestDevice(t *testing.T) {
	for _, mode := range []ctrl.Mode{ctrl.Polled, ctrl.Interrupts, ctrl.Hybrid} {
		t.Run(mode.String(), func(t *testing.T) {
			drivertest.Run(t, func(t *testing.T) drivertest.Harness {
				zeroDisk(t, 0, drivertest.MinCapacity)
				dev := openHW(t, nth(t, classNVMe, 0))
				d, err := ctrl.Open(soon(t), dev, ctrl.Options{Mode: mode, Watch: 5 * time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := d.Close(soon(t)); err != nil {
						t.Errorf("close: %v", err)
					}
				})
				return drivertest.Harness{Dev: d, Isolate: func() { isolate(t, dev) },
					Hold: func(on bool) { throttle(t, 0, on) }}
			})
		})
	}
}
