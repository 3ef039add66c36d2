package nvme_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	canary   = 0xdeadbeefcafef00d
	listBase = 0x7000_0000_0000
)

// lists are list pages at bus addresses that are far apart and in falling order,
// with a canary behind each.
type lists struct {
	pages []nvme.ListPage
	raw   [][]nvme.Le64
}

func newLists(n int, pageShift uint) *lists {
	l := &lists{}
	slots := 1 << pageShift / 8
	for i := range n {
		raw := make([]nvme.Le64, slots+1)
		l.raw = append(l.raw, raw)
		l.pages = append(l.pages, nvme.ListPage{Addr: listBase - uint64(i)*3<<pageShift, Entries: raw[:slots:slots]})
	}
	l.wipe()
	return l
}

func (l *lists) wipe() {
	for _, r := range l.raw {
		for i := range r {
			r[i].Set(canary)
		}
	}
}

// at reads the 8 bytes at a bus address inside a list page.
func (l *lists) at(addr uint64) (uint64, error) {
	for _, p := range l.pages {
		if addr >= p.Addr && addr < p.Addr+uint64(len(p.Entries))*8 {
			return p.Entries[(addr-p.Addr)/8].Get(), nil
		}
	}
	return 0, fmt.Errorf("list entry at %#x is outside every list page", addr)
}

// intact tells whether only the first used pages were written, and nothing
// behind their end.
func (l *lists) intact(used int) bool {
	for i, r := range l.raw {
		if r[len(r)-1].Get() != canary || i >= used && r[0].Get() != canary {
			return false
		}
	}
	return true
}

func appendSeg(out []nvme.Seg, addr, n uint64) []nvme.Seg {
	if n == 0 {
		return out
	}
	if k := len(out) - 1; k >= 0 && out[k].Addr+out[k].Len == addr {
		out[k].Len += n
		return out
	}
	return append(out, nvme.Seg{Addr: addr, Len: n})
}

func merge(segs []nvme.Seg) (out []nvme.Seg) {
	for _, s := range segs {
		out = appendSeg(out, s.Addr, s.Len)
	}
	return out
}

// walkPRP reads a data pointer as Base 4.3.1 tells a controller to, knowing only
// the command, the number of bytes and the page size. It returns the memory
// named, the list pages visited, and whether the last slot read of a full list
// page was data.
func walkPRP(c *nvme.Command, total uint64, pageShift uint, l *lists) (out []nvme.Seg, pages int, err error) {
	page := uint64(1) << pageShift
	if c.PSDT() != nvme.PSDTPRP {
		return nil, 0, errors.New("PSDT is not PRP")
	}
	first := c.PRP1.Get()
	if first%4 != 0 {
		return nil, 0, errors.New("PRP1 is not aligned to a doubleword")
	}
	n := min(total, page-first%page)
	out = appendSeg(out, first, n)
	left := total - n
	if left == 0 {
		return out, 0, nil
	}
	entry := func(e uint64) error {
		if e%page != 0 {
			return fmt.Errorf("PRP entry %#x has an offset", e)
		}
		n := min(left, page)
		out = appendSeg(out, e, n)
		left -= n
		return nil
	}
	if left <= page {
		err = entry(c.PRP2.Get())
		return out, 0, err
	}
	at := c.PRP2.Get()
	if at%8 != 0 {
		return nil, 0, errors.New("PRP list is not aligned to a quadword")
	}
	for pages = 1; ; {
		e, err := l.at(at)
		if err != nil {
			return nil, 0, err
		}
		if at%page == page-8 && left > page { // the last slot, and more than one page to go: a link
			if e%page != 0 {
				return nil, 0, fmt.Errorf("link %#x has an offset", e)
			}
			at = e
			pages++
			continue
		}
		if err := entry(e); err != nil {
			return nil, 0, err
		}
		if left == 0 {
			return out, pages, nil
		}
		at += 8
	}
}

