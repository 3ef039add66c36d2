package meta

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"

	"github.com/cockroachdb/pebble/v2"
	"github.com/ugds-store/ugds/internal/base"
)

// Get reads the committed record of an object; its slices are the caller's. Behind
// the fence it gives the state before what is in doubt. Errors: ErrNotFound,
// ErrCorrupt, ErrInvalid, ErrClosed.
func (d *DB) Get(ns uint32, key []byte) (r Record, err error) {
	if err := checkKey(ns, key); err != nil {
		return r, err
	}
	if err := d.life.enter("get record"); err != nil {
		return r, err
	}
	defer d.life.leave()
	if d.fence.err() != nil {
		return d.getFenced(ns, key)
	}
	defer d.recovered(&err)
	k := appendObjectKey(make([]byte, 0, objectPrefixLen+len(key)), ns, key)
	v := d.views.get()
	defer d.views.put(v)
	b, closer, err := v.snap.Get(k)
	if errors.Is(err, pebble.ErrNotFound) {
		return r, base.Wrap("get record", printKey(k), base.ErrNotFound)
	}
	if err != nil {
		return r, readError("get record", printKey(k), err)
	}
	err = r.decode(k, b)
	return r, errors.Join(err, closer.Close())
}

// getFenced is Get behind the fence, by an iterator: its end waits for nobody.
func (d *DB) getFenced(ns uint32, key []byte) (r Record, err error) {
	it := d.Iter(ns, key, nil)
	found := it.Next() && bytes.Equal(it.Key(), key)
	if r = it.rec; !found {
		r = Record{}
	}
	if err := it.Close(); err != nil || found {
		return r, err
	}
	return r, base.Wrap("get record", printKey(appendObjectKey(nil, ns, key)), base.ErrNotFound)
}

// recovered turns a panic of Pebble on a reader's goroutine into an error and
// lets the fence fall: who knows what it left locked.
func (d *DB) recovered(err *error) {
	if r := recover(); r != nil {
		*err = base.Errorf("read metadata", d.o.Dir, base.ErrCorrupt, "%w", panicError(r))
		d.fence.trip(*err)
	}
}

// Scan calls fn for every committed record, ordered by namespace and key. Key
// and record are reused: fn copies what it keeps. An error of fn ends the scan
// and is returned as it is. Other errors: ErrCorrupt, ErrClosed, the context's.
func (d *DB) Scan(ctx context.Context, fn func(ns uint32, key []byte, r *Record) error) error {
	it := d.iterate([]byte{tagObject}, []byte{tagObject + 1}, nil)
	defer it.Close()
	for n := 0; it.Next(); n++ {
		if n&1023 == 0 && ctx.Err() != nil {
			return base.Wrap("scan metadata", d.o.Dir, context.Cause(ctx))
		}
		k := it.it.Key()
		if err := fn(binary.BigEndian.Uint32(k[1:]), k[objectPrefixLen:], &it.rec); err != nil {
			return err
		}
	}
	return it.Err()
}

// Iter walks the committed records of a namespace in key order, as they were
// when it was made. It is for one goroutine. It works behind the fence too. Open
// iterators keep old data on the disk: close them soon.
type Iter struct {
	d     *DB
	it    *pebble.Iterator
	rec   Record
	after []byte // database key before the first one, or nil
	begun bool
	err   error
}

// Iter walks the keys of ns that begin with prefix and are greater than after;
// an empty prefix is all keys, a nil after the first one. Errors arrive by Err.
func (d *DB) Iter(ns uint32, prefix, after []byte) *Iter {
	lower := appendObjectKey(nil, ns, prefix)
	var from []byte
	if after != nil {
		from = appendObjectKey(nil, ns, after)
	}
	return d.iterate(lower, successor(lower), from)
}

// successor is the least key greater than all with this prefix. The tag byte
// keeps it from overflowing.
func successor(prefix []byte) []byte {
	s := append([]byte(nil), prefix...)
	for i := len(s) - 1; ; i-- {
		if s[i]++; s[i] != 0 {
			return s[:i+1]
		}
	}
}

func (d *DB) iterate(lower, upper, after []byte) (it *Iter) {
	it = &Iter{d: d, after: after}
	if it.err = d.life.enter("iterate metadata"); it.err != nil {
		it.d = nil
		return it
	}
	d.iters.Add(1)
	defer d.recovered(&it.err)
	v := d.views.get()
	defer d.views.put(v)
	it.it, it.err = v.snap.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	return it
}

// Next moves to the next record and reports whether there is one.
func (it *Iter) Next() bool {
	if it.err != nil || it.it == nil {
		return false
	}
	if it.d.life.ending() {
		it.err = base.Errorf("iterate metadata", "", base.ErrClosed, "the metadata is being closed")
		return false
	}
	defer it.d.recovered(&it.err)
	switch {
	case it.begun:
		it.it.Next()
	case it.after != nil:
		if it.it.SeekGE(it.after) && string(it.it.Key()) == string(it.after) {
			it.it.Next()
		}
	default:
		it.it.First()
	}
	it.begun = true
	if !it.it.Valid() {
		it.err = readError("iterate metadata", it.d.o.Dir, it.it.Error())
		return false
	}
	k := it.it.Key()
	if len(k) <= objectPrefixLen {
		it.err = corruptRecord(k, "the key is too short")
		return false
	}
	b, err := it.it.ValueAndErr()
	if err == nil {
		err = it.rec.decode(k, b)
	}
	it.err = readError("iterate metadata", it.d.o.Dir, err)
	return it.err == nil
}

// Key is the key of the current record, valid until Next or Close.
func (it *Iter) Key() []byte { return it.it.Key()[objectPrefixLen:] }

// Record is the current record, valid until Next or Close.
func (it *Iter) Record() *Record { return &it.rec }

// Err is why Next answered false, or nil at the end.
func (it *Iter) Err() error { return it.err }

// Close frees the iterator. It may be called more than once and returns Err.
func (it *Iter) Close() error {
	d := it.d
	if d == nil {
		return it.err
	}
	it.d = nil
	if it.it != nil {
		p := it.it
		it.it = nil
		if d.fence.err() != nil {
			// Behind the fence the mutex that frees an old version may be held for
			// ever.
			parked.Add(1)
			go func() {
				_ = p.Close()
				parked.Add(-1)
			}()
		} else if err := p.Close(); err != nil && it.err == nil {
			it.err = readError("iterate metadata", d.o.Dir, err)
		}
	}
	d.iters.Add(-1)
	d.life.leave()
	return it.err
}
