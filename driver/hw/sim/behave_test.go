package sim_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// block is one page of memory with a queue to move it.
type block struct {
	*host
	p   *pair
	mem *hw.Buffer
}

func newBlock(t *testing.T, cfg sim.Config) block {
	t.Helper()
	h := up(t, open(t, cfg))
	h.queues(2)
	return block{h, h.queue(1, 32, false), h.alloc(4096)}
}

func (b *block) segs() []hw.Seg { return []hw.Seg{{Addr: b.mem.Addr, Len: 4096}} }

// write fills block lba with c.
func (b *block) write(lba uint64, c byte, fua bool) {
	b.t.Helper()
	for i := range b.mem.Bytes {
		b.mem.Bytes[i] = c
	}
	if st := b.rw(b.p, true, fua, lba, 1, b.segs()); st != 0 {
		b.t.Fatal(st)
	}
}

// read is the byte that block lba is full of, or -1.
func (b *block) read(lba uint64) int {
	b.t.Helper()
	if st := b.rw(b.p, false, false, lba, 1, b.segs()); st != 0 {
		b.t.Fatal(st)
	}
	if bytes.Count(b.mem.Bytes, b.mem.Bytes[:1]) != 4096 {
		return -1
	}
	return int(b.mem.Bytes[0])
}

func (b *block) flush() {
	b.t.Helper()
	var c nvme.Command
	c.SetFlush(1)
	b.ok(b.p, c)
}

// restart brings the controller up after a power cut.
func (b *block) restart() {
	b.t.Helper()
	if err := b.s.Start(context.Background()); err != nil {
		b.t.Fatal(err)
	}
	b.enable(16)
	b.queues(2)
	b.p = b.queue(1, 32, false)
}

// TestJ11PowerCut: what was flushed or written with FUA survives; the rest is old
// or new, both happen, and nothing else.
func TestJ11PowerCut(t *testing.T) {
	for _, shift := range []uint8{9, 12} {
		cfg := sim.Default(base.MiB)
		cfg.Seed = uint64(shift)
		b := newBlock(t, cfg)
		for lba := range uint64(90) {
			b.write(lba, 1, false)
		}
		b.flush()
		for lba := range uint64(60) {
			b.write(lba, 2, lba >= 30)
		}
		b.write(31, 3, true)
		b.s.Power()
		b.restart()
		seen := map[int]int{}
		for lba := range uint64(90) {
			got := b.read(lba)
			switch {
			case lba < 30:
				seen[got]++
			case lba == 31 && got != 3, lba != 31 && lba < 60 && got != 2, lba >= 60 && got != 1:
				t.Errorf("block %d holds %d", lba, got)
			}
		}
		if seen[1]+seen[2] != 30 || seen[1] < 5 || seen[2] < 5 {
			t.Errorf("unflushed blocks: %v", seen)
		}
		b.s.Power() // what was read once stays
		b.restart()
		again := map[int]int{}
		for lba := range uint64(30) {
			again[b.read(lba)]++
		}
		if !maps.Equal(seen, again) {
			t.Errorf("%v became %v", seen, again)
		}
		clean(t, b.s)
	}
}

// TestResetKeepsCache: only power loses the cache; an orderly shutdown writes it.
func TestResetKeepsCache(t *testing.T) {
	b := newBlock(t, sim.Default(base.MiB))
	for lba := range uint64(20) {
		b.write(lba, 7, false)
	}
	b.disable()
	b.enable(16)
	b.store(nvme.RegCC, uint32(nvme.CC(must(b.s.Load32(nvme.RegCC))).WithShutdown(nvme.ShutdownNormal)))
	b.until("shutdown", time.Minute, func() bool { return b.csts().ShutdownDone() })
	b.s.Power()
	b.restart()
	for lba := range uint64(20) {
		if got := b.read(lba); got != 7 {
			t.Errorf("block %d holds %d", lba, got)
		}
	}
	b.store(nvme.RegNSSR, nvme.NSSRReset)
	if b.csts() != nvme.CSTSReset {
		t.Errorf("%#x", uint32(b.csts()))
	}
	b.store(nvme.RegCSTS, uint32(nvme.CSTSReset))
	if b.csts() != 0 {
		t.Errorf("%#x", uint32(b.csts()))
	}
	b.restart()
	clean(t, b.s)
}

