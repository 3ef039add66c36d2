package sim_test

import (
	"sync"
	"testing"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// kept is a model with a lock of its test, and eight blocks: 'a' is durable in all
// of them, 'b' is in the cache of the first four, and a write of 'c' to the next two
// and a discard of the last two are in flight.
type kept struct {
	*host
	lock sync.Mutex
	p    *pair
	mem  *hw.Buffer
}

const keptBlocks = 8

func newKept(t *testing.T) *kept {
	k := new(kept)
	cfg := sim.Default(base.MiB)
	cfg.Lock = &k.lock
	k.host = up(t, open(t, cfg))
	k.queues(1)
	k.p, k.mem = k.queue(1, 16, false), k.alloc(keptBlocks*4096)
	k.write(0, keptBlocks, 'a')
	k.flush()
	k.write(0, 4, 'b')
	k.s.Script(sim.Rule{Kind: sim.FaultLose})
	var c nvme.Command
	k.fill(4, 2, 'c')
	c.SetWrite(1, 4, 2, false)
	k.data(&c, []hw.Seg{{Addr: k.mem.Addr + 4*4096, Len: 2 * 4096}})
	k.put(k.p, &c)
	ranges := k.alloc(4096)
	nvme.OverlaySlice[nvme.DSMRange](ranges.Bytes)[0].SLBA.Set(6)
	nvme.OverlaySlice[nvme.DSMRange](ranges.Bytes)[0].Blocks.Set(2)
	c.SetDSM(1, 1)
	c.PRP1.Set(ranges.Addr)
	k.put(k.p, &c)
	k.ring(k.p)
	k.s.Pause(0) // fetched, and lost
	return k
}

func (k *kept) fill(first, n int, v byte) {
	for i := range n * 4096 {
		k.mem.Bytes[first*4096+i] = v
	}
}

func (k *kept) write(first, n int, v byte) {
	k.t.Helper()
	k.fill(first, n, v)
	if st := k.rw(k.p, true, false, uint64(first), uint32(n), []hw.Seg{{Addr: k.mem.Addr + uint64(first)*4096, Len: uint64(n) * 4096}}); st != 0 {
		k.t.Fatal(st)
	}
}

func (k *kept) flush() {
	k.t.Helper()
	var c nvme.Command
	c.SetFlush(1)
	k.ok(k.p, c)
}

func (k *kept) image() *sim.Image {
	k.lock.Lock()
	defer k.lock.Unlock()
	return k.s.Locked().Image()
}

// blocks are the first bytes of the blocks of a model; it fails the test when a
// block is not all of one.
func blocks(t *testing.T, s *sim.Sim, lock *sync.Mutex) (out [keptBlocks]byte) {
	t.Helper()
	lock.Lock()
	defer lock.Unlock()
	b := make([]byte, keptBlocks*4096)
	s.Locked().Read(0, 0, b)
	for i, v := range b {
		if i%4096 == 0 {
			out[i/4096] = v
		} else if v != out[i/4096] {
			t.Fatalf("block %d is of two writes: %q and %q", i/4096, out[i/4096], v)
		}
	}
	return out
}

// drawn makes models of an image with many seeds, and counts for each block what it
// holds, and what happened to them.
func drawn(t *testing.T, im *sim.Image, fate sim.Fate, after func(s *sim.Sim)) (seen [keptBlocks]map[byte]int, sum sim.Loss, late int) {
	t.Helper()
	for i := range seen {
		seen[i] = map[byte]int{}
	}
	for seed := range uint64(200) {
		var lock sync.Mutex
		s, loss, err := im.Open(fate, func(c *sim.Config) { c.Seed, c.Lock = seed, &lock })
		if err != nil {
			t.Fatal(err)
		}
		sum.Add(loss)
		late += s.Late()
		if after != nil {
			after(s)
		}
		for i, v := range blocks(t, s, &lock) {
			seen[i][v]++
		}
		clean(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return seen, sum, late
}

// some tells whether exactly the values of want were seen.
func some(seen map[byte]int, want string) bool {
	for _, v := range []byte(want) {
		if seen[v] == 0 {
			return false
		}
	}
	return len(seen) == len(want)
}

func TestImagePowerLost(t *testing.T) {
	k := newKept(t)
	seen, sum, late := drawn(t, k.image(), sim.PowerLost, nil)
	for i, s := range seen {
		want := [...]string{"ab", "ab", "ab", "ab", "ac", "ac", "a\x00\xff", "a\x00\xff"}[i]
		if !some(s, want) {
			t.Errorf("block %d: %v, want each of %q", i, s, want)
		}
	}
	if sum.Kept == 0 || sum.Lost == 0 || sum.Landed == 0 || sum.Torn == 0 || sum.Dropped == 0 || late != 0 {
		t.Errorf("%+v, %d late", sum, late)
	}
	// A second cut finds nothing in the cache.
	_, again, _ := drawn(t, k.image(), sim.PowerLost, func(s *sim.Sim) {
		im := s.Locked().Image() // nobody else is here
		two, loss, err := im.Open(sim.PowerLost, func(c *sim.Config) { c.Lock = nil })
		if err != nil || loss != (sim.Loss{}) {
			t.Fatalf("a second cut: %+v, %v", loss, err)
		}
		_ = two.Close()
	})
	if again.Kept == 0 {
		t.Errorf("%+v", again)
	}
}

// TestImageHostLost: the controller is enabled, its cache is kept, and what was in
// flight may land until it is stopped, and not later.
func TestImageHostLost(t *testing.T) {
	k := newKept(t)
	before, _, late := drawn(t, k.image(), sim.HostLost, func(s *sim.Sim) {
		if st := nvme.CSTS(must(s.Load32(nvme.RegCSTS))); !st.Ready() {
			t.Fatalf("CSTS %v", st)
		}
	})
	after, _, left := drawn(t, k.image(), sim.HostLost, func(s *sim.Sim) {
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		(&host{t: t, s: s}).disable()
		if s.Late() != 0 {
			t.Fatal("commands of the dead host are left after the controller was stopped")
		}
	})
	if late == 0 || left == 0 {
		t.Error("nothing lands late")
	}
	for i := range 4 {
		if !some(before[i], "b") || !some(after[i], "b") {
			t.Errorf("block %d of the cache: %v, %v", i, before[i], after[i])
		}
	}
	for i := 4; i < keptBlocks; i++ {
		if !some(after[i], [...]string{"ac", "a\x00\xff"}[i/6]) {
			t.Errorf("block %d in flight: %v", i, after[i])
		}
		if before[i]['a'] <= after[i]['a'] {
			t.Errorf("block %d in flight: %v before the stop, %v after", i, before[i], after[i])
		}
	}
}

func TestImageAllEnded(t *testing.T) {
	seen, sum, late := drawn(t, newKept(t).image(), sim.AllEnded, nil)
	for i, s := range seen {
		if want := [...]string{"b", "b", "b", "b", "c", "c", "a\x00\xff", "a\x00\xff"}[i]; !some(s, want) {
			t.Errorf("block %d: %v, want each of %q", i, s, want)
		}
	}
	if late != 0 || sum.Landed != 2*200 {
		t.Errorf("%+v, %d late", sum, late)
	}
}

// TestImageStandsAlone: neither the model that went on nor a model that was made of
// an image changes it.
func TestImageStandsAlone(t *testing.T) {
	k := newKept(t)
	im := k.image()
	k.s.Script()
	k.write(0, keptBlocks, 'z')
	k.flush()
	all := func(c *sim.Config) { c.Lock = &k.lock }
	one, _, err := im.Open(sim.AllEnded, all)
	if err != nil {
		t.Fatal(err)
	}
	k.lock.Lock()
	one.Locked().Write(0, 0, make([]byte, keptBlocks*4096))
	k.lock.Unlock()
	two, _, err := im.Open(sim.AllEnded, all)
	if err != nil {
		t.Fatal(err)
	}
	if got := blocks(t, two, &k.lock); string(got[:6]) != "bbbbcc" {
		t.Errorf("the image holds %q", got)
	}
	if got := blocks(t, k.s, &k.lock); string(got[:]) != "zzzzzzzz" {
		t.Errorf("the model that went on holds %q", got)
	}
	for _, s := range []*sim.Sim{one, two} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestObserve: each command is seen when it is fetched, executed and ended, in that
// order and with its data; a power cut that the observer asks for happens after it.
func TestObserve(t *testing.T) {
	k := newKept(t)
	k.s.Script()
	var seen []sim.Moment
	cut := false
	k.s.Observe(func(x sim.Seen) {
		seen = append(seen, x.Moment)
		if d := x.Data(); x.Command.OPC != nvme.OpWrite || len(d) != 1 || len(d[0]) != 4096 || d[0][0] != 'x' {
			t.Errorf("moment %d: %s, %d pieces", x.Moment, x.Command.OPC.Name(false), len(d))
		}
		if x.Moment != sim.Ended {
			return
		}
		k.s.Locked().Power(func(sim.Loss) { cut = true })
		if cut {
			t.Error("the power was cut in the middle of a command")
		}
	})
	k.write(3, 1, 'x')
	if len(seen) != 3 || seen[0] != sim.Fetched || seen[1] != sim.Executed || seen[2] != sim.Ended {
		t.Errorf("moments %v", seen)
	}
	if !cut || k.csts().Ready() {
		t.Errorf("the power was not cut: %v", cut)
	}
	k.s.Observe(nil)
	clean(t, k.s)
}
