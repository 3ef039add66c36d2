//go:build ugds_lab

package guest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/kdrv"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
)

// TestKdrvStorm does everything at once that takes the module's locks, and at last takes
// the device away under it: nothing hangs, nothing fails in a way that it may not, and the
// kernel has nothing to say. Afterwards the device works.
func TestKdrvStorm(t *testing.T) {
	expectFaults(t)
	d := kdrvOpen(t, 0)
	address := nth(t, classNVMe, 0)
	mem, err := dma.Alloc(1*base.MiB, "storm")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Free()
	buf, _ := gpuMemory(t, 0, base.MiB, 0)
	var over atomic.Bool
	var done [6]atomic.Int64
	may := func(what string, err error) {
		if err != nil && !errors.Is(err, base.ErrIsolated) && !errors.Is(err, base.ErrDeviceGone) && !errors.Is(err, base.ErrClosed) &&
			!errors.Is(err, base.ErrBusy) { // busy: each address is that of memory that was just taken back
			t.Errorf("%s: %v", what, err)
		}
	}
	unmap := func(m hw.Mapping, err error) error {
		if err != nil {
			return err
		}
		return m.Unmap()
	}
	jobs := []func() error{
		func() error { return unmap(d.Map(mem.Bytes())) },
		func() error { return unmap(d.MapFD(buf.Int(), 0, base.MiB)) },
		func() error { return allocError(d, 64*base.KiB) },
		func() error { return errors.Join(d.Start(soon(t)), d.Stop(soon(t))) },
		func() error {
			v, err := d.Vector(0)
			if errors.Is(err, base.ErrBusy) {
				return nil
			}
			if err == nil {
				err = v.Close()
			}
			return err
		},
		func() error { _, err := d.Load64(nvme.RegCAP); return err },
	}
	var wg sync.WaitGroup
	for i, job := range jobs {
		for range 2 {
			wg.Go(func() {
				for !over.Load() {
					may([]string{"map", "import", "allocate", "start, stop", "vector", "load"}[i], job())
					done[i].Add(1)
				}
			})
		}
	}
	wg.Go(func() {
		for !over.Load() {
			gpuRevoke(t, buf, false)
			time.Sleep(5 * time.Millisecond)
		}
	})
	for range 20 {
		writeSys(t, sysPCI+"devices/"+address+"/reset", "1")
		time.Sleep(50 * time.Millisecond)
	}
	writeSys(t, sysPCI+"drivers/"+kdrv.Module+"/unbind", address)
	time.Sleep(50 * time.Millisecond)
	over.Store(true)
	wg.Wait()
	for i := range done {
		if done[i].Load() == 0 {
			t.Errorf("job %d was never done", i)
		}
	}
	t.Logf("maps %d, imports %d, allocations %d, starts %d, vectors %d, loads %d", done[0].Load(), done[1].Load(), done[2].Load(),
		done[3].Load(), done[4].Load(), done[5].Load())
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	again := kdrvOpen(t, 0)
	r := newRaw(t, again)
	defer r.free()
	other, err := again.Alloc(rawChunk, "storm")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Free()
	if err := errors.Join(again.Start(soon(t)), r.up(), r.access(other.Addr, scratch(rawChunk), true)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
