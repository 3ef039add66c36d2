package nvme_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// idController is the identify data of a usual controller.
func idController() *nvme.IdentifyController {
	id := &nvme.IdentifyController{SQES: 0x66, CQES: 0x44, MDTS: 5, VWC: 7, CNTRLTYPE: 1}
	id.NN.Set(1)
	nvme.SetText(id.SN[:], "S5GXNF0R12345")
	nvme.SetText(id.MN[:], "Some SSD 1TB")
	nvme.SetText(id.FR[:], "4B2QGXA7")
	return id
}

func field(err error) string {
	var fe *nvme.FieldError
	if errors.As(err, &fe) {
		return fe.Field
	}
	return ""
}

func TestIdentifyController(t *testing.T) {
	id := idController()
	if err := id.Check(); err != nil || id.Serial() != "S5GXNF0R12345" || id.Model() != "Some SSD 1TB" || id.Firmware() != "4B2QGXA7" {
		t.Errorf("%v %q %q %q", err, id.Serial(), id.Model(), id.Firmware())
	}
	if !id.VolatileCache() || !id.FlushAll() || id.MultiController() {
		t.Error("VWC or CMIC")
	}
	copy(id.SN[:], "\x1b[2J\x00 x \xff\x00\x00") // a controller may say anything; a terminal must not obey
	for _, c := range []byte(id.Serial()) {
		if c < ' ' || c > '~' {
			t.Errorf("%q", id.Serial())
		}
	}
	for f, set := range map[string]func(id *nvme.IdentifyController){
		"IDENTIFY.SQES":      func(id *nvme.IdentifyController) { id.SQES = 0x77 },
		"IDENTIFY.CQES":      func(id *nvme.IdentifyController) { id.CQES = 0x33 },
		"IDENTIFY.NN":        func(id *nvme.IdentifyController) { id.NN.Set(0) },
		"IDENTIFY.CNTRLTYPE": func(id *nvme.IdentifyController) { id.CNTRLTYPE = 2 },
	} {
		id := idController()
		set(id)
		if got := field(id.Check()); got != f {
			t.Errorf("%v, want %s", id.Check(), f)
		}
	}
	for sgls, want := range map[uint32]nvme.SGLSupport{0: {}, 1: {Supported: true, Align: 1}, 2: {Supported: true, Align: 4}, 3: {},
		0x10001: {Supported: true, Align: 1, BitBucket: true}} {
		id.SGLS.Set(sgls)
		if id.SGL() != want {
			t.Errorf("%#x: %+v", sgls, id.SGL())
		}
	}
	id.CRDT[1].Set(3)
	if id.RetryDelayMs(0) != 0 || id.RetryDelayMs(2) != 300 || id.RetryDelayMs(4) != 0 {
		t.Error("retry delays")
	}
	var p nvme.PowerState
	p.MP.Set(850)
	if p.MicroWatts() != 8500000 || !p.Operational() {
		t.Errorf("%d", p.MicroWatts())
	}
	if p.Flags = 3; p.MicroWatts() != 85000 || p.Operational() {
		t.Errorf("%d", p.MicroWatts())
	}
}

// TestB12MaxTransfer: MDTS counts pages of MPSMIN, and 0 means no limit.
func TestB12MaxTransfer(t *testing.T) {
	id := idController()
	for _, c := range []struct {
		mdts  uint8
		shift uint
		want  uint64
	}{{0, 12, 0}, {1, 12, 8192}, {5, 12, 128 << 10}, {9, 12, 2 << 20}, {5, 16, 2 << 20}, {51, 12, 1 << 63}, {255, 12, 1 << 63}} {
		id.MDTS = c.mdts
		if got := id.MaxTransfer(c.shift); got != c.want {
			t.Errorf("MDTS %d, pages of 2^%d: %d, want %d", c.mdts, c.shift, got, c.want)
		}
	}
}

