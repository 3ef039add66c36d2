package sim_test

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// shadowed brings a controller up that may be given doorbells in memory.
func shadowed(t *testing.T) (*sim.Sim, *host) {
	t.Helper()
	cfg := sim.Default(base.MiB)
	cfg.Identify.OACS.Set(nvme.OACSDoorbellBuffer)
	s := open(t, cfg)
	return s, up(t, s)
}

// TestDoorbellBuffer: once it has the pages, the model takes commands by memory alone,
// and checks what it finds there like what comes by a register.
func TestDoorbellBuffer(t *testing.T) {
	s, h := shadowed(t)
	values, events := h.alloc(4096), h.alloc(4096)
	var c nvme.Command
	c.SetDoorbellBuffer(values.Addr, events.Addr)
	h.ok(&h.admin, c)
	h.queues(4)
	p := h.queue(1, 8, false)
	before := s.Counts().SQDoorbells
	for i := range 3 {
		c.SetFlush(1)
		h.put(p, &c)
		binary.LittleEndian.PutUint32(values.Bytes[8:], p.tail)
		if _, ok := h.reap(p, 1<<40); !ok {
			t.Fatalf("command %d was not seen", i)
		}
		binary.LittleEndian.PutUint32(values.Bytes[12:], p.head)
	}
	s.Pause(s.Now())
	if got := binary.LittleEndian.Uint32(events.Bytes[8:]); got != p.tail {
		t.Errorf("at rest the model wants to be told from %d on, the tail is %d", got, p.tail)
	}
	if n := s.Counts().SQDoorbells; n != before {
		t.Errorf("%d writes to registers", n-before)
	}
	clean(t, s)
	binary.LittleEndian.PutUint32(values.Bytes[8:], 8)
	s.Pause(s.Now())
	want(t, s, 0, "past the end of the submission queue")
}

// TestDoorbellBufferRefused: pages that cannot be, and a controller without.
func TestDoorbellBufferRefused(t *testing.T) {
	for name, x := range map[string]struct{ values, events uint64 }{"no page": {0, 4096}, "odd": {4096, 4096 + 4}, "the other": {4096, 0}} {
		s, h := shadowed(t)
		var c nvme.Command
		c.SetDoorbellBuffer(x.values, x.events)
		if st, _ := h.do(&h.admin, c); st.Code() != nvme.StatusInvalidField {
			t.Errorf("%s: %v", name, st)
		}
		want(t, s, 0, "pages at")
	}
	s := open(t, sim.Default(base.MiB))
	h := up(t, s)
	var c nvme.Command
	c.SetDoorbellBuffer(4096, 8192)
	if st, _ := h.do(&h.admin, c); st.Code() != nvme.StatusInvalidOpcode {
		t.Errorf("without: %v", st)
	}
	want(t, s, 0, "no doorbell buffers")
	s, h = shadowed(t)
	c.SetDoorbellBuffer(1<<20, 2<<20)
	h.ok(&h.admin, c)
	h.queues(1)
	c.SetCreateIOCQ(1, h.alloc(4096).Addr, 8, 1, false)
	h.put(&h.admin, &c)
	h.ring(&h.admin)
	h.until("the failure", time.Second, func() bool { return h.csts().Fatal() })
	if v := s.Violations(); len(v) == 0 || !strings.Contains(v[0], "doorbells in memory cannot be reached") {
		t.Errorf("%q", v)
	}
}
