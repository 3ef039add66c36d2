package sim

import (
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
)

// maxDescriptors bounds the SGL descriptors of one command: what a hostile list
// can make the model read.
const maxDescriptors = 1 << 18

// pieces resolves the data pointer of a command for total bytes, by the book. The
// pieces are views of memory of the process, each inside one bus page; they are
// good until the next call.
func (s *Sim) pieces(o *op, total uint64) ([][]byte, nvme.Status) {
	s.landings = s.landings[:0]
	if total == 0 {
		return nil, 0
	}
	c := &o.cmd
	if limit := s.cfg.Identify.MaxTransfer(s.cap.MinPageShift()); limit != 0 && total > limit && o.sq.id != 0 {
		return nil, s.refuse(o, nvme.StatusInvalidField, "%d bytes, MDTS allows %d (Base 5.1.13.2.1)", total, limit)
	}
	switch c.PSDT() {
	case nvme.PSDTPRP:
		out, st := s.walkPRP(o, total)
		if out != nil {
			s.views = out[:0]
		}
		return out, st
	case nvme.PSDTSGL, nvme.PSDTSGLSegment:
		if o.sq.id == 0 || !s.cfg.Identify.SGL().Supported {
			return nil, s.refuse(o, nvme.StatusInvalidField, "an SGL that is not supported here (Base 4.1.1)")
		}
		return s.walkSGL(o, total)
	}
	return nil, s.refuse(o, nvme.StatusInvalidField, "PSDT %d is reserved (Base 4.1.1)", c.PSDT())
}

// refuse reports a violation by a command and gives the status for it.
func (s *Sim) refuse(o *op, status nvme.Status, format string, args ...any) nvme.Status {
	s.violate("queue %d, "+o.cmd.OPC.Name(o.sq.id == 0)+": "+format, append([]any{o.sq.id}, args...)...)
	return status | nvme.StatusDNR
}

// view appends the views of n bytes at a bus address.
func (s *Sim) view(o *op, out [][]byte, addr, n uint64) ([][]byte, nvme.Status) {
	for n > 0 {
		m := s.bus.view(addr, n)
		if m == nil && s.bus.lost(addr) {
			return nil, nvme.StatusTransferError
		}
		if m == nil {
			return nil, s.refuse(o, nvme.StatusTransferError, "bus address %#x: nothing is mapped there", addr)
		}
		if s.bus.pages[addr/hw.PageSize].peer {
			out = s.cross(o, out, m)
		} else {
			out = append(out, m)
		}
		addr, n = addr+uint64(len(m)), n-uint64(len(m))
	}
	return out, 0
}

// qword reads 8 bytes of a list.
func (s *Sim) qword(o *op, addr uint64) (uint64, nvme.Status) {
	var raw [8]byte
	if !s.bus.copy(addr, raw[:], false) {
		return 0, s.refuse(o, nvme.StatusTransferError, "list at bus address %#x: nothing is mapped there", addr)
	}
	return nvme.Overlay[nvme.Le64](raw[:]).Get(), 0
}

// walkPRP follows PRP entries and lists (Base 4.3.1).
func (s *Sim) walkPRP(o *op, total uint64) ([][]byte, nvme.Status) {
	page := uint64(1) << s.cc.PageShift()
	first := o.cmd.PRP1.Get()
	if first%4 != 0 {
		return nil, s.refuse(o, nvme.StatusPRPOffset, "PRP1 %#x is not aligned to a doubleword", first)
	}
	n := min(total, page-first%page)
	out, st := s.view(o, s.views[:0], first, n)
	left := total - n
	second := o.cmd.PRP2.Get()
	if st != 0 || left == 0 {
		return out, st
	}
	if left <= page {
		if second%page != 0 {
			return nil, s.refuse(o, nvme.StatusPRPOffset, "PRP2 %#x has an offset", second)
		}
		return s.view(o, out, second, left)
	}
	if second%8 != 0 {
		return nil, s.refuse(o, nvme.StatusPRPOffset, "the list pointer %#x is not aligned to a quadword", second)
	}
	s.counts.ListPages++
	for at := second; left > 0; {
		e, st := s.qword(o, at)
		if st != 0 {
			return nil, st
		}
		if e%page != 0 {
			return nil, s.refuse(o, nvme.StatusPRPOffset, "entry %#x at %#x has an offset", e, at)
		}
		if at%page == page-8 && left > page {
			at = e
			s.counts.ListPages++
			continue
		}
		n := min(left, page)
		if out, st = s.view(o, out, e, n); st != 0 {
			return nil, st
		}
		left, at = left-n, at+8
	}
	return out, 0
}

