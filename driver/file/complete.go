package file

import (
	"errors"
	"fmt"
	"io"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// finish takes the kernel's result for c: bytes or a negative errno. Called with
// mu held. It tells whether c was started again, so that the engine needs a kick.
func (d *Device) finish(c *cmd, res int64) (again bool) {
	if d.hooks.Hold != nil && d.hooks.Hold(c.kind, c.off) {
		d.held = append(d.held, heldBack{c, res})
		return false
	}
	if d.hooks.Result != nil {
		res = d.hooks.Result(c.kind, c.off, c.n, res)
	}
	data := c.kind == driver.OpRead || c.kind == driver.OpWrite
	if res > c.n && data {
		res = c.n // only a hook can do this
	}
	var err error
	switch {
	case res < 0 && d.transient(c, unix.Errno(-res)):
		return d.restart(c)
	case res < 0:
		err = d.failure(c, unix.Errno(-res))
	case data && res < c.n:
		var progress bool
		if progress, err = d.advance(c, res); err == nil && (progress || c.retries < maxRetries) {
			return d.restart(c)
		}
		if err == nil {
			err = d.failure(c, unix.EIO) // it never makes progress
		}
	case data:
		c.moved += res
	}
	d.endCmd(c, err)
	return false
}

// transient tells whether a command that failed with e should be issued again.
func (d *Device) transient(c *cmd, e unix.Errno) bool {
	switch {
	case c.kind == driver.OpWriteZeroes && !c.plain && (e == unix.EOPNOTSUPP || e == unix.ENOSYS):
		c.plain = true // write zeros instead
		return true
	case c.kind == driver.OpFlush:
		return e == unix.EINTR && c.retries < maxRetries // it did not begin
	}
	// ECANCELED: the thread that had submitted the command ended.
	return (e == unix.EAGAIN || e == unix.EINTR || e == unix.ECANCELED) && c.retries < maxRetries
}

// restart issues what is left of c, unless the device stopped meanwhile.
func (d *Device) restart(c *cmd) bool {
	if d.State() != driver.StateReady {
		d.endCmd(c, nil) // endOp says why
		return false
	}
	c.retries++
	d.start1(c)
	return true
}

// advance takes n bytes off the front of c. A read that gives nothing means that
// the file ended; a partial block is moved again.
func (d *Device) advance(c *cmd, n int64) (progress bool, err error) {
	if n == 0 && c.kind == driver.OpRead {
		return false, base.WithHint(base.Errorf("read", d.h.info.Target, base.ErrCorrupt,
			"offset %d: %w", c.off, io.ErrUnexpectedEOF), "the file was made shorter while it was open")
	}
	n -= n % d.h.info.BlockSize
	c.off += n
	c.n -= n
	c.moved += n
	for left := uint64(n); left > 0; {
		v := &c.iov[0]
		k := min(left, v.Len)
		v.Base, v.Len = v.Base+k, v.Len-k
		if left -= k; v.Len == 0 {
			c.iov = c.iov[1:]
		}
	}
	if n > 0 {
		c.retries = 0
	}
	return n > 0, nil
}

// failure gives a kernel error its class, and stops the device where it cannot
// be trusted any more.
func (d *Device) failure(c *cmd, e unix.Errno) error {
	target := d.h.info.Target
	name := c.kind.String()
	switch {
	case c.kind == driver.OpFlush:
		// The kernel reports a lost write once: a second flush would succeed.
		err := base.Errorf(name, target, base.ErrIsolated, "written data may be lost: %w", e)
		d.isolate(err)
		return err
	case e == unix.ENOSPC || e == unix.EDQUOT:
		return base.WithHint(base.Errorf(name, target, base.ErrNoSpace, "offset %d: %w", c.off, e),
			"the host's file system is full")
	case d.h.stat.Kind == unix.KindBlock && (e == unix.ENODEV || e == unix.ENXIO):
		err := base.Errorf(name, target, base.ErrDeviceGone, "%w", e)
		if s := d.State(); s != driver.StateRemoved && s != driver.StateClosed {
			d.cause = e
			d.incarnation.Add(1)
			d.setState(driver.StateRemoved, err)
		}
		return err
	case e == unix.EOPNOTSUPP:
		return base.Errorf(name, target, base.ErrNotSupported, "offset %d, length %d: %w", c.off, c.n, e)
	}
	return &base.Error{Op: name, Object: target, Err: &ioError{c.off, c.n, e}}
}

// ioError is the cause of a failed command.
type ioError struct {
	off, n int64
	errno  unix.Errno
}

func (e *ioError) Error() string {
	return fmt.Sprintf("offset %d, length %d: %v", e.off, e.n, e.errno)
}

func (e *ioError) Unwrap() error { return e.errno }

// endCmd frees the slot of c and notes how far it came. Called with mu held.
func (d *Device) endCmd(c *cmd, err error) {
	o := c.op
	switch c.kind {
	case driver.OpRead, driver.OpWrite:
		d.bytes -= c.size
	case driver.OpDiscard, driver.OpWriteZeroes:
		if err == nil && o.born == d.incarnation.Load() {
			c.moved = c.size
		}
	}
	if c.moved < c.size {
		o.good = min(o.good, c.off-o.base)
	}
	if o.err == nil {
		o.err = err
	}
	c.busy, c.op, c.iov = false, nil, nil
	d.free = append(d.free, c.index)
	if d.waiting > 0 {
		signal(d.roomC)
	}
	d.endPart(o)
}

// endPart ends the request with its last command. Called with mu held.
func (d *Device) endPart(o *op) {
	if o.parts--; o.parts > 0 {
		return
	}
	r := &o.batch.Reqs[o.index]
	for i := range o.segs {
		r.Segs[i].Region.Release()
	}
	if o.born != d.incarnation.Load() && !errors.Is(o.err, base.ErrIsolated) && !errors.Is(o.err, base.ErrDeviceGone) {
		class := base.ErrIsolated
		if d.State() == driver.StateRemoved {
			class = base.ErrDeviceGone
		}
		o.err = base.Errorf(o.kind.String(), d.h.info.Target, class, "it was in flight: %w", d.cause)
	}
	b, i, done, err := o.batch, o.index, min(o.good, o.sent), o.err
	o.batch, o.err = nil, nil
	d.ops = append(d.ops, o)
	d.endRequest(b, i, done, err)
}

// endRequest counts and answers one entry. The bytes are those that the answer tells
// (I10): what moved behind a failed command is in neither. Called with mu held.
func (d *Device) endRequest(b *driver.Batch, i int, done int64, err error) {
	d.requests--
	d.countBytes(b.Reqs[i].Op, done)
	if err != nil {
		d.stats.Errors++
		if deviceFault(err) {
			d.failed++
		}
	} else {
		d.failed = 0
		d.count(b.Reqs[i].Op)
	}
	d.checkIdle()
	b.End(i, done, err)
}

// deviceFault tells whether err speaks against the device, not the request.
func deviceFault(err error) bool {
	var e unix.Errno
	return errors.As(err, &e) && !errors.Is(err, base.ErrNoSpace) && !errors.Is(err, base.ErrNotSupported)
}

func (d *Device) countBytes(op driver.Op, n int64) {
	switch op {
	case driver.OpRead:
		d.stats.ReadBytes += n
	case driver.OpWrite:
		d.stats.WriteBytes += n
	case driver.OpDiscard:
		d.stats.DiscardBytes += n
	case driver.OpWriteZeroes:
		d.stats.ZeroBytes += n
	}
}

func (d *Device) count(op driver.Op) {
	switch op {
	case driver.OpRead:
		d.stats.Reads++
	case driver.OpWrite:
		d.stats.Writes++
	case driver.OpFlush:
		d.stats.Flushes++
	case driver.OpDiscard:
		d.stats.Discards++
	case driver.OpWriteZeroes:
		d.stats.Zeroes++
	}
}

// checkIdle wakes a Reset or Close that waits for the last request. Called with
// mu held.
func (d *Device) checkIdle() {
	if d.requests == 0 && d.submitting == 0 {
		signal(d.idleC)
	}
}
