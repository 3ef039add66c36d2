package ctrl_test

import (
	"context"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/drivertest"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var _ driver.Device = (*ctrl.Device)(nil)

// model opens a controller model; the test fails on a violation.
func model(t testing.TB, cfg sim.Config) *sim.Sim {
	t.Helper()
	s, err := sim.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, v := range s.Violations() {
			t.Errorf("violation: %s", v)
		}
	})
	return s
}

// onEnd calls fn for each I/O command that ends.
func onEnd(s *sim.Sim, fn func(x *sim.Seen)) {
	s.Observe(func(x sim.Seen) {
		if x.Moment == sim.Ended {
			fn(&x)
		}
	})
}

func bg(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func opened(t testing.TB, s *sim.Sim, o ctrl.Options) *ctrl.Device {
	t.Helper()
	d, err := ctrl.Open(bg(t), s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(bg(t)); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return d
}

// TestDevice runs the contract's suite over models of many shapes.
func TestDevice(t *testing.T) {
	for name, change := range map[string]func(c *sim.Config, o *ctrl.Options){
		"default": func(c *sim.Config, o *ctrl.Options) {},
		"512": func(c *sim.Config, o *ctrl.Options) {
			c.Namespaces[0].BlockShift, c.Namespaces[0].Blocks = 9, c.Namespaces[0].Blocks*8
		},
		"SGL": func(c *sim.Config, o *ctrl.Options) {
			c.Identify.SGLS.Set(1)
			c.FixedPages = 8
			c.Namespaces[0].NOIOB = 24
		},
		"shadow doorbells": func(c *sim.Config, o *ctrl.Options) {
			c.Identify.OACS.Set(nvme.OACSDoorbellBuffer)
			o.Mode = ctrl.Hybrid
		},
		"interrupts": func(c *sim.Config, o *ctrl.Options) { o.Mode = ctrl.Interrupts },
		"hybrid":     func(c *sim.Config, o *ctrl.Options) { o.Mode = ctrl.Hybrid; c.Service = sim.ServiceFixed },
	} {
		t.Run(name, func(t *testing.T) {
			drivertest.Run(t, func(t *testing.T) drivertest.Harness {
				cfg := sim.Default(drivertest.MinCapacity)
				cfg.Real, cfg.FixedPages = true, 1
				o := ctrl.Options{Watch: 2 * time.Millisecond}
				change(&cfg, &o)
				s := model(t, cfg)
				return harness(s, opened(t, s, o))
			})
		})
	}
}

func harness(s *sim.Sim, d *ctrl.Device) drivertest.Harness {
	ops := map[driver.Op]nvme.Opcode{driver.OpRead: nvme.OpRead, driver.OpWrite: nvme.OpWrite, driver.OpFlush: nvme.OpFlush,
		driver.OpDiscard: nvme.OpDSM, driver.OpWriteZeroes: nvme.OpWriteZeroes}
	return drivertest.Harness{Dev: d, Hold: s.Hold, Isolate: s.Fatal, Fail: func(op driver.Op) {
		s.Script(sim.Rule{Kind: sim.FaultStatus, Ops: []nvme.Opcode{ops[op]}, Count: 1, Status: nvme.StatusUnrecoveredRead | nvme.StatusDNR})
	}}
}

func TestOpenClose(t *testing.T) {
	cfg := sim.Default(64 * base.MiB)
	s := model(t, cfg)
	d := opened(t, s, ctrl.Options{Watch: -1})
	for _, r := range d.Info().Reasons {
		t.Log(r)
	}
}