// namespace is one of n blocks in formats of 2^lbads bytes and ms of metadata.
func namespace(n uint64, lbads uint8, ms uint16) *nvme.IdentifyNamespace {
	ns := &nvme.IdentifyNamespace{NLBAF: 1, FLBAS: 1}
	ns.NSZE.Set(n)
	ns.LBAF[1].LBADS = lbads
	ns.LBAF[1].MS.Set(ms)
	return ns
}

// TestC20Formats: blocks without metadata work, every other format is refused
// with the field that is in the way.
func TestC20Formats(t *testing.T) {
	ext := namespace(100, 9, 8)
	ext.FLBAS |= 1 << 4
	pi := namespace(100, 12, 0)
	pi.DPS = 1
	many := namespace(100, 12, 0)
	many.NLBAF, many.FLBAS = 63, 0x21|1<<6 // index 49
	many.LBAF[49].LBADS = 9
	few := namespace(100, 12, 0)
	few.NLBAF, few.FLBAS = 0, 1
	high := namespace(100, 12, 0)
	high.FLBAS |= 0x60 // ignored with 16 formats or fewer
	for i, c := range []struct {
		ns    *nvme.IdentifyNamespace
		field string
	}{
		{namespace(100, 9, 0), ""}, {namespace(100, 12, 0), ""}, {namespace(100, 8, 0), "IDENTIFY.LBAF.LBADS"},
		{namespace(100, 13, 0), "IDENTIFY.LBAF.LBADS"}, {namespace(100, 255, 0), "IDENTIFY.LBAF.LBADS"},
		{ext, "IDENTIFY.LBAF.MS"}, {namespace(100, 9, 8), "IDENTIFY.LBAF.MS"}, {namespace(100, 12, 64), "IDENTIFY.LBAF.MS"},
		{pi, "IDENTIFY.DPS"}, {namespace(0, 9, 0), "IDENTIFY.NSZE"}, {many, ""}, {few, "IDENTIFY.FLBAS"}, {high, ""},
		{namespace(1<<54-1, 9, 0), ""}, {namespace(1<<54, 9, 0), "IDENTIFY.NSZE"}, {namespace(^uint64(0), 12, 0), "IDENTIFY.NSZE"},
	} {
		g, err := c.ns.Geometry()
		if field(err) != c.field || (err == nil) != (c.field == "") {
			t.Errorf("case %d: %v, want %q", i, err, c.field)
		}
		if err == nil && g.Blocks != c.ns.NSZE.Get() {
			t.Errorf("case %d: %+v", i, g)
		}
	}
	if g, _ := many.Geometry(); g.BlockShift != 9 {
		t.Errorf("%+v", g)
	}
	if !ext.ExtendedLBA() || ext.Shared() || ext.WriteProtected() {
		t.Error("flags")
	}
}

// TestA10NamespaceList: identifiers are what the list says, and a list out of
// order ends with an error instead of a loop.
func TestA10NamespaceList(t *testing.T) {
	var l nvme.NamespaceList
	if ids, err := l.IDs(); err != nil || ids != nil {
		t.Errorf("%v %v", ids, err)
	}
	for i, id := range []uint32{2, 7, 9} {
		l[i].Set(id)
	}
	if ids, err := l.IDs(); err != nil || !slices.Equal(ids, []uint32{2, 7, 9}) {
		t.Errorf("%v %v", ids, err)
	}
	for _, bad := range []uint32{9, 8} {
		l[3].Set(bad)
		if _, err := l.IDs(); !errors.Is(err, base.ErrCorrupt) {
			t.Errorf("%v", err)
		}
	}
	for i := range l {
		l[i].Set(uint32(i + 1))
	}
	if ids, err := l.IDs(); err != nil || len(ids) != 1024 {
		t.Errorf("%d %v", len(ids), err)
	}
	if l.Overflowed() {
		t.Error("overflowed")
	}
	if l[0].Set(nvme.NSIDAll); !l.Overflowed() {
		t.Error("not overflowed")
	}
}