// checkPRP builds a data pointer and reads it back by the book.
func checkPRP(t *testing.T, segs []nvme.Seg, pageShift uint, l *lists, wantPages int) {
	t.Helper()
	var total uint64
	for _, s := range segs {
		total += s.Len
	}
	l.wipe()
	var c nvme.Command
	c.PRP2.Set(canary)
	pages, err := nvme.BuildPRP(&c, segs, pageShift, l.pages[:wantPages])
	if err != nil || pages != wantPages {
		t.Fatalf("%v: %d list pages, %v, want %d", segs, pages, err, wantPages)
	}
	got, visited, err := walkPRP(&c, total, pageShift, l)
	if err != nil || !slices.Equal(got, merge(segs)) {
		t.Fatalf("%v, pages of 2^%d: names %v, %v", segs, pageShift, got, err)
	}
	if visited != wantPages || !l.intact(wantPages) {
		t.Fatalf("%v: visited %d of %d list pages, or a canary is gone", segs, visited, wantPages)
	}
	if wantPages == 0 && total+segs[0].Addr&(1<<pageShift-1) <= 1<<pageShift && c.PRP2.Get() != 0 {
		t.Fatalf("%v: PRP2 is reserved, and %#x", segs, c.PRP2.Get())
	}
	if wantPages > 0 {
		if _, err := nvme.BuildPRP(&c, segs, pageShift, l.pages[:wantPages-1]); !errors.Is(err, nvme.ErrListSpace) {
			t.Fatalf("%v: with one list page less: %v", segs, err)
		}
	}
}

// minListPages finds the smallest number of list pages by trying: k pages hold
// k-1 links and data in all other slots.
func minListPages(entries, slots int) int {
	if entries <= 2 {
		return 0
	}
	for k := 1; ; k++ {
		if k*slots-(k-1) >= entries-1 {
			return k
		}
	}
}

// TestPRPExhaustive tries every doubleword offset and every length, with pages so
// small that lists chain many times.
func TestPRPExhaustive(t *testing.T) {
	for _, shift := range []uint{5, 6} {
		if shift > 5 && testenv.Race {
			continue // the race detector makes it slow and finds nothing here
		}
		page := uint64(1) << shift
		l := newLists(14, shift)
		for off := uint64(0); off < page; off += 4 {
			for n := uint64(4); n <= 42*page; n += 4 {
				entries := nvme.PRPEntries(off, n, shift)
				want := minListPages(int(entries), int(page/8))
				if got := nvme.PRPListPages(entries, shift); got != uint64(want) {
					t.Fatalf("%d entries, pages of %d: %d list pages, want %d", entries, page, got, want)
				}
				checkPRP(t, []nvme.Seg{{Addr: 0x10_0000_0000 + off, Len: n}}, shift, l, want)
			}
		}
	}
}

// TestC05PRPChainBoundary: real page sizes, around every number of pages at which
// a list begins, fills or chains (C-05, C-06, C-08).
func TestC05PRPChainBoundary(t *testing.T) {
	for _, shift := range []uint{12, 13, 16} {
		page := uint64(1) << shift
		slots := page / 8
		l := newLists(4, shift)
		var counts []uint64
		for _, k := range []uint64{1, slots, 2*slots - 1, 3*slots - 2} {
			for d := range uint64(5) {
				counts = append(counts, max(k+d, 3)-2)
			}
		}
		if shift == 12 {
			counts = append(counts, 511, 512, 513, 514, 1023, 1024, 1025, 2047/4)
		}
		for _, pages := range counts {
			for _, off := range []uint64{0, 4, 512, page/2 - 512, page - 512, page - 4} {
				for _, cut := range []uint64{0, 4, 512, off, page - 4} {
					n := pages*page - cut
					if cut >= pages*page {
						continue
					}
					want := minListPages(int(nvme.PRPEntries(off, n, shift)), int(slots))
					checkPRP(t, []nvme.Seg{{Addr: 1<<40 + off, Len: n}}, shift, l, want)
				}
			}
		}
	}
}

