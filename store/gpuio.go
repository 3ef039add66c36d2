package store

import (
	"context"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// WriteBuffers takes the bytes of v, which may lie in host memory, regions and GPU
// memory; they may be reused when it returns. It gives the bytes taken. The rules of
// Write hold; ErrMisaligned for regions that the processor cannot reach.
func (w *Writer) WriteBuffers(v Buffers) (int64, error) {
	s := w.n.s
	if err := s.gate.enter("put", keyText(w.op.key)); err != nil {
		return 0, err
	}
	defer s.gate.leave()
	it := item{cur: cursor{bufs: v}}
	err := v.check("put")
	if err == nil {
		err = v.hold()
	}
	if err != nil {
		return 0, base.Wrap("put", keyText(w.op.key), err)
	}
	defer v.release()
	if err := s.holdGPU("put", &it); err != nil {
		return 0, base.Wrap("put", keyText(w.op.key), err)
	}
	defer it.gpu.release()
	var done int64
	err = w.usable()
	for total := v.Size(); done < total && err == nil; {
		n := min(total-done, PieceBytes, w.room())
		if err = s.fetch(w.ctx, &it, n, w.take); err == nil {
			done += n
			err = w.spillFull() // with no bounce buffer in hand: it takes some
		}
	}
	return done, base.Wrap("put", keyText(w.op.key), err)
}

// fetch brings the next n bytes of an item, at most a piece, to where the processor
// sees them, and calls use, which must not wait for anything: a bounce buffer is held.
func (s *Store) fetch(ctx context.Context, it *item, n int64, use func([]byte)) error {
	buf, err := s.stage.get(ctx, n)
	if err != nil {
		return err
	}
	f := &flight{s: s, op: driver.OpWrite, xfers: []xfer{{it: it, n: n, buf: buf}}}
	x := &f.xfers[0]
	defer func() { s.stage.put(x.buf) }()
	if !f.split(0, it, &it.cur, 0, n) {
		return errUnreachable("put", s)
	}
	f.move()
	if x.err != nil {
		return x.err
	}
	use(s.stage.bytes(buf, n))
	return nil
}

// ReadBuffers reads dst.Size() bytes at off into host memory, regions or GPU memory.
// ErrOutOfRange past the end, ErrClosed after Close.
func (r *Reader) ReadBuffers(ctx context.Context, dst Buffers, off int64) error {
	if err := r.n.s.gate.enter("get", r.n.ns.name); err != nil {
		return err
	}
	defer r.n.s.gate.leave()
	if err := dst.check("get"); err != nil {
		return err
	}
	h, err := r.use()
	if err != nil {
		return err
	}
	g := &getItem{gi: &GetItem{Key: r.key, Dst: dst, GetOptions: GetOptions{Off: off, Len: dst.Size(), Exact: true}}, h: h}
	r.n.readAll(ctx, []*getItem{g})
	return g.gi.Err
}
