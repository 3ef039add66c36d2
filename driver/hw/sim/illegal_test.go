package sim_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// want fails the test unless the model has exactly one new violation, with text
// in it.
func want(t *testing.T, s *sim.Sim, before int, text string) {
	t.Helper()
	v := s.Violations()
	if len(v) != before+1 || !strings.Contains(v[len(v)-1], text) {
		t.Errorf("violations %q, want one more than %d, with %q", v, before, text)
	}
}

// TestIllegalRegisters: what a driver may not do with the registers is reported.
func TestIllegalRegisters(t *testing.T) {
	cc := func(s *sim.Sim) nvme.CC { return nvme.CC(must(s.Load32(nvme.RegCC))) }
	for text, act := range map[string]func(h *host, s *sim.Sim){
		"reserved bits (Base 3.1.4.5)":          func(h *host, s *sim.Sim) { h.store(nvme.RegCC, uint32(cc(s))|1<<30) },
		"CSS, MPS and AMS stay":                 func(h *host, s *sim.Sim) { h.store(nvme.RegCC, uint32(cc(s))|1<<7) },
		"admin queue register":                  func(h *host, s *sim.Sim) { h.store(nvme.RegAQA, 0x10001) },
		"read-only or reserved register at 0x8": func(h *host, s *sim.Sim) { h.store(nvme.RegVS, 1) },
		"only NSSRO may be cleared":             func(h *host, s *sim.Sim) { h.store(nvme.RegCSTS, 1) },
		"INTMS or INTMC":                        func(h *host, s *sim.Sim) { h.store(nvme.RegINTMS, 1) },
		"was read (PCIe":                        func(h *host, s *sim.Sim) { must(s.Load32(nvme.RegDoorbells)) },
		"its submission queue does not exist":   func(h *host, s *sim.Sim) { h.store(nvme.SQDoorbell(3, 0), 1) },
		"its completion queue does not exist":   func(h *host, s *sim.Sim) { h.store(nvme.CQDoorbell(3, 0), 1) },
		"past the end of the submission queue":  func(h *host, s *sim.Sim) { h.store(nvme.SQDoorbell(0, 0), 16) },
		"past the end of the completion queue":  func(h *host, s *sim.Sim) { h.store(nvme.CQDoorbell(0, 0), 16) },
		"acknowledged that were not posted":     func(h *host, s *sim.Sim) { h.store(nvme.CQDoorbell(0, 0), 1) },
		"while RDY or EN is 0":                  func(h *host, s *sim.Sim) { h.disable(); h.ring(&h.admin) },
		"do not begin at a page":                func(h *host, s *sim.Sim) { h.again(func() { _ = s.Store64(nvme.RegASQ, h.admin.sq.Addr+64) }) },
		"fewer than two entries":                func(h *host, s *sim.Sim) { h.again(func() { h.store(nvme.RegAQA, 0x10000) }) },
		"AQA 0x80008000 has reserved bits":      func(h *host, s *sim.Sim) { h.disable(); h.store(nvme.RegAQA, 0x80008000) },
		"page size outside":                     func(h *host, s *sim.Sim) { h.disable(); h.store(nvme.RegCC, uint32(cc(s))|5<<7|1) },
		"an arbitration that is not supported":  func(h *host, s *sim.Sim) { h.disable(); h.store(nvme.RegCC, uint32(cc(s))|1<<11|1) },
		"a command set that is not supported":   func(h *host, s *sim.Sim) { h.disable(); h.store(nvme.RegCC, uint32(cc(s))|6<<4|1) },
		"before RDY was 0":                      func(h *host, s *sim.Sim) { v := uint32(cc(s)); h.store(nvme.RegCC, v&^1); h.store(nvme.RegCC, v) },
		"EN was cleared before RDY was 1": func(h *host, s *sim.Sim) {
			h.disable()
			v := uint32(cc(s))
			h.store(nvme.RegCC, v|1)
			h.store(nvme.RegCC, v)
		},
		"before the device was started": func(h *host, s *sim.Sim) {
			v := uint32(cc(s))
			_ = s.Stop(context.Background())
			h.store(nvme.RegAQA, 0x10001)
			h.store(nvme.RegCC, v)
		},
	} {
		t.Run(text, func(t *testing.T) {
			s := open(t, sim.Default(base.MiB))
			h := up(t, s)
			act(h, s)
			want(t, s, 0, text)
		})
	}
}

