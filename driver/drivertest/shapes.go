package drivertest

import (
	"bytes"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

func testGeometry(t *testing.T, h Harness) {
	in := h.Dev.Info()
	pow2 := func(n int64) bool { return n > 0 && n&(n-1) == 0 }
	switch {
	case !pow2(in.BlockSize) || in.BlockSize > base.StoreBlock:
		t.Errorf("block size %d", in.BlockSize)
	case !pow2(in.MemAlign) || in.MemAlign > base.StoreBlock:
		t.Errorf("memory alignment %d", in.MemAlign)
	case in.Capacity < MinCapacity || in.Capacity%in.BlockSize != 0:
		t.Errorf("capacity %d", in.Capacity)
	case in.MaxTransfer < base.StoreBlock || in.MaxTransfer > driver.MaxBytesInFlight:
		t.Errorf("largest transfer %d", in.MaxTransfer)
	case in.Target == "" || in.Transport == "" || in.Engine == "" || len(in.Reasons) == 0:
		t.Errorf("not described: %+v", in)
	}
	if s := h.Dev.State(); s != driver.StateReady {
		t.Errorf("state %v", s)
	}
	if hl, err := h.Dev.Health(soon(t)); err != nil || !hl.OK {
		t.Errorf("health %+v, %v", hl, err)
	}
}

// guard is what surrounds every piece of memory and device.
const guard = 0xA5

// piece is what the lengths of segments are multiples of.
func piece(in *driver.Info) int64 { return max(in.MemAlign, in.BlockSize) }

// cut makes segments of n bytes in all inside r, in pieces as shape says, each
// followed by a gap of one alignment unit.
func cut(r *driver.Region, in *driver.Info, n int64, shape func() int64) []driver.Seg {
	var segs []driver.Seg
	align := in.MemAlign
	at := align
	for n > 0 {
		k := min(max(shape()/piece(in)*piece(in), 0), n)
		if len(segs) == driver.MaxSegs-1 {
			k = n
		}
		segs = append(segs, r.Seg(at, k))
		at += k + align
		n -= k
	}
	return segs
}

func gather(r *driver.Region, segs []driver.Seg) []byte {
	var out []byte
	for _, s := range segs {
		out = append(out, r.Bytes(s.Off, s.Len)...)
	}
	return out
}

func scatter(r *driver.Region, segs []driver.Seg, data []byte) {
	for _, s := range segs {
		data = data[copy(r.Bytes(s.Off, s.Len), data):]
	}
}

// testShapes writes and reads with every kind of segment list, and checks the
// bytes around each piece of memory and around the extent.
func testShapes(t *testing.T, h Harness) {
	d, in, rnd := h.Dev, h.Dev.Info(), testenv.Seed(t)
	const span = 512 * base.KiB
	a, b := attached(t, d, 4*base.MiB), region(t, 4*base.MiB)
	whole := region(t, span)
	shapes := map[string]func() int64{
		"one":      func() int64 { return span },
		"smallest": func() int64 { return piece(&in) },
		"blocks":   func() int64 { return in.BlockSize },
		"pages":    func() int64 { return base.StoreBlock },
		"uneven":   func() int64 { return rnd.Int64N(9*piece(&in)) + 1 },
		"wild":     func() int64 { return rnd.Int64N(100 * base.KiB) },
		"empties":  func() int64 { return rnd.Int64N(2) * 3 * piece(&in) },
	}
	for name, shape := range shapes {
		for i := range fewer(12) {
			off := rnd.Int64N(20) * in.BlockSize
			n := (rnd.Int64N(200*base.KiB/in.BlockSize) + 1) * in.BlockSize
			if i == 0 {
				n = in.BlockSize
			}
			do(t, d, fillWhole(whole)) // guards on the device
			checkShape(t, d, name, off, n, uint64(i), a, b, whole, shape)
		}
	}
}

func fillWhole(whole *driver.Region) driver.Request {
	fill(whole.CPU(), guard)
	return write(0, whole.Seg(0, whole.Size()))
}

func checkShape(t *testing.T, d driver.Device, name string, off, n int64, seed uint64,
	a, b, whole *driver.Region, shape func() int64) {
	t.Helper()
	in := d.Info()
	fill(b.CPU(), guard)
	data := make([]byte, n)
	testenv.Fill(data, seed)
	from, to := cut(a, &in, n, shape), cut(b, &in, n, shape)
	scatter(a, from, data)
	do(t, d, write(off, from...))
	do(t, d, read(0, whole.Seg(0, whole.Size())))
	got := whole.CPU()
	if !bytes.Equal(got[off:off+n], data) {
		t.Fatalf("%s: off %d n %d: wrong bytes on the device", name, off, n)
	}
	if !all(got[:off], guard) || !all(got[off+n:], guard) {
		t.Fatalf("%s: off %d n %d: bytes of the device around it were changed", name, off, n)
	}
	do(t, d, read(off, to...))
	if !bytes.Equal(gather(b, to), data) {
		t.Fatalf("%s: off %d n %d: wrong bytes read", name, off, n)
	}
	for _, s := range to { // wipe what was to be written; the rest must be guards
		fill(b.Bytes(s.Off, s.Len), guard)
	}
	if !all(b.CPU(), guard) {
		t.Fatalf("%s: off %d n %d: memory around the segments was changed", name, off, n)
	}
}

// fewer is n, or a quarter of it under the race detector: what one goroutine does
// n times has no other races.
func fewer(n int64) int64 {
	if testenv.Race {
		return n / 4
	}
	return n
}

// testAroundMaxTransfer: sizes next to where requests are cut (C-12, C-18).
func testAroundMaxTransfer(t *testing.T, h Harness) {
	d, in := h.Dev, h.Dev.Info()
	most := fewer(40)
	half := min(most*in.MaxTransfer+base.StoreBlock, 17*base.MiB/2) / base.StoreBlock * base.StoreBlock
	r := attached(t, d, 2*half)
	for k := int64(1); k*in.MaxTransfer+in.BlockSize <= half && k <= most; k++ {
		for _, n := range []int64{k*in.MaxTransfer - in.BlockSize, k * in.MaxTransfer, k*in.MaxTransfer + in.BlockSize} {
			testenv.Fill(r.CPU()[:n], uint64(n))
			do(t, d, write(in.BlockSize, r.Seg(0, n)))
			clear(r.CPU()[half:])
			reqs := []driver.Request{read(in.BlockSize, r.Seg(half, n))}
			do(t, d, reqs...)
			if reqs[0].Done != n || !bytes.Equal(r.CPU()[:n], r.CPU()[half:half+n]) {
				t.Fatalf("%d bytes: done %d, or wrong bytes", n, reqs[0].Done)
			}
		}
	}
}

// testLargeRequest: one request larger than everything that may be in flight.
func testLargeRequest(t *testing.T, h Harness) {
	d := h.Dev
	r := attached(t, d, base.MiB)
	testenv.Fill(r.CPU(), 1)
	n := int64(driver.MaxBytesInFlight+32*base.MiB) / base.MiB
	segs := make([]driver.Seg, n)
	for i := range segs {
		segs[i] = r.Seg(0, base.MiB) // the same memory again and again
	}
	do(t, d, write(0, segs...))
	back := region(t, base.MiB)
	for _, at := range []int64{0, n / 2, n - 1} {
		do(t, d, read(at*base.MiB, back.Seg(0, base.MiB)))
		if !bytes.Equal(back.CPU(), r.CPU()) {
			t.Errorf("wrong bytes at %d MiB", at)
		}
	}
}

// testMemoryAlignment: memory that the device cannot take is refused, and
// nothing around it changes.
func testMemoryAlignment(t *testing.T, h Harness) {
	d, in := h.Dev, h.Dev.Info()
	if in.MemAlign == 1 {
		return
	}
	r := region(t, 4*base.StoreBlock)
	n := in.BlockSize
	for _, off := range []int64{1, in.MemAlign - 1, in.MemAlign + 1} {
		err := driver.Do(soon(t), d, read(0, driver.Seg{Region: r, Gen: r.Generation(), Off: off, Len: n}))
		wantErr(t, "segment", err, base.ErrMisaligned)
	}
	if k := in.BlockSize / 2; k >= in.MemAlign { // the addresses fit, the lengths do not
		err := driver.Do(soon(t), d, read(0, r.Seg(0, k), r.Seg(base.StoreBlock, k)))
		wantErr(t, "length", err, base.ErrMisaligned)
	}
	if in.MemAlign >= 2 { // a region that begins at an odd address
		odd := driver.NewRegion(r.CPU()[in.MemAlign/2:])
		wantErr(t, "address", driver.Do(soon(t), d, read(0, odd.Seg(0, n))), base.ErrMisaligned)
		if err := odd.Close(); err != nil {
			t.Error(err)
		}
	}
	if !all(r.CPU(), 0) {
		t.Error("memory was changed")
	}
}
