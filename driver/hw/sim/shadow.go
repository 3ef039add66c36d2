package sim

import (
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/mmio"
)

// doorbells are the pages of the Doorbell Buffer Config command, 0 before it. The
// model looks for the doorbells of I/O queues there whenever it works, and asks for
// those of its registers only before it rests.
type doorbells struct{ values, events uint64 }

// doorbellBuffer is the Doorbell Buffer Config command (Base 5.3).
func (s *Sim) doorbellBuffer(o *op) nvme.Status {
	values, events := o.cmd.PRP1.Get(), o.cmd.PRP2.Get()
	page := uint64(1) << s.cc.PageShift()
	switch {
	case s.cfg.Identify.OACS.Get()&nvme.OACSDoorbellBuffer == 0:
		return s.refuse(o, nvme.StatusInvalidOpcode, "the controller has no doorbell buffers")
	case values == 0 || events == 0 || values%page != 0 || events%page != 0:
		return s.refuse(o, nvme.StatusInvalidField, "pages at %#x and %#x", values, events)
	}
	s.shadows = doorbells{values, events}
	return 0
}

// word is a doorbell in one of the pages, at the place that it has in the registers.
func (s *Sim) word(page, register uint64) []byte {
	w := s.bus.view(page+register-nvme.RegDoorbells, 4)
	if len(w) < 4 {
		s.violate("the doorbells in memory cannot be reached")
		s.csts |= nvme.CSTSFatal
		return nil
	}
	return w
}

// lookForDoorbells takes over what the driver has written to memory, and tells whether
// there was anything new.
func (s *Sim) lookForDoorbells() (found bool) {
	if s.shadows.values == 0 {
		return false
	}
	for _, q := range s.sqs {
		off := nvme.SQDoorbell(q.id, s.cap.DSTRD())
		if q.id == 0 {
			continue
		}
		if w := s.word(s.shadows.values, off); w != nil {
			if v := mmio.LoadShared32(w); v != q.shadow { // once, even when it is refused
				q.shadow, found = v, true
				s.ringSQ(off, q.id, v)
			}
		}
	}
	for id, q := range s.cqs {
		s.lookForHead(id, q)
	}
	return found
}

// lookForHead takes over the doorbell of a completion queue.
func (s *Sim) lookForHead(id uint16, q *cq) {
	if s.shadows.values == 0 || id == 0 {
		return
	}
	off := nvme.CQDoorbell(id, s.cap.DSTRD())
	if w := s.word(s.shadows.values, off); w != nil {
		if v := mmio.LoadShared32(w); v != q.shadow {
			q.shadow = v
			s.ringCQ(off, id, v)
		}
	}
}

// askForDoorbells asks for the registers: of submission queues at the next command, of
// completion queues that are full at the next acknowledgement. It tells whether the
// driver was faster.
func (s *Sim) askForDoorbells() (found bool) {
	if s.shadows.values == 0 {
		return false
	}
	for _, q := range s.sqs {
		if q.id == 0 {
			continue
		}
		if w := s.word(s.shadows.events, nvme.SQDoorbell(q.id, s.cap.DSTRD())); w != nil {
			mmio.ExchangeEntry32(w, q.tail)
		}
	}
	for id, q := range s.cqs {
		if id == 0 || len(q.full) == 0 {
			continue
		}
		if w := s.word(s.shadows.events, nvme.CQDoorbell(id, s.cap.DSTRD())); w != nil {
			mmio.ExchangeEntry32(w, q.head)
		}
	}
	return s.lookForDoorbells()
}
