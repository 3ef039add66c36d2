package file

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/internal/uring"
)

const (
	// waitSlice bounds one stay in the kernel, so that a cancelled context is
	// seen in time. A context's own deadline is met exactly.
	waitSlice = 10 * time.Millisecond
	// reapBurst is how many completions are taken under one lock.
	reapBurst = 64
	// bufferSlots is the size of the table of registered buffers.
	bufferSlots = 1024
	// wakeEntries is room in the ring beyond the slots, for entries that only
	// wake the leader.
	wakeEntries = 16
	// wakeTag is the UserData of those.
	wakeTag = ^uint64(0)
)

// ringEngine is the io_uring engine.
type ringEngine struct {
	d    *Device
	ring *uring.Ring
	// lead is held by the one goroutine that may block in the kernel.
	lead  chan struct{}
	fixed bool // the file is registered
	slow  sync.WaitGroup
	woken bool // an entry that wakes the leader is on its way; guarded by mu

	regMu   sync.Mutex // serialises changes of the buffer table
	table   bool       // a buffer table is registered
	closed  bool       // it was dropped
	freeBuf []int32
	bufs    map[uint64]fixedBuf // by region id; guarded by mu
}

var ringOps = []uint8{uring.OpNop, uring.OpRead, uring.OpWrite, uring.OpReadv, uring.OpWritev,
	uring.OpReadFixed, uring.OpWriteFixed, uring.OpFsync, uring.OpFallocate}

// newRing makes the engine and tries it out on the file.
func newRing(d *Device, depth int) (*ringEngine, error) {
	r, err := uring.New(depth + wakeEntries)
	if err != nil {
		return nil, refusedBy(err)
	}
	e := &ringEngine{d: d, ring: r, lead: make(chan struct{}, 1), bufs: make(map[uint64]fixedBuf)}
	if err := e.probe(); err != nil {
		r.Close()
		return nil, err
	}
	if err := r.RegisterFile(d.h.fd); err != nil {
		d.h.reason("io_uring without a registered file: %v", err)
	} else {
		e.fixed = true
	}
	if err := r.SparseBuffers(bufferSlots); err != nil {
		d.h.reason("io_uring with unregistered buffers: the kernel has no sparse table: %v", err)
	} else {
		e.table = true
		for i := range int32(bufferSlots) {
			e.freeBuf = append(e.freeBuf, bufferSlots-1-i)
		}
	}
	d.h.reason("io_uring: %d commands, %s in flight", depth, base.FormatBytes(driver.MaxBytesInFlight))
	return e, nil
}

// refusedBy explains why there is no ring.
func refusedBy(err error) error {
	switch {
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w (the kernel or a sandbox has no io_uring)", err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w (refused by seccomp or by the sysctl kernel.io_uring_disabled)", err)
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("%w (ulimit -l is too low)", err)
	}
	return err
}

// probe submits a no-op and reads the first block of the file.
func (e *ringEngine) probe() error {
	if op, ok, err := e.ring.Supports(ringOps...); err != nil {
		return err
	} else if !ok {
		return fmt.Errorf("io_uring: the kernel lacks operation %d", op)
	}
	m, err := dma.Alloc(base.StoreBlock, "file device probe")
	if err != nil {
		return err
	}
	defer m.Free()
	nop, read := e.ring.Next(), e.ring.Next()
	if nop == nil || read == nil {
		return errors.New("io_uring: the ring has no room")
	}
	nop.Opcode, nop.UserData = uring.OpNop, 1
	read.Opcode, read.UserData, read.Fd = uring.OpRead, 2, int32(e.d.h.fd.Int())
	read.Addr, read.Len = unix.Addr(m.Bytes()), base.StoreBlock
	e.ring.Publish()
	var out [1]uring.CQE
	seen := 0
	for end := time.Now().Add(driver.ReadWriteDeadline); seen < 2 && time.Now().Before(end); {
		if e.ring.Peek(out[:]) == 0 {
			if err := e.ring.Wait(waitSlice); err != nil && err != unix.ETIME && err != unix.EINTR {
				return fmt.Errorf("io_uring_enter: %w", err)
			}
			continue
		}
		seen++
		if out[0].Res < 0 {
			return fmt.Errorf("io_uring: a test request failed: %w", unix.Errno(-out[0].Res))
		}
	}
	if seen < 2 {
		return fmt.Errorf("io_uring: a test request did not end: %w", base.ErrTimeout)
	}
	return nil
}

