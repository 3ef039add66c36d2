package sim

import (
	"container/heap"
	"slices"
	"time"

	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/mmio"
)

// sq is a submission queue (Base 3.3.1).
type sq struct {
	id     uint16
	cq     *cq
	base   uint64
	size   uint32
	head   uint32 // the next entry to fetch
	tail   uint32 // the doorbell
	shadow uint32 // the doorbell in memory, as it was seen last
	told   uint32 // the head that the last completion told
	flying map[uint16]*op
}

// cq is a completion queue.
type cq struct {
	id        uint16
	base      uint64
	size      uint32
	head      uint32 // the doorbell
	shadow    uint32 // the doorbell in memory, as it was seen last
	tail      uint32
	phase     bool
	interrupt bool
	vector    uint16
	queues    int          // submission queues that use it
	flying    int          // commands of theirs that have not ended
	full      []completion // could not be posted
	echoes    []echo
	echoed    bool // it holds completions that the driver cannot have counted on
}

// echo is a completion that comes a second time, after some others.
type echo struct {
	o     op
	dw0   uint32
	st    nvme.Status
	after int
}

type completion struct {
	entry nvme.Completion
	dw3   nvme.CompletionDW3
}

// op is a command from its fetch to its end.
type op struct {
	begin time.Duration // when it was fetched
	at    time.Duration // when it is due
	seq   uint64
	sq    *sq
	cmd   nvme.Command
	fault *Rule
	done  bool // executed, though its completion may have been lost
	ended bool // completed, aborted, or forgotten in a reset
}

// opHeap orders commands by the time they are due, then by the order of fetching.
type opHeap []*op