// TestDiscard: deallocated blocks become old, zeros or ones, some of them later;
// a block that is written again meanwhile keeps what was written.
func TestDiscard(t *testing.T) {
	cfg := sim.Default(base.MiB)
	cfg.DiscardDelay = time.Second
	b := newBlock(t, cfg)
	for lba := range uint64(200) {
		b.write(lba, 5, false)
	}
	r := nvme.OverlaySlice[nvme.DSMRange](b.mem.Bytes)
	for i := range uint64(20) {
		r[i] = nvme.DSMRange{}
		r[i].SLBA.Set(i * 5)
		r[i].Blocks.Set(5)
	}
	var c nvme.Command
	c.SetDSM(1, 20)
	b.data(&c, []hw.Seg{{Addr: b.mem.Addr, Len: 320}})
	b.ok(b.p, c)
	b.write(42, 9, false)
	b.until("time", time.Minute, func() bool { return b.s.Now() > 2*time.Second || !b.tick() })
	seen := map[int]int{}
	for lba := range uint64(200) {
		got := b.read(lba)
		switch {
		case lba == 42 && got != 9, lba >= 100 && got != 5:
			t.Errorf("block %d holds %d", lba, got)
		case lba < 100:
			seen[got]++
		}
	}
	if seen[0]+seen[5]+seen[255] != 99 || seen[0] < 10 || seen[5] < 10 || seen[255] < 10 {
		t.Errorf("deallocated blocks: %v", seen)
	}
	r[0].SLBA.Set(255)
	r[0].Blocks.Set(2)
	c.SetDSM(1, 1)
	b.data(&c, []hw.Seg{{Addr: b.mem.Addr, Len: 16}})
	if st, _ := b.do(b.p, c); st.Code() != nvme.StatusLBARange {
		t.Errorf("%v", st)
	}
}

// tick lets the model's time pass.
func (h *host) tick() bool { h.s.Pause(h.s.Now() + 100*time.Millisecond); return true }

func TestZeroesAndCompare(t *testing.T) {
	b := newBlock(t, sim.Default(base.MiB))
	for lba := range uint64(4) {
		b.write(lba, 8, true)
	}
	var c nvme.Command
	c.SetWriteZeroes(1, 1, 2, true, true)
	b.ok(b.p, c)
	for lba, want := range []int{8, 0, 0, 8} {
		if got := b.read(uint64(lba)); got != want {
			t.Errorf("block %d holds %d", lba, got)
		}
	}
	c.SetCompare(1, 3, 1)
	b.data(&c, b.segs())
	b.ok(b.p, c)
	c.SetCompare(1, 2, 1)
	b.data(&c, b.segs())
	if st, _ := b.do(b.p, c); st.Code() != nvme.StatusCompareFailure {
		t.Errorf("%v", st)
	}
	clean(t, b.s)
}

func TestReadOnlyNamespace(t *testing.T) {
	cfg := sim.Default(base.MiB)
	cfg.Namespaces[0].ReadOnly = true
	b := newBlock(t, cfg)
	if st := b.rw(b.p, true, false, 0, 1, b.segs()); st.Code() != nvme.StatusNSProtected {
		t.Errorf("%v", st)
	}
	if b.read(0) != 0 {
		t.Error("read")
	}
}

