//go:build ugds_lab

package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// Controllers by their place in the machine; see tools/lab/shapes.go.
const (
	healthySSD = 0
	badSSD     = 2
	slotSSD    = 3

	badRead  = 8192 * 512 // bytes
	badWrite = 16384 * 512
)

// TestDeviceMediaError: a block that cannot be read, or written, fails its request with
// the controller's status and where it happened, and nothing else.
func TestDeviceMediaError(t *testing.T) {
	d, _ := openCtrl(t, badSSD, ctrl.Options{})
	r := region(t, 64*base.KiB, 1)
	for _, c := range []struct {
		op   driver.Op
		at   int64
		want nvme.Status
	}{{driver.OpRead, badRead, nvme.StatusUnrecoveredRead}, {driver.OpWrite, badWrite, nvme.StatusWriteFault}} {
		req := func(off int64) driver.Request {
			return driver.Request{Op: c.op, Off: off, Len: 4096, Segs: []driver.Seg{r.Seg(0, 4096)}}
		}
		b := driver.Batch{Reqs: []driver.Request{req(c.at - 4096), req(c.at), req(c.at + 4096)}}
		if err := errors.Join(d.Submit(soon(t), &b), b.Wait(soon(t))); err != nil {
			t.Fatal(err)
		}
		var status *nvme.StatusError
		if err := b.Reqs[1].Err; !errors.As(err, &status) || status.Status.Code() != c.want.Code() || b.Reqs[1].Done != 0 {
			t.Errorf("%v of the bad block: %v, %d bytes done", c.op, err, b.Reqs[1].Done)
		}
		for _, i := range []int{0, 2} {
			if q := b.Reqs[i]; q.Err != nil || q.Done != 4096 {
				t.Errorf("%v beside the bad block: %v, %d bytes done", c.op, q.Err, q.Done)
			}
		}
	}
	if s := d.Stats(); d.State() != driver.StateReady || s.Errors != 2 {
		t.Errorf("%v, %+v", d.State(), s)
	}
	roundTrip(t, d, 0, 64*base.KiB, 2)
}

// TestDeviceFailedFlush: a flush that fails isolates the device; a reset brings it back.
func TestDeviceFailedFlush(t *testing.T) {
	d, _ := openCtrl(t, badSSD, ctrl.Options{})
	if !d.Info().VolatileCache {
		t.Fatal("the controller says that it has no cache")
	}
	before := d.Incarnation()
	wantErr(t, "flush", driver.Flush(soon(t), d), base.ErrIsolated)
	if d.State() != driver.StateIsolated || d.Incarnation() != before+1 {
		t.Errorf("%v, incarnation %d", d.State(), d.Incarnation())
	}
	if err := d.Reset(soon(t)); err != nil {
		t.Fatal(err)
	}
	roundTrip(t, d, 0, 64*base.KiB, 3)
}

// TestDeviceHangs: commands that never end. A caller's deadline ends its wait and
// nothing else (I4); the device's own isolates it; then memory is given back, once, and
// after a reset the device works again.
func TestDeviceHangs(t *testing.T) {
	d, _ := openCtrl(t, healthySSD, ctrl.Options{Watch: 5 * time.Millisecond, Deadline: ctrl.Deadlines{ReadWrite: 4 * time.Second}})
	roundTrip(t, d, 0, base.MiB, 4)
	throttle(t, healthySSD, true)
	defer throttle(t, healthySSD, false)
	r := region(t, 32*base.KiB, 6)
	var b driver.Batch
	for i := range int64(8) {
		b.Reqs = append(b.Reqs, driver.Request{Op: driver.OpWrite, Off: 8*base.MiB + i*4096, Len: 4096, Segs: []driver.Seg{r.Seg(i*4096, 4096)}})
	}
	if err := d.Submit(soon(t), &b); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "wait", b.Wait(within(t, 50*time.Millisecond)), base.ErrTimeout)
	wantErr(t, "close of the region", r.Close(), base.ErrBusy)
	wantErr(t, "close", d.Close(within(t, 50*time.Millisecond)), base.ErrBusy)
	if d.State() != driver.StateReady {
		t.Errorf("a caller's deadline made the device %v", d.State())
	}
	if err := b.Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
	for i := range b.Reqs {
		wantErr(t, "entry", b.Reqs[i].Err, base.ErrIsolated)
	}
	wantErr(t, "cause", b.Reqs[0].Err, base.ErrTimeout)
	if d.State() != driver.StateIsolated || d.Incarnation() != 1 || r.InFlight() != 0 {
		t.Errorf("%v, incarnation %d, %d holds", d.State(), d.Incarnation(), r.InFlight())
	}
	throttle(t, healthySSD, false)
	if err := d.Reset(soon(t)); err != nil {
		t.Fatal(err)
	}
	roundTrip(t, d, 8*base.MiB, base.MiB, 7)
}