func (h opHeap) Len() int { return len(h) }
func (h opHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h opHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *opHeap) Push(x any)   { *h = append(*h, x.(*op)) }
func (h *opHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// dropQueues forgets all queues and commands, as a reset does.
func (s *Sim) dropQueues() {
	for _, q := range s.sqs {
		for _, o := range q.flying {
			o.ended = true
		}
	}
	s.sqs, s.cqs, s.ops, s.waiting, s.aers = nil, map[uint16]*cq{}, nil, nil, nil
	s.next, s.shadows = 0, doorbells{}
	s.defaultFeatures()
	s.dies, s.link = [dies]time.Duration{}, link{}
}

// openAdmin makes the admin queues from AQA, ASQ and ACQ.
func (s *Sim) openAdmin() {
	c := &cq{base: s.acq, size: s.aqa.CQEntries(), phase: true, interrupt: len(s.vectors) > 0, queues: 1}
	s.cqs = map[uint16]*cq{0: c}
	s.sqs = []*sq{{cq: c, base: s.asq, size: s.aqa.SQEntries(), flying: map[uint16]*op{}}}
}

func (s *Sim) findSQ(id uint16) *sq {
	for _, q := range s.sqs {
		if q.id == id {
			return q
		}
	}
	return nil
}

// ring is a write to a doorbell (PCIe 3.1.2).
func (s *Sim) ring(off uint64, v uint32) {
	stride := uint64(4) << s.cap.DSTRD()
	n := (off - nvme.RegDoorbells) / stride
	id := uint16(n / 2)
	if n%2 == 0 {
		s.counts.SQDoorbells++
	} else {
		s.counts.CQDoorbells++
	}
	s.wakeAll()
	if !s.csts.Ready() || !s.cc.Enabled() {
		// A driver that has not noticed a failure yet may still ring.
		if !s.csts.Fatal() && !s.unaware {
			s.violate("doorbell at %#x was written while RDY or EN is 0 (Base 3.5.1)", off)
		}
		return
	}
	if (off-nvme.RegDoorbells)%stride != 0 || n/2 > 0xffff {
		s.badDoorbell(off, v, nvme.EventInfoInvalidDoorbell, "is between two doorbells")
		return
	}
	if n%2 == 0 {
		s.ringSQ(off, id, v)
		if s.cfg.Eager {
			s.fetch()
		}
	} else {
		s.ringCQ(off, id, v)
	}
}

func (s *Sim) badDoorbell(off uint64, v uint32, info uint8, why string) {
	s.violate("doorbell at %#x, value %d: %s (Base 5.1.2.1)", off, v, why)
	s.event(nvme.MakeAsyncEvent(nvme.EventTypeError, info, nvme.LogError))
}

func (s *Sim) ringSQ(off uint64, id uint16, v uint32) {
	q := s.findSQ(id)
	if q == nil {
		s.badDoorbell(off, v, nvme.EventInfoInvalidDoorbell, "its submission queue does not exist")
		return
	}
	if v >= q.size {
		s.badDoorbell(off, v, nvme.EventInfoInvalidValue, "is past the end of the submission queue")
		return
	}
	added := (v + q.size - q.tail) % q.size
	if free := q.size - 1 - (q.tail+q.size-q.told)%q.size; added > free {
		s.badDoorbell(off, v, nvme.EventInfoInvalidValue, "the tail passes the head that was told")
		return
	}
	if id == 0 && s.now < s.deafUntil {
		return
	}
	q.tail = v
}

func (s *Sim) ringCQ(off uint64, id uint16, v uint32) {
	q := s.cqs[id]
	if q == nil {
		s.badDoorbell(off, v, nvme.EventInfoInvalidDoorbell, "its completion queue does not exist")
		return
	}
	if v >= q.size {
		s.badDoorbell(off, v, nvme.EventInfoInvalidValue, "is past the end of the completion queue")
		return
	}
	if (v+q.size-q.head)%q.size > (q.tail+q.size-q.head)%q.size {
		s.badDoorbell(off, v, nvme.EventInfoInvalidValue,
			"the head passes the tail: entries were acknowledged that were not posted")
		return
	}
	q.head = v
	for len(q.full) > 0 && (q.tail+1)%q.size != q.head {
		c := q.full[0]
		q.full = q.full[1:]
		s.post(q, c)
	}
}

// fetch takes commands from the queues, one a queue in turn (Base 3.4.4.1), until
// all are empty.
func (s *Sim) fetch() bool {
	if !s.csts.Ready() || s.csts.Fatal() || !s.cc.Enabled() || s.csts.ShutdownActive() || s.csts.ShutdownDone() ||
		s.removed || s.ones {
		return false
	}
	did := false
	s.lookForDoorbells()
	for idle, n := 0, 0; idle < len(s.sqs) && len(s.sqs) > 0 && (n < s.cfg.FetchBurst || s.cfg.FetchBurst == 0); {
		s.next %= len(s.sqs)
		q := s.sqs[s.next]
		s.next++
		if q.head == q.tail || s.csts.Fatal() {
			if idle++; idle == len(s.sqs) && s.askForDoorbells() {
				idle = 0
			}
			continue
		}
		idle, did, n = 0, true, n+1
		s.fetchOne(q)
		if s.cutNow() || !s.csts.Ready() || s.removed {
			break
		}
	}
	return did
}

func (s *Sim) fetchOne(q *sq) {
	var raw [nvme.CommandSize]byte
	if !s.bus.copy(q.base+uint64(q.head)*nvme.CommandSize, raw[:], false) {
		s.violate("submission queue %d is in memory that cannot be reached", q.id)
		s.csts |= nvme.CSTSFatal
		return
	}
	q.head = (q.head + 1) % q.size
	s.counts.Commands++
	if q.id == 0 {
		s.counts.AdminCommands++
	}
	s.seq++
	o := s.newOp()
	*o = op{begin: s.now, at: s.now, seq: s.seq, sq: q, cmd: *nvme.Overlay[nvme.Command](raw[:])}
	cid := o.cmd.CID.Get()
	if q.flying[cid] != nil {
		s.violate("queue %d: command identifier %d is used again while its command is in flight (Base 4.1.1)", q.id, cid)
		s.post(q.cq, s.completion(o, 0, nvme.StatusIDConflict|nvme.StatusDNR))
		return
	}
	c := q.cq
	if unacked := int((c.tail+c.size-c.head)%c.size) + len(c.full); c.flying+unacked >= int(c.size)-1 && !c.echoed {
		s.violate("completion queue %d of %d entries may overflow: %d in flight, %d not acknowledged (Base 3.3.1.2)",
			c.id, c.size, c.flying, unacked)
	}
	q.flying[cid] = o
	c.flying++
	s.observe(Fetched, o, 0)
	o.fault = s.draw(&o.cmd, q.id == 0)
	if o.fault != nil && s.strike(o) {
		return
	}
	if q.id == 0 && o.cmd.OPC == nvme.AdminAsyncEvent {
		s.park(o)
		return
	}
	o.at = s.due(o)
	heap.Push(&s.ops, o)
}

// newOp takes a spare command: a model that makes no garbage lets tests count the
// driver's.
func (s *Sim) newOp() *op {
	if n := len(s.spare); n > 0 {
		o := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return o
	}
	return new(op)
}

// strike applies the faults that happen when a command is fetched. It tells
// whether the command goes no further.
func (s *Sim) strike(o *op) bool {
	switch o.fault.Kind {
	case FaultLose:
		return true
	case FaultFatal:
		s.csts |= nvme.CSTSFatal
		return true
	case FaultOnes:
		s.ones = true
		return true
	case FaultRemove:
		s.remove()
		return true
	case FaultPower:
		s.power()
		return true
	}
	return false
}

// run executes what is due.
func (s *Sim) run() bool {
	did := false
	if !s.held && len(s.waiting) > 0 {
		for _, o := range s.waiting {
			heap.Push(&s.ops, o)
		}
		s.waiting = nil
	}
	for len(s.ops) > 0 && s.ops[0].at <= s.now && s.running() {
		o := heap.Pop(&s.ops).(*op)
		switch {
		case o.ended:
		case s.held:
			s.waiting = append(s.waiting, o)
		default:
			did = true
			s.execute(o)
			s.cutNow()
		}
	}
	return did
}

// running tells whether the controller ends commands.
func (s *Sim) running() bool {
	return s.csts.Ready() && !s.csts.Fatal() && s.cc.Enabled() && !s.removed && !s.ones
}

func (s *Sim) execute(o *op) {
	dw0, status := uint32(0), nvme.Status(0)
	switch {
	case o.fault != nil && (o.fault.Kind == FaultStatus || o.fault.twoFaced()):
		status = o.fault.Status
	case o.sq.id == 0:
		dw0, status = s.admin(o)
	default:
		dw0, status = s.nvm(o)
	}
	o.done = true
	s.observe(Executed, o, status)
	s.end(o, dw0, status)
}

// end answers a command, with the fault that it has.
func (s *Sim) end(o *op, dw0 uint32, status nvme.Status) {
	if !status.OK() {
		s.logError(o, status)
	}
	if o.fault != nil && o.fault.Kind == FaultLoseCompletion {
		return // it stays in flight for ever
	}
	cid := o.cmd.CID.Get()
	delete(o.sq.flying, cid)
	o.sq.cq.flying--
	o.ended = true
	c := s.completion(o, dw0, status)
	if o.fault == nil {
		s.post(o.sq.cq, c)
		s.observe(Ended, o, status)
		if o.done { // nothing else knows it
			s.spare = append(s.spare, o)
		}
		return
	}
	switch o.fault.Kind {
	case FaultDuplicate:
		q, second := o.sq.cq, status
		if o.fault.twoFaced() {
			second = 0
		}
		q.echoes = append(q.echoes, echo{*o, dw0, second, 1 + s.rnd.IntN(6)})
	case FaultWrongSQID:
		c.entry.SQID.Set(o.sq.id + 1)
	case FaultWildSQHD:
		c.entry.SQHD.Set(uint16(o.sq.size + s.rnd.Uint32N(100)))
	case FaultUnknownCID:
		for o.sq.flying[cid] != nil || cid == o.cmd.CID.Get() {
			cid += uint16(1 + s.rnd.Uint32N(0x7fff))
		}
		c.dw3 = nvme.MakeDW3(cid, status, false)
	}
	s.post(o.sq.cq, c)
	s.observe(Ended, o, status)
}

// completion makes the entry for a command; the phase tag comes when it is posted.
func (s *Sim) completion(o *op, dw0 uint32, status nvme.Status) completion {
	var c completion
	c.entry.DW0.Set(dw0)
	c.entry.SQID.Set(o.sq.id)
	c.entry.SQHD.Set(uint16(o.sq.head))
	c.dw3 = nvme.MakeDW3(o.cmd.CID.Get(), status, false)
	o.sq.told = o.sq.head
	return c
}

// post writes a completion into the queue: the phase tag, with its doubleword,
// last (Base 4.2.4).
func (s *Sim) post(q *cq, c completion) {
	s.lookForHead(q.id, q)
	if (q.tail+1)%q.size == q.head {
		q.full = append(q.full, c)
		return
	}
	slot := s.bus.view(q.base+uint64(q.tail)*nvme.CompletionSize, nvme.CompletionSize)
	if len(slot) < nvme.CompletionSize {
		s.violate("completion queue %d is in memory that cannot be reached", q.id)
		s.csts |= nvme.CSTSFatal
		return
	}
	e := nvme.Overlay[nvme.Completion](slot)
	e.DW0, e.DW1, e.SQHD, e.SQID = c.entry.DW0, c.entry.DW1, c.entry.SQHD, c.entry.SQID
	mmio.StoreEntry32(slot[nvme.DW3Offset:], uint32(nvme.MakeDW3(c.dw3.CID(), c.dw3.Status(), q.phase)))
	if q.tail++; q.tail == q.size {
		q.tail, q.phase = 0, !q.phase
	}
	s.counts.Completions++
	if q.interrupt {
		s.raise(q.vector)
	}
	for i := range q.echoes {
		q.echoes[i].after--
	}
}

// echo posts the completions whose second time has come; with all, those of which
// nothing else will come first.
func (s *Sim) echo(all bool) bool {
	did := false
	for _, sq := range s.sqs {
		q := sq.cq
		for i := 0; i < len(q.echoes); i++ {
			if e := q.echoes[i]; (e.after <= 0 || all) && s.running() && s.findSQ(e.o.sq.id) != nil {
				q.echoes, q.echoed = append(q.echoes[:i:i], q.echoes[i+1:]...), true
				s.post(q, s.completion(&e.o, e.dw0, e.st))
				i, did = -1, true
			}
		}
	}
	return did
}

// removeSQ takes a queue out of the round robin.
func (s *Sim) removeSQ(q *sq) {
	q.cq.queues--
	q.cq.flying -= len(q.flying)
	for _, o := range q.flying {
		o.ended = true
	}
	s.sqs = slices.DeleteFunc(s.sqs, func(x *sq) bool { return x == q })
}
