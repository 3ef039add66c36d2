package alloc

import (
	"testing"

	"github.com/ugds-store/ugds/internal/base"
)

// benchPool has several partly used classes, so that the lists are not trivial.
func benchPool(b *testing.B, bytes int64) (*Pool, []Extent) {
	p := newPool(b, 64*base.GiB, SlabBlocksFor(64*base.GiB, 0))
	es, err := p.Alloc(nil, bytes)
	if err != nil {
		b.Fatal(err)
	}
	return p, es
}

func benchAllocFree(b *testing.B, bytes int64, keep bool) {
	p, es := benchPool(b, bytes)
	if !keep {
		for _, e := range es {
			p.Free(e)
		}
	}
	buf := make([]Extent, 0, 8)
	b.ReportAllocs()
	for b.Loop() {
		es, err := p.Alloc(buf, bytes)
		if err != nil {
			b.Fatal(err)
		}
		for _, e := range es {
			p.Free(e)
		}
	}
}

func BenchmarkAllocFree4KiB(b *testing.B)   { benchAllocFree(b, 4*base.KiB, true) }
func BenchmarkAllocFree2MiB(b *testing.B)   { benchAllocFree(b, 2*base.MiB, true) }
func BenchmarkAllocFree100MiB(b *testing.B) { benchAllocFree(b, 100*base.MiB, true) }

// BenchmarkOpenCloseSlab is the worst case: each pair cuts a slab and empties it.
func BenchmarkOpenCloseSlab(b *testing.B) { benchAllocFree(b, 4*base.KiB, false) }

func BenchmarkAllocFreeParallel(b *testing.B) {
	p, _ := benchPool(b, 4*base.KiB)
	b.RunParallel(func(pb *testing.PB) {
		buf := make([]Extent, 0, 8)
		for pb.Next() {
			es, err := p.Alloc(buf, 4*base.KiB)
			if err != nil {
				panic(err)
			}
			p.Free(es[0])
		}
	})
}

// BenchmarkRestore measures the rebuild at open, an extent.
func BenchmarkRestore(b *testing.B) {
	p, _ := benchPool(b, 4*base.KiB)
	all := make([]Extent, 0, 1<<16)
	for range cap(all) {
		all, _ = p.Alloc(all, 128*base.KiB)
	}
	n := 0
	for b.Loop() {
		if n == 0 {
			b.StopTimer()
			p = newPool(b, 64*base.GiB, SlabBlocksFor(64*base.GiB, 0))
			b.StartTimer()
		}
		if err := p.Restore(all[n]); err != nil {
			b.Fatal(err)
		}
		n = (n + 1) % len(all)
	}
}

// TestNoHeap: the data path allocates nothing on the Go heap.
func TestNoHeap(t *testing.T) {
	p := newPool(t, base.GiB, 256)
	buf := make([]Extent, 0, 8)
	for _, bytes := range []int64{1, 100 * base.KiB, 5*base.MiB + 1} {
		if n := testing.AllocsPerRun(100, func() {
			es, _ := p.Alloc(buf, bytes)
			for _, e := range es {
				p.Free(e)
			}
		}); n != 0 {
			t.Errorf("%d bytes: %v heap allocations", bytes, n)
		}
	}
}
