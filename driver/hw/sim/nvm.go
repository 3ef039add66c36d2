package sim

import (
	"bytes"
	"time"

	"github.com/ugds-store/ugds/driver/nvme"
)

// find is the active namespace of an identifier, or nil.
func (s *Sim) find(nsid uint32) *media {
	for _, m := range s.media {
		if m.ns.ID == nsid && !m.ns.Inactive {
			return m
		}
	}
	return nil
}

// has tells whether an optional command is supported.
func (s *Sim) has(oncs uint16) bool { return s.cfg.Identify.ONCS.Get()&oncs != 0 }

// nvm executes a command of the NVM command set (NVM 3.3).
func (s *Sim) nvm(o *op) (uint32, nvme.Status) {
	c := &o.cmd
	if c.FUSE() != 0 || c.CDW2.Get() != 0 || c.CDW3.Get() != 0 || c.MPTR.Get() != 0 {
		return 0, s.refuse(o, nvme.StatusInvalidField, "fields that must be zero are not (Base 4.1.1)")
	}
	if c.OPC == nvme.OpFlush && c.NSID.Get() == nvme.NSIDAll {
		if !s.cfg.Identify.FlushAll() {
			return 0, s.refuse(o, nvme.StatusInvalidNS, "all namespaces at once are not supported")
		}
		for _, m := range s.media {
			m.flush()
		}
		return 0, 0
	}
	m := s.find(c.NSID.Get())
	if m == nil {
		return 0, s.refuse(o, nvme.StatusInvalidNS, "namespace %d is not active", c.NSID.Get())
	}
	switch c.OPC {
	case nvme.OpFlush:
		m.flush()
		return 0, 0
	case nvme.OpDSM:
		return 0, s.dsm(o, m)
	case nvme.OpRead, nvme.OpWrite, nvme.OpCompare, nvme.OpWriteZeroes:
		return 0, s.blocks(o, m)
	}
	return 0, s.refuse(o, nvme.StatusInvalidOpcode, "not supported")
}

// blocks executes a command that names a range of blocks.
func (s *Sim) blocks(o *op, m *media) nvme.Status {
	c := &o.cmd
	first, n := c.SLBA(), uint64(c.Blocks())
	switch {
	case m.ns.Metadata != 0 || m.ns.Protection != 0:
		return s.refuse(o, nvme.StatusInvalidField, "the namespace has metadata or protection information")
	case !m.ns.holds(first, n):
		return s.refuse(o, nvme.StatusLBARange, "blocks %d and %d more: the namespace has %d", first, n-1, m.ns.Blocks)
	case c.OPC == nvme.OpCompare && !s.has(nvme.ONCSCompare), c.OPC == nvme.OpWriteZeroes && !s.has(nvme.ONCSWriteZeroes):
		return s.refuse(o, nvme.StatusInvalidOpcode, "not in ONCS")
	case m.ns.ReadOnly && (c.OPC == nvme.OpWrite || c.OPC == nvme.OpWriteZeroes):
		return nvme.StatusNSProtected | nvme.StatusDNR
	}
	off, size := first<<m.ns.BlockShift, n<<m.ns.BlockShift
	switch c.OPC {
	case nvme.OpRead:
		return s.transfer(o, m, off, size, false)
	case nvme.OpWrite:
		return s.transfer(o, m, off, size, true)
	case nvme.OpWriteZeroes:
		if l := s.cfg.NVM.WZSL; l != 0 && size > 1<<(uint(l)+s.cap.MinPageShift()) {
			return s.refuse(o, nvme.StatusInvalidField, "%d bytes, WZSL is %d", size, l)
		}
		zeros := make([]byte, min(size, chunk))
		for ; size > 0; off, size = off+uint64(len(zeros)), size-uint64(len(zeros)) {
			zeros = zeros[:min(size, chunk)]
			if !m.write(zeros, off, c.FUA()) {
				return nvme.StatusWriteFault
			}
		}
		return 0
	}
	host, disk := make([]byte, size), make([]byte, size) // Compare
	if st := s.fromHost(o, host); st != 0 {
		return st
	}
	if !m.read(disk, off) {
		return nvme.StatusUnrecoveredRead
	}
	if !bytes.Equal(host, disk) {
		return nvme.StatusCompareFailure | nvme.StatusDNR
	}
	s.smart.HostReads.Set(s.smart.HostReads.Uint64() + 1)
	return 0
}

