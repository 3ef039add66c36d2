package driver

import (
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
)

// Region is memory that devices may read and write: our own off-heap memory, a
// caller's range, a memfd or a dma-buf. It has a generation, and counts the
// requests in flight that name it; while the count is not zero it cannot be
// closed (I3). Safe for concurrent use.
type Region struct {
	id   uint64
	size int64
	mem  []byte // the CPU's view; nil when the CPU cannot reach it
	fd   int    // memfd, dma-buf or window, -1 if none
	off  int64  // of the memory behind fd
	own  *dma.Mem

	// hold is generation<<32 | requests in flight. One word, so that "still
	// this generation" and "one more in flight" are decided together.
	// Generation 0 is a closed region.
	hold atomic.Uint64

	// attached is what each device keeps for this region. A list is never changed
	// in place, so that devices look it up without a lock; mu is for its changes.
	attached atomic.Pointer[[]attachment]
	mu       sync.Mutex
}

// attachment is what one device keeps.
type attachment struct {
	d      Device
	handle any
}

var regionIDs atomic.Uint64

// AllocRegion makes a region of our own page-aligned, off-heap memory of size
// bytes. owner names the bytes in the memory statistics.
func AllocRegion(size int64, owner string) (*Region, error) {
	m, err := dma.Alloc(size, owner)
	if err != nil {
		return nil, err
	}
	r := NewRegion(m.Bytes())
	r.own = m
	return r, nil
}

// NewRegion makes a region of memory that the caller owns. The memory must not
// move or be freed before Close returned nil; memory that a device writes must
// be off-heap.
func NewRegion(mem []byte) *Region {
	r := &Region{id: regionIDs.Add(1), size: int64(len(mem)), mem: mem, fd: -1}
	r.hold.Store(1 << 32)
	return r
}

// NewFDRegion makes a region of size bytes behind a dma-buf or memfd. mem is the
// CPU's view of it, or nil when the CPU cannot reach it. The caller keeps fd
// open until Close returned nil.
func NewFDRegion(fd int, size int64, mem []byte) *Region {
	r := NewRegion(mem)
	r.size, r.fd = size, fd
	return r
}

// NewWindowRegion makes a region of size bytes at off behind the descriptor of a
// device whose memory others can reach, such as a BAR (vfio.Window). The caller keeps
// fd open until Close returned nil.
func NewWindowRegion(fd int, off, size int64) *Region {
	r := NewFDRegion(fd, size, nil)
	r.off = off
	return r
}

// ID is unique in the process and never reused.
func (r *Region) ID() uint64 { return r.id }

// Size in bytes.
func (r *Region) Size() int64 { return r.size }

// FD is the memfd, dma-buf or device behind the region, or -1.
func (r *Region) FD() int { return r.fd }

// FDOffset is where the region begins behind FD, in bytes.
func (r *Region) FDOffset() int64 { return r.off }

// CPU is the processor's view of the memory, or nil when it cannot reach it.
func (r *Region) CPU() []byte { return r.mem }

// Bytes is the processor's view of [off, off+n), or nil when the range is
// outside the region or the processor cannot reach it.
func (r *Region) Bytes(off, n int64) []byte {
	if r.mem == nil || !base.CheckRange(off, n, r.size) {
		return nil
	}
	return r.mem[off : off+n : off+n]
}

// Seg names [off, off+n) at the present generation. The range is checked when
// the request is submitted.
func (r *Region) Seg(off, n int64) Seg {
	return Seg{Region: r, Gen: r.Generation(), Off: off, Len: n}
}

// Generation rises when the region is renewed; it is 0 once it was closed.
func (r *Region) Generation() uint32 { return uint32(r.hold.Load() >> 32) }

// InFlight is the number of holds: requests in flight that name the region.
func (r *Region) InFlight() int64 { return int64(uint32(r.hold.Load())) }

// Hold marks one more request of generation gen in flight. It fails when the
// region was closed or renewed since. Devices call it at submission, once a
// segment, and Release when the segment's commands ended.
func (r *Region) Hold(gen uint32) error { return r.HoldN(gen, 1) }