// again disables the controller, lets f change registers, and sets EN.
func (h *host) again(f func()) {
	h.disable()
	f()
	h.store(nvme.RegCC, must(h.s.Load32(nvme.RegCC))|1)
}

// TestIllegalCommands: commands that a driver may not send are refused with the
// status of the specification, and reported.
func TestIllegalCommands(t *testing.T) {
	type command struct {
		name   string
		status nvme.Status
		text   string
		make   func(h *host, p *pair, mem *hw.Buffer, c *nvme.Command)
	}
	read := func(h *host, mem *hw.Buffer, c *nvme.Command, slba uint64, blocks uint32) {
		c.SetRead(1, slba, blocks)
		c.PRP1.Set(mem.Addr)
	}
	for _, x := range []command{
		{"C23 past the end", nvme.StatusLBARange, "the namespace has 256", func(h *host, p *pair, m *hw.Buffer, c *nvme.Command) { read(h, m, c, 256, 1) }},
		{"C23 across the end", nvme.StatusLBARange, "the namespace has 256", func(h *host, p *pair, m *hw.Buffer, c *nvme.Command) { read(h, m, c, 255, 2) }},
		{"C23 wraps", nvme.StatusLBARange, "the namespace has 256", func(h *host, p *pair, m *hw.Buffer, c *nvme.Command) { read(h, m, c, ^uint64(0), 2) }},
		{"A10 namespace", nvme.StatusInvalidNS, "namespace 2 is not active", func(h *host, p *pair, m *hw.Buffer, c *nvme.Command) { c.SetRead(2, 0, 1) }},
		{"B12 MDTS", nvme.StatusInvalidField, "MDTS allows 131072", func(h *host, p *pair, m *hw.Buffer, c *nvme.Command) { read(h, m, c, 0, 33) }},
		{"C08 PRP1", nvme.StatusPRPOffset, "not aligned to a doubleword", func(h *host, p *pair, m *hw.Buffer, c *nvme.Command) {
			read(h, m, c, 0, 1)
			c.PRP1.Set(m.Addr + 2)
		}},
		{"C08 PRP2", nvme.StatusPRPOffset, "PRP2", func(h *host, p *pair, m *hw.Buffer, c *nvme.Command) {
			read(h, m, c, 0, 2)
			c.PRP2.Set(m.Addr + 512)
		}},
		{"C08 list", nvme.StatusPRPOffset, "quadword", func(h *host, p *pair, m *hw.Buffer, c *nvme.Command) {
			read(h, m, c, 0, 3)
			c.PRP2.Set(h.list.Addr + 4)
		}},
		{"C08 entry", nvme.StatusPRPOffset, "has an offset", func(h *host, p *pair, m *hw.Buffer, c *nvme.Command) {
			read(h, m, c, 0, 3)
			nvme.OverlaySlice[nvme.Le64](h.list.Bytes)[0].Set(m.Addr + 512)
			c.PRP2.Set(h.list.Addr)
		}},
		{"virtual address", nvme.StatusTransferError, "nothing is mapped there", func(h *host, p *pair, m *hw.Buffer, c *nvme.Command) {
			read(h, m, c, 0, 1)
			c.PRP1.Set(0x7f0012345000)
		}},
		{"SGL", nvme.StatusInvalidField, "an SGL that is not supported", func(h *host, p *pair, m *hw.Buffer, c *nvme.Command) {
			read(h, m, c, 0, 1)
			c.SetPSDT(nvme.PSDTSGL)
		}},
		{"PSDT 3", nvme.StatusInvalidField, "reserved", func(h *host, p *pair, m *hw.Buffer, c *nvme.Command) {
			read(h, m, c, 0, 1)
			c.Flags = 0xc0
		}},
		{"fused", nvme.StatusInvalidField, "must be zero", func(h *host, p *pair, m *hw.Buffer, c *nvme.Command) {
			read(h, m, c, 0, 1)
			c.Flags = 1
		}},
		{"opcode", nvme.StatusInvalidOpcode, "not supported", func(h *host, p *pair, m *hw.Buffer, c *nvme.Command) {
			read(h, m, c, 0, 1)
			c.OPC = nvme.OpVerify
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := open(t, sim.Default(base.MiB))
			h := up(t, s)
			h.queues(4)
			p := h.queue(1, 8, false)
			mem := h.alloc(64 * base.KiB)
			var c nvme.Command
			x.make(h, p, mem, &c)
			if st, _ := h.do(p, c); st.Code() != x.status || !st.DNR() {
				t.Errorf("status %v, want %v", st, x.status)
			}
			want(t, s, 0, x.text)
		})
	}
}