// transfer moves the data of a read or write.
func (s *Sim) transfer(o *op, m *media, off, size uint64, write bool) nvme.Status {
	mem, st := s.pieces(o, size)
	if st != 0 {
		return st
	}
	if write {
		return s.take(o, m, off, mem)
	}
	for _, p := range mem {
		if !m.read(p, off) {
			return nvme.StatusUnrecoveredRead
		}
		off += uint64(len(p))
	}
	s.arrive()
	s.smart.HostReads.Set(s.smart.HostReads.Uint64() + 1)
	s.smart.DataUnitsRead.Set(s.smart.DataUnitsRead.Uint64() + (size+nvme.DataUnit-1)/nvme.DataUnit)
	return 0
}

// take stores the memory of a write. Pieces of memory need not be whole blocks.
func (s *Sim) take(o *op, m *media, off uint64, mem [][]byte) nvme.Status {
	block := uint64(1) << m.ns.BlockShift
	var part []byte // the beginning of a block
	start := off
	for _, p := range mem {
		if len(part) > 0 {
			k := min(int(block)-len(part), len(p))
			part, p = append(part, p[:k]...), p[k:]
			if len(part) < int(block) {
				continue
			}
			if !m.write(part, off, o.cmd.FUA()) {
				return nvme.StatusWriteFault
			}
			part, off = part[:0], off+block
		}
		whole := uint64(len(p)) &^ (block - 1)
		if whole > 0 && !m.write(p[:whole], off, o.cmd.FUA()) {
			return nvme.StatusWriteFault
		}
		off += whole
		part = append(part, p[whole:]...)
	}
	s.smart.HostWrites.Set(s.smart.HostWrites.Uint64() + 1)
	s.smart.DataUnitsWritten.Set(s.smart.DataUnitsWritten.Uint64() + (off-start+nvme.DataUnit-1)/nvme.DataUnit)
	return 0
}

// dsm deallocates ranges: partly, and later (NVM 3.3.3).
func (s *Sim) dsm(o *op, m *media) nvme.Status {
	if !s.has(nvme.ONCSDSM) {
		return s.refuse(o, nvme.StatusInvalidOpcode, "not in ONCS")
	}
	if n, _ := o.cmd.DSMRanges(); s.cfg.NVM.DMRL != 0 && n > uint32(s.cfg.NVM.DMRL) {
		return s.refuse(o, nvme.StatusInvalidField, "%d ranges, DMRL is %d", n, s.cfg.NVM.DMRL)
	}
	if m.ns.ReadOnly {
		return nvme.StatusNSProtected | nvme.StatusDNR
	}
	ranges, st := s.ranges(o)
	if st != 0 {
		return st
	}
	var sum uint64
	for i := range ranges {
		first, k := ranges[i].SLBA.Get(), uint64(ranges[i].Blocks.Get())
		if !m.ns.holds(first, k) {
			return s.refuse(o, nvme.StatusLBARange, "blocks %d and %d more: the namespace has %d", first, k, m.ns.Blocks)
		}
		if l := s.cfg.NVM.DMRSL.Get(); l != 0 && k > uint64(l) {
			return s.refuse(o, nvme.StatusInvalidField, "%d blocks, DMRSL is %d", k, l)
		}
		sum += k
	}
	if l := s.cfg.NVM.DMSL.Get(); l != 0 && sum > l {
		return s.refuse(o, nvme.StatusInvalidField, "%d blocks, DMSL is %d", sum, l)
	}
	_, deallocate := o.cmd.DSMRanges()
	for i := range ranges {
		if k := uint64(ranges[i].Blocks.Get()); deallocate && k > 0 {
			at := s.now
			if s.cfg.DiscardDelay > 0 {
				at += time.Duration(s.rnd.Int64N(int64(s.cfg.DiscardDelay)))
			}
			m.deallocate(ranges[i].SLBA.Get(), k, at)
		}
	}
	return 0
}

// ranges fetches those of a Dataset Management command.
func (s *Sim) ranges(o *op) ([]nvme.DSMRange, nvme.Status) {
	n, _ := o.cmd.DSMRanges()
	raw := make([]byte, n*16)
	if st := s.fromHost(o, raw); st != 0 {
		return nil, st
	}
	return nvme.OverlaySlice[nvme.DSMRange](raw), 0
}
