package xfer

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
)

// A step is a part of a request that the GPU carries out by itself: a wait for
// "go", the kernel that moves what the step's table says, and the store of
// "moved". Submit queues all steps of a request behind each other; where the
// bytes lie in host memory is written into the table when it is known. So no
// call of the library is needed between the moment when a stream waits and the
// moment when it goes on.
type step struct {
	r        *Request
	write    bool
	from, to int // its parts
	slot     int // of Order.steps
	table    []byte
	at       gpu.Ptr // of the table
	moves    int     // entries that the kernel looks at
	unit     int64   // bytes of an entry at most
	run, ack *atomic.Uint64
	let      bool // run was stored
}

// The layout of a slot in pinned memory: the two cells, then the table.
const (
	stepBytes  = 4096
	stepAck    = 64
	stepTable  = 128
	stepMoves  = (stepBytes - stepTable) / gpu.MoveBytes
	finestMove = 16 * base.KiB // entries are shared out to blocks of the GPU
)

// plan cuts the pieces into parts and steps. What is bound late is planned for
// the most that it may be.
func (r *Request) plan() {
	var total int64
	for i := range r.pieces {
		total += r.pieces[i].N
	}
	room := r.m.chunkFor(total)
	unit := max(finestMove, base.AlignUp(room/(stepMoves/2), gpu.HostPage))
	for _, write := range []bool{false, true} {
		var used, moves int64
		open := false
		for i := range r.pieces {
			p := &r.pieces[i]
			if p.Write != write {
				continue
			}
			for from := int64(0); from < p.N; {
				n := min(p.N-from, room)
				need, count := n+2*max(p.End.unit(), 16), n/unit+2
				if p.End.async() { // whole blocks, on a page
					need = n + gpu.HostPage + slack
				}
				if !open || used+need > room+slack || moves+count > stepMoves {
					r.steps = append(r.steps, step{r: r, write: write, from: len(r.parts), to: len(r.parts), unit: unit})
					used, moves, open = 0, 0, true
				}
				r.parts = append(r.parts, part{Item: Item{Off: from, Len: n}})
				r.owner = append(r.owner, i)
				st := &r.steps[len(r.steps)-1]
				st.to++
				used, moves, from = used+need, moves+count, from+n
				st.moves = int(moves)
			}
		}
	}
}