// TestC06LastSlotHoldsData: 512 entries fill one list page to its last slot, and
// do not chain for one entry.
func TestC06LastSlotHoldsData(t *testing.T) {
	l := newLists(2, 12)
	var c nvme.Command
	pages, err := nvme.BuildPRP(&c, []nvme.Seg{{Addr: 1 << 30, Len: 513 * 4096}}, 12, l.pages)
	if err != nil || pages != 1 || l.pages[0].Entries[511].Get() != 1<<30+512*4096 {
		t.Errorf("%d pages, %v, last slot %#x", pages, err, l.pages[0].Entries[511].Get())
	}
	pages, err = nvme.BuildPRP(&c, []nvme.Seg{{Addr: 1 << 30, Len: 514 * 4096}}, 12, l.pages)
	if err != nil || pages != 2 || l.pages[0].Entries[511].Get() != l.pages[1].Addr || l.pages[1].Entries[1].Get() != 1<<30+513*4096 {
		t.Errorf("%d pages, %v, last slot %#x", pages, err, l.pages[0].Entries[511].Get())
	}
}

// TestPRPSharedListPage: a short list may stand anywhere in a page that it does
// not cross; it cannot chain from there unless it ends with the page.
func TestPRPSharedListPage(t *testing.T) {
	raw := make([]nvme.Le64, 512)
	seg := func(pages uint64) []nvme.Seg { return []nvme.Seg{{Addr: 1 << 30, Len: pages * 4096}} }
	at := func(from, to int) nvme.ListPage {
		return nvme.ListPage{Addr: 0x5000 + uint64(from)*8, Entries: raw[from:to]}
	}
	next := newLists(1, 12).pages[0]
	var c nvme.Command
	for _, x := range []struct {
		list  []nvme.ListPage
		pages uint64
		want  error
	}{
		{[]nvme.ListPage{at(32, 64)}, 33, nil}, {[]nvme.ListPage{at(32, 64)}, 34, nvme.ErrListSpace},
		{[]nvme.ListPage{at(32, 64), next}, 34, nvme.ErrListSpace}, {[]nvme.ListPage{at(480, 512), next}, 34, nil},
		{[]nvme.ListPage{at(480, 512), at(0, 32)}, 34, nil}, {[]nvme.ListPage{at(480, 512), at(1, 32)}, 34, nvme.ErrListSpace},
		{nil, 3, nvme.ErrListSpace}, {[]nvme.ListPage{{Addr: 0x5004, Entries: raw}}, 3, nvme.ErrListSpace},
		{[]nvme.ListPage{{Addr: 0x5000}}, 3, nvme.ErrListSpace}, {nil, 2, nil},
	} {
		if _, err := nvme.BuildPRP(&c, seg(x.pages), 12, x.list); !errors.Is(err, x.want) {
			t.Errorf("%d pages with %d lists: %v, want %v", x.pages, len(x.list), err, x.want)
		}
	}
}

