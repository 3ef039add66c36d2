package store

import (
	"cmp"
	"slices"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// Bounds of reads that several ranges share.
const (
	// shareBytes is up to how long, in bytes, a range may share a read: it then passes
	// a bounce buffer.
	shareBytes = 64 * base.KiB
	// shareGap is how many bytes that nobody wants are read to spare a command: a
	// device brings them sooner than it begins another one.
	shareGap = 8 * base.KiB
)

// share is one read for several small ranges of a version that lie near each other,
// or in the same pieces when they are verified. It reads as an item without memory of
// its own, and hands the bytes on.
type share struct {
	item
	path driver.PathKey
	gets []*getItem // by offset
	done int        // so many of the first ones have all their bytes
}

// mayShare tells whether a get may be one of several of a share. A range that the
// device could bring to its place without a bounce buffer may not.
func (r *runner) mayShare(g *getItem) bool {
	it := &g.it
	if it.n == 0 || it.n > shareBytes || it.n == it.v.length || it.whole || r.s.opts.Strict {
		return false
	}
	if it.verify || it.off%base.StoreBlock != 0 || r.straight(it, it.off, it.n) == 0 {
		return true
	}
	cur := it.cur
	_, got := cur.direct(it.n&^(base.StoreBlock-1), r.s.memAlign, nil)
	return got == 0
}

// readShared reads gets that may share, together where they are near each other. It
// gives the shares that it made.
func (r *runner) readShared(gets []*getItem) (all []*share) {
	slices.SortFunc(gets, func(a, b *getItem) int {
		if c := cmp.Compare(a.h.v.gen, b.h.v.gen); c != 0 {
			return c
		}
		if a.it.verify != b.it.verify {
			if a.it.verify {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.it.off, b.it.off)
	})
	for len(gets) > 0 && r.err == nil {
		k, end := near(gets)
		if k == 1 {
			r.read(&gets[0].it)
		} else {
			first := &gets[0].it
			sh := &share{gets: gets[:k:k], path: r.readPath(first, first.off, first.n)}
			sh.item = item{v: first.v, off: first.off, n: end - first.off, verify: first.verify, share: sh}
			all = append(all, sh)
			r.read(&sh.item)
		}
		gets = gets[k:]
	}
	return all
}

// near gives how many of the sorted gets can share one read, at least one, and where
// in the value the last of them ends.
func near(gets []*getItem) (k int, end int64) {
	it := &gets[0].it
	unit, gap := int64(base.StoreBlock), int64(shareGap)
	if it.verify {
		unit, gap = PieceBytes, 0
	}
	end = it.off + it.n
	for k = 1; k < len(gets); k++ {
		next := &gets[k].it
		if next.v.gen != it.v.gen || next.verify != it.verify || next.off/unit*unit > base.AlignUp(end, unit)+gap {
			break
		}
		end = max(end, next.off+next.n)
	}
	return k, end
}

// deliver hands on what transfer i of the flight brought. Transfers of a share come
// in order.
func (sh *share) deliver(f *flight, i int) {
	x := &f.xfers[i]
	end := x.off + x.n
	for k := sh.done; k < len(sh.gets) && sh.gets[k].it.off < end; k++ {
		it := &sh.gets[k].it
		if k == sh.done && it.off+it.n <= end {
			sh.done++
		}
		if it.err == nil {
			f.hand(i, it, &it.cur)
		}
	}
}

// readAlone reads the gets of shares that failed once more, each for itself: so each
// gets its own answer, as if nothing had been shared.
func (r *runner) readAlone(all []*share) {
	for _, sh := range all {
		for k := 0; k < len(sh.gets) && sh.err != nil && r.err == nil; k++ {
			g := sh.gets[k]
			if g.it.err == nil {
				g.it.cur = cursor{bufs: g.gi.Dst, gpu: g.it.cur.gpu}
				r.read(&g.it)
			}
		}
	}
}
