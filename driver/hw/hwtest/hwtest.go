// Package hwtest is the conformance suite of the hardware seam: what the NVMe driver
// relies on, whatever leads to the controller. Each backend runs its cases in its
// tests. It does not import testing, so that a program that checks hardware can
// run the cases too.
package hwtest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/internal/base"
)

// TB is what the cases need of *testing.T.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// Harness is one device under test, freshly opened, and what can be done to it. It
// belongs to one case; whoever opened the device closes it.
type Harness struct {
	Dev hw.Device
	// Valid64 is the offset of a 64-bit read-only register with a value other
	// than 0 and all ones.
	Valid64 uint64
	// Window is the size of the register window in bytes.
	Window uint64

	// Soon bounds what should happen at once; 0 is 10 s.
	Soon time.Duration
	// Access, if not nil, reads or writes memory as the device would. It fails
	// where the device could not.
	Access func(addr uint64, p []byte, write bool) error
	// Raise, if not nil, makes the device send an interrupt.
	Raise func(vector int)
	// Remove, if not nil, pulls the device out.
	Remove func()
}

func (h Harness) soon() (context.Context, context.CancelFunc) {
	if h.Soon == 0 {
		h.Soon = 10 * time.Second
	}
	return context.WithTimeout(context.Background(), h.Soon)
}

// forgets tells whether an access to memory that was given back can be tried: without
// an IOMMU it succeeds, and hits whoever has the memory now.
func (h Harness) forgets() bool { return h.Access != nil && h.Dev.ID().IOMMU }

// Case is one case of the suite.
type Case struct {
	Name string
	Run  func(t TB, h Harness)
}

// Cases lists what every backend must pass. Cases that need a knob that the
// harness lacks say so and test the rest.
func Cases() []Case {
	return []Case{
		{"Identity", testIdentity},
		{"Registers", testRegisters},
		{"Alloc", testAlloc},
		{"Map", testMap},
		{"MapUnaligned", testMapUnaligned},
		{"BusAddressesAreDistinct", testDistinct},
		{"Interrupts", testInterrupts},
		{"InterruptNotLost", testNotLost},
		{"Clock", testClock},
		{"I04Stop", testStop},
		{"H04Removal", testRemoval},
		{"Close", testClose},
	}
}

func wantErr(t TB, what string, err, class error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Errorf("%s: got %v, want %v", what, err, class)
	}
}

func testIdentity(t TB, h Harness) {
	id := h.Dev.ID()
	if id.Target == "" || id.Transport == "" || id.NUMANode < -1 {
		t.Errorf("%+v", id)
	}
	if h.Dev.ID() != id {
		t.Errorf("%+v is not %+v", h.Dev.ID(), id)
	}
}

func testRegisters(t TB, h Harness) {
	d := h.Dev
	v, err := d.Load64(h.Valid64)
	lo, err1 := d.Load32(h.Valid64)
	hi, err2 := d.Load32(h.Valid64 + 4)
	if err := errors.Join(err, err1, err2); err != nil {
		t.Fatalf("%v", err)
	}
	if v != uint64(hi)<<32|uint64(lo) || v == 0 || v == ^uint64(0) {
		t.Errorf("%#x, halves %#x and %#x", v, lo, hi)
	}
	for _, c := range []struct {
		off   uint64
		class error
	}{{h.Window, base.ErrOutOfRange}, {^uint64(7), base.ErrOutOfRange}, {2, base.ErrMisaligned}} {
		_, err := d.Load32(c.off)
		wantErr(t, "load", err, c.class)
		wantErr(t, "store", d.Store32(c.off, 0), c.class)
		_, err = d.Load64(c.off)
		wantErr(t, "load of 64 bits", err, c.class)
		wantErr(t, "store of 64 bits", d.Store64(c.off, 0), c.class)
		_, err = d.Doorbell(c.off)
		wantErr(t, "doorbell", err, c.class)
	}
	if _, err := d.Doorbell(h.Window - 4); err != nil {
		t.Errorf("last doorbell: %v", err)
	}
}