// walkSGL follows descriptors and segments (Base 4.3.2).
func (s *Sim) walkSGL(o *op, total uint64) ([][]byte, nvme.Status) {
	var out [][]byte
	var st nvme.Status
	align := uint64(s.cfg.Identify.SGL().Align)
	todo, seen, last := []nvme.SGLDescriptor{o.cmd.SGL1()}, 0, false
	for {
		var link *nvme.SGLDescriptor
		for i := range todo {
			d := &todo[i]
			if seen++; d.Subtype() != 0 || seen > maxDescriptors {
				return nil, s.refuse(o, nvme.StatusSGLType, "subtype %d, or too many descriptors", d.Subtype())
			}
			n := uint64(d.Len.Get())
			switch typ := d.Type(); {
			case typ == nvme.SGLDataBlock && (d.Addr.Get()%align != 0 || n%align != 0):
				return nil, s.refuse(o, nvme.StatusSGLOffset, "data block of %d bytes at %#x: alignment %d", n, d.Addr.Get(), align)
			case typ == nvme.SGLDataBlock && n > total:
				return nil, s.refuse(o, nvme.StatusSGLDataLength, "the SGL is longer than the transfer")
			case typ == nvme.SGLDataBlock:
				if out, st = s.view(o, out, d.Addr.Get(), n); st != 0 {
					return nil, st
				}
				total -= n
			case typ != nvme.SGLSegment && typ != nvme.SGLLastSegment:
				return nil, s.refuse(o, nvme.StatusSGLType, "descriptor type %d", typ)
			case i != len(todo)-1 || last:
				return nil, s.refuse(o, nvme.StatusSGLSegment,
					"a segment descriptor that is not the last of its segment, or in the last segment")
			default:
				link = d
			}
		}
		if link == nil {
			break
		}
		last = link.Type() == nvme.SGLLastSegment
		if todo, st = s.segment(o, link); st != 0 {
			return nil, st
		}
	}
	if total != 0 {
		return nil, s.refuse(o, nvme.StatusSGLDataLength, "the SGL is %d bytes shorter than the transfer", total)
	}
	return out, 0
}

// segment reads the descriptors of one segment.
func (s *Sim) segment(o *op, d *nvme.SGLDescriptor) ([]nvme.SGLDescriptor, nvme.Status) {
	n := d.Len.Get()
	if n == 0 || n%nvme.SGLDescriptorSize != 0 || n/nvme.SGLDescriptorSize > maxDescriptors || d.Addr.Get()%8 != 0 {
		return nil, s.refuse(o, nvme.StatusSGLSegment, "segment of %d bytes at %#x", n, d.Addr.Get())
	}
	raw := make([]byte, n)
	if !s.bus.copy(d.Addr.Get(), raw, false) {
		return nil, s.refuse(o, nvme.StatusTransferError, "segment at bus address %#x: nothing is mapped there", d.Addr.Get())
	}
	s.counts.ListPages++
	return nvme.OverlaySlice[nvme.SGLDescriptor](raw), 0
}

// toHost copies p to the memory of a command that asks for len(p) bytes.
func (s *Sim) toHost(o *op, p []byte) nvme.Status {
	out, st := s.pieces(o, uint64(len(p)))
	for _, m := range out {
		p = p[copy(m, p):]
	}
	return st
}

// fromHost fills p from the memory of a command.
func (s *Sim) fromHost(o *op, p []byte) nvme.Status {
	in, st := s.pieces(o, uint64(len(p)))
	for _, m := range in {
		p = p[copy(p, m):]
	}
	return st
}
