//go:build ugds_lab

package guest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/drivertest"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// zeroDisk zeroes the first bytes of disk n behind the controller's back.
func zeroDisk(t testing.TB, n int, bytes int64) {
	t.Helper()
	said := ""
	for _, id := range []string{"nvme", "ns"} { // the disk belongs to the controller, or to a namespace of it
		if said = monitor(t, fmt.Sprintf(`qemu-io -d %s%d "write -z 0 %d"`, id, n, bytes)); said == "" {
			return
		}
	}
	t.Fatal(said)
}

// throttle makes every command of controller n that moves data hang, until it is called
// with false.
func throttle(t testing.TB, n int, on bool) {
	t.Helper()
	bps := 0
	if on {
		bps = 1 // byte a second
	}
	why := ""
	for _, id := range []string{"nvme", "ns"} { // the disk belongs to the controller, or to a namespace of it
		why = qmpTry(t, "block_set_io_throttle", map[string]any{"id": fmt.Sprint(id, n), "bps": bps,
			"bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": 0})
		if why == "" {
			if on { // the throttle lets one command through
				if said := monitor(t, fmt.Sprintf(`qemu-io -d %s%d "read 0 512"`, id, n)); said != "" {
					t.Fatal(said)
				}
			}
			return
		}
	}
	t.Fatal(why)
}

// isolate makes a controller stop: somebody writes to its registers.
func isolate(t testing.TB, d hw.Device) {
	if err := d.Store32(nvme.RegCC, 0); err != nil {
		t.Error(err)
	}
}

