package sim

import (
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// regs are the controller properties and what drives their changes.
type regs struct {
	cap  nvme.CAP
	cc   nvme.CC
	csts nvme.CSTS
	aqa  nvme.AQA
	asq  uint64
	acq  uint64

	// When a change of CSTS is due; hw.Forever for none.
	readyAt, unreadyAt, shutdownAt time.Duration
	deafUntil                      time.Duration // admin doorbells are ignored
	unaware                        bool          // the driver may not know yet that there was a reset
}

// powerOn puts the controller into the state after power on or a function-level
// reset. Namespaces keep their content.
func (s *Sim) powerOn() {
	s.counts.Resets++
	c := nvme.MakeCAP(s.cfg.CAP)
	if s.cfg.RawCAP != 0 {
		c = nvme.CAP(s.cfg.RawCAP)
	}
	s.regs = regs{cap: c, readyAt: hw.Forever, unreadyAt: hw.Forever, shutdownAt: hw.Forever}
	s.dropQueues()
}

// window is the size of the register window: registers and all doorbells.
func (s *Sim) window() uint64 {
	d := s.cfg.CAP.DSTRD & 15
	return (nvme.CQDoorbell(uint16(s.cfg.MaxQueues), d) + 4 + hw.PageSize - 1) &^ (hw.PageSize - 1)
}

// reach tells whether registers answer. With ones, they read as ones and ignore
// writes.
func (s *Sim) reach(off, n uint64) (ones bool, err error) {
	switch {
	case s.closed:
		return false, base.Errorf("access registers of", s.id.Target, base.ErrClosed, "offset %#x", off)
	case off%n != 0:
		return false, base.Errorf("access registers of", s.id.Target, base.ErrMisaligned, "offset %#x, %d bytes", off, n)
	case off > s.window() || n > s.window()-off:
		return false, base.Errorf("access registers of", s.id.Target, base.ErrOutOfRange,
			"offset %#x, the window has %#x bytes", off, s.window())
	case s.removed && s.cfg.RemovalFaults:
		return false, base.Errorf("access registers of", s.id.Target, base.ErrDeviceGone, "the access at offset %#x faulted", off)
	}
	return s.removed || s.ones || s.clock() < s.cfg.OnesUntil, nil
}

// Load32 implements hw.Registers.
func (s *Sim) Load32(off uint64) (uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ones, err := s.reach(off, 4)
	if err != nil {
		return 0, err
	}
	if ones {
		return ^uint32(0), nil
	}
	return s.load(off), nil
}

// Load64 implements hw.Registers.
func (s *Sim) Load64(off uint64) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ones, err := s.reach(off, 8)
	if err != nil {
		return 0, err
	}
	if ones {
		return ^uint64(0), nil
	}
	return uint64(s.load(off+4))<<32 | uint64(s.load(off)), nil
}

func (s *Sim) load(off uint64) uint32 {
	switch off {
	case nvme.RegCAP:
		return uint32(s.cap)
	case nvme.RegCAP + 4:
		return uint32(s.cap >> 32)
	case nvme.RegVS:
		return uint32(s.cfg.VS)
	case nvme.RegCC:
		return uint32(s.cc)
	case nvme.RegCSTS:
		return uint32(s.csts)
	case nvme.RegAQA:
		return uint32(s.aqa)
	case nvme.RegASQ, nvme.RegASQ + 4:
		return uint32(s.asq >> (8 * (off - nvme.RegASQ)))
	case nvme.RegACQ, nvme.RegACQ + 4:
		return uint32(s.acq >> (8 * (off - nvme.RegACQ)))
	}
	if off >= nvme.RegDoorbells {
		s.violate("a doorbell at offset %#x was read (PCIe 3.1.2)", off)
	}
	return 0
}

// Store32 implements hw.Registers.
func (s *Sim) Store32(off uint64, v uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ones, err := s.reach(off, 4)
	if err == nil && !ones {
		s.store(off, v)
	}
	return err
}

// Store64 implements hw.Registers.
func (s *Sim) Store64(off, v uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ones, err := s.reach(off, 8)
	if err == nil && !ones {
		s.store(off, uint32(v))
		s.store(off+4, uint32(v>>32))
	}
	return err
}

// half replaces one half of a 64-bit register.
func half(reg *uint64, high bool, v uint32) {
	if high {
		*reg = *reg&0xffffffff | uint64(v)<<32
		return
	}
	*reg = *reg&^0xffffffff | uint64(v)
}

func (s *Sim) store(off uint64, v uint32) {
	if off >= nvme.RegDoorbells {
		s.ring(off, v)
		return
	}
	s.kicks.Add(1)
	switch off {
	case nvme.RegAQA, nvme.RegASQ, nvme.RegASQ + 4, nvme.RegACQ, nvme.RegACQ + 4:
		if s.cc.Enabled() {
			s.violate("an admin queue register at %#x was written while EN is 1 (Base 3.1.4.8)", off)
			return
		}
	}
	switch off {
	case nvme.RegCC:
		s.storeCC(nvme.CC(v))
	case nvme.RegCSTS:
		if nvme.CSTS(v)&^nvme.CSTSReset != 0 {
			s.violate("CSTS was written with %#x: only NSSRO may be cleared (Base 3.1.4.6)", v)
		}
		s.csts &^= nvme.CSTS(v) & nvme.CSTSReset
	case nvme.RegNSSR:
		if v == nvme.NSSRReset && s.cap.NSSRS() {
			s.landLate()
			s.powerOn()
			s.csts |= nvme.CSTSReset
		}
	case nvme.RegAQA:
		s.aqa = nvme.AQA(v)
		if v&^0x0fff0fff != 0 {
			s.violate("AQA %#x has reserved bits (Base 3.1.4.8)", v)
		}
	case nvme.RegASQ, nvme.RegASQ + 4:
		half(&s.asq, off != nvme.RegASQ, v)
	case nvme.RegACQ, nvme.RegACQ + 4:
		half(&s.acq, off != nvme.RegACQ, v)
	case nvme.RegINTMS, nvme.RegINTMC:
		s.violate("INTMS or INTMC was written: they are not for MSI-X (Base 3.1.4.3)")
	default:
		s.violate("a read-only or reserved register at %#x was written with %#x", off, v)
	}
}

