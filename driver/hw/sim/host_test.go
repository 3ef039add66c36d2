package sim_test

import (
	"context"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/mmio"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// host is the smallest driver there can be: one command at a time, no checks. It
// does what the specification asks for unless a test makes it do something else.
type host struct {
	t     *testing.T
	s     *sim.Sim
	shift uint
	admin pair
	list  *hw.Buffer // a page for PRP lists
	cid   uint16
}

// pair is a submission and a completion queue.
type pair struct {
	id     uint16
	sq, cq *hw.Buffer
	size   uint32
	tail   uint32
	head   uint32
	phase  bool
	sqd    hw.Doorbell
	cqd    hw.Doorbell
}

func open(t *testing.T, c sim.Config) *sim.Sim {
	t.Helper()
	s, err := sim.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// clean fails the test when the model saw a violation.
func clean(t *testing.T, s *sim.Sim) {
	t.Helper()
	for _, v := range s.Violations() {
		t.Errorf("violation: %s", v)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (h *host) alloc(n int64) *hw.Buffer {
	h.t.Helper()
	b, err := h.s.Alloc(n, "host")
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(b.Free)
	return b
}

// newHost starts the device, without enabling the controller.
func newHost(t *testing.T, s *sim.Sim) *host {
	t.Helper()
	h := &host{t: t, s: s, shift: 12}
	if err := s.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	h.list = h.alloc(4096)
	return h
}

// up is newHost with the controller enabled.
func up(t *testing.T, s *sim.Sim) *host {
	t.Helper()
	h := newHost(t, s)
	h.enable(16)
	return h
}

func (h *host) pair(id uint16, size uint32) pair {
	d := nvme.CAP(must(h.s.Load64(nvme.RegCAP))).DSTRD()
	return pair{id: id, size: size, phase: true, sq: h.alloc(int64(size) * 64), cq: h.alloc(int64(size) * 16),
		sqd: must(h.s.Doorbell(nvme.SQDoorbell(id, d))), cqd: must(h.s.Doorbell(nvme.CQDoorbell(id, d)))}
}

func (h *host) store(off uint64, v uint32) {
	h.t.Helper()
	if err := h.s.Store32(off, v); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) csts() nvme.CSTS { return nvme.CSTS(must(h.s.Load32(nvme.RegCSTS))) }

// until pauses until ok, at most limit of the model's time.
func (h *host) until(what string, limit time.Duration, ok func() bool) {
	h.t.Helper()
	end := h.s.Now() + limit
	for !ok() {
		if h.s.Now() >= end {
			h.t.Fatalf("timed out: %s", what)
		}
		h.s.Pause(end)
	}
}

func (h *host) enable(entries uint32) {
	h.t.Helper()
	h.admin = h.pair(0, entries)
	h.store(nvme.RegAQA, uint32(nvme.MakeAQA(entries, entries)))
	_ = h.s.Store64(nvme.RegASQ, h.admin.sq.Addr)
	_ = h.s.Store64(nvme.RegACQ, h.admin.cq.Addr)
	cc, err := nvme.MakeCC(nvme.CAP(must(h.s.Load64(nvme.RegCAP))), h.shift, nvme.RoundRobin)
	if err != nil {
		h.t.Fatal(err)
	}
	h.store(nvme.RegCC, uint32(cc))
	h.until("ready", time.Minute, func() bool { return h.csts().Ready() })
}

func (h *host) disable() {
	h.t.Helper()
	h.store(nvme.RegCC, must(h.s.Load32(nvme.RegCC))&^1)
	h.until("not ready", time.Minute, func() bool { return !h.csts().Ready() })
}

// put stores a command without ringing the doorbell.
func (h *host) put(p *pair, c *nvme.Command) (cid uint16) {
	h.cid++
	c.CID.Set(h.cid)
	nvme.OverlaySlice[nvme.Command](p.sq.Bytes)[p.tail] = *c
	p.tail = (p.tail + 1) % p.size
	return h.cid
}

func (h *host) ring(p *pair) {
	h.t.Helper()
	if err := p.sqd.Ring(p.tail); err != nil {
		h.t.Fatal(err)
	}
}

// reap takes the next completion, if there is one within limit.
func (h *host) reap(p *pair, limit time.Duration) (nvme.Completion, bool) {
	end := h.s.Now() + limit
	for {
		slot := p.cq.Bytes[p.head*16 : p.head*16+16]
		if nvme.CompletionDW3(mmio.LoadEntry32(slot[nvme.DW3Offset:])).Phase() == p.phase {
			c := *nvme.Overlay[nvme.Completion](slot)
			if p.head++; p.head == p.size {
				p.head, p.phase = 0, !p.phase
			}
			_ = p.cqd.Ring(p.head)
			return c, true
		}
		if h.s.Now() >= end {
			return nvme.Completion{}, false
		}
		h.s.Pause(end)
	}
}

// do sends one command and waits for its end.
func (h *host) do(p *pair, c nvme.Command) (nvme.Status, uint32) {
	h.t.Helper()
	cid := h.put(p, &c)
	h.ring(p)
	e, ok := h.reap(p, time.Minute)
	if !ok {
		h.t.Fatalf("%s: no completion", c.OPC.Name(p.id == 0))
	}
	if e.DW3().CID() != cid || e.SQID.Get() != p.id {
		h.t.Fatalf("%s: completion of %d in queue %d, want %d in %d", c.OPC.Name(p.id == 0), e.DW3().CID(), e.SQID.Get(), cid, p.id)
	}
	return e.DW3().Status(), e.DW0.Get()
}

// ok is do that wants success.
func (h *host) ok(p *pair, c nvme.Command) uint32 {
	h.t.Helper()
	st, dw0 := h.do(p, c)
	if !st.OK() {
		h.t.Fatalf("%v", st.Err(c.OPC, p.id == 0, dw0))
	}
	return dw0
}

// queue makes an I/O queue pair.
func (h *host) queue(id uint16, entries uint32, interrupts bool) *pair {
	h.t.Helper()
	p := h.pair(id, entries)
	var c nvme.Command
	c.SetCreateIOCQ(id, p.cq.Addr, entries, 1, interrupts)
	h.ok(&h.admin, c)
	c.SetCreateIOSQ(id, p.sq.Addr, entries, id, 0)
	h.ok(&h.admin, c)
	return &p
}

func (h *host) queues(n uint32) uint32 {
	h.t.Helper()
	var c nvme.Command
	c.SetSetFeatures(nvme.FeatNumberOfQueues, 0, nvme.QueueCounts(n))
	sq, _ := nvme.GrantedQueues(h.ok(&h.admin, c))
	return sq
}

// data names the memory of segs in a command.
func (h *host) data(c *nvme.Command, segs []hw.Seg) {
	h.t.Helper()
	var list []nvme.Seg
	for _, s := range segs {
		list = append(list, nvme.Seg(s))
	}
	page := nvme.ListPage{Addr: h.list.Addr, Entries: nvme.OverlaySlice[nvme.Le64](h.list.Bytes)}
	if _, err := nvme.BuildPRP(c, list, h.shift, []nvme.ListPage{page}); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) mapped(mem []byte) []hw.Seg {
	h.t.Helper()
	m, err := h.s.Map(mem)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = m.Unmap() })
	return m.Segments()
}

// rw reads or writes blocks through mapped memory.
func (h *host) rw(p *pair, write, fua bool, slba uint64, blocks uint32, segs []hw.Seg) nvme.Status {
	h.t.Helper()
	var c nvme.Command
	if write {
		c.SetWrite(1, slba, blocks, fua)
	} else {
		c.SetRead(1, slba, blocks)
	}
	h.data(&c, segs)
	st, _ := h.do(p, c)
	return st
}
