package xfer

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// slack is room behind a chunk for the blocks of a device that a range begins
// and ends in, in bytes.
const slack = 2 * base.StoreBlock

// lane is a stream and its bounce buffers. One goroutine uses it at a time.
type lane struct {
	m      *Mover
	stream gpu.Stream
	mem    gpu.HostMemory
	region *driver.Region // the same memory, for devices
	slots  []slot         // what the memory is cut into, see cut
	sick   *doubt         // the stream failed, or a copy did not end in time
	cpu    int            // the processor that gave it back last; under Mover.mu
}

// slot is one bounce buffer of a lane.
type slot struct {
	at   int64 // where it begins in the lane's memory
	size int64
	tick uint64 // the copy that used it last has ended at this tick; 0 none
	busy bool   // it was acquired and not given back: no copy that ends frees it
	work work
	off  int64 // of the chunk in the request
	n    int64
	lead int64
}

func (m *Mover) slotBytes() int64 { return m.opt.ChunkBytes + slack }
func (m *Mover) laneBytes() int64 { return int64(m.opt.Depth) * m.slotBytes() }

// newLane makes a lane; its place was counted in m.made.
func (m *Mover) newLane() (*lane, error) {
	mem, err := m.dev.AllocHost(m.laneBytes())
	if err != nil {
		return nil, err
	}
	s, err := m.dev.NewStream()
	if err != nil {
		return nil, errors.Join(err, mem.Close())
	}
	l := &lane{m: m, stream: s, mem: mem, region: driver.NewRegion(mem.Bytes())}
	l.cut(m.opt.ChunkBytes)
	return l, nil
}

// maxSlots bounds the buffers that the memory of a lane is cut into, unless Depth is
// more.
const maxSlots = 16

// cut makes buffers for chunks of n bytes, at most ChunkBytes, of the lane's memory:
// the smaller they are the more, so that as many bytes can be under way. Nothing is.
func (l *lane) cut(n int64) {
	size := base.AlignUp(n, gpu.HostPage) + slack
	count := int(min(l.m.laneBytes()/size, max(maxSlots, int64(l.m.opt.Depth))))
	if cap(l.slots) < count {
		l.slots = make([]slot, count)
	}
	l.slots = l.slots[:count]
	for i := range l.slots {
		s := &l.slots[i]
		s.at, s.size, s.tick, s.busy = int64(i)*size, size, 0, false
	}
}

// grow makes a lane if there may be one more; nil, nil if not.
func (m *Mover) grow() (*lane, error) {
	m.mu.Lock()
	if m.made >= m.opt.Lanes {
		defer m.mu.Unlock()
		if n := len(m.lost); n == m.opt.Lanes {
			return nil, base.Errorf("move", "bytes", base.ErrIsolated, "every lane failed: %w", m.lost[n-1].sick.error)
		}
		return nil, nil
	}
	m.made++
	m.mu.Unlock()
	l, err := m.newLane()
	if err != nil {
		m.mu.Lock()
		m.made--
		m.mu.Unlock()
	}
	return l, err
}

// pop gives the idle lane that this processor used last, whose memory is in its cache
// then, or else the one that any used last. The caller has a token for it.
func (m *Mover) pop() *lane {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := len(m.idle) - 1
	if last < 0 { // the mover was closed under a waiter
		return nil
	}
	at := last
	if last > 0 { // else there is no choice, and no need for a system call
		cpu := unix.CPU()
		for at > 0 && m.idle[at].cpu != cpu {
			at--
		}
		if m.idle[at].cpu != cpu {
			at = last
		}
	}
	l := m.idle[at]
	m.idle = slices.Delete(m.idle, at, at+1)
	return l
}

// try gives a lane that is idle, or a new one; nil if all are in use.
func (m *Mover) try() (*lane, error) {
	select {
	case <-m.ready:
		return m.pop(), nil
	default:
		return m.grow()
	}
}

// working is how many lanes are at work.
func (m *Mover) working() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.made - len(m.idle) - len(m.lost)
}

// take waits for a lane until ctx ends.
func (m *Mover) take(ctx context.Context) (*lane, error) {
	l, err := m.try()
	if l != nil || err != nil {
		return l, err
	}
	select {
	case <-m.ready:
		return m.pop(), nil
	case <-ctx.Done():
		return nil, base.Errorf("wait for", "lane", base.ErrTimeout, "all %d are in use: %w", m.opt.Lanes, ctx.Err())
	}
}

