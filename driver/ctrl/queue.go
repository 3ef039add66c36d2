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

// kind is what a command is of its request.
type kind uint8

const (
	part   kind = iota
	whole       // all of it
	simple      // all of it, and made by quick
)

// slot is the place of one command in flight: its identifier and its list page
// are its own until it ends. What every command uses stands first.
type slot struct {
	cid    uint16 // generation and index
	live   bool   // on the device, or waiting to be sent again
	kind   kind
	parked bool // not on the device: it is sent again at the time again
	// aborted: the deadline has passed, and the controller was asked to abort it
	aborted bool
	tries   uint8
	opc     nvme.Opcode
	run     *run  // of an I/O command: the submission,
	i       int   // and its entry
	off, n  int64 // which bytes of the request
	load    int64 // payload that it counts as in flight
	bulk    int64 // the part of it that belongs to a large request
	due     time.Duration
	list    nvme.ListPage
	admin   *adminWait // of an admin command
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
	cqe    []nvme.Completion
	sqBell hw.Doorbell
	cqBell hw.Doorbell
	size   uint32
	tail   uint32 // the next entry to fill
	rung   uint32 // what the doorbell was told
	head   uint32 // what the controller has told by SQHD
	cqHead uint32
	phase  bool
	mask   uint16 // the index in an identifier; the rest is the generation
	slots  []slot
	free   []uint16
	parked int // slots that wait to be sent again
	segs   []nvme.Seg
	load   int64 // bytes in flight
	tally  tally
	vec    hw.Vector // nil: nobody waits for interrupts of this queue

	bytes atomic.Int64 // load, as of the last burst, to choose the least loaded queue
	due   atomic.Int64 // no deadline is earlier; hw.Forever for none
}

