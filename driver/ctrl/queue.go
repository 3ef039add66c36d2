package ctrl

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/mmio"
)

// maxTries is how often a command is sent at most, the first time included.
const maxTries = 4

// slot is the place of one command in flight: its identifier and its list page
// are its own until it ends.
type slot struct {
	cid    uint16 // generation and index
	live   bool   // on the device, or waiting to be sent again
	tries  uint8
	list   nvme.ListPage
	cmd    nvme.Command // to send it again
	req    *request     // of an I/O command
	admin  *adminWait   // of an admin command
	off, n int64        // which bytes of the request
	load   int64        // payload that it counts as in flight
	bulk   int64        // the part of it that belongs to a large request
	due    time.Duration
	// aborted: the deadline has passed, and the controller was asked to abort it
	aborted bool
	parked  bool // not on the device: it is sent again at the time again
	again   time.Duration
}

// queue is a submission and a completion queue of the same size.
type queue struct {
	dev *Device
	id  uint16

	mu     sync.Mutex
	dead   bool // nothing may be submitted or reaped any more
	sq     *hw.Buffer
	cq     *hw.Buffer
	lists  *hw.Buffer
	sqe    []nvme.Command
	sqBell hw.Doorbell
	cqBell hw.Doorbell
	size   uint32
	tail   uint32 // the next entry to fill
	rung   uint32 // what the doorbell was told
	head   uint32 // what the controller has told by SQHD
	cqHead uint32
	phase  bool
	shift  uint // bits of the index in an identifier
	slots  []slot
	free   []uint16
	parked int // slots that wait to be sent again
	segs   []nvme.Seg
	vec    hw.Vector // nil: nobody waits for interrupts of this queue

	bytes atomic.Int64 // in flight, to choose the least loaded queue
	due   atomic.Int64 // no deadline is earlier; hw.Forever for none
}

// newQueue allocates a queue of size entries for up to depth commands. listBytes
// is the memory for the list of each; a power of two up to a page.
func newQueue(d *Device, id uint16, size, depth uint32, listBytes int64) (q *queue, err error) {
	q = &queue{dev: d, id: id, size: size, phase: true, shift: uint(bits.Len32(depth - 1))}
	q.due.Store(int64(hw.Forever))
	defer func() {
		if err != nil {
			q.release()
		}
	}()
	for _, m := range []struct {
		to    **hw.Buffer
		bytes int64
	}{{&q.sq, int64(size) * nvme.CommandSize}, {&q.cq, int64(size) * nvme.CompletionSize}, {&q.lists, int64(depth) * listBytes}} {
		if *m.to, err = d.hw.Alloc(m.bytes, "nvme queues"); err != nil {
			return nil, err
		}
	}
	if q.sqBell, err = d.hw.Doorbell(nvme.SQDoorbell(id, d.cap.DSTRD())); err != nil {
		return nil, err
	}
	if q.cqBell, err = d.hw.Doorbell(nvme.CQDoorbell(id, d.cap.DSTRD())); err != nil {
		return nil, err
	}
	q.sqe = nvme.OverlaySlice[nvme.Command](q.sq.Bytes)
	q.slots = make([]slot, depth)
	for i := range q.slots {
		at := int64(i) * listBytes
		q.slots[i].list = nvme.ListPage{Addr: q.lists.Addr + uint64(at),
			Entries: nvme.OverlaySlice[nvme.Le64](q.lists.Bytes[at : at+listBytes])}
		q.slots[i].cid = uint16(i)
		q.free = append(q.free, uint16(len(q.slots)-1-i))
	}
	return q, nil
}

// release gives the memory back. The controller does not know it, or is stopped.
func (q *queue) release() {
	for _, b := range []**hw.Buffer{&q.sq, &q.cq, &q.lists} {
		if *b != nil {
			(*b).Free()
			*b = nil
		}
	}
}

// room tells whether a command can be submitted. The caller holds mu.
func (q *queue) room() bool {
	return len(q.free) > 0 && (q.tail+1)%q.size != q.head
}

// take gives a free slot with a new identifier. The caller holds mu and has seen
// room.
func (q *queue) take() *slot {
	i := q.free[len(q.free)-1]
	q.free = q.free[:len(q.free)-1]
	s := &q.slots[i]
	q.renew(s)
	s.live, s.tries, s.parked, s.aborted = true, 0, false, false
	return s
}

// renew gives a slot its next generation; the index in the identifier stays. FFFFh
// is left out: the error log means "no command" by it (Base 4.1.1).
func (q *queue) renew(s *slot) {
	if s.cid += 1 << q.shift; s.cid == 0xffff {
		s.cid += 1 << q.shift
	}
}

// put stores the command of a slot in the queue; ring tells the controller. due is
// its deadline. The caller holds mu and has seen room.
func (q *queue) put(s *slot, due time.Duration) {
	s.tries++
	s.cmd.CID.Set(s.cid)
	s.due = due
	if int64(s.due) < q.due.Load() {
		q.due.Store(int64(s.due))
	}
	q.sqe[q.tail] = s.cmd
	if q.tail++; q.tail == q.size {
		q.tail = 0
	}
	q.dev.count.commands.Add(1)
}

// ring tells the controller about new commands, if there are any. The caller
// holds mu.
func (q *queue) ring() {
	if q.tail == q.rung || q.dead {
		return
	}
	q.rung = q.tail
	if err := q.sqBell.Ring(q.tail); err != nil {
		q.dev.isolate(err)
	}
}

// drop frees a slot. The caller holds mu.
func (q *queue) drop(s *slot) {
	i := s.cid & (1<<q.shift - 1)
	s.live, s.req, s.admin = false, nil, nil
	q.free = append(q.free, i)
}

