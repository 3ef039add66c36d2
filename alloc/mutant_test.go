package alloc

import (
	"errors"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/mutant"
)

// TestHandOutDuringDiscard: a slab with a discard in flight is not handed out,
// unless the safeguard is switched off.
func TestHandOutDuringDiscard(t *testing.T) {
	p := mustNew(t, Geometry{16, spans(1)})
	discard := func() Extent {
		es, err := p.AllocSlab(nil)
		if err != nil {
			t.Fatal(err)
		}
		p.Free(es[0])
		e, ok := p.TakeDiscard()
		if !ok || e != es[0] || p.DiscardsInFlight() != 1 {
			t.Fatalf("TakeDiscard: %v, %v, %d in flight", e, ok, p.DiscardsInFlight())
		}
		return e
	}
	e := discard()
	for _, bytes := range []int64{1, 64 * base.KiB} {
		_, err := p.Alloc(nil, bytes)
		if !errors.Is(err, base.ErrNoSpace) || !strings.Contains(err.Error(), "64.0 KiB in slabs being discarded") {
			t.Errorf("during the discard: %v", err)
		}
	}
	if _, err := p.AllocSlab(nil); !errors.Is(err, base.ErrNoSpace) {
		t.Errorf("during the discard: %v", err)
	}
	p.DoneDiscard(e)
	if !mutant.Enabled {
		return
	}
	mutant.Set(mutant.HandOutDuringDiscard)
	defer mutant.Set(mutant.None)
	e = discard()
	if got := mustAlloc(t, p, 16); got[0] != e {
		t.Errorf("got %v, want %v", got, e)
	}
	p.DoneDiscard(e)
	p.Free(e)
	e = discard()
	mutant.Set(mutant.None)
	p.DoneDiscard(e)
	if s := p.Stats(); s.FreeSlab != s.Capacity || s.DiscardsInFlight != 0 {
		t.Errorf("at the end: %+v", s)
	}
	checkPool(t, p)
}