// start fills an entry in place. The ring has room for every slot.
func (e *ringEngine) start(c *cmd) {
	if c.kind == driver.OpDiscard && e.d.h.stat.Kind == unix.KindBlock || c.plain ||
		c.kind == driver.OpWriteZeroes && e.d.hooks.NoZeroRange {
		e.slow.Go(func() { e.runSlow(c) })
		return
	}
	s := e.ring.Next()
	if s == nil {
		panic("file: the ring is smaller than the slots")
	}
	if e.fixed {
		s.Flags = uring.FixedFile
	} else {
		s.Fd = int32(e.d.h.fd.Int())
	}
	s.UserData = uint64(c.gen)<<32 | uint64(uint32(c.index))
	s.Off = uint64(c.off)
	switch c.kind {
	case driver.OpRead:
		fillData(s, c, uring.OpRead, uring.OpReadv, uring.OpReadFixed)
	case driver.OpWrite:
		fillData(s, c, uring.OpWrite, uring.OpWritev, uring.OpWriteFixed)
		if c.fua {
			s.OpFlags = unix.DSync
		}
	case driver.OpFlush:
		s.Opcode, s.OpFlags, s.Off = uring.OpFsync, uring.Datasync, 0
	case driver.OpDiscard:
		s.Opcode, s.Addr, s.Len = uring.OpFallocate, uint64(c.n), unix.PunchHole
	case driver.OpWriteZeroes:
		s.Opcode, s.Addr, s.Len = uring.OpFallocate, uint64(c.n), unix.ZeroRange
	}
	e.ring.Publish()
}

func fillData(s *uring.SQE, c *cmd, plain, vector, fixed uint8) {
	if len(c.iov) > 1 {
		s.Opcode, s.Addr, s.Len = vector, unix.AddrOf(c.iov), uint32(len(c.iov))
		return
	}
	s.Opcode, s.Addr, s.Len = plain, c.iov[0].Base, uint32(c.iov[0].Len)
	if c.buf >= 0 {
		s.Opcode, s.BufIndex = fixed, uint16(c.buf)
	}
}

// runSlow runs what io_uring cannot, and wakes the leader afterwards.
func (e *ringEngine) runSlow(c *cmd) {
	res := e.d.exec(c)
	e.d.mu.Lock()
	e.d.finish(c, res)
	// One entry at a time: whoever takes it sees what ended before, and any number
	// of them would leave no room for commands.
	if !e.woken {
		if s := e.ring.Next(); s != nil {
			s.Opcode, s.UserData = uring.OpNop, wakeTag
			e.ring.Publish()
			e.woken = true
		}
	}
	e.d.mu.Unlock()
	e.kick()
}

// kick submits what is published. What the kernel does not take now, the next
// kick or the leader submits.
func (e *ringEngine) kick() { _, _ = e.ring.Submit() }

// reap takes every completion that is there.
func (e *ringEngine) reap() (n int) {
	var out [reapBurst]uring.CQE
	for more := true; more; {
		var again bool
		var got int
		if got, again = e.reapBurst(out[:]); again {
			e.kick()
		}
		n += got
		more = got == len(out)
	}
	return n
}

func (e *ringEngine) reapBurst(out []uring.CQE) (n int, again bool) {
	d := e.d
	began := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	n = e.ring.Peek(out)
	for _, q := range out[:n] {
		if q.UserData == wakeTag {
			e.woken = false
			continue
		}
		i := uint32(q.UserData)
		if int(i) >= len(d.cmds) || !d.cmds[i].busy || d.cmds[i].gen != uint32(q.UserData>>32) {
			d.isolate(base.Errorf("reap", d.h.info.Target, base.ErrCorrupt, "unknown completion %#x", q.UserData))
			continue
		}
		again = d.finish(&d.cmds[i], int64(q.Res)) || again
	}
	if n < len(out) {
		d.reaped = began
	}
	return n, again
}

// await makes one waiter the leader, which reaps for all. A follower waits for
// what it wants or for the lead; the lead is handed on by the channel itself,
// so that no wake-up is lost.
func (e *ringEngine) await(ctx context.Context, g goal, wake, cancel <-chan struct{}) error {
	for !g.Ended() {
		if err := ctx.Err(); err != nil {
			return err
		}
		select {
		case e.lead <- struct{}{}:
			e.leadUntil(ctx, g)
			<-e.lead
		case <-wake:
		case <-cancel:
		case <-ctx.Done():
		}
	}
	return nil
}

// leadUntil reaps until the goal or the end of ctx.
func (e *ringEngine) leadUntil(ctx context.Context, g goal) {
	for !g.Ended() && ctx.Err() == nil {
		if e.reap() > 0 {
			continue
		}
		slice := waitSlice
		if end, ok := ctx.Deadline(); ok {
			slice = min(slice, max(time.Until(end), 0))
		}
		if e.d.hooks.hooked() {
			slice = min(slice, watchHooked) // completions appear without the kernel
		}
		switch err := e.ring.Wait(slice); err {
		case nil, unix.ETIME, unix.EINTR:
		default: // the kernel is short of memory; the deadlines bound this
			time.Sleep(time.Millisecond)
		}
	}
}

// tick reaps when nobody leads; a leader reaps at least once a slice.
func (e *ringEngine) tick() {
	select {
	case e.lead <- struct{}{}:
		e.kick()
		e.reap()
		<-e.lead
	default:
	}
}

// close gives the rings back. Nothing is in flight, and no leader is left that
// could be in the kernel once the lead was taken.
func (e *ringEngine) close() {
	e.slow.Wait()
	e.lead <- struct{}{}
	e.forgetAll()
	if e.table {
		_ = e.ring.UnregisterBuffers()
	}
	if e.fixed {
		_ = e.ring.UnregisterFile() // now: a closed ring drops it in the background
	}
	e.ring.Close()
	<-e.lead
}
