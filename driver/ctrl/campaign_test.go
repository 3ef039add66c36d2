package ctrl_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

// campaignCommands is how many commands the fault campaign sends; the long form
// has a million.
var campaignCommands = flag.Int64("campaign", 18000, "commands of the fault campaign")

// campaign is a random workload against a failing controller, with a copy of what
// every block may hold.
type campaign struct {
	t     *testing.T
	rnd   *rand.Rand
	s     *sim.Sim
	d     *ctrl.Device
	block int64
	// holds lists the versions that a block may hold: one, or several after writes
	// that failed. Version 0 is all zeros.
	holds map[int64][]uint32
	// stale lists what a block may hold instead after a power cut: what it held
	// before the writes that no flush has covered.
	stale   map[int64][]uint32
	version uint32
	cuts    int               // power cuts and removals so far
	memory  [2]*driver.Region // used in turns
	spare   *driver.Region    // of two blocks, see works
	sums    [2]uint32         // of the memory when its last batch had ended
	used    [2]bool
	resets  int
	opt     ctrl.Options
	before  int64    // commands of devices that were pulled out
	moved   [2]int64 // bytes that the answers tell of reads and writes, since the device was opened
	pack    []sim.Kind
}

// campaignFaults are the kinds that the campaign deals, like a pack of cards.
var campaignFaults = []sim.Kind{sim.FaultLose, sim.FaultLoseCompletion, sim.FaultDuplicate, sim.FaultWrongSQID, sim.FaultWildSQHD,
	sim.FaultUnknownCID, sim.FaultStatus, sim.FaultFatal, sim.FaultFatal,
	sim.FaultOnes, sim.FaultPower, sim.FaultPower, sim.FaultRemove, sim.FaultRemove, sim.FaultDelay}

const (
	campaignSpan   = 48 * base.MiB // of the device
	campaignMemory = 8 * base.MiB  // of one batch
	campaignMost   = 20            // times the commands that were asked for, until enough has happened
)

// fill writes the content of a block in a version.
func (c *campaign) fill(p []byte, lba int64, version uint32) {
	if version == 0 {
		clear(p)
		return
	}
	x := uint64(lba)*0x9e3779b97f4a7c15 ^ uint64(version)<<20 | 1
	for i := 0; i < len(p); i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(p[i:], x)
	}
	binary.LittleEndian.PutUint32(p, version)
}

// check compares a block that was read with what it may hold, and remembers which
// version it was: nothing may change it any more but a write.
func (c *campaign) check(p []byte, lba int64, want []byte) {
	c.t.Helper()
	may := c.holds[lba]
	if may == nil {
		may = []uint32{0}
	}
	version := binary.LittleEndian.Uint32(p)
	c.fill(want, lba, version)
	if !slices.Contains(may, version) || string(p) != string(want) {
		c.t.Fatalf("block %d holds version %d, or is torn; it may hold %v", lba, version, may)
	}
	c.holds[lba] = []uint32{version}
}

// batch draws requests for disjoint extents and disjoint memory.
func (c *campaign) batch(r *driver.Region) *driver.Batch {
	b := new(driver.Batch)
	at, lbas := int64(0), c.rnd.Perm(int(campaignSpan/(4*base.MiB)))
	for _, slot := range lbas[:1+c.rnd.IntN(len(lbas))] {
		n := c.block << c.rnd.IntN(14)
		n = min(n+c.rnd.Int64N(n/c.block)*c.block, 4*base.MiB)
		if at+n > campaignMemory {
			break
		}
		off := int64(slot)*4*base.MiB + c.rnd.Int64N((4*base.MiB-n)/c.block+1)*c.block
		q := driver.Request{Op: driver.OpRead, Off: off, Len: n}
		for left := n; left > 0; { // in one or several pieces
			k := left
			if c.rnd.IntN(3) == 0 {
				k = min(left, (1+c.rnd.Int64N(40))*c.block)
			}
			if len(q.Segs) == driver.MaxSegs-1 {
				k = left
			}
			q.Segs = append(q.Segs, r.Seg(at, k))
			at, left = at+k, left-k
		}
		if c.rnd.IntN(10) < 3 {
			q.Op, q.FUA = driver.OpWrite, c.rnd.IntN(2) == 0
		}
		b.Reqs = append(b.Reqs, q)
	}
	if c.rnd.IntN(4) == 0 {
		b.Reqs = append(b.Reqs, driver.Request{Op: driver.OpFlush})
	}
	return b
}

