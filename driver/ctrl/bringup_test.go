package ctrl_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// quiet are options for runs with one goroutine and the virtual clock.
var quiet = ctrl.Options{Watch: -1, Queues: 2, Depth: 31}

// works writes and reads a few blocks.
func works(t *testing.T, d *ctrl.Device) {
	t.Helper()
	r, err := driver.AllocRegion(base.MiB, "ctrl test")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	half := r.Size() / 2
	for i := range half {
		r.CPU()[i] = byte(i*7 + i>>9)
	}
	err = driver.Do(bg(t), d, driver.Request{Op: driver.OpWrite, Off: 0, Len: half, Segs: []driver.Seg{r.Seg(0, half)}})
	if err == nil {
		err = driver.Do(bg(t), d, driver.Request{Op: driver.OpRead, Off: 0, Len: half, Segs: []driver.Seg{r.Seg(half, half)}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if string(r.CPU()[:half]) != string(r.CPU()[half:]) {
		t.Error("wrong bytes")
	}
}

// TestB02StartStates: whatever state a former owner left, Open brings the
// controller up, and breaks no rule on the way.
func TestB02StartStates(t *testing.T) {
	admin := func(s *sim.Sim) {
		if err := errors.Join(s.Start(context.Background()), s.Store32(nvme.RegAQA, 0x10001)); err != nil {
			t.Fatal(err)
		}
	}
	cc := func(s *sim.Sim, v uint32) {
		if err := s.Store32(nvme.RegCC, v); err != nil {
			t.Fatal(err)
		}
	}
	run := func(s *sim.Sim, d time.Duration) {
		for end := s.Now() + d; s.Now() < end; {
			s.Pause(end)
		}
	}
	for name, before := range map[string]func(s *sim.Sim){
		"EN=0 RDY=0": func(s *sim.Sim) {},
		"EN=1 RDY=1": func(s *sim.Sim) { admin(s); cc(s, 0x460001); run(s, 3*time.Second) },
		"EN=1 RDY=0": func(s *sim.Sim) { admin(s); cc(s, 0x460001) },
		"EN=0 RDY=1": func(s *sim.Sim) { admin(s); cc(s, 0x460001); run(s, 3*time.Second); cc(s, 0x460000) },
		"CFS=1":      func(s *sim.Sim) { admin(s); cc(s, 0x460001); run(s, 3*time.Second); s.Fatal() },
		"SHST=01":    func(s *sim.Sim) { admin(s); cc(s, 0x460001); run(s, 3*time.Second); cc(s, 0x464001) },
		"SHST=10": func(s *sim.Sim) {
			admin(s)
			cc(s, 0x460001)
			run(s, 3*time.Second)
			cc(s, 0x464001)
			run(s, 3*time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := sim.Default(16 * base.MiB)
			cfg.ReadyDelay, cfg.UnreadyDelay, cfg.ShutdownDelay = 2*time.Second, time.Second, 2*time.Second
			s := model(t, cfg)
			before(s)
			works(t, opened(t, s, quiet))
		})
	}
}

// TestBringUpIsFast: a controller that answers at once is up without a sleep.
func TestBringUpIsFast(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	cfg.Service = sim.ServiceFixed
	s := model(t, cfg)
	opened(t, s, quiet)
	if now := s.Now(); now > 5*time.Millisecond {
		t.Errorf("ready after %v", now)
	}
}

// TestBringUpFails: each way in which it fails has its class and says where and
// after what time; nothing is left over.
func TestBringUpFails(t *testing.T) {
	for name, c := range map[string]struct {
		change func(c *sim.Config)
		class  error
		text   string
	}{
		"A07 ones":       {func(c *sim.Config) { c.OnesUntil = time.Hour }, base.ErrDeviceGone, "read capabilities, after 1s"},
		"B08 zeros":      {func(c *sim.Config) { c.CAP = nvme.CAPFields{} }, base.ErrCorrupt, "reads as zero"},
		"B08 page sizes": {func(c *sim.Config) { c.RawCAP = uint64(nvme.MakeCAP(c.CAP)) | 15<<48 }, base.ErrCorrupt, "CAP.MPSMIN"},
		"B08 stride":     {func(c *sim.Config) { c.RawCAP = uint64(nvme.MakeCAP(c.CAP)) | 15<<32 }, base.ErrCorrupt, "CAP.DSTRD"},
		"never ready":    {func(c *sim.Config) { c.NeverReady = true }, base.ErrTimeout, "enable, after 10s (CAP.TO 10000 ms, device 1d1d:5151)"},
		"B03 deaf":       {func(c *sim.Config) { c.DeafFor = time.Hour }, base.ErrTimeout, "identify controller, after 10s (CAP.TO"},
		"A10 none":       {func(c *sim.Config) { c.Namespaces[0].Inactive = true }, base.ErrNotFound, "no active namespace"},
		"A10 several": {func(c *sim.Config) {
			c.Namespaces = append(c.Namespaces, sim.Namespace{ID: 9, Blocks: 10, BlockShift: 12})
		}, base.ErrInvalid, "[1 9]"},
		"C20 metadata": {func(c *sim.Config) { c.Namespaces[0].Metadata = 8 }, base.ErrNotSupported, "IDENTIFY.LBAF.MS"},
		"zones": {func(c *sim.Config) {
			c.CAP.CSS, c.Namespaces[0].CommandSet = nvme.CSSNVM|nvme.CSSIO, nvme.CSIZoned
		}, base.ErrNotSupported, "zoned"},
		"C20 block size": {func(c *sim.Config) { c.Namespaces[0].BlockShift = 14 }, base.ErrNotSupported, "LBADS"},
		"shared": {func(c *sim.Config) {
			c.Namespaces[0].Shared, c.Identify.CMIC = true, 2
		}, base.ErrInUse, "another controller may share it"},
		"entry size": {func(c *sim.Config) { c.Identify.SQES = 0x77 }, base.ErrNotSupported, "IDENTIFY.SQES"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := sim.Default(16 * base.MiB)
			c.change(&cfg)
			s := model(t, cfg)
			_, err := ctrl.Open(bg(t), s, quiet)
			if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v, want %v with %q", err, c.class, c.text)
			}
		})
	}
}

// TestBringUpShapes: controllers of every shape work, within their limits, which
// the model checks.
func TestBringUpShapes(t *testing.T) {
	type shape struct {
		change func(c *sim.Config, o *ctrl.Options)
		max    int64 // Info.MaxTransfer
	}
	shapes := map[string]shape{
		"A08 registers come late": {func(c *sim.Config, o *ctrl.Options) { c.OnesUntil = 250 * time.Millisecond }, 128 << 10},
		"A10 namespace 7":         {func(c *sim.Config, o *ctrl.Options) { c.Namespaces[0].ID = 7 }, 128 << 10},
		"A10 named": {func(c *sim.Config, o *ctrl.Options) {
			c.Namespaces = append(c.Namespaces, sim.Namespace{ID: 3, Blocks: 1 << 12, BlockShift: 9})
			o.NSID = 3
		}, 128 << 10},
		"A10 gap": {func(c *sim.Config, o *ctrl.Options) {
			c.Namespaces = append([]sim.Namespace{{ID: 1, Blocks: 8, BlockShift: 9, Inactive: true}}, sim.Namespace{ID: 2, Blocks: 1 << 12, BlockShift: 12})
		}, 128 << 10},
		"command sets":      {func(c *sim.Config, o *ctrl.Options) { c.CAP.CSS = nvme.CSSNVM | nvme.CSSIO | nvme.CSSNoIO }, 128 << 10},
		"B02 nothing falls": {func(c *sim.Config, o *ctrl.Options) { c.NeverUnready = true }, 128 << 10},
		"B03 quirk":         {func(c *sim.Config, o *ctrl.Options) { c.Vendor, c.Device, c.ReadyDelay = 0x144d, 0xa821, time.Second }, 128 << 10},
		"B05 one queue":     {func(c *sim.Config, o *ctrl.Options) { c.MaxQueues = 1 }, 128 << 10},
		"B05 more queues":   {func(c *sim.Config, o *ctrl.Options) { c.Grant = 30 }, 128 << 10},
		"B09 64 KiB pages":  {func(c *sim.Config, o *ctrl.Options) { c.CAP.MPSMIN = 4 }, 2 << 20},
		"B12 no limit":      {func(c *sim.Config, o *ctrl.Options) { c.Identify.MDTS = 0 }, 2 << 20},
		"B12 MDTS 1":        {func(c *sim.Config, o *ctrl.Options) { c.Identify.MDTS = 1 }, 8 << 10},
		"B12 MDTS 9":        {func(c *sim.Config, o *ctrl.Options) { c.Identify.MDTS = 9 }, 2 << 20},
		"option":            {func(c *sim.Config, o *ctrl.Options) { o.Command = 4096 }, 4096},
		"B14 MQES 1":        {func(c *sim.Config, o *ctrl.Options) { c.CAP.MQES = 1 }, 128 << 10},
		"B14 MQES 2":        {func(c *sim.Config, o *ctrl.Options) { c.CAP.MQES = 2 }, 128 << 10},
		"B14 MQES 63":       {func(c *sim.Config, o *ctrl.Options) { c.CAP.MQES = 63; o.Depth = 255 }, 128 << 10},
		"B14 MQES 127":      {func(c *sim.Config, o *ctrl.Options) { c.CAP.MQES = 127; o.Depth = ctrl.MaxDepth }, 128 << 10},
		"B14 MQES 65535":    {func(c *sim.Config, o *ctrl.Options) { c.CAP.MQES = 65535; o.Depth = ctrl.MaxDepth }, 128 << 10},
		"not a power of 2":  {func(c *sim.Config, o *ctrl.Options) { c.CAP.MQES = 99; o.Depth = 255 }, 128 << 10},
		"stride":            {func(c *sim.Config, o *ctrl.Options) { c.CAP.DSTRD = 6 }, 128 << 10},
		"boundary":          {func(c *sim.Config, o *ctrl.Options) { c.Namespaces[0].NOIOB = 5 }, 128 << 10},
		"SGL":               {func(c *sim.Config, o *ctrl.Options) { c.Identify.SGLS.Set(1); c.FixedPages = 16 }, 128 << 10},
		"shadow":            {func(c *sim.Config, o *ctrl.Options) { c.Identify.OACS.Set(nvme.OACSDoorbellBuffer) }, 128 << 10},
		"shadow, stride":    {func(c *sim.Config, o *ctrl.Options) { c.Identify.OACS.Set(nvme.OACSDoorbellBuffer); c.CAP.DSTRD = 4 }, 128 << 10},
		"shadow, no room":   {func(c *sim.Config, o *ctrl.Options) { c.Identify.OACS.Set(nvme.OACSDoorbellBuffer); c.CAP.DSTRD = 9 }, 128 << 10},
		"SGL dwords":        {func(c *sim.Config, o *ctrl.Options) { c.Identify.SGLS.Set(2); c.FixedPages = 512; c.Identify.MDTS = 0 }, 2 << 20},
		"no cache":          {func(c *sim.Config, o *ctrl.Options) { c.Identify.VWC = 0 }, 128 << 10},
		"no options":        {func(c *sim.Config, o *ctrl.Options) { c.Identify.ONCS.Set(0) }, 128 << 10},
		"version 2":         {func(c *sim.Config, o *ctrl.Options) { c.VS = nvme.MakeVS(2, 0, 0); c.NVM.WZSL = 1; c.NVM.DMRSL.Set(4) }, 128 << 10},
		"shared, forced":    {func(c *sim.Config, o *ctrl.Options) { c.Namespaces[0].Shared, c.Identify.CMIC, o.Force = true, 2, true }, 128 << 10},
	}
	for name, x := range shapes {
		t.Run(name, func(t *testing.T) {
			cfg, o := sim.Default(16*base.MiB), quiet
			x.change(&cfg, &o)
			s := model(t, cfg)
			d := opened(t, s, o)
			in := d.Info()
			if in.MaxTransfer != x.max {
				t.Errorf("commands of at most %d, want %d", in.MaxTransfer, x.max)
			}
			works(t, d)
			n := int64(16) * base.StoreBlock
			for _, op := range []driver.Op{driver.OpWriteZeroes, driver.OpDiscard, driver.OpFlush} {
				if op == driver.OpDiscard && !in.Discard {
					continue
				}
				if err := driver.Do(bg(t), d, driver.Request{Op: op, Len: n}); err != nil {
					t.Errorf("%v: %v", op, err)
				}
			}
		})
	}
}

// TestB11AdminStatus: a status of each admin command of the bring-up in turn is an
// error with the status inside, or, where the command is optional, a reason.
func TestB11AdminStatus(t *testing.T) {
	for skip := range 12 {
		cfg := sim.Default(16 * base.MiB)
		s := model(t, cfg)
		s.Script(sim.Rule{Kind: sim.FaultStatus, Admin: true, Skip: skip, Count: 1, Status: nvme.StatusInternal | nvme.StatusDNR})
		d, err := ctrl.Open(bg(t), s, quiet)
		var st *nvme.StatusError
		switch {
		case err != nil:
			if !errors.As(err, &st) || st.Status.Code() != nvme.StatusInternal || !strings.Contains(err.Error(), "bring up sim:seed=0: ") {
				t.Errorf("command %d: %v", skip, err)
			}
			t.Log(err)
			continue
		case s.Fired()[sim.FaultStatus] == 1 && !strings.Contains(strings.Join(d.Info().Reasons, "\n"), "0/06h"):
			t.Errorf("command %d: the status is not told: %q", skip, d.Info().Reasons)
		}
		works(t, d)
		if err := d.Close(bg(t)); err != nil {
			t.Error(err)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, x := range []struct {
		change func(o *ctrl.Options)
		ok     bool
	}{
		{func(o *ctrl.Options) {}, true}, {func(o *ctrl.Options) { o.Queues = ctrl.MaxQueuePairs }, true},
		{func(o *ctrl.Options) { o.Queues = ctrl.MaxQueuePairs + 1 }, false}, {func(o *ctrl.Options) { o.Queues = -1 }, false},
		{func(o *ctrl.Options) { o.Depth = 1 }, true}, {func(o *ctrl.Options) { o.Depth = ctrl.MaxDepth }, true},
		{func(o *ctrl.Options) { o.Depth = ctrl.MaxDepth + 1 }, false}, {func(o *ctrl.Options) { o.Depth = -1 }, false},
		{func(o *ctrl.Options) { o.Command = ctrl.MinCommand }, true}, {func(o *ctrl.Options) { o.Command = ctrl.MinCommand - 1 }, false},
		{func(o *ctrl.Options) { o.Command = ctrl.MaxCommand + 4096 }, false}, {func(o *ctrl.Options) { o.Command = 4097 }, false},
		{func(o *ctrl.Options) { o.Deadline.Flush = -1 }, false}, {func(o *ctrl.Options) { o.Mode = ctrl.Hybrid }, true},
		{func(o *ctrl.Options) { o.Mode = ctrl.Hybrid + 1 }, false}, {func(o *ctrl.Options) { o.Mode, o.Watch = ctrl.Interrupts, -1 }, false},
		{func(o *ctrl.Options) { o.Batches = ctrl.Hybrid + 1 }, false}, {func(o *ctrl.Options) { o.Batches, o.Watch = ctrl.Hybrid, -1 }, false},
		{func(o *ctrl.Options) { o.Latency = 1 }, true}, {func(o *ctrl.Options) { o.Latency = ctrl.MaxDepth }, true},
		{func(o *ctrl.Options) { o.Latency = -1 }, false}, {func(o *ctrl.Options) { o.Latency = ctrl.MaxDepth + 1 }, false},
		{func(o *ctrl.Options) { o.Spin = -1 }, false}, {func(o *ctrl.Options) { o.Watch = -1 }, true},
	} {
		var o ctrl.Options
		x.change(&o)
		o.EnsureDefaults()
		if err := o.Validate(); (err == nil) != x.ok || err != nil && !errors.Is(err, base.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	o := ctrl.Options{Queues: -1, Depth: -1, Command: 1}
	o.EnsureDefaults()
	if err := o.Validate(); err == nil || strings.Count(err.Error(), "is not") != 3 { // K-06: all at once
		t.Errorf("%v", err)
	}
	s := model(t, sim.Default(base.MiB))
	if _, err := ctrl.Open(bg(t), s, o); !errors.Is(err, base.ErrInvalid) {
		t.Errorf("%v", err)
	}
	if _, err := s.Load32(0); !errors.Is(err, base.ErrClosed) {
		t.Errorf("a refused Open does not close the device: %v", err)
	}
}

// TestQuirks: controllers of the table get what they need.
func TestQuirks(t *testing.T) {
	for _, x := range []struct {
		stripe   uint8
		noiob    uint16
		commands int64 // of 128 KiB
	}{{0, 0, 1}, {3, 0, 4}, {3, 16, 2}, {1, 0, 16}, {200, 0, 1}} {
		cfg := sim.Default(16 * base.MiB)
		cfg.Vendor, cfg.Device = 0x8086, 0x0953
		cfg.Identify.VendorUnknown[3] = x.stripe
		cfg.Namespaces[0].NOIOB = x.noiob
		d := opened(t, model(t, cfg), quiet)
		run(t, d, reads(t, d, 1, 128<<10))
		if n := d.Stats().Commands; n != x.commands {
			t.Errorf("stripe %d, NOIOB %d: %d commands, want %d", x.stripe, x.noiob, n, x.commands)
		}
		works(t, d)
	}
	cfg := sim.Default(16 * base.MiB)
	cfg.Vendor, cfg.Device = 0x106b, 0x2005
	if _, err := ctrl.Open(bg(t), model(t, cfg), quiet); !errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), "Apple T2") {
		t.Errorf("%v", err)
	}
}

// TestControllersTogether prints how long one controller that needs 200 ms takes,
// and eight at the same time: bring-up waits on each one's own clock only.
func TestControllersTogether(t *testing.T) {
	open := func(n int) time.Duration {
		var all []*sim.Sim
		for range n {
			cfg := sim.Default(4 << 20)
			cfg.Real, cfg.ReadyDelay = true, 200*time.Millisecond
			all = append(all, model(t, cfg))
		}
		devs := make([]*ctrl.Device, n)
		began := time.Now()
		var wg sync.WaitGroup
		for i, s := range all {
			wg.Go(func() {
				var err error
				if devs[i], err = ctrl.Open(bg(t), s, quiet); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		took := time.Since(began)
		for _, d := range devs {
			if d == nil {
				continue
			}
			if err := d.Close(bg(t)); err != nil {
				t.Error(err)
			}
		}
		return took
	}
	one, eight := open(1), open(8)
	t.Logf("one controller %v, eight %v, ratio %.2f", one, eight, float64(eight)/float64(one))
}
