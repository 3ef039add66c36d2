package xfer

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
)

// Span says which bytes a piece moves.
type Span struct {
	Off int64 // into the endpoint
	N   int64 // bytes
	At  int64 // into the memory
}

// Piece is one transfer of a request: N bytes from offset Off of End to
// Ptr+At, or the other way.
type Piece struct {
	End   Endpoint
	Ptr   gpu.Ptr
	Write bool // from the GPU
	Span

	// Late is asked for the span when the stream has come to the request, if it
	// is not nil. It must neither block nor call the GPU's library. Span.N is then
	// the most that it may say, and Room how many bytes from Ptr on it may name.
	Late func() Span
	Room int64
}

// Request is what one Submit queued. Safe for concurrent use.
type Request struct {
	m      *Mover
	q      *Ordered
	number uint64
	pieces []Piece
	paths  []driver.PathKey
	regs   []*gpu.Registration // of pieces whose memory is registered
	parts  []part              // pieces cut to what a step takes, in order
	owner  []int               // the piece of each part
	steps  []step
	ended  chan struct{}
	void   bool // nothing to do when the stream comes; under Order.mu

	n    []int64
	errs []error
	err  error // of the first piece that failed
	read bool  // somebody has seen err; under Order.mu
}

// newRequest checks the pieces and holds their memory.
func (m *Mover) newRequest(pieces []Piece) (*Request, error) {
	if len(pieces) == 0 || len(pieces) > MaxPieces {
		return nil, base.Errorf("queue", "request", base.ErrInvalid, "%d pieces; it must be from 1 to %d", len(pieces), MaxPieces)
	}
	if err := m.enter(); err != nil {
		return nil, err
	}
	r := &Request{m: m, pieces: append([]Piece(nil), pieces...), paths: make([]driver.PathKey, len(pieces)),
		ended: make(chan struct{}), n: make([]int64, len(pieces)), errs: make([]error, len(pieces))}
	var known memo
	for i := range r.pieces {
		if err := r.admit(i, &known); err != nil {
			r.dismiss()
			return nil, err
		}
	}
	return r, nil
}

// admit checks a piece and holds its memory from the moment it is queued: what
// follows calls no library.
func (r *Request) admit(i int, known *memo) error {
	p := &r.pieces[i]
	if p.End == nil {
		return base.Errorf("queue", "request", base.ErrInvalid, "piece %d has no endpoint", i)
	}
	at, room := p.Ptr+gpu.Ptr(p.At), p.N
	if p.Late != nil {
		at, room = p.Ptr, p.Room
		if p.N < 0 || p.N > p.Room {
			return base.Errorf("queue", "request", base.ErrInvalid, "piece %d: at most %d bytes in a room of %d", i, p.N, p.Room)
		}
	} else if p.At < 0 {
		return base.Errorf("queue", "request", base.ErrInvalid, "piece %d begins at byte %d of its memory", i, p.At)
	}
	off, n := p.Off, p.N
	if p.Late != nil {
		off, n = 0, 0
	}
	var err error
	if r.paths[i], err = r.m.way(p.End, off, at, n, p.Write); err != nil || room == 0 {
		return err
	}
	if p.Late == nil && p.N > 0 {
		if _, _, err := p.End.place(off, n, p.Write); err != nil {
			return err
		}
	}
	reg, err := r.m.hold(at, room, known)
	if err != nil {
		return err
	}
	if reg != nil {
		r.regs = append(r.regs, reg)
	}
	r.m.why(&r.paths[i], p.End, reg, reasonOrder)
	return nil
}

// dismiss lets go of the memory.
func (r *Request) dismiss() {
	for _, reg := range r.regs {
		reg.Release()
	}
	r.regs = nil
	r.m.jobs.Done()
}

// bind asks for the spans of the pieces that are bound late.
func (r *Request) bind() {
	for i := range r.pieces {
		p := &r.pieces[i]
		if p.Late == nil {
			continue
		}
		most := p.N
		p.Span = p.Late()
		if p.Off < 0 || p.N < 0 || p.N > most || !base.CheckRange(p.At, p.N, p.Room) {
			r.errs[i] = base.Errorf("move", "late-bound piece", base.ErrInvalid,
				"%d bytes at %d, byte %d of the memory; at most %d bytes, inside %d", p.N, p.Off, p.At, most, p.Room)
			p.N = 0
		}
	}
}

// inCall moves every piece now, by the ways of Read and ReadMany.
func (r *Request) inCall() {
	r.bind()
	var small [2][]int // pieces that share buffers, by direction
	var each []int
	for i := range r.pieces {
		p := &r.pieces[i]
		switch {
		case r.errs[i] != nil:
		case p.N > r.m.opt.SmallBytes:
			each = append(each, i)
		case p.Write:
			small[1] = append(small[1], i)
		default:
			small[0] = append(small[0], i)
		}
	}
	var wg sync.WaitGroup
	for d, list := range small {
		if len(list) > 0 {
			wg.Go(func() { r.many(list, d == 1) })
		}
	}
	var next atomic.Int64
	for range min(len(each), 2*r.m.opt.Lanes) {
		wg.Go(func() {
			for k := next.Add(1) - 1; k < int64(len(each)); k = next.Add(1) - 1 {
				p := &r.pieces[each[k]]
				r.n[each[k]], r.errs[each[k]] = r.m.move(context.Background(), p.End, p.Off, p.Ptr+gpu.Ptr(p.At), p.N, p.Write)
			}
		})
	}
	wg.Wait()
	r.judge()
}

// many moves small pieces of one direction.
func (r *Request) many(list []int, write bool) {
	items := make([]Item, len(list))
	for k, i := range list {
		p := &r.pieces[i]
		items[k] = Item{End: p.End, Off: p.Off, Ptr: p.Ptr + gpu.Ptr(p.At), Len: p.N}
	}
	err := r.m.many(context.Background(), items, write)
	for k, i := range list {
		if r.errs[i] = err; err == nil {
			r.n[i], r.errs[i] = items[k].N, items[k].Err
		}
	}
}

// judge finds the error of the request.
func (r *Request) judge() {
	for _, err := range r.errs {
		if err != nil && !errors.Is(err, io.EOF) { // a short read is an answer
			r.err = err
			return
		}
	}
}

// Done is closed when every piece ended and the stream may go on.
func (r *Request) Done() <-chan struct{} { return r.ended }

// Wait waits for the end and gives the error of the first piece that failed; the
// end of the data is no failure, see Result. ErrTimeout when ctx ends first,
// which ends only the wait.
func (r *Request) Wait(ctx context.Context) error {
	select {
	case <-r.ended:
	default:
		select {
		case <-r.ended:
		case <-ctx.Done():
			return base.Errorf("wait for", "request", base.ErrTimeout, "%w", ctx.Err())
		}
	}
	r.seen()
	return r.err
}

// Result is what piece i moved, after Done, under the rules of Mover.Read: the
// bytes, contiguous from its beginning, and io.EOF or the error if they are
// fewer.
func (r *Request) Result(i int) (int64, error) {
	select {
	case <-r.ended:
	default:
		return 0, base.Errorf("look at", "request", base.ErrBusy, "it has not ended")
	}
	r.seen()
	return r.n[i], r.errs[i]
}

// seen notes that somebody knows of the failure, if there is one.
func (r *Request) seen() {
	r.q.o.mu.Lock()
	r.read = true
	r.q.o.mu.Unlock()
}
