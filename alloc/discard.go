package alloc

import (
	"fmt"

	"github.com/ugds-store/ugds/internal/mutant"
)

// TakeDiscard gives an empty slab that is worth discarding and puts it aside
// until DoneDiscard: it cannot be handed out meanwhile. A slab is worth it once
// each time that it became empty, unless it was handed out again first. Slabs
// that were empty when the pool was rebuilt are not: nobody knows whether
// they were written since their last discard. The device with the most such
// slabs comes first. It returns false if there is none.
func (p *Pool) TakeDiscard() (Extent, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seal()
	d := &p.devs[0]
	for i := range p.devs[1:] {
		if o := &p.devs[1+i]; o.dirty.Len() > d.dirty.Len() {
			d = o
		}
	}
	if d.dirty.Len() == 0 {
		return Extent{}, false
	}
	i := d.dirty.First()
	s := &p.slabs[d.base+i]
	d.inFlight.Add(1)
	if mutant.On(mutant.HandOutDuringDiscard) {
		d.dirty.Remove(i)
		s.leaked++
	} else {
		p.claim(d, i)
		s.kind = slabDiscarding
	}
	return Extent{s.dev, d.first + uint64(i)<<p.t.shift, p.t.slab}, true
}

// DoneDiscard ends a discard that TakeDiscard began: the slab is free and clean.
// Whether the discard succeeded does not matter, but its command must have
// ended or its device must have been stopped, since the slab may be handed out
// at once. It panics for any other extent.
func (p *Pool) DoneDiscard(e Extent) {
	p.mu.Lock()
	why := p.doneDiscard(e)
	p.mu.Unlock()
	if why != "" {
		panic(fmt.Sprintf("alloc: end of a discard of %v: %s", e, why))
	}
}

func (p *Pool) doneDiscard(e Extent) string {
	g, why := p.locate(e)
	if why != "" {
		return why
	}
	s, d := &p.slabs[g], &p.devs[e.Dev]
	switch {
	case e.Blocks != p.t.slab:
		return "not one slab"
	case s.leaked > 0:
		s.leaked--
	case s.kind != slabDiscarding:
		return "it is not in flight"
	default:
		s.kind = slabFree
		d.free.Add(g - d.base)
		p.free++
	}
	d.inFlight.Add(-1)
	return ""
}

// DiscardsInFlight is the number of slabs between TakeDiscard and
// DoneDiscard. When Alloc returns ErrNoSpace and this is not zero, waiting for
// the end of a discard gives a slab. It takes no lock.
func (p *Pool) DiscardsInFlight() (n int) {
	for i := range p.devs {
		n += int(p.devs[i].inFlight.Load())
	}
	return n
}

// WantDiscards makes every free slab a candidate, also those that were empty
// when the pool was rebuilt, and gives their number. For a trim that somebody
// asked for.
func (p *Pool) WantDiscards() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for d := range p.devs {
		dev := &p.devs[d]
		for i := range dev.slabs {
			if p.slabs[dev.base+i].kind != slabFree {
				continue
			}
			if n++; !dev.dirty.Has(i) {
				dev.dirty.Add(i)
			}
		}
	}
	return n
}