// TestDeviceContract runs the contract's suite on the controller.
func TestDeviceContract(t *testing.T) {
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

// TestDeviceInterrupts: without polling and without the watcher, only the interrupts
// of the controller can end a wait.
func TestDeviceInterrupts(t *testing.T) {
	for _, mode := range []ctrl.Mode{ctrl.Interrupts, ctrl.Hybrid} {
		t.Run(mode.String(), func(t *testing.T) {
			d, _ := openCtrl(t, 0, ctrl.Options{Mode: mode, Watch: time.Hour, Spin: 10 * time.Microsecond})
			if e := d.Info().Engine; strings.Contains(e, ctrl.NoInterrupts) {
				t.Fatalf("it is driven by %s", e)
			}
			r := region(t, 4096, 1)
			for i := range int64(200) {
				do(t, d, read(i*4096, r))
			}
			for range 25 { // so many in one call go to the queues for batches
				var many []driver.Request
				for i := range int64(8) {
					many = append(many, read(i*4096, r))
				}
				do(t, d, many...)
			}
			if s := d.Stats(); s.Reads != 400 || s.InFlight != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// recorded remembers the memory that the driver allocates: queues and lists.
type recorded struct {
	hw.Device
	bufs []*hw.Buffer
}

func (r *recorded) Alloc(n int64, owner string) (*hw.Buffer, error) {
	b, err := r.Device.Alloc(n, owner)
	if err == nil {
		r.bufs = append(r.bufs, b)
	}
	return b, err
}

// sent finds the last command of all n blocks at first in the queues.
func (r *recorded) sent(t testing.TB, op nvme.Opcode, first uint64, n uint32) *nvme.Command {
	t.Helper()
	for _, b := range r.bufs {
		all := nvme.OverlaySlice[nvme.Command](b.Bytes)
		for i := range all {
			if c := &all[i]; c.OPC == op && c.NSID.Get() == 1 && c.SLBA() == first && c.Blocks() == n {
				return c
			}
		}
	}
	t.Fatalf("no command for %d blocks at %d was sent", n, first)
	return nil
}

// isList tells whether an address on the bus is in the driver's own memory.
func (r *recorded) isList(addr uint64) bool {
	return slices.ContainsFunc(r.bufs, func(b *hw.Buffer) bool { return addr >= b.Addr && addr < b.Addr+uint64(len(b.Bytes)) })
}

// TestDeviceDataPointers: whole pages here and there are named by a PRP list, which is
// shorter; pieces that begin at any doubleword only an SGL can name. Both move what they
// should, and so do large requests.
func TestDeviceDataPointers(t *testing.T) {
	rec := &recorded{Device: openHW(t, nth(t, classNVMe, 0))}
	d, err := ctrl.Open(soon(t), rec, ctrl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(soon(t)); err != nil {
			t.Error(err)
		}
	})
	for _, why := range d.Info().Reasons {
		t.Log(why)
	}
	roundTrip(t, d, 0, d.Info().MaxTransfer, 3)
	roundTrip(t, d, base.MiB, 5*base.MiB+4096, 4)
	const pages, at = 64, 16 * base.MiB
	from, to := region(t, pages*hw.PageSize, 5), region(t, pages*hw.PageSize, 6)
	for name, pieces := range map[string]func(r *driver.Region) (segs []driver.Seg){
		"PRP list": func(r *driver.Region) (segs []driver.Seg) {
			for i := range int64(pages) {
				segs = append(segs, r.Seg(i*37%pages*hw.PageSize, hw.PageSize)) // no two neighbours
			}
			return segs
		},
		"SGL": func(r *driver.Region) (segs []driver.Seg) {
			for i := int64(4); i+4096 <= r.Size(); i += 4100 { // at odd doublewords, which move within the page
				segs = append(segs, r.Seg(i, 1024+i%3*512))
			}
			return segs
		},
	} {
		w, back := move(driver.OpWrite, at, driver.Seg{}), move(driver.OpRead, at, driver.Seg{})
		w.Segs, back.Segs = pieces(from), pieces(to)
		for _, s := range w.Segs {
			w.Len += s.Len
		}
		back.Len = w.Len
		do(t, d, w)
		do(t, d, back)
		for i, s := range w.Segs {
			if !bytes.Equal(from.Bytes(s.Off, s.Len), to.Bytes(back.Segs[i].Off, s.Len)) {
				t.Errorf("%s: piece %d at %d came back changed", name, i, s.Off)
			}
		}
		for _, op := range []nvme.Opcode{nvme.OpWrite, nvme.OpRead} {
			c := rec.sent(t, op, at/512, uint32(w.Len/512))
			if sgl := c.PSDT() == nvme.PSDTSGL; sgl != (name == "SGL") || !sgl && !rec.isList(c.PRP2.Get()) {
				t.Errorf("%s: PSDT %d, PRP2 %#x", name, c.PSDT(), c.PRP2.Get())
			}
		}
	}
}

// counted counts the writes to doorbells of I/O queues.
type counted struct {
	hw.Device
	sq, cq atomic.Int64
}

type countedBell struct {
	hw.Doorbell
	n *atomic.Int64
}

func (c *counted) Doorbell(off uint64) (hw.Doorbell, error) {
	b, err := c.Device.Doorbell(off)
	n := &c.sq
	switch at := off - nvme.RegDoorbells; { // the stride is 4 here
	case at < 8:
		return b, err
	case at%8 == 4:
		n = &c.cq
	}
	return &countedBell{b, n}, err
}

func (b *countedBell) Ring(v uint32) error {
	b.n.Add(1)
	return b.Doorbell.Ring(v)
}

// TestDeviceShadow: a controller that looks for doorbells in memory (DBBUF) works with
// fewer writes to its registers, and without them when it is told so.
func TestDeviceShadow(t *testing.T) {
	rings := map[bool]int64{}
	for _, off := range []bool{false, true} {
		c := &counted{Device: openHW(t, nth(t, classNVMe, healthySSD))}
		d, err := ctrl.Open(soon(t), c, ctrl.Options{NoShadow: off, Queues: 2})
		if err != nil {
			t.Fatal(err)
		}
		if said := strings.Contains(strings.Join(d.Info().Reasons, "\n"), "doorbells in memory"); said == off {
			t.Errorf("shadow doorbells %v: %q", !off, d.Info().Reasons)
		}
		roundTrip(t, d, 0, 8*base.MiB, 1)
		sq, cq := c.sq.Load(), c.cq.Load()
		readMany(t, d, 16, 100)
		sq, cq = c.sq.Load()-sq, c.cq.Load()-cq
		t.Logf("shadow doorbells %v: %d writes to registers for commands, %d for completions", !off, sq, cq)
		rings[off] = sq // QEMU asks for every doorbell of a completion queue
		isolate(t, c)   // and after a reset it works again
		eventually(t, "isolated", func() bool { return d.State() == driver.StateIsolated })
		if err := d.Reset(soon(t)); err != nil {
			t.Fatal(err)
		}
		roundTrip(t, d, 0, 8*base.MiB, 3)
		if err := d.Close(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	if rings[false] >= rings[true] {
		t.Error("doorbells in memory save nothing")
	}
}

// readMany reads from several goroutines, one block at a time.
func readMany(t testing.TB, d driver.Device, goroutines, each int64) {
	t.Helper()
	var wg sync.WaitGroup
	ctx := soon(t)
	for g := range goroutines {
		r := region(t, 4096, byte(g))
		wg.Go(func() {
			for i := range each {
				if err := driver.Do(ctx, d, read((g*each+i)*4096, r)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