// TestDeviceFatal: a controller that cannot reach its queues any more reports a fatal
// state, without a completion (CSTS.CFS).
func TestDeviceFatal(t *testing.T) {
	expectFaults(t)
	address := nth(t, classNVMe, healthySSD)
	// With doorbells in memory QEMU would not notice that it cannot read them.
	d, dev := openCtrl(t, healthySSD, ctrl.Options{Watch: 5 * time.Millisecond, NoShadow: true})
	r := region(t, 4096, 8)
	setMaster(t, address, false)
	b := driver.Batch{Reqs: []driver.Request{read(0, r)}}
	if err := errors.Join(d.Submit(soon(t), &b), b.Wait(soon(t))); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "read", b.Err(), base.ErrIsolated)
	t.Log(b.Err())
	if v, err := dev.Load32(nvme.RegCSTS); err != nil || d.State() != driver.StateIsolated {
		t.Errorf("%v, CSTS %#x, %v", d.State(), v, err)
	}
	setMaster(t, address, true)
	if err := d.Reset(soon(t)); err != nil {
		t.Fatal(err)
	}
	roundTrip(t, d, 0, base.MiB, 9)
}

// setMaster switches bus mastering behind everybody's back.
func setMaster(t testing.TB, address string, on bool) {
	t.Helper()
	f, err := os.OpenFile(sysPCI+"devices/"+address+"/config", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [2]byte
	if _, err := f.ReadAt(b[:], 4); err != nil {
		t.Fatal(err)
	}
	b[0] &^= 4
	if on {
		b[0] |= 4
	}
	if _, err := f.WriteAt(b[:], 4); err != nil {
		t.Fatal(err)
	}
}

// TestDeviceEvents: the controller reports a warning by itself, and health shows it.
func TestDeviceEvents(t *testing.T) {
	d, _ := openCtrl(t, healthySSD, ctrl.Options{Watch: 5 * time.Millisecond})
	if h, err := d.Health(soon(t)); err != nil || !h.OK || d.Warning() != "" {
		t.Fatalf("%+v, %v, %q", h, err, d.Warning())
	}
	warn := func(bits int) {
		qmp(t, "qom-set", map[string]any{"path": "/machine/peripheral/nvme0", "property": "smart_critical_warning", "value": bits})
	}
	warn(4) // reliability is degraded
	defer warn(0)
	eventually(t, "the event", func() bool { return d.Warning() != "" })
	t.Log(d.Warning())
	if h, err := d.Health(soon(t)); err != nil || h.OK || h.Critical == "" {
		t.Errorf("%+v, %v", h, err)
	}
}

var unplugRounds = flag.Int("unplug-rounds", 10, "how often a controller is pulled out and put back")

// TestLongUnplug: somebody asks for the device while it is in use. What is in flight
// ends, the device is closed, and when it comes back it has what was written.
func TestLongUnplug(t *testing.T) {
	for i := range *unplugRounds {
		if !t.Run(fmt.Sprint(i), unplug) {
			return
		}
	}
}

func unplug(t *testing.T) {
	before, address := len(devicesOf(t, classNVMe)), nth(t, classNVMe, slotSSD)
	d, _ := openCtrl(t, slotSSD, ctrl.Options{Watch: 5 * time.Millisecond})
	from := region(t, base.MiB, 10)
	do(t, d, write(0, from))
	if err := driver.Flush(soon(t), d); err != nil {
		t.Fatal(err)
	}
	loop, r, ctx := make(chan error, 1), region(t, 64*base.KiB, 12), within(t, 3*time.Minute)
	go func() {
		var err error
		for err == nil {
			err = driver.Do(ctx, d, read(0, r))
		}
		loop <- err
	}()
	time.Sleep(50 * time.Millisecond)
	qmp(t, "device_del", map[string]any{"id": "nvme3"})
	select {
	case err := <-loop:
		wantErr(t, "the reader", err, base.ErrDeviceGone)
	case <-time.After(2 * time.Minute):
		t.Fatal("the reader goes on")
	}
	eventually(t, "removed", func() bool { return d.State() == driver.StateRemoved })
	wantErr(t, "reset", d.Reset(soon(t)), base.ErrDeviceGone)
	eventually(t, "the system lets it go", func() bool {
		_, err := os.Stat(sysPCI + "devices/" + address)
		return os.IsNotExist(err)
	})
	eventually(t, "the slot is free", func() bool { // the kernel ejects it after it has forgotten it
		return qmpTry(t, "device_add", map[string]any{"driver": "nvme", "id": "nvme3", "serial": "LAB3", "drive": "d3",
			"bus": "slot0", "share-rw": true}) == ""
	})
	eventually(t, "it is back", func() bool { return len(devicesOf(t, classNVMe)) == before })
	again, _ := openCtrl(t, slotSSD, ctrl.Options{})
	to := region(t, base.MiB, 11)
	do(t, again, read(0, to))
	if !bytes.Equal(from.CPU(), to.CPU()) {
		t.Error("what was written before is not there")
	}
}

// TestLongSurprise: a controller vanishes while it is in use. QEMU's registers read as
// zeros then, not as ones, so it is seen by what they say and by its configuration.
// The kernel resets what it closes, and waits for more than a minute for this one.
func TestLongSurprise(t *testing.T) {
	slot := filepath.Dir(realPath(t, sysPCI+"devices/"+nth(t, classNVMe, slotSSD)))
	d, _ := openCtrl(t, slotSSD, ctrl.Options{Watch: 5 * time.Millisecond, Deadline: ctrl.Deadlines{ReadWrite: 5 * time.Second}})
	roundTrip(t, d, 0, base.MiB, 1)
	r := region(t, 256*base.KiB, 2)
	loop := make(chan error, 1)
	ctx := within(t, 3*time.Minute)
	go func() {
		var err error
		for err == nil {
			err = driver.Do(ctx, d, write(0, r))
		}
		loop <- err
	}()
	time.Sleep(100 * time.Millisecond)
	powerOff(t, slot)
	select {
	case err := <-loop:
		if !errors.Is(err, base.ErrIsolated) && !errors.Is(err, base.ErrDeviceGone) {
			t.Errorf("the writer: %v", err)
		}
		t.Log(err)
	case <-time.After(2 * time.Minute):
		t.Fatal("the writer goes on")
	}
	eventually(t, "nothing is held", func() bool { return r.InFlight() == 0 })
	if err := d.Reset(soon(t)); !errors.Is(err, base.ErrDeviceGone) {
		t.Errorf("reset: %v", err)
	}
	eventually(t, "removed", func() bool { return d.State() == driver.StateRemoved })
	begin := time.Now()
	if err := d.Close(within(t, 3*time.Minute)); err != nil {
		t.Errorf("close: %v", err)
	}
	t.Logf("the close took %v", time.Since(begin))
}

func realPath(t testing.TB, path string) string {
	t.Helper()
	to, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// powerOff switches the power of a root port's slot off, without asking anybody
// (PCI Express Base 7.5.3.10).
func powerOff(t testing.TB, port string) {
	t.Helper()
	const express, slotControl, power, powerIndicator = 0x10, 0x18, 1 << 10, 3 << 8
	f, err := os.OpenFile(port+"/config", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 256)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	for at := int(b[0x34]); at != 0; at = int(b[at+1]) {
		if b[at] != express {
			continue
		}
		v := binary.LittleEndian.Uint16(b[at+slotControl:]) | power | powerIndicator
		binary.LittleEndian.PutUint16(b[at+slotControl:], v)
		if _, err := f.WriteAt(b[at+slotControl:at+slotControl+2], int64(at+slotControl)); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("the port has no slot")
}