// take gives the steps of a request their slots, or none: ErrBusy.
func (o *Order) take(r *Request) error {
	if len(r.steps) > o.opt.Steps {
		return base.WithHint(base.Errorf("queue", "request", base.ErrInvalid,
			"it needs %d steps, there are %d", len(r.steps), o.opt.Steps), "cut it, or raise OrderOptions.Steps")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reclaim()
	if len(r.steps) > len(o.slots) {
		return base.WithHint(base.Errorf("queue", "request", base.ErrBusy,
			"%d steps are free, it needs %d", len(o.slots), len(r.steps)), "wait for earlier requests, or raise OrderOptions.Steps")
	}
	for i := range r.steps {
		st := &r.steps[i]
		st.slot = o.slots[len(o.slots)-1]
		o.slots = o.slots[:len(o.slots)-1]
		b := o.memory.Bytes()[st.slot*stepBytes:][:stepBytes]
		clear(b[stepTable:]) // entries of no bytes
		st.table = b[stepTable:]
		st.at = o.memory.Ptr() + gpu.Ptr(st.slot*stepBytes)
		st.run, st.ack = dl.Cell(b, 0), dl.Cell(b, stepAck)
		st.run.Store(0)
		st.ack.Store(0)
	}
	return nil
}

// reclaim gives back the slots of requests that their streams have passed.
func (o *Order) reclaim() {
	kept := o.past[:0]
	for _, r := range o.past {
		if int64(r.q.passed.Load()-r.number) < 0 {
			kept = append(kept, r)
			continue
		}
		o.release(r)
	}
	clear(o.past[len(kept):])
	o.past = kept
}

// release gives back the slots of a request that the GPU is past, or never heard
// of.
func (o *Order) release(r *Request) {
	for i := range r.steps {
		o.slots = append(o.slots, r.steps[i].slot)
	}
	r.steps = nil
}

// queue puts a step behind the work of the stream.
func (st *step) queue(s gpu.Stream) error {
	err := s.AwaitCell(st.at, 1)
	if err == nil {
		err = s.Move(st.at+stepTable, st.moves)
	}
	if err == nil {
		err = s.WriteCell(st.at+stepAck, 1)
	}
	return err
}

// serve moves the bytes of a request that its stream has come to. Steps take
// their lanes in order, so that the one that the stream waits for never waits for
// one behind it.
func (r *Request) serve() {
	r.bind()
	var wg sync.WaitGroup
	for i := range r.steps {
		st := &r.steps[i]
		parts := r.fill(st)
		if len(parts) == 0 {
			st.pass()
			continue
		}
		l, err := r.m.take(context.Background())
		if err != nil {
			failParts(parts, err)
			r.answer(st, parts)
			st.pass()
			continue
		}
		wg.Go(func() { st.move(l, parts) })
	}
	wg.Wait()
	r.collect()
}

// fill gives the parts of a step that have something to do, with their spans.
func (r *Request) fill(st *step) []part {
	var live []part
	for k := st.from; k < st.to; k++ {
		i, p := r.owner[k], &r.parts[k]
		whole := &r.pieces[i]
		from := p.Off // into the piece
		p.Len = max(0, min(p.Len, whole.N-from))
		p.Item = Item{End: whole.End, Off: whole.Off + from, Ptr: whole.Ptr + gpu.Ptr(whole.At+from), Len: p.Len}
		p.path = r.paths[i]
		if p.Len > 0 {
			live = append(live, *p)
		}
	}
	return live
}

// answer keeps what became of the parts of a step.
func (r *Request) answer(st *step, live []part) {
	for k, j := st.from, 0; k < st.to; k++ {
		if r.parts[k].Len > 0 {
			r.parts[k].N, r.parts[k].Err = live[j].N, live[j].Err
			r.m.failed(live[j].path, live[j].Err)
			j++
		}
	}
}

// move fills the step's buffer and lets the GPU empty it, or the other way.
func (st *step) move(l *lane, parts []part) {
	m := st.r.m
	g := group{m: m, ctx: context.Background(), write: st.write, parts: parts, step: st}
	s := slot{at: l.slots[0].at}
	if st.write {
		g.gather(l, &s, parts)
	} else {
		g.scatter(l, &s, parts)
	}
	if !st.let {
		st.pass()
	}
	st.r.answer(st, parts)
	m.give(l)
}

// pass lets the GPU pass a step that has nothing to move.
func (st *step) pass() {
	st.let = true
	st.run.Store(1)
}

// carry fills the table, lets the GPU go on and waits until it has moved the
// bytes. It bounds that wait as the mover does for copies; past it the buffer is
// the GPU's until the lane is closed.
func (st *step) carry(l *lane, parts []part, toHost bool) error {
	k := 0
	for i := range parts {
		p := &parts[i]
		for from := int64(0); from < p.N; from += st.unit {
			n := min(st.unit, p.N-from)
			_, host := hostPlace(l, p, p.N)
			mv := gpu.Move{Src: host + gpu.Ptr(from), Dst: p.Ptr + gpu.Ptr(from), N: n}
			if toHost {
				mv.Src, mv.Dst = mv.Dst, mv.Src
			}
			gpu.PutMove(st.table, k, mv)
			k++
		}
	}
	st.pass()
	if k == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.m.opt.CopyTimeout)
	defer cancel()
	if err := gpu.WaitCell(ctx, st.ack, 1, func() error { return nil }); err != nil {
		return l.fail(err)
	}
	return nil
}

// collect makes the answers of the pieces from those of their parts.
func (r *Request) collect() {
	over := make([]bool, len(r.pieces)) // something is missing before this part
	for k := range r.parts {
		i, p := r.owner[k], &r.parts[k]
		if p.Len == 0 || over[i] {
			continue
		}
		r.n[i] += p.N
		if p.Err != nil {
			r.errs[i], over[i] = p.Err, true
		}
	}
	r.judge()
}
