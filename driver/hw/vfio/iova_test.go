package vfio

import (
	"math"
	"testing"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestSpace: whatever is taken and given back, spans lie in the usable ranges, never
// touch, and have the remainder that was asked for.
func TestSpace(t *testing.T) {
	ranges := [][2]uint64{{0, 0xfedfffff}, {0xfef00000, 1<<39 - 1}}
	s := newSpace(ranges)
	rnd := testenv.Seed(t)
	live := map[uint64]uint64{}
	for range 5000 {
		if len(live) > 60 || rnd.IntN(3) == 0 {
			for a := range live {
				s.give(a)
				delete(live, a)
				break
			}
			continue
		}
		n := (rnd.Uint64N(64) + 1) * hw.PageSize
		align, rem := uint64(hw.PageSize), uint64(0)
		if rnd.IntN(2) == 0 {
			n += rnd.Uint64N(512) * large / 4
			align, rem = large, rnd.Uint64N(512)*hw.PageSize
		}
		a, ok := s.take(n, align, rem)
		if !ok {
			t.Fatalf("no room for %#x", n)
		}
		if a%align != rem || a < lowest {
			t.Fatalf("%#x modulo %#x is not %#x", a, align, rem)
		}
		if !(a+n <= ranges[0][1]+1 || a >= ranges[1][0] && a+n <= ranges[1][1]+1) {
			t.Fatalf("%#x to %#x is not usable", a, a+n)
		}
		for b, m := range live {
			if a < b+m+hw.PageSize && b < a+n+hw.PageSize {
				t.Fatalf("%#x+%#x touches %#x+%#x", a, n, b, m)
			}
		}
		live[a] = n
	}
}

func TestSpaceIsFinite(t *testing.T) {
	s := newSpace([][2]uint64{{lowest, lowest + 8*hw.PageSize - 1}})
	var got []uint64
	for {
		a, ok := s.take(hw.PageSize, hw.PageSize, 0)
		if !ok {
			break
		}
		got = append(got, a)
	}
	if len(got) != 3 { // eight pages, of which the last is left out, with a gap after each
		t.Errorf("%#x", got)
	}
	s.give(got[1])
	if a, ok := s.take(hw.PageSize, hw.PageSize, 0); !ok || a != got[1] {
		t.Errorf("%#x, %v", a, ok)
	}
	for _, n := range []uint64{1 << 62, math.MaxUint64 &^ (hw.PageSize - 1)} {
		if a, ok := s.take(n, large, 0); ok {
			t.Errorf("%#x bytes at %#x", n, a)
		}
	}
	if a, ok := newSpace([][2]uint64{{0, lowest - 1}}).take(hw.PageSize, hw.PageSize, 0); ok {
		t.Errorf("%#x is below the lowest address", a)
	}
	if a, ok := newSpace([][2]uint64{{0, math.MaxUint64}}).take(hw.PageSize, hw.PageSize, 0); !ok || a != lowest {
		t.Errorf("%#x, %v", a, ok)
	}
	defer func() {
		if recover() == nil {
			t.Error("given back twice without a panic")
		}
	}()
	s.give(got[2])
	s.give(got[2])
}

// TestSpaceReusesLast: an address that was given back is not the next one to be taken.
func TestSpaceReusesLast(t *testing.T) {
	s := newSpace([][2]uint64{{lowest, lowest + 1<<20 - 1}})
	seen := map[uint64]bool{}
	for range 100 {
		a, ok := s.take(hw.PageSize, hw.PageSize, 0)
		if !ok || seen[a] {
			t.Fatalf("%#x after %d, %v", a, len(seen), ok)
		}
		seen[a] = true
		s.give(a)
	}
}
