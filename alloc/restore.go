package alloc

import "github.com/ugds-store/ugds/internal/base"

// Restore takes an extent that a durable record names, when the pool is
// rebuilt at open. It returns ErrCorrupt, and changes nothing, for an extent
// that overlaps one restored before, has no class, does not match its slab or
// lies outside; ErrInvalid once anything else was asked of the pool. The order
// of the calls does not matter for what is free afterwards.
func (p *Pool) Restore(e Extent) error {
	p.mu.Lock()
	why, late := "", p.sealed
	if !late {
		why = p.restore(e)
	}
	p.mu.Unlock()
	switch {
	case late:
		return base.Errorf("restore", "extent "+e.String(), base.ErrInvalid, "the pool is in use already")
	case why != "":
		return base.Errorf("restore", "extent "+e.String(), base.ErrCorrupt, "%s", why)
	}
	return nil
}

func (p *Pool) restore(e Extent) string {
	g, why := p.locate(e)
	if why != "" {
		return why
	}
	d := &p.devs[e.Dev]
	if e.Blocks >= p.t.slab {
		n := e.Blocks >> p.t.shift
		for i := range n {
			if p.slabs[g+i].kind != slabFree {
				return "overlaps another extent"
			}
		}
		for i := range n {
			p.claim(d, g+i-d.base)
			p.slabs[g+i].kind = slabRunOn
		}
		p.slabs[g].kind, p.slabs[g].used = slabRun, n
		p.whole += uint64(n)
		d.used += uint64(e.Blocks)
		return ""
	}
	s := &p.slabs[g]
	c, _ := p.t.byBlocks(e.Blocks)
	i, cl := p.slotOf(e), &p.t.classes[c]
	switch {
	case s.kind == slabFree:
		p.claim(d, g-d.base)
		p.cut(g, c)
	case s.kind != slabSlots:
		return "overlaps another extent"
	case s.class != c:
		return "its slab has slots of another class"
	case !p.slotFree(s, cl, i):
		return "overlaps another extent"
	}
	p.useSlot(s, cl, i)
	return ""
}

// seal ends the rebuild: the slabs with free slots join the lists of their
// classes in address order.
func (p *Pool) seal() {
	if p.sealed {
		return
	}
	p.sealed = true
	for g := range p.slabs {
		s := &p.slabs[g]
		if s.kind == slabSlots && s.used < p.t.classes[s.class].slots {
			p.link(uint32(g))
		}
	}
}
