package bitset_test

import (
	"testing"

	"github.com/ugds-store/ugds/internal/bitset"
	"github.com/ugds-store/ugds/internal/testenv"
)

// TestModel compares random changes of sets around the borders of a level with a map.
func TestModel(t *testing.T) {
	for _, size := range []uint32{1, 63, 64, 65, 4096, 4097, 300_000} {
		rng := testenv.Seed(t)
		b, want := bitset.New(size), map[uint32]bool{}
		if size%2 == 0 {
			b.Fill(size)
			for i := range size {
				want[i] = true
			}
		}
		for range 5000 {
			i := rng.Uint32N(size)
			if rng.IntN(2) == 0 && b.Len() > 0 {
				i = b.First()
			}
			if b.Has(i) != want[i] {
				t.Fatalf("size %d: has(%d) %v", size, i, b.Has(i))
			}
			if want[i] {
				b.Remove(i)
				delete(want, i)
			} else {
				b.Add(i)
				want[i] = true
			}
			if b.Len() != uint64(len(want)) {
				t.Fatalf("size %d: %d members, want %d", size, b.Len(), len(want))
			}
		}
		for least := uint32(0); b.Len() > 0; least++ {
			i := b.First()
			for ; least < i; least++ {
				if want[least] {
					t.Fatalf("size %d: first is %d, %d is a member", size, i, least)
				}
			}
			if !want[i] {
				t.Fatalf("size %d: first is %d, which is none", size, i)
			}
			b.Remove(i)
		}
	}
}
