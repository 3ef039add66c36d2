//go:build ugds_lab

package guest

import (
	"errors"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/kdrv"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/mmio"
	"github.com/ugds-store/ugds/internal/unix"
)

// busErrors are what the port above a controller can report, in QEMU's words.
var busErrors = map[string]string{"fatal": "DLP", "not fatal": "COMP_TIME"}

// portSSD is the controller below a port that reports them.
const portSSD = 4

// busError has the port above that controller report an error, which the kernel hands
// to the drivers below it. After a fatal one it resets the bus there.
func busError(t testing.TB, what string) {
	t.Helper()
	if said := monitor(t, "pcie_aer_inject_error port0 "+what); !strings.HasPrefix(said, "OK") {
		t.Fatalf("QEMU: %s", said)
	}
}

// TestKdrvBusError: an error of the PCI bus cuts the controller off, in full flight;
// after a reset by its owner it works. Twice, and after a reset by others, since some
// kernels forget what they had saved of the function with each.
func TestKdrvBusError(t *testing.T) {
	for name, what := range busErrors {
		t.Run(name, func(t *testing.T) {
			const n = portSSD
			d, _ := openCtrl(t, n, ctrl.Options{Watch: 2 * time.Millisecond})
			own := region(t, base.MiB, 1)
			reset := func() {
				eventually(t, "isolated", func() bool { return d.State() == driver.StateIsolated })
				if err := d.Reset(soon(t)); err != nil {
					t.Fatal(err)
				}
				do(t, d, move(driver.OpRead, 0, own.Seg(0, base.MiB)))
			}
			writeSys(t, sysPCI+"devices/"+nth(t, classNVMe, n)+"/reset", "1")
			reset()
			for range 2 {
				var wg sync.WaitGroup
				wg.Go(func() {
					for d.State() == driver.StateReady {
						_ = driver.Do(soon(t), d, move(driver.OpRead, 0, own.Seg(0, base.MiB)))
					}
				})
				busError(t, what)
				wg.Wait()
				reset()
			}
		})
	}
}

// TestKdrvBusErrorNotice: the owner learns that it was the bus, and an owner that stops
// the controller while the kernel still resets the bus finds it again afterwards.
func TestKdrvBusErrorNotice(t *testing.T) {
	d := kdrvOpen(t, portSSD)
	for name, what := range busErrors {
		if err := d.Start(soon(t)); err != nil {
			t.Fatal(err)
		}
		busError(t, what)
		if n := notice(t, d); n != hw.NoticeStopped {
			t.Fatalf("%s: %v", name, n)
		}
		if _, err := d.Load32(nvme.RegCSTS); !errors.Is(err, base.ErrIsolated) || !strings.Contains(err.Error(), "the bus reported an error") {
			t.Errorf("%s: %v", name, err)
		}
		if err := d.Stop(soon(t)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if v, err := d.Load64(nvme.RegCAP); err != nil || v == 0 || v == ^uint64(0) {
			t.Errorf("%s: registers %#x, %v", name, v, err)
		}
		r := newRaw(t, d)
		own := allocBuffer(t, d, rawChunk)
		if err := errors.Join(d.Start(soon(t)), r.up(), r.access(own.Addr, scratch(rawChunk), true), r.disable()); err != nil {
			t.Errorf("%s: afterwards: %v", name, err)
		}
		own.Free()
		r.free()
		if err := d.Stop(soon(t)); err != nil {
			t.Error(err)
		}
	}
}

// TestKdrvBusErrorStart: an owner that starts a stopped controller while the kernel resets
// the bus gets one that works, not one from which the end of the recovery takes bus
// mastering. When the start was before the kernel heard of the error, it is cut off, once.
func TestKdrvBusErrorStart(t *testing.T) {
	d := kdrvOpen(t, portSSD)
	use := func() error {
		r := newRaw(t, d)
		own := allocBuffer(t, d, rawChunk)
		err := errors.Join(d.Start(soon(t)), r.up(), r.access(own.Addr, scratch(rawChunk), true), r.disable(), d.Stop(soon(t)))
		own.Free()
		r.free()
		return err
	}
	for round := range 4 {
		busError(t, busErrors["fatal"])
		time.Sleep(time.Duration(round) * 20 * time.Millisecond)
		err := use()
		if errors.Is(err, base.ErrIsolated) {
			err = use()
		}
		if err != nil {
			t.Errorf("%d: %v", round, err)
		}
	}
}

func allocBuffer(t testing.TB, d hw.Device, n int64) *hw.Buffer {
	t.Helper()
	b, err := d.Alloc(n, "lab")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestKdrvNoSuspend: the machine does not go to sleep while a controller is open, and
// its I/O goes on.
func TestKdrvNoSuspend(t *testing.T) {
	d, _ := openCtrl(t, 0, ctrl.Options{})
	own := region(t, base.MiB, 1)
	do(t, d, move(driver.OpRead, 0, own.Seg(0, base.MiB)))
	if err := os.WriteFile("/sys/power/state", []byte("freeze"), 0); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("suspend: %v", err)
	}
	do(t, d, move(driver.OpRead, 0, own.Seg(0, base.MiB)))
}

// withRegisters does something with the registers of a controller that has no driver.
func withRegisters(t testing.TB, address string, f func(bar *mmio.BAR) error) {
	t.Helper()
	dir := sysPCI + "devices/" + address
	writeSys(t, dir+"/enable", "1")
	defer writeSys(t, dir+"/enable", "0")
	file, err := unix.Open(dir+"/resource0", unix.ReadWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	bar, err := mmio.Map(file, 0, 2*hw.PageSize, address)
	if err == nil {
		err = errors.Join(f(bar), bar.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// registers are those of a controller, by a driver or without one.
type registers interface {
	Load32(off uint64) (uint32, error)
	Store32(off uint64, v uint32) error
	Store64(off, v uint64) error
}

// enable has the controller become ready, with queues who knows where.
func enable(t testing.TB, r registers) error {
	t.Helper()
	err := errors.Join(r.Store64(nvme.RegASQ, 0x100000), r.Store64(nvme.RegACQ, 0x101000),
		r.Store32(nvme.RegAQA, uint32(nvme.MakeAQA(rawEntries, rawEntries))), r.Store32(nvme.RegCC, 4<<20|6<<16|1))
	eventually(t, "it is enabled", func() bool {
		csts, err := r.Load32(nvme.RegCSTS)
		return err == nil && csts&1 == 1
	})
	return err
}

func wantDisabled(t testing.TB, r registers) {
	t.Helper()
	cc, err := r.Load32(nvme.RegCC)
	csts, err2 := r.Load32(nvme.RegCSTS)
	if err := errors.Join(err, err2); err != nil || cc&1 != 0 || csts&1 != 0 {
		t.Errorf("CC %#x, CSTS %#x, %v", cc, csts, err)
	}
}

// TestKdrvLeftEnabled: a controller that somebody has left enabled is disabled when its
// next owner gets it.
func TestKdrvLeftEnabled(t *testing.T) {
	address := kdrvAddress(t, 1)
	writeSys(t, sysPCI+"drivers/"+kdrv.Module+"/unbind", address)
	withRegisters(t, address, func(bar *mmio.BAR) error { return enable(t, bar) })
	wantDisabled(t, kdrvOpen(t, 1))
}

// TestKdrvStartEnabled: nor does it reach memory again as long as it is enabled. One that
// did not obey was stopped by the end of bus mastering alone, and its memory given back.
func TestKdrvStartEnabled(t *testing.T) {
	d := kdrvOpen(t, 1)
	if err := enable(t, d); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	wantDisabled(t, d)
}
