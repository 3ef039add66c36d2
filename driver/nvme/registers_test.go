package nvme_test

import (
	"errors"
	"testing"

	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// good is what a usual controller reports.
func good() nvme.CAPFields {
	return nvme.CAPFields{MQES: 1023, CQR: true, TO: 60, CSS: nvme.CSSNVM, MPSMAX: 4, NSSRS: true}
}

// TestB08BadCapability: each value that makes no sense has an error that names
// its field.
func TestB08BadCapability(t *testing.T) {
	with := func(f func(c *nvme.CAPFields)) nvme.CAP {
		c := good()
		f(&c)
		return nvme.MakeCAP(c)
	}
	for _, c := range []struct {
		cap   nvme.CAP
		field string
		class error
	}{
		{0, "CAP", base.ErrCorrupt},
		{^nvme.CAP(0), "CAP", base.ErrDeviceGone},
		{with(func(c *nvme.CAPFields) { c.MQES = 0 }), "CAP.MQES", base.ErrCorrupt},
		{with(func(c *nvme.CAPFields) { c.MQES = 1 }), "", nil},
		{with(func(c *nvme.CAPFields) { c.MQES = 65535 }), "", nil},
		{with(func(c *nvme.CAPFields) { c.TO = 0 }), "CAP.TO", base.ErrCorrupt},
		{with(func(c *nvme.CAPFields) { c.TO = 1 }), "", nil},
		{with(func(c *nvme.CAPFields) { c.MPSMIN = 5 }), "CAP.MPSMIN", base.ErrCorrupt},
		{with(func(c *nvme.CAPFields) { c.MPSMIN = 4 }), "", nil},
		{with(func(c *nvme.CAPFields) { c.DSTRD = 15 }), "CAP.DSTRD", base.ErrCorrupt},
		{with(func(c *nvme.CAPFields) { c.DSTRD = nvme.MaxDSTRD + 1 }), "CAP.DSTRD", base.ErrCorrupt},
		{with(func(c *nvme.CAPFields) { c.DSTRD = nvme.MaxDSTRD }), "", nil},
		{with(func(c *nvme.CAPFields) { c.CSS = 0 }), "CAP.CSS", base.ErrNotSupported},
		{with(func(c *nvme.CAPFields) { c.CSS = nvme.CSSNoIO }), "CAP.CSS", base.ErrNotSupported},
		{with(func(c *nvme.CAPFields) { c.CSS = nvme.CSSIO }), "", nil},
		{with(func(c *nvme.CAPFields) { c.CSS = nvme.CSSNVM | nvme.CSSIO | nvme.CSSNoIO }), "", nil}, // QEMU's controller
	} {
		err := c.cap.Check()
		var fe *nvme.FieldError
		switch {
		case c.field == "":
			if err != nil {
				t.Errorf("%#x: %v", uint64(c.cap), err)
			}
		case !errors.As(err, &fe) || fe.Field != c.field || !errors.Is(err, c.class):
			t.Errorf("%#x: %v, want %s", uint64(c.cap), err, c.field)
		}
	}
}

func TestCAPFields(t *testing.T) {
	f := nvme.CAPFields{MQES: 0x1234, CQR: true, WRR: true, TO: 0x78, DSTRD: 9, NSSRS: true, CSS: 0x41, MPSMIN: 3, MPSMAX: 12, CMBS: true}
	c := nvme.MakeCAP(f)
	if c != 0x02c30839_78031234 {
		t.Errorf("%#x", uint64(c))
	}
	if c.QueueEntries() != 0x1235 || !c.CQR() || !c.WeightedRoundRobin() || c.TimeoutMs() != 60000 || c.DSTRD() != 9 ||
		!c.NSSRS() || c.CSS() != 0x41 || c.MinPageShift() != 15 || c.MaxPageShift() != 24 || !c.CMBS() {
		t.Errorf("%#x", uint64(c))
	}
}

// TestB09ConfigurationBits: every bit of CC stands where the specification wants
// it, for each page size.
func TestB09ConfigurationBits(t *testing.T) {
	f := good()
	for shift, want := range map[uint]nvme.CC{12: 0x00460001, 13: 0x00460081, 16: 0x00460201} {
		c, err := nvme.MakeCC(nvme.MakeCAP(f), shift, nvme.RoundRobin)
		if err != nil || c != want || c.PageShift() != shift || !c.Enabled() || c.IOSQES() != 6 || c.IOCQES() != 4 || c.Reserved() != 0 {
			t.Errorf("pages of 2^%d: %#x, %v, want %#x", shift, uint32(c), err, uint32(want))
		}
		if d := c.Disabled(); d != want-1 || d.Enabled() {
			t.Errorf("disabled: %#x", uint32(d))
		}
		if s := c.WithShutdown(nvme.ShutdownNormal); s != want|1<<14 || s.SHN() != nvme.ShutdownNormal || s.WithShutdown(nvme.ShutdownNone) != want {
			t.Errorf("shutdown: %#x", uint32(s))
		}
	}
	f.MPSMIN = 1
	for _, shift := range []uint{11, 12, 17} {
		if _, err := nvme.MakeCC(nvme.MakeCAP(f), shift, nvme.RoundRobin); !errors.Is(err, base.ErrNotSupported) {
			t.Errorf("pages of 2^%d: %v", shift, err)
		}
	}
	f.CSS, f.MPSMIN = nvme.CSSIO, 0
	c, err := nvme.MakeCC(nvme.MakeCAP(f), 12, nvme.WeightedRoundRobin)
	if err != nil || c.CSS() != 6 || c.AMS() != nvme.WeightedRoundRobin {
		t.Errorf("%#x, %v", uint32(c), err)
	}
	if nvme.CC(1<<1|1<<25).Reserved() != 1<<1|1<<25 {
		t.Error("reserved bits pass")
	}
}

func TestStatusRegister(t *testing.T) {
	s := nvme.CSTSReady.WithShutdown(true, false)
	if !s.Ready() || !s.ShutdownActive() || s.ShutdownDone() || s.Check() != nil || s != 5 {
		t.Errorf("%#x", uint32(s))
	}
	if s = s.WithShutdown(false, true); s.ShutdownActive() || !s.ShutdownDone() || s != 9 {
		t.Errorf("%#x", uint32(s))
	}
	if s = s.WithShutdown(false, false); s != 1 {
		t.Errorf("%#x", uint32(s))
	}
	if err := (nvme.CSTSReady | nvme.CSTSFatal).Check(); !errors.Is(err, base.ErrIsolated) {
		t.Errorf("%v", err)
	}
	g := nvme.CSTSGone // H-04: all ones are not believed
	if err := g.Check(); !errors.Is(err, base.ErrDeviceGone) || g.Ready() || g.Fatal() || g.ShutdownActive() || g.ShutdownDone() {
		t.Errorf("%v", err)
	}
	a := nvme.MakeAQA(4096, 2)
	if a != 0x00010fff || a.SQEntries() != 4096 || a.CQEntries() != 2 {
		t.Errorf("%#x", uint32(a))
	}
}

func TestVersion(t *testing.T) {
	for v, want := range map[nvme.VS]string{0x00010400: "1.4", 0x00010201: "1.2.1", 0x00020100: "2.1"} {
		if v.String() != want || v.Check() != nil {
			t.Errorf("%v, %v", v, v.Check())
		}
	}
	if v := nvme.MakeVS(1, 3, 0); !v.AtLeast(1, 3) || v.AtLeast(1, 4) || v.AtLeast(2, 0) {
		t.Error("order")
	}
	for _, v := range []nvme.VS{0, 0xffff, 16 << 16, ^nvme.VS(0)} {
		if v.Check() == nil {
			t.Errorf("%v passed", v)
		}
	}
}

func TestDoorbellOffsets(t *testing.T) {
	for _, c := range []struct {
		qid    uint16
		dstrd  uint8
		sq, cq uint64
	}{{0, 0, 0x1000, 0x1004}, {1, 0, 0x1008, 0x100c}, {3, 2, 0x1060, 0x1070}, {65535, 0, 0x80ff8, 0x80ffc}, {65535, 10, 0x1000 + 131070<<12, 0x1000 + 131071<<12}} {
		if nvme.SQDoorbell(c.qid, c.dstrd) != c.sq || nvme.CQDoorbell(c.qid, c.dstrd) != c.cq {
			t.Errorf("%+v: %#x %#x", c, nvme.SQDoorbell(c.qid, c.dstrd), nvme.CQDoorbell(c.qid, c.dstrd))
		}
	}
}

func FuzzCAP(f *testing.F) {
	f.Add(uint64(0), uint32(0), uint32(0))
	f.Add(^uint64(0), ^uint32(0), ^uint32(0))
	f.Add(uint64(nvme.MakeCAP(good())), uint32(0x10400), uint32(1))
	f.Fuzz(func(t *testing.T, v uint64, vs, csts uint32) {
		c := nvme.CAP(v)
		_, _ = nvme.VS(vs).String(), nvme.VS(vs).Check()
		_ = nvme.CSTS(csts).Check()
		err := c.Check()
		var fe *nvme.FieldError
		if err != nil {
			if !errors.As(err, &fe) || fe.Field == "" || fe.Error() == "" {
				t.Errorf("%#x: %v", v, err)
			}
			return
		}
		if c.QueueEntries() < 2 || c.TimeoutMs() == 0 || c.MinPageShift() > c.MaxPageShift() {
			t.Errorf("%#x passed", v)
		}
		cc, err := nvme.MakeCC(c, c.MinPageShift(), nvme.RoundRobin)
		if err != nil || cc.Reserved() != 0 || cc.PageShift() != c.MinPageShift() {
			t.Errorf("%#x: %#x, %v", v, uint32(cc), err)
		}
	})
}