// TestB11IllegalQueues: limits of the queue commands, on both sides.
func TestB11IllegalQueues(t *testing.T) {
	cfg := sim.Default(base.MiB)
	cfg.CAP.MQES, cfg.MaxQueues = 63, 3
	s := open(t, cfg)
	h := up(t, s)
	if n := h.queues(8); n != 3 {
		t.Fatalf("granted %d", n)
	}
	mem := h.alloc(64 * 64)
	cq := func(id uint16, n uint32, at uint64, vector uint16) (c nvme.Command) {
		c.SetCreateIOCQ(id, at, n, vector, true)
		return c
	}
	sq := func(id uint16, n uint32, at uint64, cqid uint16) (c nvme.Command) {
		c.SetCreateIOSQ(id, at, n, cqid, 0)
		return c
	}
	del := func(isSQ bool, id uint16) (c nvme.Command) {
		if isSQ {
			c.SetDeleteIOSQ(id)
		} else {
			c.SetDeleteIOCQ(id)
		}
		return c
	}
	scattered := cq(1, 64, mem.Addr, 0)
	scattered.CDW11.Set(0)
	for i, x := range []struct {
		c  nvme.Command
		st nvme.Status
	}{
		{cq(0, 64, mem.Addr, 0), nvme.StatusInvalidQID}, {cq(4, 64, mem.Addr, 0), nvme.StatusInvalidQID},
		{cq(1, 65, mem.Addr, 0), nvme.StatusInvalidQSize}, {cq(1, 64, mem.Addr+64, 0), nvme.StatusPRPOffset},
		{cq(1, 64, 0x1000, 0), nvme.StatusTransferError}, {cq(1, 64, mem.Addr, 16), nvme.StatusInvalidVector},
		{scattered, nvme.StatusInvalidField}, {cq(3, 64, mem.Addr, 15), 0}, {cq(3, 64, mem.Addr, 0), nvme.StatusInvalidQID},
		{sq(3, 64, mem.Addr, 2), nvme.StatusInvalidCQ}, {sq(3, 64, mem.Addr, 0), nvme.StatusInvalidCQ},
		{sq(3, 65, mem.Addr, 3), nvme.StatusInvalidQSize}, {sq(3, 64, mem.Addr, 3), 0}, {sq(2, 2, mem.Addr, 3), 0},
		{del(false, 3), nvme.StatusInvalidQDelete}, {del(true, 3), 0}, {del(true, 3), nvme.StatusInvalidQID},
		{del(true, 2), 0}, {del(false, 3), 0}, {del(false, 3), nvme.StatusInvalidQID}, {del(true, 0), nvme.StatusInvalidQID},
	} {
		before := len(s.Violations())
		if st, _ := h.do(&h.admin, x.c); st.Code() != x.st {
			t.Errorf("case %d: %v, want %v", i, st, x.st)
		}
		if n := len(s.Violations()) - before; (n == 0) != (x.st == 0) {
			t.Errorf("case %d: %d violations", i, n)
		}
	}
}