func TestSGL(t *testing.T) {
	cfg := sim.Default(base.MiB)
	cfg.Identify.SGLS.Set(2)
	b := newBlock(t, cfg)
	mem := b.alloc(64 * base.KiB)
	for i := range mem.Bytes {
		mem.Bytes[i] = byte(i * 11 >> 4)
	}
	list := []nvme.ListPage{{Addr: b.list.Addr, Entries: nvme.OverlaySlice[nvme.Le64](b.list.Bytes)}}
	move := func(write bool, segs []nvme.Seg) nvme.Status {
		var c nvme.Command
		c.SetRead(1, 3, 4)
		if write {
			c.SetWrite(1, 3, 4, false)
		}
		if _, err := nvme.BuildSGL(&c, segs, 1, list); err != nil {
			t.Fatal(err)
		}
		st, _ := b.do(b.p, c)
		return st
	}
	at := func(off, n uint64) nvme.Seg { return nvme.Seg{Addr: mem.Addr + off, Len: n} }
	if st := move(true, []nvme.Seg{at(100, 16384)}); st != 0 {
		t.Fatal(st)
	}
	want := bytes.Clone(mem.Bytes[100:16484])
	var segs []nvme.Seg
	for i := range uint64(64) {
		segs = append(segs, at(32768+i*512, 256))
	}
	if st := move(false, segs); st != 0 {
		t.Fatal(st)
	}
	for i := range 64 {
		if !bytes.Equal(mem.Bytes[32768+i*512:][:256], want[i*256:(i+1)*256]) {
			t.Fatalf("piece %d is wrong", i)
		}
	}
	clean(t, b.s)
	for _, x := range []struct {
		segs []nvme.Seg
		st   nvme.Status
	}{
		{[]nvme.Seg{at(0, 16380)}, nvme.StatusSGLDataLength}, {[]nvme.Seg{at(0, 16388)}, nvme.StatusSGLDataLength},
		{[]nvme.Seg{at(2, 16384)}, nvme.StatusSGLOffset}, {[]nvme.Seg{at(0, 16382), at(16384, 2)}, nvme.StatusSGLOffset},
		{[]nvme.Seg{{Addr: 0x1000, Len: 16384}}, nvme.StatusTransferError},
	} {
		before := len(b.s.Violations())
		if st := move(false, x.segs); st.Code() != x.st || len(b.s.Violations()) != before+1 {
			t.Errorf("%v: %v, want %v", x.segs, st, x.st)
		}
	}
}

func TestAsyncEvents(t *testing.T) {
	s := open(t, sim.Default(base.MiB))
	h := up(t, s)
	var c nvme.Command
	s.Event(nvme.MakeAsyncEvent(nvme.EventTypeSMART, nvme.EventInfoTemperature, nvme.LogSMART)) // not enabled
	c.SetSetFeatures(nvme.FeatAsyncEvents, 0, nvme.EventSMART|nvme.EventNamespace)
	h.ok(&h.admin, c)
	c.SetAsyncEventRequest()
	for range 4 {
		h.put(&h.admin, &c)
	}
	first := h.cid - 3
	h.ring(&h.admin)
	if e, ok := h.reap(&h.admin, time.Second); ok {
		t.Fatalf("an event without a reason: %+v", e)
	}
	if st, _ := h.do(&h.admin, c); st.Code() != nvme.StatusEventLimit {
		t.Errorf("fifth request: %v", st)
	}
	s.SMART(func(l *nvme.SMARTLog) { l.CriticalWarning = nvme.WarnTemperature })
	s.Event(nvme.MakeAsyncEvent(nvme.EventTypeSMART, nvme.EventInfoTemperature, nvme.LogSMART))
	s.Event(nvme.MakeAsyncEvent(nvme.EventTypeNotice, nvme.EventInfoNamespaceChanged, nvme.LogChangedNamespaces))
	s.Event(nvme.MakeAsyncEvent(nvme.EventTypeNotice, nvme.EventInfoFirmwareActivates, nvme.LogFirmware)) // not enabled
	for i, want := range []nvme.AsyncEvent{0x020101, 0x040002} {
		e, ok := h.reap(&h.admin, time.Second)
		if !ok || nvme.AsyncEvent(e.DW0.Get()) != want || e.DW3().CID() != first+uint16(i) {
			t.Errorf("event %d: %+v, want %v", i, e, want)
		}
	}
	mem := h.alloc(4096)
	for range 2 {
		c.SetGetLogPage(nvme.LogChangedNamespaces, nvme.NSIDAll, 4096, 0, false)
		c.PRP1.Set(mem.Addr)
		h.ok(&h.admin, c)
		ids, err := nvme.Overlay[nvme.NamespaceList](mem.Bytes).IDs()
		t.Log(ids, err)
	}
	if ids, _ := nvme.Overlay[nvme.NamespaceList](mem.Bytes).IDs(); ids != nil {
		t.Errorf("the list is not cleared by reading: %v", ids)
	}
	c.SetGetLogPage(nvme.LogSMART, nvme.NSIDAll, 512, 0, false)
	c.PRP1.Set(mem.Addr)
	h.ok(&h.admin, c)
	if l := nvme.Overlay[nvme.SMARTLog](mem.Bytes); l.Warnings() != "temperature outside its limits" || l.CompositeKelvin.Get() != 310 {
		t.Errorf("%+v", l)
	}
	c.SetGetLogPage(nvme.LogError, nvme.NSIDAll, 64, 0, false)
	c.PRP1.Set(mem.Addr)
	h.ok(&h.admin, c)
	if e := nvme.Overlay[nvme.ErrorLogEntry](mem.Bytes); e.Count.Get() != 1 || e.StatusField().Code() != nvme.StatusEventLimit {
		t.Errorf("%+v", e)
	}
	c.SetGetLogPage(0x70, nvme.NSIDAll, 64, 0, false)
	if st, _ := h.do(&h.admin, c); st.Code() != nvme.StatusInvalidLog {
		t.Errorf("%v", st)
	}
}