// round submits one batch, with or without a fault, and checks every answer; hurry
// means with one.
func (c *campaign) round(turn int, hurry bool) {
	c.t.Helper()
	r := c.memory[turn]
	b := c.batch(r)
	if len(b.Reqs) == 0 {
		return
	}
	c.version++
	for i := range b.Reqs {
		q := &b.Reqs[i]
		if q.Op != driver.OpWrite {
			continue
		}
		mem := r.Bytes(q.Segs[0].Off, q.Len) // the pieces follow each other
		for k := int64(0); k < q.Len; k += c.block {
			c.fill(mem[k:k+c.block], (q.Off+k)/c.block, c.version)
		}
	}
	rules := []sim.Rule{{Kind: sim.FaultDelay, Chance: 0.5, Delay: time.Millisecond}}
	if c.rnd.IntN(2) == 0 || hurry {
		f := sim.Rule{Kind: c.kind(), Skip: c.rnd.IntN(30), Count: 1 + c.rnd.IntN(5), Delay: 5 * time.Second}
		f.Status = []nvme.Status{nvme.StatusNSNotReady, nvme.StatusWriteFault | nvme.StatusDNR, nvme.StatusUnrecoveredRead | nvme.StatusDNR}[c.rnd.IntN(3)]
		rules = []sim.Rule{f, rules[0]}
	}
	c.s.Script(rules...)
	submit(c.t, c.d, b)
	wait(c.t, b)
	c.answers(b, r)
	c.sums[turn], c.used[turn] = crc32.ChecksumIEEE(r.CPU()), true
	switch c.d.State() {
	case driver.StateReady:
	case driver.StateRemoved:
		c.replug()
		c.works()
	default:
		c.s.Script()
		if err := c.d.Reset(bg(c.t)); err != nil {
			c.t.Fatal(err)
		}
		c.resets++
		c.works()
	}
	if other := 1 - turn; c.used[other] && crc32.ChecksumIEEE(c.memory[other].CPU()) != c.sums[other] {
		c.t.Fatal("memory was changed after its requests had ended")
	}
	if c.rnd.IntN(8) == 0 { // it gets other bus addresses; a late command would fault
		if err := errors.Join(c.d.Detach(r), c.d.Attach(r)); err != nil {
			c.t.Fatal(err)
		}
	}
}

// works reads a block and writes another: without a fault a device that was just reset
// does both.
func (c *campaign) works() {
	c.t.Helper()
	c.version++
	lba := c.rnd.Int64N(campaignSpan/c.block - 1)
	c.fill(c.spare.Bytes(c.block, c.block), lba+1, c.version)
	b := new(driver.Batch)
	for i, op := range []driver.Op{driver.OpRead, driver.OpWrite} {
		at := int64(i) * c.block
		b.Reqs = append(b.Reqs, driver.Request{Op: op, Off: lba*c.block + at, Len: c.block, Segs: []driver.Seg{c.spare.Seg(at, c.block)}})
	}
	submit(c.t, c.d, b)
	wait(c.t, b)
	if err := b.Err(); err != nil || c.d.State() != driver.StateReady {
		c.t.Fatalf("a device that was reset is %v: %v", c.d.State(), err)
	}
	c.answers(b, c.spare)
}

// kind deals the next kind of fault.
func (c *campaign) kind() sim.Kind {
	if len(c.pack) == 0 {
		c.pack = slices.Clone(campaignFaults)
		c.rnd.Shuffle(len(c.pack), func(i, k int) { c.pack[i], c.pack[k] = c.pack[k], c.pack[i] })
	}
	last := len(c.pack) - 1
	kind := c.pack[last]
	c.pack = c.pack[:last]
	return kind
}

// replug puts the device back that was pulled out, and brings it up anew.
func (c *campaign) replug() {
	c.t.Helper()
	c.s.Script()
	c.before += c.d.Stats().Commands
	if err := c.d.Close(bg(c.t)); err != nil {
		c.t.Fatal(err)
	}
	c.s.Insert()
	c.open()
}

func (c *campaign) open() {
	c.t.Helper()
	var err error
	if c.d, err = ctrl.Open(bg(c.t), c.s, c.opt); err != nil {
		c.t.Fatal(err)
	}
	c.moved = [2]int64{}
}

// commands that were sent so far.
func (c *campaign) commands() int64 { return c.before + c.d.Stats().Commands }

// lacks says what a campaign of so many commands has not seen often enough, or
// nothing. A million commands in three campaigns make 2,500 resets and a thousand
// faults of each kind; what the dice withhold from a short one, it goes on for.
func (c *campaign) lacks(commands int64) string {
	if least := commands / 400; int64(c.resets) < least {
		return fmt.Sprintf("only %d resets, want %d", c.resets, least)
	}
	fired := c.s.Fired()
	for _, kind := range campaignFaults {
		if least := commands/1000 + 1; int64(fired[kind]) < least {
			return fmt.Sprintf("only %d faults of kind %v, want %d", fired[kind], kind, least)
		}
	}
	return ""
}

