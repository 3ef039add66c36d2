package sim_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/hwtest"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestConformance(t *testing.T) {
	for name, change := range map[string]func(c *sim.Config){
		"virtual": func(c *sim.Config) {}, "real": func(c *sim.Config) { c.Real = true },
		"big pages":     func(c *sim.Config) { c.CAP.MPSMIN = 4; c.RemovalFaults = true },
		"runs of pages": func(c *sim.Config) { c.FixedPages = 16; c.CAP.DSTRD = 3; c.Vectors = 0 },
	} {
		for _, c := range hwtest.Cases() {
			t.Run(name+"/"+c.Name, func(t *testing.T) {
				cfg := sim.Default(64 * base.MiB)
				change(&cfg)
				s := open(t, cfg)
				h := hwtest.Harness{Dev: s, Valid64: nvme.RegCAP, Access: s.Access, Raise: s.Raise, Remove: s.Remove}
				d := cfg.CAP.DSTRD
				h.Window = uint64(base.AlignUp(int64(nvme.CQDoorbell(uint16(cfg.MaxQueues), d)+4), 4096))
				c.Run(t, h)
				if c.Name != "H04Removal" {
					clean(t, s)
				}
			})
		}
	}
}

func TestBringUpAndData(t *testing.T) {
	for name, change := range map[string]func(c *sim.Config, h *host){
		"default":  func(c *sim.Config, h *host) {},
		"512":      func(c *sim.Config, h *host) { c.Namespaces[0].BlockShift = 9 },
		"stride":   func(c *sim.Config, h *host) { c.CAP.DSTRD = 4 },
		"64 KiB":   func(c *sim.Config, h *host) { c.CAP.MPSMIN = 4; h.shift = 16 },
		"runs":     func(c *sim.Config, h *host) { c.FixedPages = 8 },
		"no limit": func(c *sim.Config, h *host) { c.Identify.MDTS = 0 },
		"slow":     func(c *sim.Config, h *host) { c.ReadyDelay = 2 * time.Second; c.UnreadyDelay = time.Second },
		"fixed":    func(c *sim.Config, h *host) { c.Service = sim.ServiceFixed },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := sim.Default(64 * base.MiB)
			h := &host{shift: 12}
			change(&cfg, h)
			s := open(t, cfg)
			shift := h.shift
			h = newHost(t, s)
			h.shift = shift
			for range 2 {
				h.enable(16)
				if n := h.queues(4); n != 4 {
					t.Errorf("granted %d", n)
				}
				p := h.queue(1, 5, false)
				exercise(t, h, p, cfg.Namespaces[0].BlockShift)
				h.disable()
			}
			clean(t, s)
		})
	}
}

// exercise fills a part of a namespace, then writes and reads all over it, wrapping
// the queue many times, and compares with a copy.
func exercise(t *testing.T, h *host, p *pair, blockShift uint8) {
	rnd := testenv.Seed(t)
	mem := h.alloc(128 * base.KiB)
	const span = base.MiB
	shadow := make([]byte, span)
	block := 1 << blockShift
	for i := range 76 {
		n := (rnd.IntN(65536/block) + 1) * block
		slba := rnd.IntN((span - n) / block)
		at := rnd.IntN(16) * 512
		if i < 16 {
			n, slba = 65536, i*65536/block
		}
		if h.shift > 12 {
			at = 0
		}
		segs := h.mapped(mem.Bytes[at : at+n])
		off := slba * block
		if i%2 == 0 || i < 16 {
			for k := range n {
				mem.Bytes[at+k] = byte(rnd.Uint32())
			}
			copy(shadow[off:], mem.Bytes[at:at+n])
			if st := h.rw(p, true, i%3 == 0, uint64(slba), uint32(n/block), segs); st != 0 {
				t.Fatal(st)
			}
			continue
		}
		if st := h.rw(p, false, false, uint64(slba), uint32(n/block), segs); st != 0 {
			t.Fatal(st)
		}
		if !bytes.Equal(mem.Bytes[at:at+n], shadow[off:off+n]) {
			t.Fatalf("read of %d bytes at %d: wrong bytes", n, off)
		}
	}
}