func TestIdentifyData(t *testing.T) {
	cfg := sim.Default(base.MiB)
	cfg.Namespaces = []sim.Namespace{{ID: 1, Blocks: 8, BlockShift: 12, Inactive: true}, {ID: 2, Blocks: 100, BlockShift: 9, NOIOB: 32, Shared: true},
		{ID: 7, Blocks: 8, BlockShift: 9, Metadata: 8, Extended: true, Protection: 1}}
	s := open(t, cfg)
	h := up(t, s)
	mem := h.alloc(4096)
	ask := func(cns uint8, nsid uint32) nvme.Status {
		var c nvme.Command
		c.SetIdentify(cns, nsid)
		c.PRP1.Set(mem.Addr)
		st, _ := h.do(&h.admin, c)
		return st
	}
	if ask(nvme.CNSController, 0) != 0 {
		t.Fatal("identify controller")
	}
	if id := nvme.Overlay[nvme.IdentifyController](mem.Bytes); id.Check() != nil || id.NN.Get() != 7 || id.Serial() != "SIM0001" || id.VID.Get() != cfg.Vendor {
		t.Errorf("%v %d", id.Check(), id.NN.Get())
	}
	for above, want := range map[uint32]int{0: 2, 2: 1, 7: 0} {
		if ask(nvme.CNSActiveList, above) != 0 {
			t.Fatal("list")
		}
		if ids, err := nvme.Overlay[nvme.NamespaceList](mem.Bytes).IDs(); err != nil || len(ids) != want {
			t.Errorf("above %d: %v %v", above, ids, err)
		}
	}
	if ask(nvme.CNSNamespace, 2) != 0 {
		t.Fatal("namespace")
	}
	ns := nvme.Overlay[nvme.IdentifyNamespace](mem.Bytes)
	if g, err := ns.Geometry(); err != nil || g != (nvme.Geometry{BlockShift: 9, Blocks: 100, Boundary: 32}) || !ns.Shared() {
		t.Errorf("%+v %v", g, err)
	}
	if st := ask(nvme.CNSNamespace, 1); st != 0 || ns.Active() {
		t.Errorf("inactive namespace: %v", st)
	}
	if _, err := ns.Geometry(); err == nil {
		t.Error("geometry of an inactive namespace")
	}
	if st := ask(nvme.CNSNamespace, 7); st != 0 || !ns.ExtendedLBA() {
		t.Errorf("%v", st)
	}
	if st := ask(nvme.CNSDescriptors, 7); st != 0 {
		t.Errorf("%v", st)
	}
	if id, err := nvme.ParseDescriptors(mem.Bytes); err != nil || id.String() == "" {
		t.Errorf("%v %v", id, err)
	}
	clean(t, s)
	for _, x := range [][2]uint32{{nvme.CNSNamespace, 8}, {nvme.CNSNamespace, 0}, {nvme.CNSDescriptors, 1}, {nvme.CNSActiveList, nvme.NSIDAll}} {
		if st := ask(uint8(x[0]), x[1]); st.Code() != nvme.StatusInvalidNS {
			t.Errorf("%v: %v", x, st)
		}
	}
}

