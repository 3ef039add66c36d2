package store

import (
	"bytes"
	"context"
	"sort"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// Bounds of one batch of verification.
const (
	verifyKeys  = 1024
	verifyBytes = 64 * base.MiB
)

// Verify reads whole values and compares their checksums, at the speed of the
// devices and without copying them anywhere. It gives an answer for each of at most
// MaxBatchKeys keys: nil, ErrNotFound, ErrCorrupt, or what the device said. A value stored without
// a checksum is only read.
func (n *Namespace) Verify(ctx context.Context, keys [][]byte) []error {
	errs := make([]error, len(keys))
	err := n.enter("verify", len(keys))
	if err == nil {
		defer n.s.gate.leave()
	}
	gets, of := make([]*getItem, 0, len(keys)), make([]int, 0, len(keys))
	for i, key := range keys {
		if errs[i] = firstErr(err, checkKey("verify", key)); errs[i] != nil {
			continue
		}
		h, err := n.hold(ctx, key, true)
		if errs[i] = err; err == nil {
			gets = append(gets, &getItem{gi: &GetItem{Key: key}, h: h, whole: true})
			of = append(of, i)
		}
	}
	n.readAll(ctx, gets)
	for k, g := range gets {
		errs[of[k]] = g.gi.Err
	}
	return errs
}

// verifyVersions reads versions that nobody changes and compares their checksums.
func (s *Store) verifyVersions(ctx context.Context, vs []version) []error {
	r := &runner{s: s, ctx: ctx, op: driver.OpRead, digest: digestRead}
	items := make([]item, len(vs))
	for i := range vs {
		items[i] = wholeItem(&vs[i])
		r.read(&items[i])
	}
	err := r.finish(func() {})
	errs := make([]error, len(vs))
	for i := range items {
		errs[i] = firstErr(items[i].err, err)
	}
	return errs
}

// wholeItem is an item that is read and checked but goes nowhere.
func wholeItem(v *version) item {
	return item{v: *v, whole: true, off: v.length, verify: !v.noCRC}
}

// object is a record as Check keeps it for a closer look.
type object struct {
	ns  *nsState
	key []byte
	v   version
}

// eachRecord walks through all records that can be read.
func (s *Store) eachRecord(ctx context.Context, fn func(object) error) error {
	for _, ns := range s.nsByID {
		it := s.db.Iter(ns.id, nil, nil)
		for it.Next() {
			if err := ctx.Err(); err != nil {
				_ = it.Close()
				return base.Errorf("walk", "records", ErrTimeout, "%w", err)
			}
			v, err := s.versionOf(it.Key(), it.Record(), nil)
			if err != nil {
				continue // reported when it was loaded
			}
			v.sums = append([]uint32(nil), it.Record().PieceCRCs...)
			if err := fn(object{ns, bytes.Clone(it.Key()), v}); err != nil {
				_ = it.Close()
				return err
			}
		}
		if err := it.Close(); err != nil {
			return err
		}
	}
	return nil
}

// verifyData reads every value.
func (r *Report) verifyData(ctx context.Context, s *Store, progress func(done, total int64)) error {
	var batch []object
	var size, done int64
	flush := func() error {
		vs := make([]version, len(batch))
		for i := range batch {
			vs[i] = batch[i].v
		}
		for i, err := range s.verifyVersions(ctx, vs) {
			if ctx.Err() != nil {
				return base.Errorf("verify", "data", ErrTimeout, "%w", ctx.Err())
			}
			if err != nil {
				cause, hint := base.Parts(err)
				r.object(SevError, "data", &batch[i], cause, hint)
			}
		}
		done += size
		batch, size = batch[:0], 0
		if progress != nil {
			progress(done, r.Usage.Bytes)
		}
		return nil
	}
	err := s.eachRecord(ctx, func(o object) error {
		batch = append(batch, o)
		if size += o.v.length; len(batch) < verifyKeys && size < verifyBytes {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	r.Verified = err == nil
	return err
}

func (r *Report) object(sev Severity, area string, o *object, text, hint string) {
	r.Findings = append(r.Findings, Finding{Severity: sev, Area: area, Namespace: o.ns.name, Key: o.key, Text: text, Hint: hint})
}

// overlaps finds every pair of objects that claim the same blocks and says whose
// data they are, as far as checksums tell: at most one can be right.
func (r *Report) overlaps(ctx context.Context, s *Store) error {
	type span struct {
		dev      uint8
		from, to uint64
		object   int
	}
	var all []object
	var spans []span
	err := s.eachRecord(ctx, func(o object) error {
		for _, e := range o.v.exts {
			spans = append(spans, span{e.Dev, e.Start, e.Start + uint64(e.Blocks), len(all)})
		}
		all = append(all, o)
		return nil
	})
	if err != nil {
		return err
	}
	sort.Slice(spans, func(i, j int) bool {
		a, b := spans[i], spans[j]
		return a.dev < b.dev || a.dev == b.dev && a.from < b.from
	})
	with := map[int]int{} // object → another one that overlaps it
	far := 0              // the span that reaches furthest so far
	for i := 1; i < len(spans); i++ {
		a, b := spans[far], spans[i]
		if a.dev == b.dev && b.from < a.to {
			with[a.object], with[b.object] = b.object, a.object
		}
		if a.dev != b.dev || b.to > a.to {
			far = i
		}
	}
	return r.judgeOverlaps(ctx, s, all, with)
}

// judgeOverlaps verifies the objects of overlapping pairs. One whose checksum is
// right, and that is newer than a right one on the same blocks, is kept.
func (r *Report) judgeOverlaps(ctx context.Context, s *Store, all []object, with map[int]int) error {
	var order []int
	for i := range with {
		order = append(order, i)
	}
	sort.Slice(order, func(i, j int) bool { return all[order[i]].v.gen > all[order[j]].v.gen })
	kept := map[int]bool{}
	for _, i := range order {
		if ctx.Err() != nil {
			return base.Errorf("check", "overlaps", ErrTimeout, "%w", ctx.Err())
		}
		o, other := &all[i], &all[with[i]]
		text := "its blocks are also those of " + keyText(other.key)
		right := !o.v.noCRC && with[i] != i && s.verifyVersions(ctx, []version{o.v})[0] == nil
		if right && !kept[with[i]] {
			kept[i] = true
			r.object(SevWarning, "object", o, text+"; its own checksum is right", "")
			continue
		}
		r.object(SevError, "object", o, text+"; the data are not its own, or cannot be told to be", "")
	}
	r.addRefused()
	return nil
}

// addRefused reports the objects that the allocator refused and that overlap
// none: their extents cannot have been handed out.
func (r *Report) addRefused() {
	seen := map[string]bool{}
	for _, f := range r.Findings {
		if f.Area == "object" {
			seen[f.Namespace+"\x00"+string(f.Key)] = true
		}
	}
	for _, f := range r.refused {
		if !seen[f.Namespace+"\x00"+string(f.Key)] {
			r.Findings = append(r.Findings, f)
		}
	}
}
