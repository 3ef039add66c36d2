package ctrl_test

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// More tests that are named after public bug reports, as in bugs_test.go.

// TestA07Unreadable: registers that read as ones, or as zeros, are an error that tells
// everything that is needed to find out why.
func TestA07Unreadable(t *testing.T) {
	for name, change := range map[string]func(c *sim.Config){
		"ones":  func(c *sim.Config) { c.OnesUntil = time.Hour },
		"zeros": func(c *sim.Config) { c.CAP = nvme.CAPFields{} },
	} {
		cfg := sim.Default(16 * base.MiB)
		cfg.Target = "pci:0000:01:00.0"
		change(&cfg)
		s := model(t, cfg)
		_, err := ctrl.Open(bg(t), s, quiet)
		if !errors.Is(err, base.ErrDeviceGone) && !errors.Is(err, base.ErrCorrupt) {
			t.Fatalf("%s: %v", name, err)
		}
		for _, says := range []string{"pci:0000:01:00.0", "device 1d1d:5151", "window of " + base.FormatBytes(int64(s.ID().Window)),
			"an IOMMU translates", "read capabilities", "CAP"} {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v does not say %q", name, err, says)
			}
		}
		if s.ID().Window < 8192 {
			t.Errorf("a window of %d bytes", s.ID().Window)
		}
	}
}

// stores is a controller that counts stores to registers before some time.
type stores struct {
	*sim.Sim
	until time.Duration
	early atomic.Int64
}

func (s *stores) Store32(off uint64, v uint32) error {
	if s.Now() < s.until {
		s.early.Add(1)
	}
	return s.Sim.Store32(off, v)
}

func (s *stores) Store64(off, v uint64) error {
	if s.Now() < s.until {
		s.early.Add(1)
	}
	return s.Sim.Store64(off, v)
}