// storeCC is the controller's state machine (Base 3.1.4.5, 3.5.1, 3.6.1, 3.7.2).
func (s *Sim) storeCC(v nvme.CC) {
	old := s.cc
	if v.Reserved() != 0 {
		s.violate("CC %#x has reserved bits (Base 3.1.4.5)", uint32(v))
	}
	s.cc = v
	switch {
	case !old.Enabled() && v.Enabled():
		s.enable()
	case old.Enabled() && !v.Enabled():
		s.disable()
	case old.Enabled() && (v.CSS() != old.CSS() || v.PageShift() != old.PageShift() || v.AMS() != old.AMS()):
		s.violate("CC went from %#x to %#x while EN is 1: CSS, MPS and AMS stay (Base 3.1.4.5)", uint32(old), uint32(v))
		s.csts |= nvme.CSTSFatal
	}
	if v.SHN() != old.SHN() && v.SHN() != nvme.ShutdownNone {
		s.csts = s.csts.WithShutdown(true, false)
		s.shutdownAt = s.now + s.cfg.ShutdownDelay
	}
}

func (s *Sim) enable() {
	bad := ""
	switch {
	case s.csts.Ready() || s.unreadyAt != hw.Forever:
		bad = "before RDY was 0"
	case s.cc.PageShift() < s.cap.MinPageShift() || s.cc.PageShift() > s.cap.MaxPageShift():
		bad = "with a page size outside MPSMIN and MPSMAX"
	case s.asq%hw.PageSize != 0 || s.acq%hw.PageSize != 0:
		bad = "with admin queues that do not begin at a page"
	case s.aqa.SQEntries() < 2 || s.aqa.CQEntries() < 2:
		bad = "with admin queues of fewer than two entries"
	case s.cc.AMS() != nvme.RoundRobin && !(s.cap.WeightedRoundRobin() && s.cc.AMS() == nvme.WeightedRoundRobin):
		bad = "with an arbitration that is not supported"
	case s.cc.CSS() != 0 && !(s.cc.CSS() == 6 && s.cap.CSS()&nvme.CSSIO != 0):
		bad = "with a command set that is not supported"
	case !s.bus.master:
		bad = "before the device was started"
	}
	if bad != "" {
		if !s.unaware { // the power cut took what the driver had set
			s.violate("EN was set %s, CC %#x (Base 3.5.1)", bad, uint32(s.cc))
		}
		s.csts, s.unaware = s.csts|nvme.CSTSFatal, false
		return
	}
	s.csts, s.unaware = s.csts.WithShutdown(false, false), false
	if !s.cfg.NeverReady {
		s.readyAt = s.now + s.cfg.ReadyDelay
	}
}

func (s *Sim) disable() {
	if s.readyAt != hw.Forever {
		s.violate("EN was cleared before RDY was 1 (Base 3.1.4.5)")
	}
	s.readyAt = hw.Forever
	if s.cfg.NeverUnready {
		return
	}
	s.unreadyAt = s.now + s.cfg.UnreadyDelay
	if !s.csts.Ready() && !s.csts.Fatal() {
		s.unreadyAt = s.now
	}
}

// transitions applies the changes of CSTS that are due.
func (s *Sim) transitions() bool {
	did := false
	if s.now >= s.readyAt {
		s.readyAt, did = hw.Forever, true
		s.csts |= nvme.CSTSReady
		s.deafUntil = s.now + s.cfg.DeafFor
		s.openAdmin()
	}
	if s.now >= s.unreadyAt && !s.held {
		s.unreadyAt, did = hw.Forever, true
		s.landLate()
		s.dropQueues()
		s.counts.Resets++
		s.csts &^= nvme.CSTSReady | nvme.CSTSFatal
		s.csts = s.csts.WithShutdown(false, false)
	}
	if s.now >= s.shutdownAt {
		s.shutdownAt, did = hw.Forever, true
		s.csts = s.csts.WithShutdown(false, true)
		if s.cc.SHN() == nvme.ShutdownNormal {
			for _, m := range s.media {
				m.flush()
			}
		}
	}
	for _, m := range s.media {
		if len(m.discards) > 0 {
			m.settleDue(s.now, s.rnd)
		}
	}
	return did
}

// Doorbell implements hw.Registers.
func (s *Sim) Doorbell(off uint64) (hw.Doorbell, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.reach(off, 4); err != nil {
		return nil, err
	}
	return &bell{s, off}, nil
}

type bell struct {
	s   *Sim
	off uint64
}

// Ring implements hw.Doorbell.
func (b *bell) Ring(v uint32) error { return b.s.Store32(b.off, v) }