// answers checks what a batch has brought.
func (c *campaign) answers(b *driver.Batch, r *driver.Region) {
	c.t.Helper()
	want := make([]byte, c.block)
	for i := range b.Reqs {
		q := &b.Reqs[i]
		var st *nvme.StatusError
		switch {
		case q.Op == driver.OpFlush:
			continue
		case q.Err != nil && !errors.Is(q.Err, base.ErrIsolated) && !errors.Is(q.Err, base.ErrDeviceGone) && !errors.As(q.Err, &st):
			c.t.Fatalf("entry %d: %v", i, q.Err)
		case q.Err == nil && q.Done != q.Len:
			c.t.Fatalf("entry %d: %d of %d bytes and no error", i, q.Done, q.Len)
		}
		c.moved[q.Op] += q.Done
		mem := r.Bytes(q.Segs[0].Off, q.Len)
		for k := int64(0); k < q.Len; k += c.block {
			lba := (q.Off + k) / c.block
			switch {
			case q.Op == driver.OpRead && k < q.Done:
				c.check(mem[k:k+c.block], lba, want)
			case q.Op == driver.OpRead:
			default:
				c.wrote(lba, q.FUA, k < q.Done)
			}
		}
	}
	if s := c.d.Stats(); s.ReadBytes != c.moved[driver.OpRead] || s.WriteBytes != c.moved[driver.OpWrite] {
		c.t.Fatalf("the answers tell of %d bytes read and written, the device counts %d and %d", c.moved, s.ReadBytes, s.WriteBytes)
	}
	c.durable(b)
}

// wrote notes that a block was written, or may have been.
func (c *campaign) wrote(lba int64, fua, done bool) {
	before := c.holds[lba]
	if before == nil {
		before = []uint32{0}
	}
	switch {
	case done && fua:
		delete(c.stale, lba)
		c.holds[lba] = []uint32{c.version}
		return
	case done:
		c.holds[lba] = []uint32{c.version}
	default:
		c.holds[lba] = append(before, c.version)
	}
	c.stale[lba] = union(c.stale[lba], append(before, c.version))
}

// durable notes what a flush of the batch has covered, the writes of earlier ones,
// and then what a power cut has lost.
func (c *campaign) durable(b *driver.Batch) {
	for i := range b.Reqs {
		if q := &b.Reqs[i]; q.Op != driver.OpFlush || q.Err != nil {
			continue
		}
		for lba, may := range c.stale {
			if !slices.Contains(may, c.version) {
				delete(c.stale, lba)
			}
		}
	}
	fired := c.s.Fired()
	if cuts := fired[sim.FaultPower] + fired[sim.FaultRemove]; cuts != c.cuts {
		c.cuts = cuts
		for lba, may := range c.stale {
			c.holds[lba] = union(slices.Clone(c.holds[lba]), may)
		}
		clear(c.stale)
	}
}

// union appends to a what it lacks of b.
func union(a, b []uint32) []uint32 {
	for _, v := range b {
		if !slices.Contains(a, v) {
			a = append(a, v)
		}
	}
	return a
}

// TestFaultCampaign: whatever the controller does, each request ends once, no byte
// differs, and neither memory nor an identifier is given back early. The model
// reports whatever breaks the rules.
func TestFaultCampaign(t *testing.T) {
	for name, change := range map[string]func(cfg *sim.Config, o *ctrl.Options){
		"4096": func(cfg *sim.Config, o *ctrl.Options) {},
		"512": func(cfg *sim.Config, o *ctrl.Options) {
			cfg.Namespaces[0].BlockShift, cfg.Namespaces[0].Blocks = 9, 48<<11
		},
		"small": func(cfg *sim.Config, o *ctrl.Options) { cfg.CAP.MQES, cfg.Namespaces[0].NOIOB = 6, 40; o.Queues = 3 },
	} {
		t.Run(name, func(t *testing.T) {
			c := &campaign{t: t, rnd: testenv.Seed(t), holds: map[int64][]uint32{}, stale: map[int64][]uint32{}}
			cfg, o := sim.Default(campaignSpan), quiet
			cfg.Seed, cfg.UnreadyDelay, cfg.FixedPages = c.rnd.Uint64(), 10*time.Millisecond, 4
			cfg.Eager = name == "4096"
			if name == "512" {
				cfg.Identify.SGLS.Set(1)
			}
			if name == "small" {
				cfg.FetchBurst = 2
			}
			change(&cfg, &o)
			c.block = 1 << cfg.Namespaces[0].BlockShift
			c.s = model(t, cfg)
			c.opt = o
			c.open()
			defer func() {
				if err := c.d.Close(bg(t)); err != nil {
					t.Errorf("close: %v", err)
				}
			}()
			for r, n := range map[**driver.Region]int64{&c.memory[0]: campaignMemory, &c.memory[1]: campaignMemory, &c.spare: 2 * c.block} {
				mem, err := driver.AllocRegion(n, "campaign")
				if err != nil {
					t.Fatal(err)
				}
				defer mem.Close()
				*r = mem
			}
			limit := *campaignCommands / 3
			if testenv.Race {
				limit /= 6
			}
			for turn := 0; c.commands() < limit || c.lacks(limit) != "" && c.commands() < campaignMost*limit; turn = 1 - turn {
				c.round(turn, c.commands() >= limit)
			}
			t.Logf("%d commands, %d resets, faults %v", c.commands(), c.resets, c.s.Fired())
			if lack := c.lacks(limit); lack != "" {
				t.Error(lack)
			}
		})
	}
}