// TestC09PiecesThatDoNotFit: what PRP entries cannot say is refused, and PRPSpan
// tells how much of it they can.
func TestC09PiecesThatDoNotFit(t *testing.T) {
	const a, b = 0x10000, 0x50000
	for _, c := range []struct {
		segs []nvme.Seg
		ok   bool
		span uint64 // in blocks of 512
	}{
		{[]nvme.Seg{{a, 968}, {b, 3128}}, false, 512}, {[]nvme.Seg{{a, 2000}, {b, 2096}}, false, 1536},
		{[]nvme.Seg{{a, 4096 + 512}, {b, 3584}}, false, 4608}, {[]nvme.Seg{{a, 4096}, {b, 4096}}, true, 8192},
		{[]nvme.Seg{{a + 512, 3584}, {b, 512}}, true, 4096}, {[]nvme.Seg{{a, 4096}, {b + 512, 512}}, false, 4096},
		{[]nvme.Seg{{a, 100}, {a + 100, 924}}, true, 1024}, {[]nvme.Seg{{a, 4096 + 100}, {a + 4196, 3996}, {b, 512}}, true, 8704},
		{[]nvme.Seg{{a + 2, 512}}, false, 0}, {[]nvme.Seg{{a, 300}, {b, 212}}, false, 0},
		{[]nvme.Seg{{a, 0}, {b + 4, 512}, {3, 0}}, true, 512}, {[]nvme.Seg{{^uint64(0) - 511 + 4, 1024}}, false, 0},
	} {
		var n uint64
		for _, s := range c.segs {
			n += s.Len
		}
		var cmd nvme.Command
		_, err := nvme.BuildPRP(&cmd, c.segs, 12, newLists(1, 12).pages)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, nvme.ErrPRPAlign) {
			t.Errorf("%v: %v", c.segs, err)
		}
		if got := nvme.PRPSpan(c.segs, n, 512, 12); got != c.span {
			t.Errorf("%v: span %d, want %d", c.segs, got, c.span)
		}
		if got := nvme.PRPSpan(c.segs, 512, 512, 12); got != min(c.span, 512) {
			t.Errorf("%v: span of at most one block %d", c.segs, got)
		}
	}
	var cmd nvme.Command
	if _, err := nvme.BuildPRP(&cmd, []nvme.Seg{{a, 0}}, 12, nil); !errors.Is(err, nvme.ErrNoData) {
		t.Errorf("no data: %v", err)
	}
}

// take cuts the first n bytes off segs.
func take(segs []nvme.Seg, n uint64) (head, tail []nvme.Seg) {
	for i, s := range segs {
		if s.Len > n {
			return append(head, nvme.Seg{Addr: s.Addr, Len: n}), append([]nvme.Seg{{Addr: s.Addr + n, Len: s.Len - n}}, segs[i+1:]...)
		}
		head = append(head, s)
		n -= s.Len
	}
	return head, nil
}

// TestCutOracle cuts requests as the driver does, with every limit and boundary
// of a small range: each block is transferred once, in order, to its own bytes of
// memory; no command passes the limit or crosses a boundary.
func TestCutOracle(t *testing.T) {
	l := newLists(4, 12)
	for _, blockShift := range []uint{9, 12} {
		for limit := uint32(1); limit <= 18; limit++ {
			for _, boundary := range []uint32{0, 1, 3, 8, 16, 17, 64} {
				for slba := uint64(0); slba < 20; slba += 1 + slba/9 {
					for _, blocks := range []uint64{1, 2, 7, 8, 9, 31, 40} {
						cutRequest(t, l, blockShift, slba, blocks, limit, boundary)
					}
				}
			}
		}
	}
}

func cutRequest(t *testing.T, l *lists, blockShift uint, slba, blocks uint64, limit, boundary uint32) {
	t.Helper()
	const base = 1 << 32
	first := uint64(512) * (slba % 8)
	rest := []nvme.Seg{{Addr: base + first, Len: blocks << blockShift}}
	var named []nvme.Seg
	at, end := slba, slba+blocks
	for at < end {
		n := nvme.NextCut(at, end-at, limit, boundary)
		if n == 0 || n > limit || boundary != 0 && at/uint64(boundary) != (at+uint64(n)-1)/uint64(boundary) {
			t.Fatalf("at %d: %d blocks, limit %d, boundary %d", at, n, limit, boundary)
		}
		if next := at + uint64(n); next < end && n < limit && (boundary == 0 || next%uint64(boundary) != 0) {
			t.Fatalf("at %d: %d blocks are fewer than need be", at, n)
		}
		var head []nvme.Seg
		head, rest = take(rest, uint64(n)<<blockShift)
		var c nvme.Command
		c.SetRead(1, at, n)
		if _, err := nvme.BuildPRP(&c, head, 12, l.pages); err != nil {
			t.Fatal(err)
		}
		got, _, err := walkPRP(&c, uint64(c.Blocks())<<blockShift, 12, l)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range got {
			named = appendSeg(named, s.Addr, s.Len)
		}
		at += uint64(n)
	}
	if len(named) != 1 || named[0] != (nvme.Seg{Addr: base + first, Len: blocks << blockShift}) {
		t.Fatalf("slba %d blocks %d limit %d boundary %d: names %v", slba, blocks, limit, boundary, named)
	}
}