// newQueue allocates a queue of size entries for up to depth commands. listBytes
// is the memory for the list of each; a power of two up to a page. ErrNoSpace when
// fewer entries or a smaller depth may do; nothing is kept then.
func newQueue(d *Device, id uint16, size, depth uint32, listBytes int64) (_ *queue, err error) {
	q := &queue{dev: d, id: id, size: size, phase: true, mask: uint16(1)<<bits.Len32(depth-1) - 1, tally: tally{d: d}}
	q.due.Store(int64(hw.Forever))
	defer func() {
		if err != nil {
			q.release()
		}
	}()
	for _, m := range []struct { // the largest first, of which there is none most often
		to    **hw.Buffer
		bytes int64
	}{{&q.lists, int64(depth) * listBytes}, {&q.sq, int64(size) * nvme.CommandSize}, {&q.cq, int64(size) * nvme.CompletionSize}} {
		if *m.to, err = d.hw.Alloc(m.bytes, "nvme queues"); err != nil {
			return nil, err
		}
	}
	if q.sqBell, err = d.bell(nvme.SQDoorbell(id, d.cap.DSTRD()), id == 0); err != nil {
		return nil, err
	}
	if q.cqBell, err = d.bell(nvme.CQDoorbell(id, d.cap.DSTRD()), id == 0); err != nil {
		return nil, err
	}
	q.sqe, q.cqe = nvme.OverlaySlice[nvme.Command](q.sq.Bytes), nvme.OverlaySlice[nvme.Completion](q.cq.Bytes)
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

// next is the entry after i.
func (q *queue) next(i uint32) uint32 {
	if i++; i == q.size {
		return 0
	}
	return i
}

// dist is how many entries i is behind j, going up from i.
func (q *queue) dist(i, j uint32) uint32 {
	if j < i {
		j += q.size
	}
	return j - i
}

// room tells whether a command can be submitted. The caller holds mu.
func (q *queue) room() bool {
	return len(q.free) > 0 && q.next(q.tail) != q.head
}

// take gives a free slot with a new identifier. The caller holds mu and has seen
// room.
func (q *queue) take() *slot {
	i := q.free[len(q.free)-1]
	q.free = q.free[:len(q.free)-1]
	s := &q.slots[i]
	q.renew(s)
	s.live, s.aborted, s.tries = true, false, 0
	return s
}

// renew gives a slot its next generation; the index in the identifier stays. FFFFh
// is left out: the error log means "no command" by it (Base 4.1.1).
func (q *queue) renew(s *slot) {
	if s.cid += q.mask + 1; s.cid == 0xffff {
		s.cid += q.mask + 1
	}
}

// put gives the controller the command in the entry at the tail, which is that of a
// slot, as soon as ring tells it. due is its deadline. The caller holds mu and has
// seen room.
func (q *queue) put(s *slot, due time.Duration) {
	c := &q.sqe[q.tail]
	c.CID.Set(s.cid)
	s.opc = c.OPC
	s.tries++
	s.due = due
	if int64(due) < q.due.Load() {
		q.due.Store(int64(due))
	}
	q.tail = q.next(q.tail)
}

// ring tells the controller about new commands, if there are any. The caller
// holds mu, and has held it since it saw that the queue is not dead.
func (q *queue) ring() {
	if q.tail == q.rung {
		return
	}
	q.rung = q.tail
	if err := q.sqBell.Ring(q.tail); err != nil {
		q.dev.isolate(err)
	}
}

// drop frees a slot. The caller holds mu.
func (q *queue) drop(s *slot) {
	s.live, s.parked, s.kind = false, false, part
	q.free = append(q.free, s.cid&q.mask)
}

// end ends the command of a slot with a request: it frees the slot and tells the
// tally. The caller holds mu.
func (q *queue) end(s *slot, err error) {
	kind := s.kind
	q.drop(s)
	q.load -= s.load
	q.tally.load += s.load
	q.tally.bulk += s.bulk
	r := &s.run.reqs[s.i]
	if kind == simple {
		r.holds = 1
	}
	q.tally.command(r, kind != part, s.off, err)
}

// reap takes completions until there are none, and tells how many. The caller
// holds mu. An invalid one isolates the controller.
func (q *queue) reap() (n int) {
	if q.dead {
		return 0
	}
	for n < int(q.size) {
		n += q.quickReap()
		if !q.reapOne() {
			break
		}
		n++
	}
	if n == 0 {
		if q.parked > 0 {
			q.resend()
			q.tally.publish()
		}
		return 0
	}
	q.reaped()
	return n
}

// reapOne takes a completion, if there is a valid one.
func (q *queue) reapOne() bool {
	c := &q.cqe[q.cqHead]
	dw3 := nvme.CompletionDW3(mmio.LoadEntry32(c.Last[:]))
	if dw3.Phase() != q.phase {
		return false
	}
	s := q.accept(dw3.CID(), c.SQID.Get(), c.SQHD.Get())
	if s == nil {
		q.dev.isolate(q.invalid(dw3.CID(), c.SQID.Get(), c.SQHD.Get()))
		return false
	}
	if q.cqHead++; q.cqHead == q.size {
		q.cqHead, q.phase = 0, !q.phase
	}
	q.complete(s, dw3.Status(), c)
	return true
}

// reaped ends a burst of completions: the controller learns of it, then everybody
// else does.
func (q *queue) reaped() {
	if err := q.cqBell.Ring(q.cqHead); err != nil {
		q.dev.isolate(err)
	} else if q.parked > 0 {
		q.resend()
	}
	q.bytes.Store(q.load)
	if len(q.free) == len(q.slots) {
		q.due.Store(int64(hw.Forever))
	}
	q.tally.publish()
}

// accept checks a completion and finds its slot: the identifier is that of a
// command in flight, the queue is this one, and the head lies between what was
// told before and the tail (Base 4.2.1). nil when it is invalid.
func (q *queue) accept(cid, sqid, sqhd uint16) *slot {
	i := cid & q.mask
	if int(i) >= len(q.slots) {
		return nil
	}
	s := &q.slots[i]
	switch {
	case sqid != q.id:
		return nil
	case !s.live || s.cid != cid || s.parked:
		return nil
	case uint32(sqhd) >= q.size || q.dist(q.head, uint32(sqhd)) > q.dist(q.head, q.rung):
		return nil
	}
	q.head = uint32(sqhd)
	return s
}

// invalid says what accept did not like.
func (q *queue) invalid(cid, sqid, sqhd uint16) error {
	bad := func(format string, args ...any) error {
		return base.Errorf("complete on queue", q.dev.info.Target, base.ErrCorrupt, format, args...)
	}
	i := cid & q.mask
	switch {
	case sqid != q.id:
		return bad("a completion in queue %d names submission queue %d", q.id, sqid)
	case int(i) >= len(q.slots) || !q.slots[i].live || q.slots[i].cid != cid || q.slots[i].parked:
		return bad("queue %d: command identifier %d is not in flight", q.id, cid)
	}
	return bad("queue %d: head %d is not between %d and %d of %d", q.id, sqhd, q.head, q.rung, q.size)
}

// complete ends a command, or keeps it to send it again.
func (q *queue) complete(s *slot, status nvme.Status, c *nvme.Completion) {
	switch {
	case s.admin != nil:
		w := s.admin
		s.admin = nil
		q.drop(s)
		w.status, w.dw0 = status, c.DW0.Get()
		w.done.Store(true)
	case status.OK():
		q.end(s, nil)
	case q.retries(s, status) && s.tries < maxTries && s.opc != nvme.OpFlush && !s.aborted:
		s.parked, s.again = true, q.dev.hw.Now()+q.retryDelay(status)
		if s.kind == simple { // only the general way knows that it is not on the device now
			s.run.reqs[s.i].holds, s.kind = 1, whole
		}
		q.parked++
		q.due.Store(min(q.due.Load(), int64(s.again)))
	default:
		err := status.Err(s.opc, false, c.DW0.Get())
		if s.aborted {
			err = base.Errorf("complete on", q.dev.info.Target, base.ErrTimeout, "its deadline had passed: %w", err)
		}
		q.end(s, err)
	}
}

// retryDelay is how long the controller wants a command left alone: up to 109 minutes.
func (q *queue) retryDelay(status nvme.Status) time.Duration {
	return time.Duration(q.dev.id.RetryDelayMs(status.CRD())) * time.Millisecond
}

// retries tells whether a status passes, and soon enough: a command does not wait to be
// sent again for longer than it may be on the device.
func (q *queue) retries(s *slot, status nvme.Status) bool {
	return status.Retry() && q.retryDelay(status) <= q.dev.deadline(s.opc)
}

// resend submits the parked commands whose time has come, after the completion
// doorbell was rung, so that the completion queue has room for them.
func (q *queue) resend() {
	now := q.dev.hw.Now()
	for i := range q.slots {
		s := &q.slots[i]
		if !s.live || !s.parked || s.again > now || q.next(q.tail) == q.head {
			continue
		}
		s.parked = false
		q.parked--
		if err := q.dev.refill(q, s); err != nil {
			q.end(s, err)
			continue
		}
		q.renew(s)
		q.put(s, now+q.dev.deadline(s.opc))
		q.dev.count.commands.Add(1)
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
			s.admin = nil
			q.drop(s)
			w.err = cause
			w.done.Store(true)
			continue
		}
		q.end(s, cause)
	}
	q.bytes.Store(q.load)
	q.tally.publish()
}
