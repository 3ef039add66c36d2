package store

import (
	"context"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	gpuxfer "github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
)

// gpuMove is one move between staging memory and a GPU, of a value by a transfer.
type gpuMove struct {
	xfer int
	it   *item
	gpuWay
	item gpuxfer.Item
}

// gpuWay is what moves have in common that the mover carries out together.
type gpuWay struct {
	dev  int
	tail bool   // a partial last block: allowed in strict
	why  string // why it is staged
}

// wayOf is how bytes of range i of a value are staged by a transfer.
func (x *xfer) wayOf(it *item, i int) gpuWay {
	r := &it.gpu.ranges[i]
	w := gpuWay{dev: r.dev, tail: x.path.Path == driver.PathTail, why: r.why}
	switch {
	case w.tail || w.why == "" && x.path.Reason != "":
		w.why = x.path.Reason
	case w.why == "":
		w.why = reasonPlain
	}
	return w
}

// split walks through the n bytes of a value that lie from byte at on in the staging
// buffer of transfer i: what belongs to host memory is copied at once, what belongs to a
// GPU becomes a move. False when the processor cannot reach a region.
func (f *flight) split(i int, it *item, cur *cursor, at, n int64) bool {
	x := &f.xfers[i]
	for n > 0 {
		cur.skipEmpty()
		r := &cur.bufs[cur.i]
		take := min(n, r.size()-cur.pos)
		if r.GPU != 0 {
			f.moves = append(f.moves, gpuMove{i, it, x.wayOf(it, cur.i),
				gpuxfer.Item{Off: x.buf.off + at, Ptr: r.GPU + gpu.Ptr(r.Off+cur.pos), Len: take}})
			cur.pos += take
		} else {
			b, v := f.s.stage.region.Bytes(x.buf.off+at, take), cur.view(take)
			if v == nil {
				return false
			}
			if f.op == driver.OpWrite {
				copy(b, v)
			} else {
				copy(v, b)
			}
		}
		at, n = at+take, n-take
	}
	return true
}

// move carries out the moves of the flight: to the GPUs after reads, from them
// before writes. Errors go to the transfers and the values. The copies are waited for, whatever the
// caller's context, since their buffers must not be used again before; a copy that
// does not end in time costs its buffer.
func (f *flight) move() {
	for len(f.moves) > 0 {
		first := f.moves[0].gpuWay
		var now []gpuxfer.Item
		var of []gpuMove
		rest := f.moves[:0]
		m, end, err := f.s.gpu.way(first)
		for _, mv := range f.moves {
			if mv.gpuWay != first {
				rest = append(rest, mv)
				continue
			}
			if mv.item.End == nil {
				mv.item.End = end
			}
			now, of = append(now, mv.item), append(of, mv)
		}
		f.moves = rest
		if err == nil {
			if f.op == driver.OpWrite {
				err = m.WriteMany(context.Background(), now)
			} else {
				err = m.ReadMany(context.Background(), now)
			}
		}
		for k := range now {
			f.moved(&of[k], firstErr(err, now[k].Err))
		}
	}
}

// way gives the mover of a range and the staging memory as it sees it.
func (g *gpuSide) way(w gpuWay) (*gpuxfer.Mover, gpuxfer.Endpoint, error) {
	m, err := g.mover(w.dev)
	if err != nil {
		return nil, nil, err
	}
	if w.tail {
		return m, gpuxfer.Tail(g.pin, w.why), nil
	}
	return m, gpuxfer.Staging(g.pin, w.why), nil
}

// moved takes the answer of one move.
func (f *flight) moved(mv *gpuMove, err error) {
	if err == nil {
		return
	}
	x := &f.xfers[mv.xfer]
	if x.err == nil {
		x.err = base.Wrap("move", "value", err)
	}
	if mv.it.err == nil {
		mv.it.err = x.err
	}
	if gpuxfer.InDoubt(err) && x.buf.ok() {
		if x.buf.lost {
			return
		}
		x.buf.lost = true
		f.s.count.lostBuffers.Add(1)
		if f.s.stage.lose(x.buf) {
			f.s.gpu.giveUp(err)
		}
	}
}
