package ctrl_test

import (
	"errors"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// TestDescribe compares the description with the model's configuration.
func TestDescribe(t *testing.T) {
	cfg := sim.Default(64 * base.MiB)
	cfg.Vendor, cfg.Device = 0x8086, 0x0953
	cfg.CAP.MQES, cfg.CAP.DSTRD = 99, 2
	cfg.Identify.MDTS = 3
	cfg.VS, cfg.NVM.WZSL = nvme.MakeVS(2, 0, 0), 4
	cfg.Namespaces[0].NOIOB = 32
	cfg.Namespaces = append(cfg.Namespaces, sim.Namespace{ID: 4, Blocks: 1024, BlockShift: 9})
	s := model(t, cfg)
	d := opened(t, s, ctrl.Options{NSID: 1, Queues: 4, Depth: 50, Latency: 20, Watch: -1})
	got, err := d.Describe(bg(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string][2]any{
		"PCI":        {[2]uint16{got.Vendor, got.Device}, [2]uint16{0x8086, 0x0953}},
		"model":      {got.Model, cfg.Identify.Model()},
		"serial":     {got.Serial, "SIM0001"},
		"version":    {got.Version, "2.0"},
		"quirks":     {len(got.Quirks), 1},
		"namespaces": {[2]uint32{got.Namespaces[0], got.Namespaces[1]}, [2]uint32{1, 4}},
		"capacity":   {got.Blocks * 4096, uint64(64 * base.MiB)},
		"formats":    {got.Formats[0], ctrl.Format{BlockBytes: 4096, InUse: true}},
		"MQES":       {got.QueueEntries, uint32(100)},
		"MDTS":       {got.TransferBytes, uint64(32 * base.KiB)},
		"command":    {got.CommandBytes, int64(32 * base.KiB)},
		"NOIOB":      {got.BoundaryBytes, int64(128 * base.KiB)},
		"WZSL":       {got.ZeroBytes, int64(64 * base.KiB)},
		"DSTRD":      {got.DoorbellStride, 16},
		"queues":     {len(got.Queues), 4},
		"first":      {got.Queues[0], ctrl.Queue{ID: 1, For: "single requests", Entries: 21}},
		"last":       {got.Queues[3], ctrl.Queue{ID: 4, For: "batches", Entries: 51}},
		"cache":      {got.VolatileCache, true},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %v, want %v", name, pair[0], pair[1])
		}
	}
}

// TestLogs: a failed command is in the error log, and a warning in the health page.
func TestLogs(t *testing.T) {
	s := model(t, sim.Default(64*base.MiB))
	d := opened(t, s, ctrl.Options{Watch: -1})
	if log, err := d.ErrorLog(bg(t)); err != nil || len(log) != 0 {
		t.Errorf("at first: %v, %v", log, err)
	}
	s.Script(sim.Rule{Kind: sim.FaultStatus, Ops: []nvme.Opcode{nvme.OpRead}, Count: 1,
		Status: nvme.StatusUnrecoveredRead | nvme.StatusDNR})
	b := reads(t, d, 1, 4096)
	submit(t, d, b)
	wait(t, b)
	log, err := d.ErrorLog(bg(t))
	if err != nil || len(log) != 1 || log[0].StatusField().Code() != nvme.StatusUnrecoveredRead.Code() {
		t.Errorf("%+v, %v", log, err)
	}
	s.SMART(func(l *nvme.SMARTLog) { l.CriticalWarning = nvme.WarnSpare; l.PercentageUsed = 101 })
	if l, err := d.SMART(bg(t)); err != nil || l.PercentageUsed != 101 || l.Warnings() == "" {
		t.Errorf("%+v, %v", l, err)
	}
	s.Fatal()
	for d.State() == driver.StateReady { // a reader of the status notices
		submit(t, d, b)
		_ = b.Wait(bg(t)) // its entries say why
	}
	if _, err := d.Describe(bg(t)); !errors.Is(err, base.ErrIsolated) {
		t.Errorf("isolated: %v", err)
	}
}
