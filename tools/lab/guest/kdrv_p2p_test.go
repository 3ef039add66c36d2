//go:build ugds_lab

package guest

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/kdrv"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

func fdRegion(t testing.TB, f *unix.FD, n int64) *driver.Region {
	t.Helper()
	r := driver.NewFDRegion(f.Int(), n, nil)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func move(op driver.Op, off int64, s driver.Seg) driver.Request {
	return driver.Request{Op: op, Off: off, Len: s.Len, Segs: []driver.Seg{s}}
}

// sealed is a file of n bytes in memory that cannot shrink.
func sealed(t testing.TB, n int64) *unix.FD {
	t.Helper()
	f, err := unix.Memfd("lab")
	if err == nil {
		err = errors.Join(unix.Truncate(f, n), unix.SealShrink(f))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// peerRoundTrip moves random bytes from the disk to the peer and others back, and
// compares every one. view is the peer's memory as the processor sees it.
func peerRoundTrip(t *testing.T, d *ctrl.Device, peer *driver.Region, view []byte) {
	rnd := testenv.Seed(t)
	n := int64(len(view))
	host := region(t, n, 0)
	for _, c := range []struct{ off, n int64 }{{0, n}, {4096, 4096}, {512, 1024}, {8192 + 512, n / 2}, {n - 512, 512}} {
		mem := host.Bytes(0, c.n)
		for i := range mem {
			mem[i] = byte(rnd.Uint32())
		}
		for i := range view {
			view[i] = 0xa5
		}
		do(t, d, move(driver.OpWrite, 1<<20, host.Seg(0, c.n)))
		do(t, d, move(driver.OpRead, 1<<20, peer.Seg(c.off, c.n)))
		if !bytes.Equal(view[c.off:c.off+c.n], mem) {
			t.Errorf("%d bytes at %d: the peer got others than the disk had", c.n, c.off)
		}
		if bytes.Count(view, []byte{0xa5}) < len(view)-int(c.n) {
			t.Errorf("%d bytes at %d: something around them changed", c.n, c.off)
		}
		for i := range c.n {
			view[c.off+i] = ^mem[i]
		}
		do(t, d, move(driver.OpWrite, 9<<20, peer.Seg(c.off, c.n)))
		do(t, d, move(driver.OpRead, 9<<20, host.Seg(0, c.n)))
		if !bytes.Equal(view[c.off:c.off+c.n], mem) {
			t.Errorf("%d bytes at %d: the disk got others than the peer had", c.n, c.off)
		}
	}
}

// TestKdrvGPU: disk to GPU and back, without a copy in host memory.
func TestKdrvGPU(t *testing.T) {
	const n = 4 * base.MiB
	for name, flags := range map[string]uint32{"static": gpuStatic, "pinned": 0} {
		t.Run(name, func(t *testing.T) {
			d, seam := openCtrl(t, 0, ctrl.Options{})
			buf, view := gpuMemory(t, 16*base.MiB, n, flags)
			m, err := seam.MapFD(buf.Int(), 0, n)
			if err != nil {
				t.Fatal(err)
			}
			first, last := gpuRange(t)
			for _, s := range m.Segments() {
				t.Logf("bus memory %#x, %d bytes", s.Addr, s.Len)
				if !seam.ID().IOMMU && (s.Addr < first || s.Addr+s.Len-1 > last) {
					t.Errorf("%#x, %d bytes are not the GPU's %#x to %#x", s.Addr, s.Len, first, last)
				}
			}
			if err := m.Unmap(); err != nil {
				t.Error(err)
			}
			peerRoundTrip(t, d, fdRegion(t, buf, n), view)
		})
	}
}

// TestKdrvUDMABuf: the same with host memory behind a dma-buf, which lies in pieces.
func TestKdrvUDMABuf(t *testing.T) {
	const n = 1 * base.MiB
	d, _ := openCtrl(t, 0, ctrl.Options{})
	mem := sealed(t, n)
	view, err := unix.MmapShared(mem, 0, n)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(view)
	buf, err := unix.UDMABuf(mem, 0, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = buf.Close() })
	peerRoundTrip(t, d, fdRegion(t, buf, n), view)
}

// TestKdrvImportRefused: what is not a dma-buf, not in whole pages or not inside it.
func TestKdrvImportRefused(t *testing.T) {
	_, seam := openCtrl(t, 0, ctrl.Options{})
	buf, _ := gpuMemory(t, 0, base.MiB, 0)
	plain := sealed(t, base.MiB)
	for _, c := range []struct {
		fd     int
		off, n int64
		class  error
	}{
		{buf.Int(), 0, 0, base.ErrInvalid}, {buf.Int(), -4096, 4096, base.ErrInvalid}, {buf.Int(), 512, 4096, base.ErrMisaligned},
		{buf.Int(), 0, 100, base.ErrMisaligned}, {buf.Int(), 0, base.MiB + 4096, base.ErrOutOfRange},
		{buf.Int(), base.MiB, 4096, base.ErrOutOfRange}, {buf.Int(), 1 << 62, 4096, base.ErrOutOfRange},
		{plain.Int(), 0, 4096, base.ErrInvalid}, {-1, 0, 4096, unix.EBADF}, {9999, 0, 4096, unix.EBADF},
	} {
		m, err := seam.MapFD(c.fd, c.off, c.n)
		if !errors.Is(err, c.class) {
			t.Errorf("descriptor %d, %d bytes at %d: %v, want %v", c.fd, c.n, c.off, err, c.class)
		}
		if err == nil {
			_ = m.Unmap()
		}
	}
	gpuRevoke(t, buf, true)
	if _, err := seam.MapFD(buf.Int(), 0, base.MiB); err == nil {
		t.Error("memory that is lost was mapped")
	}
}

// TestKdrvNeverPinned: an exporter that only moves. Kernels whose dma-bufs do not tell
// importers of a move cannot import from it, and it is refused.
func TestKdrvNeverPinned(t *testing.T) {
	const n = base.MiB
	d, seam := openCtrl(t, 0, ctrl.Options{})
	buf, view := gpuMemory(t, 0, n, gpuNoPin)
	m, err := seam.MapFD(buf.Int(), 0, n)
	if err != nil {
		if !errors.Is(err, base.ErrNotSupported) {
			t.Error(err)
		}
		return
	}
	if err := m.Unmap(); err != nil {
		t.Error(err)
	}
	peerRoundTrip(t, d, fdRegion(t, buf, n), view)
}

// TestKdrvRevokedAddress: commands that name the addresses of memory that was taken
// back move nothing, whatever they say.
func TestKdrvRevokedAddress(t *testing.T) {
	const n = rawChunk
	expectFaults(t)
	d := kdrvOpen(t, 0)
	buf, view := gpuMemory(t, 32*base.MiB, n, 0)
	m, err := d.MapFD(buf.Int(), 0, n)
	if err != nil {
		t.Fatal(err)
	}
	addr := m.Segments()[0].Addr
	r := newRaw(t, d)
	defer r.free()
	if err := errors.Join(d.Start(soon(t)), r.up(), r.copyIn(addr, n)); err != nil {
		t.Fatal(err)
	}
	for _, write := range []bool{false, true} { // the reach is there
		if err := r.access(addr, scratch(n), write); err != nil {
			t.Fatal(err)
		}
	}
	gpuRevoke(t, buf, true)
	if v, ok := m.(hw.Revocable); !ok || !v.Revoked() {
		t.Error("the mapping does not know")
	}
	for i := range view {
		view[i] = 0xee
	}
	err = r.copyIn(addr, n)
	if bytes.Count(view, []byte{0xee}) != n {
		t.Error("bytes landed in memory that was taken back")
	}
	if !d.ID().IOMMU {
		if !errors.Is(err, base.ErrIsolated) {
			t.Errorf("the device is not cut off: %v", err)
		}
		if n := notice(t, d); n != hw.NoticeStopped {
			t.Errorf("notice: %v", n)
		}
		if err := d.Start(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	other, err := d.Alloc(n, "lab")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Free()
	if err := errors.Join(r.disable(), r.up(), r.access(other.Addr, scratch(n), true), m.Unmap()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// scratch is memory that a test does not look at.
func scratch(n int) []byte { return make([]byte, n) }

// TestKdrvRevoke: the GPU takes its memory back while the controller has reads into
// it, and the data of those reads comes afterwards. Nothing lands. With a strict IOMMU
// only that region fails; without one the controller is cut off, and comes back by a
// reset.
func TestKdrvRevoke(t *testing.T) {
	const n = 4 * base.MiB
	expectFaults(t)
	d, seam := openCtrl(t, 0, ctrl.Options{Watch: 2 * time.Millisecond})
	buf, view := gpuMemory(t, 16*base.MiB, n, 0)
	gpu, own := fdRegion(t, buf, n), region(t, n, 0)
	for i := range own.CPU() {
		own.CPU()[i] = 0x11
	}
	do(t, d, move(driver.OpWrite, 0, own.Seg(0, n)))
	do(t, d, move(driver.OpRead, 0, gpu.Seg(0, n)))
	if bytes.Count(view, []byte{0x11}) != n {
		t.Fatal("the GPU's memory cannot be reached in the first place")
	}
	throttle(t, 0, true)
	b := &driver.Batch{}
	for at := int64(0); at < n; at += 64 * base.KiB {
		b.Reqs = append(b.Reqs, move(driver.OpRead, at, gpu.Seg(at, 64*base.KiB)))
	}
	if err := d.Submit(soon(t), b); err != nil {
		t.Fatal(err)
	}
	gpuRevoke(t, buf, true)
	for i := range view { // the memory belongs to somebody else now
		view[i] = 0xee
	}
	throttle(t, 0, false) // the disk answers
	if err := b.Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
	// QEMU looks memory up when a command begins and does not ask the IOMMU again; a
	// real one waits for what is on its way. So this holds only where the controller
	// itself was stopped; TestKdrvRevokedAddress is about the other case.
	time.Sleep(200 * time.Millisecond) // what is late comes
	if got := bytes.Count(view, []byte{0xee}); got != n && !seam.ID().IOMMU {
		t.Errorf("%d bytes landed after the memory was taken back", n-got)
	}
	failed := 0
	for i := range b.Reqs {
		if b.Reqs[i].Err != nil {
			failed++
		}
	}
	if failed < len(b.Reqs)-2 { // the throttle lets the first pass
		t.Errorf("only %d of %d requests failed", failed, len(b.Reqs))
	}
	if seam.ID().IOMMU {
		if d.State() != driver.StateReady || d.Incarnation() != 0 {
			t.Errorf("the device is %v", d.State())
		}
	} else {
		if d.State() != driver.StateIsolated {
			t.Errorf("the device is %v", d.State())
		}
		if err := d.Reset(soon(t)); err != nil || d.State() != driver.StateReady {
			t.Errorf("reset: %v, %v", err, d.State())
		}
	}
	if err := driver.Do(soon(t), d, move(driver.OpRead, 0, gpu.Seg(0, 4096))); !errors.Is(err, base.ErrClosed) {
		t.Errorf("the region that was taken back: %v", err)
	}
	do(t, d, move(driver.OpRead, 0, own.Seg(0, n)))
	if bytes.Count(own.CPU(), []byte{0x11}) != n {
		t.Error("the disk holds other bytes")
	}
}

// TestKdrvDeadAddress: behind a strict IOMMU commands may still name the addresses of
// memory that was taken back. Until its owner has ended the region, nothing else is
// mapped there, however often somebody asks; then its addresses are free again.
func TestKdrvDeadAddress(t *testing.T) {
	const n = rawChunk
	d := kdrvOpen(t, 0)
	buf, _ := gpuMemory(t, 0, n, 0)
	again := func() (hw.Mapping, error) { return d.MapFD(buf.Int(), 0, n) }
	dead, err := again()
	if err != nil {
		t.Fatal(err)
	}
	gpuRevoke(t, buf, false)
	keepsOff(t, d, dead, again)
	if !withNVIDIA(t, d) {
		return
	}
	const pages = 24 // each is a segment of its own behind an IOMMU, and they do not ascend
	addr, _ := nvMemory(t, 48*base.MiB, pages*nvPage)
	again = func() (hw.Mapping, error) { return d.MapNVIDIA(addr, pages*nvPage) }
	if dead, err = again(); err != nil {
		t.Fatal(err)
	}
	nvFree(t, addr)
	keepsOff(t, d, dead, again)
}

// patiently asks again for memory while all the addresses that were tried are dead ones,
// which takes them out of the way.
func patiently[T any](t testing.TB, ask func() (T, error)) T {
	t.Helper()
	for n := 0; ; n++ {
		v, err := ask()
		if err == nil {
			return v
		}
		if n == 8 || !errors.Is(err, base.ErrBusy) {
			t.Fatal(err)
		}
	}
}

// keepsOff maps memory, that of the dead region too, and looks at its addresses; and once
// more when the dead region is ended.
func keepsOff(t *testing.T, d *kdrv.Device, dead hw.Mapping, remap func() (hw.Mapping, error)) {
	t.Helper()
	const n = rawChunk
	gone := dead.Segments()
	if v, ok := dead.(hw.Revocable); !ok || !v.Revoked() {
		t.Fatal("it was not taken back")
	}
	hits := func() (hit int) {
		var maps []hw.Mapping
		for range 8 {
			mem := region(t, n, 1)
			m := patiently(t, func() (hw.Mapping, error) { return d.Map(mem.CPU()) })
			again := patiently(t, remap)
			b := patiently(t, func() (*hw.Buffer, error) { return d.Alloc(n, "lab") })
			defer b.Free()
			for _, s := range append(append(m.Segments(), again.Segments()...), hw.Seg{Addr: b.Addr, Len: n}) {
				for _, g := range gone {
					if s.Addr < g.Addr+g.Len && g.Addr < s.Addr+s.Len {
						hit++
					}
				}
			}
			maps = append(maps, m, again)
		}
		for _, m := range maps {
			if err := m.Unmap(); err != nil {
				t.Error(err)
			}
		}
		return hit
	}
	strict := d.ID().IOMMU && strings.Contains(d.Describe(), "strict")
	if hit := hits(); strict && hit > 0 {
		t.Errorf("%d pieces of memory got addresses of the dead region", hit)
	}
	if err := dead.Unmap(); err != nil {
		t.Error(err)
	}
	t.Logf("of %d segments; afterwards %d pieces had its addresses", len(gone), hits()) // which the kernel likes to give again
}
