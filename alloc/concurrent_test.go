package alloc

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

// owners has a word for each block of two devices; a goroutine that gets an
// extent must find all its blocks free.
type owners [2][40 * 64]atomic.Int32

func (o *owners) claim(t *testing.T, e Extent, from, to int32) {
	for i := range uint64(e.Blocks) {
		if !o[e.Dev][e.Start+i].CompareAndSwap(from, to) {
			t.Errorf("block %d of %v belongs to someone else", i, e)
		}
	}
}

// TestConcurrent lets goroutines put, drop and discard on one small pool.
func TestConcurrent(t *testing.T) {
	p := mustNew(t, Geometry{64, []Span{{0, 40}, {0, 40}}})
	rng := testenv.Seed(t)
	var own owners
	var wg sync.WaitGroup
	for id := range int32(8) {
		mine := rand.New(rand.NewPCG(rng.Uint64(), 0))
		wg.Go(func() { hammer(t, p, mine, &own, id+1) })
	}
	wg.Wait()
	checkPool(t, p)
	if s := p.Stats(); s.FreeSlab != s.Capacity || s.DiscardsInFlight != 0 {
		t.Errorf("at the end: %+v", s)
	}
}

func hammer(t *testing.T, p *Pool, rng *rand.Rand, own *owners, id int32) {
	var live []Extent
	drop := func(i int) {
		own.claim(t, live[i], id, 0)
		p.Free(live[i])
		live[i] = live[len(live)-1]
		live = live[:len(live)-1]
	}
	for range 3000 {
		switch r := rng.IntN(20); {
		case r < 9:
			es, err := p.Alloc(nil, rng.Int64N(1<<rng.IntN(20)+1))
			if err != nil && !errors.Is(err, base.ErrNoSpace) {
				t.Error(err)
			}
			for _, e := range es {
				own.claim(t, e, 0, id)
			}
			live = append(live, es...)
		case r == 9:
			if e, ok := p.TakeDiscard(); ok {
				own.claim(t, e, 0, -id)
				own.claim(t, e, -id, 0)
				p.DoneDiscard(e)
			}
		case r == 10:
			_ = p.Stats()
			_ = p.DiscardsInFlight()
		case len(live) > 0:
			drop(rng.IntN(len(live)))
		}
	}
	for len(live) > 0 {
		drop(0)
	}
}