// TestG04IdentifierReuse: a command identifier that is in flight may not be used
// again, and the old command goes on.
func TestG04IdentifierReuse(t *testing.T) {
	s := open(t, sim.Default(base.MiB))
	h := up(t, s)
	h.queues(1)
	p := h.queue(1, 8, false)
	s.Script(sim.Rule{Kind: sim.FaultLose, Count: 1})
	var c nvme.Command
	c.SetFlush(1)
	h.put(p, &c)
	h.ring(p)
	if _, ok := h.reap(p, time.Second); ok {
		t.Fatal("a lost command ended")
	}
	h.cid--
	if st, _ := h.do(p, c); st.Code() != nvme.StatusIDConflict {
		t.Errorf("%v", st)
	}
	want(t, s, 0, "used again")
	var a nvme.Command
	a.SetAbort(1, h.cid)
	if dw0 := h.ok(&h.admin, a); !nvme.Aborted(dw0) {
		t.Error("the lost command is not in flight any more")
	}
}

// TestH12TailPassesHead: the space of a submission queue is what completions have
// told, whatever the model has fetched already.
func TestH12TailPassesHead(t *testing.T) {
	s := open(t, sim.Default(base.MiB))
	h := up(t, s)
	h.queues(1)
	p := h.queue(1, 4, false)
	s.Hold(true)
	var c nvme.Command
	c.SetFlush(1)
	for range 3 {
		h.put(p, &c)
	}
	h.ring(p)
	s.Pause(s.Now() + time.Second) // fetched, but nobody knows
	h.put(p, &c)
	h.ring(p)
	want(t, s, 0, "the tail passes the head")
}

// TestCompletionQueueOverflow: more commands in flight than the completion queue
// holds are reported, though the model does not overwrite entries.
func TestCompletionQueueOverflow(t *testing.T) {
	s := open(t, sim.Default(base.MiB))
	h := up(t, s)
	h.queues(1)
	p := h.pair(1, 16)
	var c nvme.Command
	c.SetCreateIOCQ(1, p.cq.Addr, 4, 0, false)
	h.ok(&h.admin, c)
	c.SetCreateIOSQ(1, p.sq.Addr, 16, 1, 0)
	h.ok(&h.admin, c)
	c.SetFlush(1)
	for i := range 5 {
		if i == 3 && s.Counts().Violations != 0 {
			t.Fatal(s.Violations())
		}
		h.put(&p, &c)
		if i >= 2 {
			h.ring(&p)
			s.Pause(s.Now())
		}
		if i == 2 {
			clean(t, s)
		}
	}
	if v := s.Violations(); len(v) == 0 || !strings.Contains(v[0], "may overflow") {
		t.Errorf("%q", v)
	}
	p.size = 4 // of the completion queue
	for range 5 {
		if _, ok := h.reap(&p, time.Second); !ok {
			t.Error("a completion was overwritten")
		}
	}
}

// TestReleasedMemory: a command that names memory which was given back is caught
// (H-08).
func TestReleasedMemory(t *testing.T) {
	s := open(t, sim.Default(base.MiB))
	h := up(t, s)
	h.queues(1)
	p := h.queue(1, 8, false)
	mem := h.alloc(4096)
	m, err := s.Map(mem.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	s.Script(sim.Rule{Kind: sim.FaultDelay, Delay: 5 * time.Second})
	var c nvme.Command
	c.SetRead(1, 0, 1)
	h.data(&c, m.Segments())
	h.put(p, &c)
	h.ring(p)
	s.Pause(s.Now())
	if err := m.Unmap(); err != nil {
		t.Fatal(err)
	}
	if e, ok := h.reap(p, time.Minute); !ok || e.DW3().Status().Code() != nvme.StatusTransferError {
		t.Errorf("%v", e)
	}
	want(t, s, 0, "nothing is mapped there")
}