func TestDescriptors(t *testing.T) {
	b := make([]byte, 4096)
	at := 0
	add := func(typ byte, v ...byte) {
		b[at], b[at+1] = typ, byte(len(v))
		at += 4 + copy(b[at+4:], v)
	}
	add(nvme.NIDTEUI64, 1, 2, 3, 4, 5, 6, 7, 8)
	id, err := nvme.ParseDescriptors(b)
	if err != nil || id.String() != "eui.0102030405060708" {
		t.Errorf("%v %v", id, err)
	}
	add(9, 1, 2, 3) // unknown, skipped
	add(nvme.NIDTNGUID, bytes.Repeat([]byte{0xab}, 16)...)
	add(nvme.NIDTCSI, 2)
	id, err = nvme.ParseDescriptors(b)
	if err != nil || id.String() != "nguid.abababababababababababababababab" || id.CSI != 2 {
		t.Errorf("%v %v", id, err)
	}
	add(nvme.NIDTUUID, bytes.Repeat([]byte{0xcd}, 16)...)
	id, err = nvme.ParseDescriptors(b)
	if err != nil || id.String() != "uuid.cdcdcdcd-cdcd-cdcd-cdcd-cdcdcdcdcdcd" {
		t.Errorf("%v %v", id, err)
	}
	for _, bad := range [][]byte{{1, 7, 0, 0, 1, 2, 3, 4, 5, 6, 7}, {3, 16, 0, 0, 1}, {4, 0, 0, 0}, {200, 255, 0, 0}} {
		if _, err := nvme.ParseDescriptors(bad); !errors.Is(err, base.ErrCorrupt) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if id, err := nvme.ParseDescriptors(nil); err != nil || id.String() != "" {
		t.Errorf("%v %v", id, err)
	}
}

func TestLogPages(t *testing.T) {
	var s nvme.SMARTLog
	if s.Warnings() != "" {
		t.Error(s.Warnings())
	}
	s.CriticalWarning = nvme.WarnSpare | nvme.WarnReadOnly | 0x80
	if got, want := s.Warnings(), "spare below its threshold, media read-only, unknown warning"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	l := nvme.FirmwareLog{AFI: 0x32}
	copy(l.Slots[1][:], "FW2     ")
	copy(l.Slots[2][:], "FW3")
	if n, r := l.Active(); n != 2 || r != "FW2" {
		t.Errorf("%d %q", n, r)
	}
	if n, r := l.Next(); n != 3 || r != "FW3" {
		t.Errorf("%d %q", n, r)
	}
	l.AFI = 0
	if n, _ := l.Active(); n != 0 {
		t.Errorf("%d", n)
	}
	var e nvme.ErrorLogEntry
	e.Status.Set(0xc103)
	if e.StatusField() != nvme.MakeStatus(0, 0x81)|nvme.StatusDNR|nvme.StatusMore {
		t.Errorf("%v", e.StatusField())
	}
	for e, want := range map[nvme.AsyncEvent]string{0x00010000: "error: write to an invalid doorbell",
		nvme.MakeAsyncEvent(nvme.EventTypeSMART, 1, 2):  "health: temperature threshold",
		nvme.MakeAsyncEvent(nvme.EventTypeNotice, 0, 4): "notice: namespace attributes changed",
		nvme.MakeAsyncEvent(7, 0xab, 0xc0):              "vendor: information ABh"} {
		if e.String() != want {
			t.Errorf("%q, want %q", e, want)
		}
	}
	e2 := nvme.MakeAsyncEvent(nvme.EventTypeNotice, 1, 3)
	if e2.Type() != 2 || e2.Info() != 1 || e2.LogPage() != 3 {
		t.Errorf("%v", e2)
	}
	if nvme.APSTEntry(4, 2000) != 4<<3|2000<<8 || nvme.PowerStateIndex(0xe4) != 4 || !nvme.VolatileCacheEnabled(3) || nvme.VolatileCacheEnabled(2) {
		t.Error("features")
	}
}

func TestQuirks(t *testing.T) {
	q := nvme.Quirks(0x144d, 0xa821)
	if q.Flags != nvme.QuirkReadyDelay || q.DelayMs == 0 || q.Why == "" || !slices.Equal(q.Flags.Names(), []string{"ready delay"}) {
		t.Errorf("%+v", q)
	}
	if q := nvme.Quirks(1, 2); q.Flags != 0 || q.DelayMs != 0 || q.Flags.Names() != nil {
		t.Errorf("%+v", q)
	}
}

func FuzzIdentify(f *testing.F) {
	seed := make([]byte, 8192)
	*nvme.Overlay[nvme.IdentifyController](seed) = *idController()
	*nvme.Overlay[nvme.IdentifyNamespace](seed[4096:]) = *namespace(1<<20, 12, 0)
	f.Add(seed)
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, 8192))
	f.Fuzz(func(t *testing.T, data []byte) {
		b := make([]byte, 8192)
		copy(b, data)
		id := nvme.Overlay[nvme.IdentifyController](b)
		_, _, _, _ = id.Check(), id.SGL(), id.RetryDelayMs(b[0]), id.MaxTransfer(uint(b[1])&15+12)
		for _, s := range []string{id.Serial(), id.Model(), id.Firmware()} {
			for _, c := range []byte(s) {
				if c < ' ' || c > '~' {
					t.Errorf("%q", s)
				}
			}
		}
		ns := nvme.Overlay[nvme.IdentifyNamespace](b[4096:])
		if g, err := ns.Geometry(); err == nil {
			if g.Blocks == 0 || int64(g.Blocks<<g.BlockShift) <= 0 || g.Blocks<<g.BlockShift>>g.BlockShift != g.Blocks {
				t.Errorf("%+v", g)
			}
		}
		if ids, err := nvme.Overlay[nvme.NamespaceList](b).IDs(); err == nil && !slices.IsSorted(ids) {
			t.Errorf("%v", ids)
		}
		id2, _ := nvme.ParseDescriptors(data)
		_ = id2.String()
	})
}