// give returns a lane, or keeps a sick one in quarantine: its memory may still
// be written by the GPU, so that it is not used again.
func (m *Mover) give(l *lane) {
	cpu := unix.CPU()
	m.mu.Lock()
	defer m.mu.Unlock()
	if l.sick != nil {
		m.lost = append(m.lost, l)
		return
	}
	l.cpu = cpu
	m.idle = append(m.idle, l)
	m.ready <- struct{}{} // there is room for every lane
}

// close ends the stream, and frees the memory once nothing uses it any more.
func (l *lane) close() error {
	if err := l.stream.Close(); err != nil {
		return err // the GPU may still write
	}
	return errors.Join(l.region.Close(), l.mem.Close())
}

// bytes is a part of the lane's memory.
func (l *lane) bytes(at, n int64) []byte { return l.mem.Bytes()[at : at+n : at+n] }

// ptr is the address under which the GPU reaches a part of the lane's memory.
func (l *lane) ptr(at int64) gpu.Ptr { return l.mem.Ptr() + gpu.Ptr(at) }

// fail marks the lane sick and gives err back, as one that InDoubt knows.
func (l *lane) fail(err error) error {
	if l.sick == nil {
		l.sick = &doubt{err}
	}
	return &doubt{err}
}

// doubt is an error after which it is not known when the copies end.
type doubt struct{ error }

func (d *doubt) Unwrap() error { return d.error }

// InDoubt tells whether, after err, the GPU may still read or write the host
// memory that a request named: it must not be used again before Close returned nil.
func InDoubt(err error) bool {
	var d *doubt
	return errors.As(err, &d)
}

// How await looks before it makes a timer: often between letting others run, which
// costs a microsecond even if there are none; on a machine of more than fewProcessors
// it does that only after longLoads, the time of a copy of 2 MiB.
const (
	quickLoads    = 1024
	longLoads     = 24 * quickLoads
	fewProcessors = 4
	quickFor      = time.Millisecond
)

// await waits until the stream passed tick n. The bound is the device's, not
// the caller's: past it the lane is sick.
func (l *lane) await(n uint64) error {
	if l.sick != nil {
		return l.sick
	}
	if n == 0 {
		return nil
	}
	if l.soon(n) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.m.opt.CopyTimeout)
	defer cancel()
	if err := l.stream.WaitTick(ctx, n); err != nil {
		return l.fail(err)
	}
	return nil
}

// soon tells whether the stream passes tick n within a moment.
func (l *lane) soon(n uint64) bool {
	loads := l.m.loads
	for end := time.Now().Add(quickFor); ; runtime.Gosched() {
		for range loads {
			if int64(l.stream.Ticked()-n) >= 0 {
				return true
			}
		}
		if time.Now().After(end) {
			return false
		}
		loads = quickLoads
	}
}

// copy queues copies and the tick after them. After an error nothing of it is under
// way, or the lane is sick.
func (l *lane) copy(list ...gpu.Copy) (uint64, error) {
	n, err := gpu.CopyTick(l.stream, list...)
	if err == nil {
		return n, nil
	}
	if bad := l.settle(); bad != nil {
		return 0, bad
	}
	return 0, err
}

// tick marks what was queued. An error makes the lane sick: it is not known
// when the work ends.
func (l *lane) tick() (uint64, error) {
	n, err := l.stream.Tick()
	if err != nil {
		return 0, l.fail(err)
	}
	return n, nil
}

// settle waits for everything that was queued.
func (l *lane) settle() error {
	n, err := l.tick()
	if err != nil {
		return err
	}
	return l.await(n)
}

// acquire gives a slot whose last copy has ended: the first such one, since its memory
// is in the caches. It waits for the oldest copy if none has.
func (l *lane) acquire() (*slot, error) {
	if l.sick != nil {
		return nil, l.sick
	}
	var oldest *slot
	passed := l.stream.Ticked()
	for i := range l.slots {
		s := &l.slots[i]
		switch {
		case s.busy:
		case s.tick == 0 || int64(passed-s.tick) >= 0:
			s.busy = true
			return s, nil
		case oldest == nil || int64(s.tick-oldest.tick) < 0:
			oldest = s
		}
	}
	if err := l.await(oldest.tick); err != nil {
		return nil, err
	}
	oldest.busy = true
	return oldest, nil
}