// TestFaults: each kind of fault does what it says.
func TestFaults(t *testing.T) {
	flush := func(b *block) (nvme.Completion, bool) {
		var c nvme.Command
		c.SetFlush(1)
		b.put(b.p, &c)
		b.ring(b.p)
		return b.reap(b.p, time.Second)
	}
	for kind, check := range map[sim.Kind]func(t *testing.T, b *block){
		sim.FaultLose: func(t *testing.T, b *block) {
			if e, ok := flush(b); ok {
				t.Errorf("%+v", e)
			}
		},
		sim.FaultLoseCompletion: func(t *testing.T, b *block) {
			if e, ok := flush(b); ok {
				t.Errorf("%+v", e)
			}
		},
		sim.FaultDuplicate: func(t *testing.T, b *block) {
			e, ok1 := flush(b)
			f, ok2 := b.reap(b.p, time.Second)
			if !ok1 || !ok2 || e.DW3().CID() != f.DW3().CID() {
				t.Errorf("%+v %+v", e, f)
			}
		},
		sim.FaultWrongSQID: func(t *testing.T, b *block) {
			if e, ok := flush(b); !ok || e.SQID.Get() == 1 {
				t.Errorf("%+v", e)
			}
		},
		sim.FaultWildSQHD: func(t *testing.T, b *block) {
			if e, ok := flush(b); !ok || uint32(e.SQHD.Get()) < b.p.size {
				t.Errorf("%+v", e)
			}
		},
		sim.FaultUnknownCID: func(t *testing.T, b *block) {
			if e, ok := flush(b); !ok || e.DW3().CID() == b.cid {
				t.Errorf("%+v", e)
			}
		},
		sim.FaultStatus: func(t *testing.T, b *block) {
			if e, ok := flush(b); !ok || e.DW3().Status() != nvme.StatusWriteFault {
				t.Errorf("%+v", e)
			}
		},
		sim.FaultFatal: func(t *testing.T, b *block) {
			if _, ok := flush(b); ok || !errors.Is(b.csts().Check(), base.ErrIsolated) {
				t.Errorf("%v", b.csts())
			}
			b.disable()
		},
		sim.FaultOnes: func(t *testing.T, b *block) {
			if _, ok := flush(b); ok || !b.csts().Gone() {
				t.Errorf("%v", b.csts())
			}
			_ = b.s.Stop(context.Background())
			if b.csts() != 0 {
				t.Errorf("%v", b.csts())
			}
		},
		sim.FaultRemove: func(t *testing.T, b *block) {
			if _, ok := flush(b); ok || !b.csts().Gone() {
				t.Errorf("%v", b.csts())
			}
		},
		sim.FaultPower: func(t *testing.T, b *block) {
			if _, ok := flush(b); ok || b.csts() != 0 {
				t.Errorf("%v", b.csts())
			}
		},
		sim.FaultDelay: func(t *testing.T, b *block) {
			start := b.s.Now()
			if _, ok := flush(b); !ok || b.s.Now() == start {
				t.Errorf("after %v", b.s.Now()-start)
			}
		},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			b := newBlock(t, sim.Default(base.MiB))
			b.s.Script(sim.Rule{Kind: kind, Admin: true, Ops: []nvme.Opcode{nvme.AdminFormatNVM}},
				sim.Rule{Kind: kind, Ops: []nvme.Opcode{nvme.OpFlush}, Skip: 1, Count: 1, Delay: time.Second / 2, Status: nvme.StatusWriteFault})
			if e, ok := flush(&b); !ok || e.DW3().Status() != 0 {
				t.Fatalf("before: %+v", e)
			}
			check(t, &b)
			if got := b.s.Fired(); len(got) != 1 || got[kind] != 1 {
				t.Errorf("fired %v", got)
			}
			clean(t, b.s)
		})
	}
}

// TestH03Abort: a command that has not started is aborted; one that is done is not.
func TestH03Abort(t *testing.T) {
	b := newBlock(t, sim.Default(base.MiB))
	b.s.Script(sim.Rule{Kind: sim.FaultLoseCompletion, Count: 1}, sim.Rule{Kind: sim.FaultLose, Count: 1})
	var c, a nvme.Command
	c.SetFlush(1)
	done := b.put(b.p, &c)
	lost := b.put(b.p, &c)
	b.ring(b.p)
	b.s.Pause(b.s.Now())
	for cid, want := range map[uint16]bool{done: false, lost: true, 999: false} {
		a.SetAbort(1, cid)
		if dw0 := b.ok(&b.admin, a); nvme.Aborted(dw0) != want {
			t.Errorf("command %d: %d", cid, dw0)
		}
	}
	if e, ok := b.reap(b.p, time.Second); !ok || e.DW3().CID() != lost || e.DW3().Status().Code() != nvme.StatusAborted {
		t.Errorf("%+v", e)
	}
	clean(t, b.s)
}