func testAlloc(t TB, h Harness) {
	start(t, h)
	var bufs []*hw.Buffer
	for _, n := range []int64{1, 64, hw.PageSize, hw.PageSize + 1, 64 * base.KiB, 2 * base.MiB} {
		b, err := h.Dev.Alloc(n, "conformance")
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		bufs = append(bufs, b)
		if int64(len(b.Bytes)) != n || b.Addr%hw.PageSize != 0 || bytes.Count(b.Bytes, []byte{0}) != len(b.Bytes) {
			t.Errorf("%d bytes: length %d, bus address %#x, or not zero", n, len(b.Bytes), b.Addr)
		}
		checkAccess(t, h, b.Bytes, []hw.Seg{{Addr: b.Addr, Len: uint64(n)}})
	}
	for _, n := range []int64{0, -1} {
		_, err := h.Dev.Alloc(n, "conformance")
		wantErr(t, "allocate nothing", err, base.ErrInvalid)
	}
	for _, b := range bufs {
		addr := b.Addr
		b.Free()
		if h.forgets() && h.Access(addr, make([]byte, 1), false) == nil {
			t.Errorf("freed memory at %#x can still be reached", addr)
		}
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Errorf("freed twice without a panic")
			}
		}()
		bufs[0].Free()
	}()
}

// start lets the device reach memory.
func start(t TB, h Harness) {
	t.Helper()
	ctx, cancel := h.soon()
	defer cancel()
	if err := errors.Join(h.Dev.Start(ctx), h.Dev.Start(ctx)); err != nil {
		t.Fatalf("start: %v", err)
	}
}

// checkAccess compares what the processor and the device see in both directions.
func checkAccess(t TB, h Harness, mem []byte, segs []hw.Seg) {
	t.Helper()
	if h.Access == nil {
		t.Logf("the device's view of memory is not checked")
		return
	}
	for i := range mem {
		mem[i] = byte(i*7 + i>>8 + 1)
	}
	at := 0
	for _, s := range segs {
		p := make([]byte, s.Len)
		if err := h.Access(s.Addr, p, false); err != nil || !bytes.Equal(p, mem[at:at+len(p)]) {
			t.Errorf("the device does not see the memory at %#x: %v", s.Addr, err)
			return
		}
		for i := range p {
			p[i] ^= 0xff
		}
		if err := h.Access(s.Addr, p, true); err != nil || !bytes.Equal(p, mem[at:at+len(p)]) {
			t.Errorf("a write of the device at %#x does not arrive: %v", s.Addr, err)
			return
		}
		at += len(p)
	}
	if at != len(mem) {
		t.Errorf("%d bytes are mapped, the memory has %d", at, len(mem))
	}
}

// mapping maps mem and checks the list of segments.
func mapping(t TB, h Harness, mem []byte) hw.Mapping {
	t.Helper()
	m, err := h.Dev.Map(mem)
	if err != nil {
		t.Fatalf("map %d bytes: %v", len(mem), err)
	}
	segs := m.Segments()
	for i, s := range segs {
		if s.Len == 0 || i > 0 && segs[i-1].Addr+segs[i-1].Len == s.Addr {
			t.Errorf("segment %d of %v is empty or not merged", i, segs)
		}
		if i > 0 && s.Addr%hw.PageSize != 0 || i < len(segs)-1 && (s.Addr+s.Len)%hw.PageSize != 0 {
			t.Errorf("segment %d of %v does not meet its neighbours at pages", i, segs)
		}
	}
	checkAccess(t, h, mem, segs)
	return m
}

func testMap(t TB, h Harness) {
	start(t, h)
	host, err := h.Dev.Alloc(4*base.MiB, "conformance")
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer host.Free()
	_, err = h.Dev.Map(nil)
	wantErr(t, "map nothing", err, base.ErrInvalid)
	var maps []hw.Mapping
	for _, n := range []int{hw.PageSize, 2 * hw.PageSize, base.MiB} {
		maps = append(maps, mapping(t, h, host.Bytes[:n])) // and the same memory more than once
	}
	for i, m := range maps {
		segs := slices.Clone(m.Segments())
		if err := m.Unmap(); err != nil {
			t.Errorf("%v", err)
		}
		if h.forgets() && h.Access(segs[0].Addr, make([]byte, 1), false) == nil {
			t.Errorf("unmapped memory at %#x can still be reached", segs[0].Addr)
		}
		if i+1 < len(maps) {
			checkAccess(t, h, host.Bytes[:hw.PageSize], firstPage(maps[i+1].Segments()))
		}
	}
}