// HoldN is Hold n times: for segments of one region in a row.
func (r *Region) HoldN(gen uint32, n uint32) error {
	for {
		v := r.hold.Load()
		if uint32(v>>32) != gen || gen == 0 {
			return base.Errorf("use", r.String(), base.ErrClosed,
				"generation %d is over, the region is at %d (0 is closed)", gen, uint32(v>>32))
		}
		if r.hold.CompareAndSwap(v, v+uint64(n)) {
			return nil
		}
	}
}

// Release ends one Hold.
func (r *Region) Release() { r.ReleaseN(1) }

// ReleaseN ends n of them.
func (r *Region) ReleaseN(n uint32) {
	if v := r.hold.Add(-uint64(n)); uint32(v) > -n-1 {
		panic("driver: region released more often than held")
	}
}

// Renew ends the present generation, for memory that was revoked or replaced:
// segments made before are refused from now on. ErrBusy while any is in flight.
func (r *Region) Renew() error {
	for {
		v := r.hold.Load()
		if uint32(v) != 0 {
			return base.Errorf("renew", r.String(), base.ErrBusy, "%d requests in flight", uint32(v))
		}
		next := uint32(v>>32) + 1
		if v>>32 == 0 {
			return base.Errorf("renew", r.String(), base.ErrClosed, "the region is closed")
		}
		if next == 0 {
			next = 1 // generation 0 means closed
		}
		if r.hold.CompareAndSwap(v, uint64(next)<<32) {
			return nil
		}
	}
}

// Closed tells whether Close succeeded: no request can name the region again.
func (r *Region) Closed() bool { return r.Generation() == 0 }

// shut ends the last generation; first is false when it had ended already.
func (r *Region) shut() (first bool, err error) {
	for {
		v := r.hold.Load()
		if uint32(v) != 0 {
			return false, base.Errorf("close", r.String(), base.ErrBusy, "%d requests in flight", uint32(v))
		}
		if v == 0 {
			return false, nil
		}
		if r.hold.CompareAndSwap(v, 0) {
			return true, nil
		}
	}
}

// Close ends the region: later requests are refused, it is detached from every
// device, and memory of its own is freed. ErrBusy, and no change, while a
// request is in flight. Closing twice is harmless.
func (r *Region) Close() error {
	if first, err := r.shut(); !first {
		return err
	}
	for _, a := range r.forget() {
		if f, ok := a.handle.(func()); ok {
			f()
			continue
		}
		_ = a.d.Detach(r) // nothing is in flight, so there is nothing to refuse
	}
	if r.own != nil {
		r.own.Free()
		r.own = nil
	}
	return nil
}

// forget takes the handles of all devices.
func (r *Region) forget() []attachment {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.attachments()
	r.attached.Store(nil)
	return list
}

func (r *Region) attachments() []attachment {
	if p := r.attached.Load(); p != nil {
		return *p
	}
	return nil
}

// SetHandle keeps what device d needs to reach the region; nil forgets it. A
// handle of type func() is called when the region closes. ErrClosed, and nothing is
// kept, for a handle that would come after Close. For implementations.
func (r *Region) SetHandle(d Device, handle any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if handle != nil && r.Closed() {
		return base.Errorf("attach", r.String(), base.ErrClosed, "the region is closed")
	}
	var list []attachment
	for _, a := range r.attachments() {
		if a.d != d {
			list = append(list, a)
		}
	}
	if handle != nil {
		list = append(list, attachment{d, handle})
	}
	r.attached.Store(&list)
	return nil
}

// Handle is what device d stored with SetHandle, or nil. It takes no lock.
func (r *Region) Handle(d Device) any {
	list := r.attachments()
	for i := range list {
		if list[i].d == d {
			return list[i].handle
		}
	}
	return nil
}

// String names the region for messages.
func (r *Region) String() string {
	return "region " + strconv.FormatUint(r.id, 10) + " (" + base.FormatBytes(r.size) + ")"
}