func TestPathIsKept(t *testing.T) {
	cfg := sim.Default(base.MiB)
	cfg.Path = blocksFile(t, base.MiB)
	for i := range 2 {
		s, err := sim.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Run("", func(t *testing.T) {
			h := up(t, s)
			h.queues(1)
			p := h.queue(1, 8, false)
			mem := h.alloc(4096)
			segs := []hw.Seg{{Addr: mem.Addr, Len: 4096}}
			if i == 0 {
				copy(mem.Bytes, "kept")
				if st := h.rw(p, true, false, 255, 1, segs); st != 0 {
					t.Fatal(st)
				}
			} else if st := h.rw(p, false, false, 255, 1, segs); st != 0 || string(mem.Bytes[:4]) != "kept" {
				t.Errorf("%v %q", st, mem.Bytes[:4])
			}
		})
		if _, err := sim.Open(cfg); !errors.Is(err, base.ErrLocked) {
			t.Errorf("second owner: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	cfg.Namespaces[0].Blocks *= 2
	var small *base.TooSmall
	if _, err := sim.Open(cfg); !errors.Is(err, base.ErrMismatch) || !errors.As(err, &small) || *small != (base.TooSmall{Bytes: base.MiB, Made: 2 * base.MiB}) {
		t.Errorf("file smaller than the namespace: %v", err)
	}
	folder := cfg
	folder.Path = t.TempDir()
	if _, err := sim.Open(folder); !errors.Is(err, base.ErrInvalid) || !strings.Contains(err.Error(), "a model needs a regular file") {
		t.Errorf("a directory: %v", err)
	}
	cfg.Namespaces[0].Blocks = 0 // the file says it
	cfg.Namespaces[0].ReadOnly = true
	for range 2 {
		s, err := sim.Open(cfg)
		if err != nil {
			t.Fatalf("two readers: %v", err)
		}
		defer s.Close()
		t.Run("", func(t *testing.T) {
			h := up(t, s)
			h.queues(1)
			p := h.queue(1, 8, false)
			mem := h.alloc(4096)
			segs := []hw.Seg{{Addr: mem.Addr, Len: 4096}}
			if st := h.rw(p, false, false, 255, 1, segs); st != 0 || string(mem.Bytes[:4]) != "kept" {
				t.Errorf("the last block: %v %q", st, mem.Bytes[:4])
			}
			if st := h.rw(p, false, false, 256, 1, segs); st&^nvme.StatusDNR != nvme.StatusLBARange {
				t.Errorf("behind it: %v", st)
			}
		})
	}
}

// blocksFile is a new file of so many zero bytes.
func blocksFile(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ns")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestOpenMakesNothing: a file that is missing, empty or too small stays so.
func TestOpenMakesNothing(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		for _, blocks := range []uint64{0, 1, 4} {
			cfg := sim.Default(base.MiB)
			cfg.Namespaces[0].ReadOnly, cfg.Namespaces[0].Blocks = readOnly, blocks
			cfg.Path = filepath.Join(t.TempDir(), "missing")
			if _, err := sim.Open(cfg); !errors.Is(err, base.ErrNotFound) {
				t.Errorf("missing file, read only %v, %d blocks: %v", readOnly, blocks, err)
			}
			if _, err := os.Lstat(cfg.Path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("read only %v, %d blocks: made: %v", readOnly, blocks, err)
			}
			for _, size := range []int64{0, 4095} {
				cfg.Path = blocksFile(t, size)
				var small *base.TooSmall
				if _, err := sim.Open(cfg); !errors.As(err, &small) || *small != (base.TooSmall{Bytes: size, Made: int64(blocks) * 4096}) {
					t.Errorf("%d bytes, read only %v, %d blocks: %v", size, readOnly, blocks, err)
				}
				if st, err := os.Stat(cfg.Path); err != nil || st.Size() != size {
					t.Errorf("%d bytes, read only %v, %d blocks: changed: %v %v", size, readOnly, blocks, st, err)
				}
			}
		}
	}
}

func TestConfigRefused(t *testing.T) {
	for i, change := range []func(c *sim.Config){
		func(c *sim.Config) { c.Namespaces[0].Blocks = 0 }, func(c *sim.Config) { c.Namespaces[0].BlockShift = 8 },
		func(c *sim.Config) { c.Namespaces[0].ID = 0 }, func(c *sim.Config) { c.MaxQueues = 0 },
		func(c *sim.Config) { c.MaxQueues = nvme.MaxQueues + 1 }, func(c *sim.Config) { c.Vectors = sim.MaxVectors + 1 },
		func(c *sim.Config) { c.FixedPages = 3 },
		func(c *sim.Config) { c.Namespaces = make([]sim.Namespace, sim.MaxNamespaces+1) },
		func(c *sim.Config) { c.Namespaces[0].Blocks = 1 << 39 },
	} {
		c := sim.Default(base.MiB)
		change(&c)
		if _, err := sim.Open(c); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("case %d: %v", i, err)
		}
	}
	c := sim.Default(base.MiB)
	c.Path = t.TempDir() // a directory
	if _, err := sim.Open(c); err == nil {
		t.Error("a directory as media")
	}
}

func TestParseTarget(t *testing.T) {
	c, err := sim.ParseTarget("sim:size=2GiB,lba=512,seed=7,mqes=64,mdts=0,dstrd=2,noiob=256,vwc=0,sgl=1,nsid=9,queues=3,vectors=0,service=fixed,clock=virtual,path=/x")
	ns := c.Namespaces[0]
	if err != nil || ns.Blocks != 4<<20 || ns.BlockShift != 9 || ns.ID != 9 || ns.NOIOB != 256 || c.Seed != 7 || c.CAP.MQES != 63 ||
		c.Identify.MDTS != 0 || c.CAP.DSTRD != 2 || c.Identify.VolatileCache() || !c.Identify.SGL().Supported || c.MaxQueues != 3 ||
		c.Vectors != 0 || c.Service != sim.ServiceFixed || c.Real || c.Path != "/x" {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := sim.ParseTarget("sim:path=/a,,b"); err != nil || c.Path != "/a,b" || c.Namespaces[0].Blocks != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	if got := sim.TargetWithPath("sim:mdts=1,path=x,lba=512", "/a,b"); got != "sim:mdts=1,path=/a,,b,lba=512" {
		t.Error(got)
	}
	if c, err := sim.ParseTarget("sim:"); err != nil || c.Namespaces[0].Blocks != 1<<18 || !c.Real {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{"file:/x", "sim:size", "sim:size=1X", "sim:lba=1024", "sim:mqes=1", "sim:mqes=65537", "sim:wrong=1",
		"sim:seed=1,seed=2", "sim:service=slow", "sim:size=0", "sim:vwc=2", "sim:path=", "sim:seed=1,,vwc=1"} {
		if _, err := sim.ParseTarget(bad); !errors.Is(err, base.ErrInvalid) || !strings.Contains(err.Error(), "sim") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	for bad, says := range map[string]string{"sim:wrong=1": `no setting "wrong" (it has path, size, lba,`, "sim:size": "write size=VALUE",
		"sim:seed=1,seed=2": "seed is set twice", "sim:size=10": "less than a block of 4096 bytes", "sim:lba=3": "it can be 4096 or 512",
		"sim:mqes=1": "from 2 to 65536 (entries of a queue)"} {
		if _, err := sim.ParseTarget(bad); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v does not say %q", bad, err, says)
		}
	}
	// Each default is what a target without the setting has.
	want, err := sim.ParseTarget("sim:size=1GiB")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sim.Settings() {
		if s.Name == "path" || s.Name == "size" {
			continue
		}
		got, err := sim.ParseTarget("sim:size=1GiB," + s.Name + "=" + s.Default)
		if got.Target = want.Target; err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is not %s by default: %v", s.Name, s.Default, err)
		}
	}
}

// TestSeedRepeats: the same config and the same commands give the same run.
func TestSeedRepeats(t *testing.T) {
	run := func(seed uint64) (out []byte) {
		t.Run("", func(t *testing.T) {
			cfg := sim.Default(base.MiB)
			cfg.Seed, cfg.DiscardDelay = seed, time.Second
			s := open(t, cfg)
			h := up(t, s)
			h.queues(2)
			p := h.queue(1, 32, false)
			mem := h.alloc(4096)
			s.Script(sim.Rule{Kind: sim.FaultDelay, Delay: time.Millisecond})
			for i := range 20 {
				var c nvme.Command
				c.SetWrite(1, uint64(i), 1, false)
				h.data(&c, []hw.Seg{{Addr: mem.Addr, Len: 4096}})
				h.put(p, &c)
			}
			h.ring(p)
			for range 20 {
				c, ok := h.reap(p, time.Second)
				if !ok {
					t.Fatal("lost")
				}
				out = append(out, byte(c.DW3().CID()), byte(s.Now()), byte(mem.Addr>>13))
			}
		})
		return out
	}
	a, b, c := run(1), run(1), run(2)
	if !bytes.Equal(a, b) || bytes.Equal(a, c) {
		t.Errorf("% x\n% x\n% x", a, b, c)
	}
}

func TestServiceFixed(t *testing.T) {
	cfg := sim.Default(256 * base.MiB)
	cfg.Service, cfg.Identify.MDTS, cfg.FixedPages = sim.ServiceFixed, 0, 256
	s := open(t, cfg)
	h := up(t, s)
	h.queues(2)
	p := h.queue(1, 1024, false)
	mem := h.alloc(base.MiB)
	read := func(n int, blocks uint32) time.Duration {
		start := s.Now()
		for i := range n {
			var c nvme.Command
			c.SetRead(1, uint64(i)*uint64(blocks), blocks)
			h.data(&c, []hw.Seg{{Addr: mem.Addr, Len: uint64(blocks) * 4096}})
			h.put(p, &c)
		}
		h.ring(p)
		for range n {
			if _, ok := h.reap(p, time.Minute); !ok {
				t.Fatal("lost")
			}
		}
		return s.Now() - start
	}
	if d := read(1, 1); d < 60*time.Microsecond || d > 62*time.Microsecond {
		t.Errorf("one page: %v", d)
	}
	bytes := 64.0 * 1024 * 1024
	d := read(64, 256)
	if rate := bytes / d.Seconds(); rate < 5.5e9 || rate > 6.01e9 {
		t.Errorf("64 MiB in %v: %.2f GB/s", d, rate/1e9)
	}
	d = read(1000, 1)
	if iops := 1000 / d.Seconds(); iops < 8e5 || iops > 1.5e6 {
		t.Errorf("1000 pages in %v: %.0f a second", d, iops)
	}
	clean(t, s)
}

func TestStopAndPower(t *testing.T) {
	s := open(t, sim.Default(base.MiB))
	h := up(t, s)
	s.Hold(true)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := s.Stop(ctx); !errors.Is(err, base.ErrTimeout) {
		t.Errorf("stop while held: %v", err)
	}
	h.store(nvme.RegCC, must(s.Load32(nvme.RegCC))&^1)
	for range 10 {
		s.Pause(s.Now() + time.Second)
	}
	if !h.csts().Ready() {
		t.Error("RDY fell while held")
	}
	s.Hold(false)
	if err := s.Stop(context.Background()); err != nil || h.csts() != 0 || must(s.Load32(nvme.RegCC)) != 0 {
		t.Errorf("%v %v", err, h.csts())
	}
	if err := s.Start(context.Background()); err != nil {
		t.Error(err)
	}
	h.enable(8)
	s.Power()
	if h.csts() != 0 {
		t.Error("ready after a power cut")
	}
	s.Remove()
	if err := s.Start(context.Background()); !errors.Is(err, base.ErrDeviceGone) {
		t.Errorf("%v", err)
	}
	clean(t, s)
}
