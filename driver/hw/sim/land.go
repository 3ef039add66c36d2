package sim

import (
	"slices"

	"github.com/ugds-store/ugds/driver/nvme"
)

// Loss is what became of what was not durable, or not ended, when a controller
// stopped or lost power.
type Loss struct {
	Kept, Lost            int // blocks of the volatile cache
	Landed, Torn, Dropped int // commands in flight that change blocks
}

// Add adds another loss.
func (l *Loss) Add(x Loss) {
	l.Kept, l.Lost = l.Kept+x.Kept, l.Lost+x.Lost
	l.Landed, l.Torn, l.Dropped = l.Landed+x.Landed, l.Torn+x.Torn, l.Dropped+x.Dropped
}

// late is a command in flight that changes blocks, with what it takes from memory.
type late struct {
	m      int // namespace, as an index: an image is of another model
	off    uint64
	data   []byte // of a write; nil for zeros and discards
	size   uint64
	fua    bool
	ranges []nvme.DSMRange
}

// collect is the command as one that can land by itself; false for one that changes
// nothing or would be refused.
func (s *Sim) collect(o *op) (l late, ok bool) {
	c := &o.cmd
	m := s.find(c.NSID.Get())
	if m == nil || m.ns.ReadOnly || m.ns.Metadata != 0 {
		return l, false
	}
	l = late{m: slices.Index(s.media, m), fua: c.FUA()}
	switch c.OPC {
	case nvme.OpDSM:
		var st nvme.Status
		l.ranges, st = s.ranges(o)
		for i := range l.ranges {
			if r := &l.ranges[i]; !m.ns.holds(r.SLBA.Get(), uint64(r.Blocks.Get())) {
				return l, false
			}
		}
		_, deallocate := c.DSMRanges()
		return l, st == 0 && deallocate
	case nvme.OpWrite, nvme.OpWriteZeroes:
		if !m.ns.holds(c.SLBA(), uint64(c.Blocks())) {
			return l, false
		}
		l.off, l.size = c.SLBA()<<m.ns.BlockShift, uint64(c.Blocks())<<m.ns.BlockShift
		if c.OPC == nvme.OpWriteZeroes {
			return l, true
		}
		l.data = make([]byte, l.size)
		return l, s.fromHost(o, l.data) == 0
	}
	return l, false
}

// land moves all blocks of a command, none, or any of them, and tells which.
func (s *Sim) land(l *late) Loss {
	part := s.rnd.IntN(4)
	return s.landPart(l, func() bool { return part == 0 || part > 1 && s.rnd.IntN(2) == 0 })
}

// landPart moves those blocks of a command for which yes says so.
func (s *Sim) landPart(l *late, yes func() bool) Loss {
	m := s.media[l.m]
	block := uint64(1) << m.ns.BlockShift
	moved, all := 0, 0
	one := func(do func()) {
		all++
		if yes() {
			moved++
			do()
		}
	}
	for i := uint64(0); i < l.size; i += block {
		one(func() {
			p := make([]byte, block)
			if l.data != nil {
				p = l.data[i : i+block]
			}
			m.write(p, l.off+i, l.fua)
		})
	}
	for i := range l.ranges {
		r := &l.ranges[i]
		for b := range uint64(r.Blocks.Get()) {
			one(func() { m.settle(&discard{first: r.SLBA.Get() + b, blocks: []bool{true}}, s.rnd) })
		}
	}
	switch {
	case moved == 0:
		return Loss{Dropped: 1}
	case moved == all:
		return Loss{Landed: 1}
	}
	return Loss{Torn: 1}
}

// inFlight walks the I/O commands that were fetched and have not been executed.
func (s *Sim) inFlight() func(yield func(*op) bool) {
	return func(yield func(*op) bool) {
		for _, q := range s.sqs {
			if q.id == 0 {
				continue
			}
			for cid := range sortedKeys(q.flying) {
				if o := q.flying[cid]; !o.done && !o.ended && !yield(o) {
					return
				}
			}
		}
	}
}

// landLate is what a controller may still do before it is confirmed stopped: each
// command in flight moves its data, part of it, or nothing. Memory that the driver
// has given back is a violation; what else the command would have been refused for
// does not matter.
func (s *Sim) landLate() (loss Loss) {
	for i := range s.late {
		loss.Add(s.land(&s.late[i]))
	}
	s.late = nil
	if s.removed || !s.bus.master {
		return loss
	}
	for o := range s.inFlight() {
		loss.Add(s.landOp(o))
	}
	return loss
}

// landOp moves all the data of a command, part of it, or nothing.
func (s *Sim) landOp(o *op) Loss {
	if o.cmd.OPC == nvme.OpRead {
		s.landRead(o)
		return Loss{}
	}
	if l, ok := s.collect(o); ok {
		return s.land(&l)
	}
	return Loss{}
}

// landRead fills part of the memory of a read.
func (s *Sim) landRead(o *op) {
	c := &o.cmd
	m := s.find(c.NSID.Get())
	if m == nil || m.ns.Metadata != 0 || !m.ns.holds(c.SLBA(), uint64(c.Blocks())) {
		return
	}
	off, size := c.SLBA()<<m.ns.BlockShift, uint64(c.Blocks())<<m.ns.BlockShift
	mem, st := s.pieces(o, size)
	if st != 0 {
		return
	}
	all := s.rnd.IntN(4)
	for _, p := range mem {
		if all == 0 || all > 1 && s.rnd.IntN(2) == 0 {
			m.read(p, off)
		}
		off += uint64(len(p))
	}
	s.arrive()
}