// firstPage cuts segs after one page.
func firstPage(segs []hw.Seg) []hw.Seg {
	return []hw.Seg{{Addr: segs[0].Addr, Len: hw.PageSize}}
}

// testMapUnaligned: memory that begins or ends inside a page keeps its offset
// there, and nothing around it is touched (C-01).
func testMapUnaligned(t TB, h Harness) {
	start(t, h)
	host, err := h.Dev.Alloc(8*hw.PageSize, "conformance")
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer host.Free()
	for _, c := range [][2]int{{512, hw.PageSize}, {4, 4}, {hw.PageSize - 4, 8}, {100, 3 * hw.PageSize}, {hw.PageSize, 1}, {1, 7*hw.PageSize - 1}} {
		for i := range host.Bytes {
			host.Bytes[i] = 0xa5
		}
		m := mapping(t, h, host.Bytes[c[0]:c[0]+c[1]])
		if got := m.Segments()[0].Addr % hw.PageSize; got != uint64(c[0]%hw.PageSize) {
			t.Errorf("offset %d of %d bytes: the device sees offset %d", c[0], c[1], got)
		}
		if bytes.Count(host.Bytes[:c[0]], []byte{0xa5}) != c[0] ||
			bytes.Count(host.Bytes[c[0]+c[1]:], []byte{0xa5}) != len(host.Bytes)-c[0]-c[1] {
			t.Errorf("offset %d of %d bytes: memory around it was changed", c[0], c[1])
		}
		if err := m.Unmap(); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// testDistinct: no two pieces of memory that are alive share a bus address.
func testDistinct(t TB, h Harness) {
	var segs []hw.Seg
	for i := range 40 {
		b, err := h.Dev.Alloc(int64(i%5+1)*hw.PageSize, "conformance")
		if err != nil {
			t.Fatalf("%v", err)
		}
		defer b.Free()
		m, err := h.Dev.Map(b.Bytes)
		if err != nil {
			t.Fatalf("%v", err)
		}
		defer func() {
			if err := m.Unmap(); err != nil {
				t.Errorf("%v", err)
			}
		}()
		segs = append(segs, hw.Seg{Addr: b.Addr, Len: uint64(len(b.Bytes))})
		if !h.Dev.ID().IOMMU {
			continue // without translation the same memory has the same address
		}
		segs = append(segs, m.Segments()...)
	}
	slices.SortFunc(segs, func(a, b hw.Seg) int {
		if a.Addr < b.Addr {
			return -1
		}
		return 1
	})
	for i := 1; i < len(segs); i++ {
		if segs[i-1].Addr+segs[i-1].Len > segs[i].Addr {
			t.Errorf("%v and %v overlap", segs[i-1], segs[i])
		}
	}
}

// vectors skips cases for devices without interrupts.
func vectors(t TB, h Harness) int {
	n := h.Dev.Vectors()
	for _, bad := range []int{-1, n} {
		_, err := h.Dev.Vector(bad)
		wantErr(t, "vector that does not exist", err, base.ErrOutOfRange)
	}
	return n
}

func testInterrupts(t TB, h Harness) {
	for i := range vectors(t, h) {
		v, err := h.Dev.Vector(i)
		if err != nil {
			t.Fatalf("vector %d: %v", i, err)
		}
		_, err = h.Dev.Vector(i)
		wantErr(t, "vector that is open", err, base.ErrBusy)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		err = v.Wait(ctx)
		wantErr(t, "no interrupt", err, base.ErrTimeout)
		wantErr(t, "no interrupt", err, context.DeadlineExceeded)
		cancel()
		v.Wake()
		if err := waitSoon(h, v); err != nil {
			t.Errorf("wake: %v", err)
		}
		if err := errors.Join(v.Close(), v.Close()); err != nil {
			t.Errorf("%v", err)
		}
		wantErr(t, "wait after close", waitSoon(h, v), base.ErrClosed)
	}
}

func waitSoon(h Harness, v hw.Vector) error {
	ctx, cancel := h.soon()
	defer cancel()
	return v.Wait(ctx)
}

// testNotLost: interrupts before and during a wait end it; several before count
// once; close ends a wait.
func testNotLost(t TB, h Harness) {
	if vectors(t, h) == 0 || h.Raise == nil {
		t.Logf("no interrupts to raise")
		return
	}
	v, err := h.Dev.Vector(0)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for range 3 {
		h.Raise(0)
	}
	if err := waitSoon(h, v); err != nil {
		t.Errorf("interrupts before the wait: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	wantErr(t, "forgotten interrupts", v.Wait(ctx), base.ErrTimeout)
	cancel()
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() { h.Raise(0) })
		if err := waitSoon(h, v); err != nil {
			t.Fatalf("an interrupt was lost: %v", err)
		}
	}
	wg.Wait()
	wg.Go(func() {
		time.Sleep(5 * time.Millisecond)
		if err := v.Close(); err != nil {
			t.Errorf("%v", err)
		}
	})
	for err == nil { // an interrupt may be left over
		err = waitSoon(h, v)
	}
	wantErr(t, "closed during the wait", err, base.ErrClosed)
	wg.Wait()
}

func testClock(t TB, h Harness) {
	last := h.Dev.Now()
	for range 300 {
		h.Dev.Pause(last + time.Millisecond)
		now := h.Dev.Now()
		if now < last {
			t.Fatalf("time went from %v to %v", last, now)
		}
		last = now
	}
	start := time.Now()
	h.Dev.Pause(hw.Forever)
	if took := time.Since(start); took > time.Second {
		t.Errorf("a pause took %v", took)
	}
}

// testStop: before Start and after Stop the device reaches nothing.
func testStop(t TB, h Harness) {
	b, err := h.Dev.Alloc(hw.PageSize, "conformance")
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer b.Free()
	ctx, cancel := h.soon()
	defer cancel()
	for range 3 {
		if h.Access != nil && h.Access(b.Addr, make([]byte, 4), true) == nil {
			t.Errorf("the device reaches memory although it was not started")
		}
		start(t, h)
		checkAccess(t, h, b.Bytes, []hw.Seg{{Addr: b.Addr, Len: hw.PageSize}})
		if err := errors.Join(h.Dev.Stop(ctx), h.Dev.Stop(ctx)); err != nil {
			t.Fatalf("%v", err)
		}
	}
	if _, err := h.Dev.Load64(h.Valid64); err != nil {
		t.Errorf("registers after a stop: %v", err)
	}
}

// testRemoval: every access to a device that was pulled out is an error or reads
// as ones, and what was allocated can be given back.
func testRemoval(t TB, h Harness) {
	if h.Remove == nil {
		t.Logf("the device cannot be removed")
		return
	}
	b, err := h.Dev.Alloc(hw.PageSize, "conformance")
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer b.Free()
	bell, err := h.Dev.Doorbell(h.Window - 4)
	if err != nil {
		t.Fatalf("%v", err)
	}
	h.Remove()
	v, err := h.Dev.Load64(h.Valid64)
	if !errors.Is(err, base.ErrDeviceGone) && (err != nil || v != ^uint64(0)) {
		t.Errorf("load: %#x, %v", v, err)
	}
	for _, err := range []error{bell.Ring(1), h.Dev.Store32(h.Valid64, 0)} {
		if err != nil && !errors.Is(err, base.ErrDeviceGone) {
			t.Errorf("store: %v", err)
		}
	}
	ctx, cancel := h.soon()
	defer cancel()
	if err := h.Dev.Stop(ctx); err != nil {
		t.Errorf("a device that is gone has stopped: %v", err)
	}
}

func testClose(t TB, h Harness) {
	if err := errors.Join(h.Dev.Close(), h.Dev.Close()); err != nil {
		t.Errorf("%v", err)
	}
	b, err := h.Dev.Alloc(hw.PageSize, "conformance")
	wantErr(t, "allocate after close", err, base.ErrClosed)
	if err == nil {
		b.Free()
	}
	_, err = h.Dev.Load32(h.Valid64)
	wantErr(t, "load after close", err, base.ErrClosed)
}
