package store

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/ugds-store/ugds/alloc"
	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// Writer puts a value whose length is not known beforehand. It buffers at most
// 64 MiB (one slab, at least one piece) and takes the object's space as it goes;
// Close makes the object visible, Abort gives everything back. One goroutine at
// a time may use it. The key is claimed by Close: until then other operations on
// the key go on.
type Writer struct {
	n    *Namespace
	ctx  context.Context
	opt  PutOptions
	op   *op
	it   item
	buf  []byte
	unit int64 // bytes written at a time
	err  error // sticky
	over bool
}

// NewWriter begins a value. ErrExists at once when the key is visible and Replace
// is not set; Close looks again. ctx bounds every wait of the writer.
func (n *Namespace) NewWriter(ctx context.Context, key []byte, o PutOptions) (*Writer, error) {
	if err := n.s.gate.enter("put", n.ns.name); err != nil {
		return nil, err
	}
	defer n.s.gate.leave()
	if err := checkKey("put", key); err != nil {
		return nil, err
	}
	if err := n.s.ReadOnly(); err != nil {
		return nil, base.Wrap("put", keyText(key), err)
	}
	w := &Writer{n: n, ctx: ctx, opt: o, op: n.newOp(opPut, key, o.Durability),
		unit: max(n.s.layout.SlabBytes, PieceBytes)}
	w.it.v.noCRC = o.NoChecksum
	if _, there := n.info(key); there && !o.Replace {
		return nil, base.Wrap("put", keyText(key), ErrExists)
	}
	return w, nil
}

// Write takes p, which may be reused when it returns. After an error the writer
// only aborts.
func (w *Writer) Write(p []byte) (int, error) {
	done := 0
	for w.usable() == nil && done < len(p) {
		n := min(len(p)-done, int(w.room()))
		w.take(p[done : done+n])
		done += n
		_ = w.spillFull() // sticky
	}
	return done, w.err
}

// usable gives the sticky error, ErrClosed after the end.
func (w *Writer) usable() error {
	if w.over && w.err == nil {
		w.err = base.Wrap("write", keyText(w.op.key), ErrClosed)
	}
	return w.err
}

// room is how many bytes the buffer still takes.
func (w *Writer) room() int64 { return w.unit - int64(len(w.buf)) }

// take appends at most room bytes to the buffer.
func (w *Writer) take(p []byte) { w.buf = append(w.buf, p...) }

// spillFull writes the buffer if it is full.
func (w *Writer) spillFull() error {
	if w.room() == 0 {
		w.err = w.spill()
	}
	return w.err
}

// spill writes one unit into whole slabs.
func (w *Writer) spill() error {
	s := w.n.s
	if err := s.gate.enter("put", keyText(w.op.key)); err != nil {
		return err
	}
	defer s.gate.leave()
	from := w.it.v.length
	for range w.unit / s.layout.SlabBytes {
		exts, err := s.allocWith(w.ctx, func() ([]alloc.Extent, error) { return s.pool.AllocSlab(nil) })
		if err != nil {
			return w.noRoom(err)
		}
		w.it.v.exts = append(w.it.v.exts, exts...)
	}
	return w.send(from)
}

// noRoom adds to err, which counts what is free now, what the value has taken and the
// end of the writer gives back.
func (w *Writer) noRoom(err error) error {
	took := int64(0)
	for _, e := range w.it.v.exts {
		took += e.Bytes()
	}
	if took > 0 && errors.Is(err, ErrNoSpace) {
		err = fmt.Errorf("the beginning of the value took %s, which come back: %w", base.FormatBytes(took), err)
	}
	return base.Wrap("put", keyText(w.op.key), err)
}

// send writes the buffer at from, into extents that are there already.
func (w *Writer) send(from int64) error {
	s := w.n.s
	w.it.v.length = from + int64(len(w.buf))
	w.it.cur = cursor{bufs: Bytes(w.buf)}
	w.it.stamps = mergeStamps(w.it.stamps, s.stampsOf(nil, &w.it.v))
	r := &runner{s: s, ctx: w.ctx, op: driver.OpWrite}
	r.writeFrom(&w.it, from, int64(len(w.buf)))
	exts := w.it.v.exts
	err := r.finish(func() { s.freeNow(exts) })
	if err != nil {
		w.it.v.exts = nil // the goroutine that waits for the commands has them
	}
	w.buf = w.buf[:0]
	return base.Wrap("put", keyText(w.op.key), firstErr(w.it.err, err))
}

// mergeStamps keeps the oldest incarnation of each device.
func mergeStamps(old, now []stamp) []stamp {
	for _, n := range now {
		known := false
		for _, o := range old {
			known = known || o.dev == n.dev
		}
		if !known {
			old = append(old, n)
		}
	}
	return old
}

// Close writes what is left and puts the object; see Namespace.Put for errors.
// Without success the space is given back and the key is as it was.
func (w *Writer) Close() error {
	if w.over {
		return base.Wrap("close", keyText(w.op.key), ErrClosed)
	}
	s := w.n.s
	if err := s.gate.enter("put", keyText(w.op.key)); err != nil {
		w.err = firstErr(w.err, err)
	} else {
		defer s.gate.leave()
	}
	if w.err == nil {
		w.err = w.commit()
	}
	w.Abort()
	return w.err
}

func (w *Writer) commit() error {
	s := w.n.s
	if len(w.buf) > 0 {
		from := w.it.v.length
		exts, err := s.allocate(w.ctx, nil, int64(len(w.buf)))
		if err != nil {
			return w.noRoom(err)
		}
		w.it.v.exts = append(w.it.v.exts, exts...)
		if err := w.send(from); err != nil {
			return err
		}
	}
	if w.op.relaxed {
		if err := s.waitVolatile(w.ctx, w.it.v.length); err != nil {
			return err
		}
	}
	if err := s.claimWait(w.ctx, w.op, w.opt.Replace); err != nil {
		return err
	}
	p := &putItem{op: w.op, it: w.it, pi: &PutItem{}}
	w.it.v.exts = nil // finishPut gives them back if it fails
	if !s.finishPut(p) {
		return p.pi.Err
	}
	if w.op.relaxed {
		return nil
	}
	return w.op.wait(w.ctx)
}

// Abort gives the space back. After Close it does nothing.
func (w *Writer) Abort() {
	if w.over {
		return
	}
	w.over = true
	w.n.s.giveBack(&w.it.v)
	w.buf = nil
}

// ReadFrom implements io.ReaderFrom: it puts everything that r has.
func (w *Writer) ReadFrom(r io.Reader) (n int64, err error) {
	buf := make([]byte, PieceBytes)
	for {
		k, rerr := r.Read(buf)
		m, werr := w.Write(buf[:k])
		n += int64(m)
		switch {
		case werr != nil:
			return n, werr
		case rerr == io.EOF:
			return n, nil
		case rerr != nil:
			return n, rerr
		}
	}
}