// unload frees the slot of an I/O command and its part of the window.
func (q *queue) unload(s *slot) {
	load, bulk := s.load, s.bulk
	q.drop(s)
	q.bytes.Add(-load)
	q.dev.window.Add(-load)
	if bulk != 0 {
		q.dev.bulk.Add(-bulk)
	}
}

// reap takes completions until there are none, and tells how many. The caller
// holds mu. An invalid one isolates the controller.
func (q *queue) reap() (n int) {
	if q.dead {
		return 0
	}
	for ; n < int(q.size); n++ {
		at := q.cqHead * nvme.CompletionSize
		e := q.cq.Bytes[at : at+nvme.CompletionSize]
		dw3 := nvme.CompletionDW3(mmio.LoadEntry32(e[nvme.DW3Offset:]))
		if dw3.Phase() != q.phase {
			break
		}
		c := nvme.Overlay[nvme.Completion](e)
		s, err := q.accept(dw3.CID(), c.SQID.Get(), c.SQHD.Get())
		if err != nil {
			q.dev.isolate(err)
			return n
		}
		if q.cqHead++; q.cqHead == q.size {
			q.cqHead, q.phase = 0, !q.phase
		}
		q.complete(s, dw3.Status(), c.DW0.Get())
	}
	if n > 0 {
		if err := q.cqBell.Ring(q.cqHead); err != nil {
			q.dev.isolate(err)
			return n
		}
	}
	if q.parked > 0 {
		q.resend()
	}
	if n > 0 && len(q.free) == len(q.slots) {
		q.due.Store(int64(hw.Forever))
	}
	return n
}

// accept checks a completion and finds its slot: the identifier is that of a
// command in flight, the queue is this one, and the head lies between what was
// told before and the tail (Base 4.2).
func (q *queue) accept(cid, sqid, sqhd uint16) (*slot, error) {
	bad := func(format string, args ...any) error {
		return base.Errorf("complete on queue", q.dev.info.Target, base.ErrCorrupt, format, args...)
	}
	i := cid & (1<<q.shift - 1)
	switch {
	case sqid != q.id:
		return nil, bad("a completion in queue %d names submission queue %d", q.id, sqid)
	case int(i) >= len(q.slots) || !q.slots[i].live || q.slots[i].cid != cid || q.slots[i].parked:
		return nil, bad("queue %d: command identifier %d is not in flight", q.id, cid)
	case uint32(sqhd) >= q.size || (uint32(sqhd)+q.size-q.head)%q.size > (q.rung+q.size-q.head)%q.size:
		return nil, bad("queue %d: head %d is not between %d and %d of %d", q.id, sqhd, q.head, q.rung, q.size)
	}
	q.head = uint32(sqhd)
	return &q.slots[i], nil
}

// complete ends a command, or keeps it to send it again.
func (q *queue) complete(s *slot, status nvme.Status, dw0 uint32) {
	if s.admin != nil {
		w := s.admin
		q.drop(s)
		w.status, w.dw0 = status, dw0
		w.done.Store(true)
		return
	}
	if !status.OK() && status.Retry() && s.tries < maxTries && s.cmd.OPC != nvme.OpFlush && !s.aborted {
		delay := time.Duration(q.dev.id.RetryDelayMs(status.CRD())) * time.Millisecond
		s.parked, s.again = true, q.dev.hw.Now()+delay
		q.parked++
		q.due.Store(min(q.due.Load(), int64(s.again)))
		return
	}
	r, off, n := s.req, s.off, s.n
	err := status.Err(s.cmd.OPC, false, dw0)
	if err != nil && s.aborted {
		err = base.Errorf("complete on", q.dev.info.Target, base.ErrTimeout, "its deadline had passed: %w", err)
	}
	q.unload(s)
	r.ended(off, n, err)
}

// resend submits the parked commands whose time has come, after the completion
// doorbell was rung, so that the completion queue has room for them.
func (q *queue) resend() {
	now := q.dev.hw.Now()
	for i := range q.slots {
		s := &q.slots[i]
		if !s.live || !s.parked || s.again > now || (q.tail+1)%q.size == q.head {
			continue
		}
		q.renew(s)
		s.parked = false
		q.parked--
		q.put(s, now+q.dev.opts.Deadline.ReadWrite)
	}
	q.ring()
}

// judge sees to commands whose deadline had passed at now, which was before the
// last reap: they are aborted, or the controller is isolated. The caller holds mu.
func (q *queue) judge(now time.Duration) {
	if q.dead || int64(now) < q.due.Load() {
		return
	}
	first := hw.Forever
	for i := range q.slots {
		s := &q.slots[i]
		if !s.live || s.due == hw.Forever {
			continue
		}
		at := s.due
		if s.parked {
			at = s.again
		} else if s.due <= now {
			var isolated bool
			if at, isolated = q.overdue(s, now); isolated {
				return
			}
		}
		first = min(first, at)
	}
	q.due.Store(int64(first))
}

// kill stops all work on the queue; its commands stay in flight.
func (q *queue) kill() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dead = true
	if q.vec != nil {
		_ = q.vec.Close() // it ends serve
	}
}

// abandon ends every command with cause. The controller is confirmed stopped.
func (q *queue) abandon(cause error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.slots {
		s := &q.slots[i]
		if !s.live {
			continue
		}
		if w := s.admin; w != nil {
			q.drop(s)
			w.err = cause
			w.done.Store(true)
			continue
		}
		r, off, n := s.req, s.off, s.n
		q.unload(s)
		r.ended(off, n, cause)
	}
}