func FuzzLogPages(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0xff}, 512))
	f.Add([]byte{1, 0x2c, 1, 100, 10})
	f.Fuzz(func(t *testing.T, data []byte) {
		b := make([]byte, 4096)
		copy(b, data)
		s := nvme.Overlay[nvme.SMARTLog](b)
		if (s.Warnings() == "") != (s.CriticalWarning == 0) || s.MediaErrors.Float() < 0 || s.DataUnitsWritten.Float() < float64(s.DataUnitsWritten.Uint64())/2 && s.DataUnitsWritten.Uint64() != ^uint64(0) {
			t.Errorf("%+v", s)
		}
		l := nvme.Overlay[nvme.FirmwareLog](b)
		l.Active()
		l.Next()
		for i := range nvme.OverlaySlice[nvme.ErrorLogEntry](b) {
			e := &nvme.OverlaySlice[nvme.ErrorLogEntry](b)[i]
			_, _ = e.StatusField().String(), e.StatusField().Err(nvme.OpRead, false, 0)
		}
		_ = nvme.AsyncEvent(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16).String()
	})
}

func FuzzCompletion(f *testing.F) {
	f.Add(make([]byte, 16))
	f.Add(bytes.Repeat([]byte{0xff}, 64))
	f.Fuzz(func(t *testing.T, data []byte) {
		for i := range nvme.OverlaySlice[nvme.Completion](data) {
			c := nvme.OverlaySlice[nvme.Completion](data)[i]
			d := c.DW3()
			if nvme.MakeDW3(d.CID(), d.Status(), d.Phase()) != d {
				t.Errorf("%08x", uint32(d))
			}
			s := d.Status()
			if s.OK() != (s.Err(nvme.OpWrite, false, 0) == nil) || s.String() == "" || s.Retry() && s.DNR() {
				t.Errorf("%v", s)
			}
			if nvme.MakeStatus(s.SCT(), s.SC()) != s.Code() {
				t.Errorf("%v", s)
			}
		}
	})
}