// TestA08RegistersComeLate: registers that read as ones after a reset are waited for,
// with a bound; nothing is written before they are there, and the wait is told.
func TestA08RegistersComeLate(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	cfg.OnesUntil = 250 * time.Millisecond
	s := &stores{Sim: model(t, cfg), until: cfg.OnesUntil}
	d, err := ctrl.Open(bg(t), s, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if n := s.early.Load(); n != 0 {
		t.Errorf("%d registers were written while they read as ones", n)
	}
	if told := strings.Join(d.Info().Reasons, "\n"); !strings.Contains(told, "read as ones for 250ms") {
		t.Errorf("%s", told)
	}
	works(t, d)
	if err := d.Close(bg(t)); err != nil {
		t.Error(err)
	}
	cfg.OnesUntil = 2 * time.Second // longer than any controller is known to need
	s = &stores{Sim: model(t, cfg), until: cfg.OnesUntil}
	if _, err := ctrl.Open(bg(t), s, quiet); !errors.Is(err, base.ErrDeviceGone) || s.early.Load() != 0 || s.Now() > cfg.OnesUntil {
		t.Errorf("%v after %v, %d stores", err, s.Now(), s.early.Load())
	}
}

// TestA10Namespaces: the only active namespace is taken, whatever its number; of
// several one must be named, and the choices are listed; one that is not active is an
// error of its own.
func TestA10Namespaces(t *testing.T) {
	spaces := func(ids ...uint32) (out []sim.Namespace) {
		for _, id := range ids {
			out = append(out, sim.Namespace{ID: id, Blocks: uint64(id) << 8, BlockShift: 12})
		}
		return out
	}
	gap := spaces(1, 2)
	gap[0].Inactive = true
	for _, c := range []struct {
		have  []sim.Namespace
		want  uint32 // asked for
		got   uint32
		class error
		says  string
	}{
		{spaces(7), 0, 7, nil, ""}, {gap, 0, 2, nil, ""}, {gap, 2, 2, nil, ""}, {spaces(3, 9), 9, 9, nil, ""},
		{spaces(3, 9), 0, 0, base.ErrInvalid, "[3 9]"}, {spaces(3, 9), 4, 0, base.ErrNotFound, "namespace 4 is not active; these are: [3 9]"},
		{gap, 1, 0, base.ErrNotFound, "namespace 1 is not active; these are: [2]"}, {gap[:1], 0, 0, base.ErrNotFound, "no active namespace"},
	} {
		cfg := sim.Default(base.MiB)
		cfg.Namespaces = c.have
		o := quiet
		o.NSID = c.want
		d, err := ctrl.Open(bg(t), model(t, cfg), o)
		if c.class != nil {
			if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if got := d.Info().Capacity; got != int64(c.got)<<20 {
			t.Errorf("%+v: capacity %d", c, got)
		}
		if err := d.Close(bg(t)); err != nil {
			t.Error(err)
		}
	}
}

// TestB03DeafAfterReady: a controller that ignores admin doorbells for two seconds
// after RDY comes up with a quirk for it. Without one the error has what a line in the
// table of quirks needs, and no time-out is shorter than CAP.TO.
func TestB03DeafAfterReady(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	cfg.DeafFor, cfg.Vendor, cfg.Device = 2*time.Second, 0x1234, 0xabcd
	s := model(t, cfg)
	_, err := ctrl.Open(bg(t), s, quiet)
	if !errors.Is(err, base.ErrTimeout) {
		t.Fatal(err)
	}
	for _, says := range []string{"identify controller", "after 10s", "CAP.TO 10000 ms", "device 1234:abcd"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
	}
	if s.Now() < 10*time.Second {
		t.Errorf("given up after %v", s.Now())
	}
	o := quiet
	o.Quirk = nvme.QuirkEntry{Flags: nvme.QuirkAdminDelay, DelayMs: 2001}
	s = model(t, cfg)
	d := opened(t, s, o)
	if s.Now() < 2*time.Second || s.Now() > 3*time.Second {
		t.Errorf("up after %v", s.Now())
	}
	works(t, d)
	if told := strings.Join(d.Info().Reasons, "\n"); !strings.Contains(told, "quirk: admin delay") {
		t.Errorf("%s", told)
	}
	cfg.CAP.TO = 60 // half minutes
	s = model(t, cfg)
	if _, err := ctrl.Open(bg(t), s, quiet); !errors.Is(err, base.ErrTimeout) || s.Now() < 30*time.Second {
		t.Errorf("%v after %v", err, s.Now())
	}
	o.Quirk.DelayMs = 60_001
	if _, err := ctrl.Open(bg(t), model(t, cfg), o); !errors.Is(err, base.ErrInvalid) {
		t.Error(err)
	}
}

// TestB05QueueCount: a controller that fails to count its queues has one; otherwise as
// many are used as it grants, and no more than were asked for.
func TestB05QueueCount(t *testing.T) {
	for name, c := range map[string]struct {
		change func(c *sim.Config)
		rules  []sim.Rule
		queues int
	}{
		"internal error": {func(*sim.Config) {}, []sim.Rule{{Kind: sim.FaultStatus, Admin: true, Count: 1,
			Ops: []nvme.Opcode{nvme.AdminSetFeatures}, Status: nvme.StatusInternal | nvme.StatusDNR}}, 1},
		"fewer": {func(c *sim.Config) { c.MaxQueues = 1 }, nil, 1},
		"three": {func(c *sim.Config) { c.MaxQueues = 3 }, nil, 3},
		"more":  {func(c *sim.Config) { c.Grant = 30 }, nil, 6},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := sim.Default(16 * base.MiB)
			c.change(&cfg)
			s := &scarce{Sim: model(t, cfg), most: base.GiB} // which counts what is allocated for queues
			s.Script(c.rules...)
			d, err := ctrl.Open(bg(t), s, ctrl.Options{Watch: -1, Queues: 6, Depth: 7})
			if err != nil {
				t.Fatal(err)
			}
			if got := len(s.asked)/3 - 1; got != c.queues {
				t.Errorf("%d queues, want %d", got, c.queues)
			}
			works(t, d)
			if err := d.Close(bg(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestC23PrimeDevice: a device of a prime number of blocks is read from end to end in
// chunks that do not divide it: the sum is exact. Its last block works, the next one is
// refused without a command, and so is what overflows.
func TestC23PrimeDevice(t *testing.T) {
	for blocks, chunks := range map[int64][]int64{10_007: {1, 3}, 1_000_003: {128, 4096}} {
		cfg := sim.Default(base.MiB)
		cfg.Namespaces[0].BlockShift, cfg.Namespaces[0].Blocks = 9, uint64(blocks)
		d := opened(t, model(t, cfg), quiet)
		if got := d.Info().Capacity; got != blocks*512 {
			t.Fatalf("capacity %d", got)
		}
		r := memory(t, 4096*512, d)
		b := &driver.Batch{}
		for _, chunk := range chunks {
			before, total := d.Stats().ReadBytes, int64(0)
			for at := int64(0); at < blocks; {
				b.Reqs = b.Reqs[:0]
				for ; at < blocks && len(b.Reqs) < 256; at += chunk {
					n := min(chunk, blocks-at) * 512
					b.Reqs = append(b.Reqs, driver.Request{Op: driver.OpRead, Off: at * 512, Len: n, Segs: []driver.Seg{r.Seg(0, n)}})
				}
				run(t, d, b)
				for i := range b.Reqs {
					total += b.Reqs[i].Done
				}
			}
			if moved := d.Stats().ReadBytes - before; total != blocks*512 || moved != total {
				t.Errorf("%d blocks in chunks of %d: %d bytes, the device counts %d", blocks, chunk, total, moved)
			}
		}
		last := driver.Request{Op: driver.OpWrite, Off: (blocks - 1) * 512, Len: 512, Segs: []driver.Seg{r.Seg(0, 512)}}
		want := bytes.Clone(r.CPU()[:512])
		err := driver.Do(bg(t), d, last)
		clear(r.CPU()[:512])
		if last.Op = driver.OpRead; err == nil {
			err = driver.Do(bg(t), d, last)
		}
		if err != nil || !bytes.Equal(r.CPU()[:512], want) {
			t.Errorf("the last block: %v, or wrong bytes", err)
		}
		sent := d.Stats().Commands
		for _, off := range []int64{blocks * 512, (blocks + 1) * 512, 1<<63 - 512, 1<<62 + 512} {
			err := driver.Do(bg(t), d, driver.Request{Op: driver.OpRead, Off: off, Len: 512, Segs: []driver.Seg{r.Seg(0, 512)}})
			if !errors.Is(err, base.ErrOutOfRange) || d.Stats().Commands != sent {
				t.Errorf("at %d: %v, %d commands", off, err, d.Stats().Commands-sent)
			}
		}
	}
}
