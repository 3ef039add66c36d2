package alloc

import "github.com/ugds-store/ugds/internal/base"

// Stats is a consistent picture of a pool. Sizes are in bytes. Capacity =
// Allocated + FreeSlab + FreeSlot + Rest + Discarding.
type Stats struct {
	SlabBytes  int64 `json:"slab_bytes"`
	Capacity   int64 `json:"capacity"`   // all slabs
	Allocated  int64 `json:"allocated"`  // extents handed out, at their full length
	FreeSlab   int64 `json:"free_slab"`  // free slabs
	FreeSlot   int64 `json:"free_slot"`  // free slots of slabs that are partly used
	Rest       int64 `json:"rest"`       // the ends of cut slabs that hold no slot
	Discarding int64 `json:"discarding"` // slabs with a discard in flight

	DiscardCandidates int `json:"discard_candidates"` // free slabs that TakeDiscard would give
	DiscardsInFlight  int `json:"discards_in_flight"`

	Classes []ClassStats  `json:"classes"` // ascending; the last one is the whole slabs
	Devices []DeviceStats `json:"devices"` // by Extent.Dev
}

// ClassStats counts the slabs and slots of one class.
type ClassStats struct {
	SlotBytes int64 `json:"slot_bytes"`
	PerSlab   int   `json:"per_slab"` // slots in a slab
	Slabs     int   `json:"slabs"`
	Used      int64 `json:"used"` // slots
	Free      int64 `json:"free"` // slots in the slabs of the class
}

// DeviceStats counts the space of one device.
type DeviceStats struct {
	Slabs             int   `json:"slabs"`
	FreeSlabs         int   `json:"free_slabs"`
	Allocated         int64 `json:"allocated"` // bytes
	DiscardCandidates int   `json:"discard_candidates"`
	DiscardsInFlight  int   `json:"discards_in_flight"`
}

// Stats takes time proportional to the number of classes and devices.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	slab := int64(p.t.slab) * base.StoreBlock
	sp := p.space()
	s := Stats{
		SlabBytes: slab, Capacity: int64(len(p.slabs)) * slab,
		FreeSlab: sp.freeSlabs * slab, FreeSlot: sp.freeSlots, Discarding: sp.inFlight * slab,
		DiscardsInFlight: int(sp.inFlight),
	}
	for c, cl := range p.t.classes {
		st := &p.class[c]
		s.Classes = append(s.Classes, ClassStats{
			SlotBytes: int64(cl.blocks) * base.StoreBlock, PerSlab: int(cl.slots),
			Slabs: int(st.slabs), Used: int64(st.used), Free: int64(st.free),
		})
		s.Rest += int64(st.slabs) * int64(p.t.slab-cl.slots*cl.blocks) * base.StoreBlock
	}
	s.Classes = append(s.Classes, ClassStats{
		SlotBytes: slab, PerSlab: 1, Slabs: int(p.whole), Used: int64(p.whole),
	})
	for i := range p.devs {
		d := &p.devs[i]
		ds := DeviceStats{
			Slabs: int(d.slabs), FreeSlabs: int(d.free.Len()), Allocated: int64(d.used) * base.StoreBlock,
			DiscardCandidates: int(d.dirty.Len()), DiscardsInFlight: int(d.inFlight.Load()),
		}
		s.Allocated += ds.Allocated
		s.DiscardCandidates += ds.DiscardCandidates
		s.Devices = append(s.Devices, ds)
	}
	return s
}

// space is what ErrNoSpace reports.
type space struct {
	slab      int64 // bytes in a slab
	freeSlabs int64
	freeSlots int64 // bytes in free slots
	inFlight  int64 // slabs
}

func (p *Pool) space() space {
	s := space{slab: int64(p.t.slab) * base.StoreBlock, freeSlabs: int64(p.free), inFlight: int64(p.DiscardsInFlight())}
	for c := range p.t.classes {
		s.freeSlots += int64(p.class[c].free) * int64(p.t.classes[c].blocks) * base.StoreBlock
	}
	return s
}

// noSpace says how much was asked for and what is free, and where.
func (s space) noSpace(bytes int64) error {
	err := base.Errorf("allocate", base.FormatBytes(bytes), base.ErrNoSpace,
		"free are %s in whole slabs, %s in slots of partly used slabs, %s in slabs being discarded; a slab has %s",
		base.FormatBytes(s.freeSlabs*s.slab), base.FormatBytes(s.freeSlots),
		base.FormatBytes(s.inFlight*s.slab), base.FormatBytes(s.slab))
	if s.inFlight > 0 {
		return base.WithHint(err, "retry when the discards in flight have ended")
	}
	return base.WithHint(err, "delete objects or use a larger device")
}