// TestI04LateDMA: between the clearing of EN and RDY = 0 commands in flight may
// move data; after that none does.
func TestI04LateDMA(t *testing.T) {
	moved := 0
	for seed := range uint64(20) {
		cfg := sim.Default(base.MiB)
		cfg.Seed, cfg.UnreadyDelay = seed, time.Second
		b := newBlock(t, cfg)
		b.write(0, 1, true)
		clear(b.mem.Bytes)
		b.s.Script(sim.Rule{Kind: sim.FaultLose})
		var c nvme.Command
		c.SetRead(1, 0, 1)
		b.data(&c, b.segs())
		b.put(b.p, &c)
		b.ring(b.p)
		b.s.Pause(b.s.Now())
		if b.mem.Bytes[0] != 0 {
			t.Fatal("a lost command moved data at once")
		}
		b.disable()
		moved += int(b.mem.Bytes[0])
		clear(b.mem.Bytes)
		b.tick()
		if b.mem.Bytes[0] != 0 {
			t.Error("data moved after RDY was 0")
		}
		clean(t, b.s)
	}
	if moved < 3 || moved > 17 {
		t.Errorf("%d of 20 late reads moved data", moved)
	}
}

func TestStartOfRegisters(t *testing.T) {
	cfg := sim.Default(base.MiB)
	cfg.OnesUntil, cfg.DeafFor = 250*time.Millisecond, 2*time.Second
	s := open(t, cfg)
	h := newHost(t, s)
	if v := must(s.Load64(nvme.RegCAP)); v != ^uint64(0) {
		t.Errorf("%#x", v)
	}
	h.until("registers", time.Second, func() bool { return !h.csts().Gone() })
	if d := s.Now(); d != cfg.OnesUntil {
		t.Errorf("after %v", d)
	}
	h.enable(8)
	var c nvme.Command
	c.SetIdentify(nvme.CNSController, 0)
	h.data(&c, []hw.Seg{{Addr: h.alloc(4096).Addr, Len: 4096}})
	h.put(&h.admin, &c)
	h.ring(&h.admin) // B-03: nobody listens
	if _, ok := h.reap(&h.admin, time.Second); ok {
		t.Error("it was heard")
	}
	h.until("time", time.Minute, func() bool { return s.Now() > 3*time.Second || !h.tick() })
	h.ring(&h.admin)
	if e, ok := h.reap(&h.admin, time.Second); !ok || e.DW3().Status() != 0 {
		t.Errorf("%+v", e)
	}
	cfg.OnesUntil, cfg.NeverReady = 0, true
	s = open(t, cfg)
	h = newHost(t, s)
	h.store(nvme.RegAQA, 0x10001)
	h.store(nvme.RegCC, 0x460001)
	h.until("time", time.Minute, func() bool { return s.Now() > 30*time.Second || !h.tick() })
	if h.csts().Ready() {
		t.Error("ready")
	}
	cfg.NeverReady, cfg.NeverUnready = false, true
	s = open(t, cfg)
	h = up(t, s)
	h.store(nvme.RegCC, must(s.Load32(nvme.RegCC))&^1)
	h.until("time", time.Minute, func() bool { return s.Now() > 30*time.Second || !h.tick() })
	if !h.csts().Ready() {
		t.Error("not ready")
	}
}

func TestInterruptPerCompletion(t *testing.T) {
	cfg := sim.Default(base.MiB)
	cfg.Service = sim.ServiceFixed
	s := open(t, cfg)
	h := up(t, s)
	h.queues(2)
	p := h.queue(1, 8, true)
	v, err := s.Vector(1)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	for range 5 {
		var c nvme.Command
		c.SetFlush(1)
		h.put(p, &c)
		h.ring(p)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		if err := v.Wait(ctx); err != nil { // the model works inside
			t.Fatal(err)
		}
		cancel()
		if _, ok := h.reap(p, 0); !ok {
			t.Error("an interrupt without a completion")
		}
	}
	clean(t, s)
}
