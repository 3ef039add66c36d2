package gpu

import (
	"io"
	"slices"

	"github.com/ugds-store/ugds/internal/base"
)

// Ptr is the first byte.
func (r *Registration) Ptr() Ptr { return r.base }

// Size in bytes.
func (r *Registration) Size() int64 { return r.size }

// Device is the index of the GPU.
func (r *Registration) Device() int { return r.device }

// Kind is device or managed.
func (r *Registration) Kind() Kind { return r.kind }

// String names the range for messages.
func (r *Registration) String() string {
	return r.base.String() + " (" + base.FormatBytes(r.size) + ")"
}

// Generation rises when the registration is renewed; 0 once it was closed.
func (r *Registration) Generation() uint32 { return uint32(r.hold.Load() >> 32) }

// InFlight is the number of holds.
func (r *Registration) InFlight() int64 { return int64(uint32(r.hold.Load())) }

// Hold marks one more request of generation gen in flight; Release ends it.
// ErrClosed when the generation is over, ErrMismatch when the memory is known
// to have been freed.
func (r *Registration) Hold(gen uint32) error {
	if r.dead.Load() {
		return r.stale()
	}
	for {
		v := r.hold.Load()
		if uint32(v>>32) != gen || gen == 0 {
			return base.Errorf("use", r.String(), base.ErrClosed,
				"generation %d is over, the range is at %d (0 is closed)", gen, uint32(v>>32))
		}
		if r.hold.CompareAndSwap(v, v+1) {
			r.used.Store(r.table.clock.Add(1))
			return nil
		}
	}
}

// HoldNow is Hold at the present generation.
func (r *Registration) HoldNow() error {
	err := r.Hold(r.Generation())
	for range 8 { // an eviction may come between
		if err == nil || r.Generation() == 0 {
			break
		}
		err = r.Hold(r.Generation())
	}
	return err
}

// Release ends one Hold.
func (r *Registration) Release() {
	if v := r.hold.Add(^uint64(0)); uint32(v) == ^uint32(0) {
		panic("gpu: range released more often than held")
	}
}

// Check asks the backend whether the memory is still the one that was
// registered: free and allocate at the same address gives another buffer id.
// ErrMismatch if not; the registration then refuses every further Hold.
func (r *Registration) Check() error {
	if r.dead.Load() {
		return r.stale()
	}
	return r.checkID()
}

func (r *Registration) checkID() error {
	for _, p := range r.pieces {
		a, err := r.table.backend.Attributes(p.at)
		if err != nil || a.BufferID != p.id || a.Kind != r.kind {
			r.dead.Store(true)
			return r.stale()
		}
	}
	return nil
}

func (r *Registration) stale() error {
	return base.WithHint(base.Errorf("use", r.String(), base.ErrMismatch,
		"the memory was freed after it was registered"), "close the registration before freeing, and register again")
}

// Import gives what owner keeps of the exported range for its devices, which make
// makes of the dma-buf at the first call; or the reason why there is no dma-buf. It is
// closed before the dma-buf is: by Close, by an eviction, or by the owner before. The
// caller has a Hold, as long as it uses the result.
func (r *Registration) Import(owner any, make func(fd int) io.Closer) (io.Closer, string) {
	fd, why := r.Direct()
	if why != "" {
		return nil, why
	}
	r.importMu.Lock()
	defer r.importMu.Unlock()
	if c := r.imports[owner]; c != nil {
		return c, ""
	}
	if r.imports == nil {
		r.imports = map[any]io.Closer{}
	}
	c := make(fd)
	r.imports[owner] = c
	return c, ""
}

// endImports closes what owners keep. Nobody holds the range.
func (r *Registration) endImports() {
	r.importMu.Lock()
	defer r.importMu.Unlock()
	for _, c := range r.imports {
		_ = c.Close() // nothing is in flight, so there is nothing to refuse
	}
	r.imports = nil
}

// Direct gives the dma-buf of the range and its size, or the reason why there
// is none. The descriptor is valid while the caller's Hold lasts.
func (r *Registration) Direct() (fd int, why string) {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	if r.fd == nil {
		return -1, r.why
	}
	return r.fd.Int(), ""
}

// Err is what the driver answered when the range was to be exported, or nil. It
// explains Direct's reason to people.
func (r *Registration) Err() error { return r.err }

// renew ends the generation of an idle range.
func (r *Registration) renew() bool {
	v := r.hold.Load()
	if v>>32 == 0 || uint32(v) != 0 {
		return false
	}
	next := uint32(v>>32) + 1
	if next == 0 {
		next = 1 // generation 0 means closed
	}
	return r.hold.CompareAndSwap(v, uint64(next)<<32)
}

// shut ends the last generation; ErrBusy while a request is in flight.
func (r *Registration) shut() error {
	for {
		v := r.hold.Load()
		if uint32(v) != 0 {
			return base.Errorf("unregister", r.String(), base.ErrBusy, "%d requests in flight", uint32(v))
		}
		if v == 0 || r.hold.CompareAndSwap(v, 0) {
			return nil
		}
	}
}

// Close undoes one Register. The last one removes the range: ErrBusy, and no
// change, while a request is in flight (I3). ErrClosed when it was removed
// before.
func (r *Registration) Close() error {
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.refs == 0 {
		return base.Errorf("unregister", r.String(), base.ErrClosed, "it was removed before")
	}
	if r.refs > 1 {
		r.refs--
		return nil
	}
	if err := r.shut(); err != nil {
		return err
	}
	r.refs = 0
	t.unexport(r, ReasonEvicted)
	next := slices.Clone(*t.ranges.Load())
	if i := slices.Index(next, r); i >= 0 {
		next = slices.Delete(next, i, i+1)
		t.ranges.Store(&next)
	}
	return nil
}
