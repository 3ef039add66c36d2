package file

import (
	"context"
	"runtime"
	"sync"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/unix"
)

// engine issues commands. Its completions come back through Device.finish.
type engine interface {
	// start takes c; it does not block. Called with mu held.
	start(c *cmd)
	// kick lets the kernel see what was started. Called without mu.
	kick()
	// await works until g has ended or ctx ends; wake has a token when it may be
	// worth asking g again, and so does cancel, if it is not nil, for good.
	await(ctx context.Context, g goal, wake, cancel <-chan struct{}) error
	// tick is called by the watcher. It moves Device.reaped on.
	tick()
	// buffer is the registered buffer of r, or -1. Called with mu held.
	buffer(r *driver.Region) int32
	attach(r *driver.Region) error
	// forget ends the use of a region's buffer, called with mu held; release then
	// gives it back, called without mu.
	forget(id uint64) (buf int32)
	release(buf int32)
	// close stops everything; nothing is in flight.
	close()
}

// goal is what a waiter waits for: a *driver.Batch, or one of those below. They
// are pointers, so that waiting does not allocate.
type goal interface{ Ended() bool }

// roomGoal is room for one more command of a batch, its end by Cancel, or that of
// StateReady.
type roomGoal struct {
	d *Device
	b *driver.Batch
}

// Ended implements goal.
func (g *roomGoal) Ended() bool {
	d := g.d
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.room(true) || d.State() != driver.StateReady || g.b.Canceled()
}

// idleGoal is that nothing is in flight or being submitted.
type idleGoal Device

// Ended implements goal.
func (g *idleGoal) Ended() bool {
	d := (*Device)(g)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.requests == 0 && d.submitting == 0
}

// startEngine chooses the engine by trying it out.
func (d *Device) startEngine(o *Options) error {
	if o.Engine != EnginePool {
		e, err := newRing(d, o.Depth)
		if err == nil {
			d.eng = e
			d.h.info.Engine = EngineURing
			return nil
		}
		if o.Engine == EngineURing {
			return base.WithHint(base.Errorf("open", o.Path, base.ErrNotSupported, "%w", err),
				"choose the engine %s", EnginePool)
		}
		d.h.reason("pread/pwrite: %v", err)
	} else {
		d.h.reason("pread/pwrite: asked for")
	}
	d.h.info.Engine = EnginePool
	d.eng = newPool(d, o.Depth)
	return nil
}

// PollBatch implements driver.Poller.
func (d *Device) PollBatch(ctx context.Context, b *driver.Batch) error {
	return d.eng.await(ctx, b, b.EndedC(), nil)
}

// exec runs c with ordinary system calls and gives bytes or a negative errno.
// Only what c's owner may read is read: no lock is held.
func (d *Device) exec(c *cmd) int64 {
	var n int
	var err error
	fd := d.h.fd
	switch c.kind {
	case driver.OpRead:
		n, err = unix.Preadv(fd, c.iov, c.off)
	case driver.OpWrite:
		flags := 0
		if c.fua {
			flags = unix.DSync
		}
		n, err = unix.Pwritev(fd, c.iov, c.off, flags)
	case driver.OpFlush:
		err = unix.Fdatasync(fd)
	case driver.OpDiscard:
		if d.h.stat.Kind == unix.KindBlock {
			err = unix.BlockDiscard(fd, c.off, c.n)
		} else {
			err = unix.Fallocate(fd, unix.PunchHole, c.off, c.n)
		}
	case driver.OpWriteZeroes:
		switch {
		case c.plain:
			err = d.writeZeros(c)
		case d.hooks.NoZeroRange:
			err = unix.EOPNOTSUPP
		default:
			err = unix.Fallocate(fd, unix.ZeroRange, c.off, c.n)
		}
	}
	if e := unix.ErrnoOf(err); e != 0 {
		return -int64(e)
	}
	return int64(n)
}

// zeroPage is shared memory full of zeros, made when it is first needed.
type zeroPage struct {
	mu  sync.Mutex
	mem *dma.Mem
}

func (z *zeroPage) get() ([]byte, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.mem == nil {
		var err error
		if z.mem, err = dma.Alloc(base.MiB, "file device zeros"); err != nil {
			return nil, unix.ENOMEM
		}
	}
	return z.mem.Bytes(), nil
}

func (z *zeroPage) free() {
	if z.mem != nil {
		z.mem.Free()
		z.mem = nil
	}
}

// writeZeros writes zeros over the range of c.
func (d *Device) writeZeros(c *cmd) error {
	zeros, err := d.zeroes.get()
	if err != nil {
		return err
	}
	for off, end := c.off, c.off+c.n; off < end; {
		k, err := unix.Pwrite(d.h.fd, zeros[:min(end-off, int64(len(zeros)))], off)
		if err != nil {
			return err
		}
		if k == 0 {
			return unix.EIO
		}
		off += int64(k)
	}
	runtime.KeepAlive(zeros)
	return nil
}