// scattered makes pieces that PRP entries can or cannot name.
func scattered(rnd *rand.Rand, page uint64) []nvme.Seg {
	var segs []nvme.Seg
	addr := (rnd.Uint64N(1<<20)+1)*page + rnd.Uint64N(page/4)*4
	for range rnd.IntN(20) + 1 {
		n := rnd.Uint64N(4*page) / 4 * 4
		switch rnd.IntN(8) {
		case 0: // anything
		case 1:
			n = 0
		default: // to the end of a page
			n += -(addr + n) & (page - 1)
		}
		segs = append(segs, nvme.Seg{Addr: addr, Len: n})
		if addr += n; rnd.IntN(2) == 0 {
			addr = (rnd.Uint64N(1<<20) + 1) * page
		}
	}
	return segs
}

func TestPRPScattered(t *testing.T) {
	rnd := testenv.Seed(t)
	l := newLists(40, 6)
	refused := 0
	for range 20000 {
		segs := scattered(rnd, 64)
		if !tryScattered(t, segs, 6, l) {
			refused++
		}
	}
	if refused < 1000 || refused > 19000 {
		t.Errorf("%d of 20000 refused: the test does not test much", refused)
	}
}

// tryScattered checks that BuildPRP takes exactly what the walk of the book
// gives back, and that PRPSpan agrees.
func tryScattered(t *testing.T, segs []nvme.Seg, shift uint, l *lists) bool {
	t.Helper()
	var total uint64
	for _, s := range segs {
		total += s.Len
	}
	l.wipe()
	var c nvme.Command
	pages, err := nvme.BuildPRP(&c, segs, shift, l.pages)
	span := nvme.PRPSpan(segs, total, 1, shift)
	if err != nil {
		if span == total && total > 0 && !errors.Is(err, nvme.ErrListSpace) {
			t.Fatalf("%v: %v, but the span is all of it", segs, err)
		}
		if span > 0 && span < total {
			head, _ := take(segs, span)
			return tryScattered(t, head, shift, l) && false
		}
		return false
	}
	if span != total {
		t.Fatalf("%v: built, but the span is %d of %d", segs, span, total)
	}
	got, visited, err := walkPRP(&c, total, shift, l)
	if err != nil || !slices.Equal(got, merge(segs)) || visited != pages || !l.intact(pages) {
		t.Fatalf("%v: names %v, %d pages of %d, %v", segs, got, visited, pages, err)
	}
	return true
}

func FuzzPRP(f *testing.F) {
	f.Add(uint64(0x1000), uint64(8192), uint64(0x9000), uint64(4096), uint8(12))
	f.Add(uint64(0x1234), uint64(1<<21), uint64(0), uint64(0), uint8(12))
	f.Add(^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), uint8(255))
	f.Fuzz(func(t *testing.T, a, n, b, m uint64, shift uint8) {
		s := uint(shift%5) + 5
		l := newLists(3, s)
		segs := []nvme.Seg{{Addr: a, Len: n % (1 << 13)}, {Addr: b, Len: m % (1 << 13)}}
		if a+segs[0].Len < a || b+segs[1].Len < b {
			var c nvme.Command
			_, _ = nvme.BuildPRP(&c, segs, s, l.pages)
			return
		}
		tryScattered(t, segs, s, l)
	})
}

func BenchmarkBuildPRP(b *testing.B) {
	for _, n := range []uint64{4096, 65536, 2 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l := newLists(2, 12)
			segs := []nvme.Seg{{Addr: 1 << 30, Len: n}}
			var c nvme.Command
			b.ReportAllocs()
			for b.Loop() {
				if _, err := nvme.BuildPRP(&c, segs, 12, l.pages); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
