package file

import (
	"errors"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/internal/uring"
)

// Attach implements driver.Device: it registers the region's pages with the
// ring, which spares the kernel to pin them for each request. Where that is not
// possible the region works all the same, and Info.Reasons says why.
func (d *Device) Attach(r *driver.Region) error {
	if r.CPU() == nil {
		return base.Errorf("attach", r.String(), base.ErrNotSupported,
			"a file device needs memory that the processor can reach")
	}
	if r.Closed() {
		return base.Errorf("attach", r.String(), base.ErrClosed, "the region is closed")
	}
	d.mu.Lock()
	err := error(nil)
	if d.closing || d.State() == driver.StateClosed {
		err = d.refusal("attach")
	}
	d.mu.Unlock()
	if err != nil {
		return err
	}
	return d.eng.attach(r)
}

// Detach implements driver.Device.
func (d *Device) Detach(r *driver.Region) error {
	d.mu.Lock() // Submit holds segments under mu: none can come between
	if n := r.InFlight(); n > 0 {
		d.mu.Unlock()
		return base.Errorf("detach", r.String(), base.ErrBusy, "%d requests in flight", n)
	}
	buf := d.eng.forget(r.ID())
	d.mu.Unlock()
	_ = r.SetHandle(d, nil) // to forget is never refused
	d.eng.release(buf)
	return nil
}

// fixedBuf is a region's place in the table of registered buffers.
type fixedBuf struct {
	index  int32
	region *driver.Region
}

// buffer is the registered buffer of r. Called with mu held.
func (e *ringEngine) buffer(r *driver.Region) int32 {
	if b, ok := e.bufs[r.ID()]; ok {
		return b.index
	}
	return -1
}

func (e *ringEngine) attach(r *driver.Region) error {
	if !e.register(r) {
		return nil
	}
	id := r.ID()
	err := r.SetHandle(e.d, func() { e.drop(id) })
	if err != nil { // closed meanwhile
		e.drop(id)
	}
	return err
}

// register gives the region's pages a new place in the ring's table, if it can.
func (e *ringEngine) register(r *driver.Region) bool {
	e.regMu.Lock()
	defer e.regMu.Unlock()
	d := e.d
	d.mu.Lock()
	_, there := e.bufs[r.ID()]
	d.mu.Unlock()
	switch {
	case there || !e.table || e.closed:
		return false
	case r.Size() > uring.MaxFixedBuffer:
		d.addReason("unregistered buffers for regions above %s", base.FormatBytes(uring.MaxFixedBuffer))
		return false
	case len(e.freeBuf) == 0:
		d.addReason("unregistered buffers: all %d places are taken", bufferSlots)
		return false
	}
	i := e.freeBuf[len(e.freeBuf)-1]
	if err := e.ring.SetBuffer(int(i), r.CPU()); err != nil {
		e.explain(err)
		return false
	}
	e.freeBuf = e.freeBuf[:len(e.freeBuf)-1]
	d.mu.Lock()
	e.bufs[r.ID()] = fixedBuf{i, r}
	d.mu.Unlock()
	return true
}

// drop forgets a region that closes.
func (e *ringEngine) drop(id uint64) {
	e.d.mu.Lock()
	buf := e.forget(id)
	e.d.mu.Unlock()
	e.release(buf)
}

func (e *ringEngine) explain(err error) {
	l, lerr := unix.GetRlimit(unix.RlimitMemlock)
	if errors.Is(err, unix.ENOMEM) && lerr == nil {
		e.d.addReason("unregistered buffers: the memory lock limit of %s is too low (ulimit -l)",
			base.FormatBytes(int64(min(l.Soft, 1<<62))))
		return
	}
	e.d.addReason("unregistered buffers: %v", err)
}

// forget takes the region out of the table. Called with mu held.
func (e *ringEngine) forget(id uint64) int32 {
	b, ok := e.bufs[id]
	if !ok {
		return -1
	}
	delete(e.bufs, id)
	return b.index
}

// release empties a place of the table. Nothing in flight names it.
func (e *ringEngine) release(buf int32) {
	if buf < 0 {
		return
	}
	e.regMu.Lock()
	defer e.regMu.Unlock()
	if e.closed {
		return
	}
	_ = e.ring.SetBuffer(int(buf), nil)
	e.freeBuf = append(e.freeBuf, buf)
}

// forgetAll takes every region out of the table, for good.
func (e *ringEngine) forgetAll() {
	e.regMu.Lock()
	defer e.regMu.Unlock()
	e.closed = true
	e.d.mu.Lock()
	bufs := e.bufs
	e.bufs = nil
	e.d.mu.Unlock()
	for _, b := range bufs {
		_ = b.region.SetHandle(e.d, nil)
	}
}
