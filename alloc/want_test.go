package alloc

import "testing"

// TestWantDiscards makes exactly the free slabs candidates, each once.
func TestWantDiscards(t *testing.T) {
	g := Geometry{SlabBlocks: 256, Devices: []Span{{FirstBlock: 256, Slabs: 70}, {FirstBlock: 512, Slabs: 5}}}
	p, err := New(g)
	if err != nil {
		t.Fatal(err)
	}
	used := map[Extent]bool{{0, 256, 256}: true, {1, 512 + 4*256, 256}: true}
	for e := range used {
		if err := p.Restore(e); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := p.TakeDiscard(); ok {
		t.Error("a rebuilt pool has a candidate")
	}
	for range 2 {
		if n := p.WantDiscards(); n != 73 {
			t.Fatalf("%d candidates, want 73", n)
		}
	}
	seen := map[Extent]bool{}
	for e, ok := p.TakeDiscard(); ok; e, ok = p.TakeDiscard() {
		if used[e] || seen[e] {
			t.Fatalf("slab %v is used or came twice", e)
		}
		seen[e] = true
	}
	if len(seen) != 73 || p.WantDiscards() != 0 {
		t.Errorf("%d slabs, %d left", len(seen), p.WantDiscards())
	}
	for e := range seen {
		p.DoneDiscard(e)
	}
	if s := p.Stats(); s.FreeSlab != 73*s.SlabBytes {
		t.Errorf("%d bytes of free slabs", s.FreeSlab)
	}
}
