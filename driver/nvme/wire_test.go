package nvme_test

import (
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// TestWireLayout holds sizes and offsets against the figures of the
// specification, in bytes.
func TestWireLayout(t *testing.T) {
	for _, c := range []struct {
		v    any
		size uintptr
		at   map[string]uintptr
	}{
		{nvme.Command{}, 64, map[string]uintptr{"OPC": 0, "CID": 2, "NSID": 4, "CDW2": 8, "MPTR": 16, "PRP1": 24,
			"PRP2": 32, "CDW10": 40, "CDW11": 44, "CDW12": 48, "CDW13": 52, "CDW14": 56, "CDW15": 60}},
		{nvme.Completion{}, 16, map[string]uintptr{"DW0": 0, "DW1": 4, "SQHD": 8, "SQID": 10, "Last": 12}},
		{nvme.IdentifyController{}, 4096, map[string]uintptr{"SSVID": 2, "SN": 4, "MN": 24, "FR": 64, "RAB": 72,
			"IEEE": 73, "CMIC": 76, "MDTS": 77, "CNTLID": 78, "VER": 80, "RTD3R": 84, "RTD3E": 88, "OAES": 92,
			"CTRATT": 96, "CNTRLTYPE": 111, "FGUID": 112, "CRDT": 128, "OACS": 256, "ACL": 258, "AERL": 259,
			"FRMW": 260, "LPA": 261, "ELPE": 262, "NPSS": 263, "APSTA": 265, "WCTEMP": 266, "CCTEMP": 268,
			"SQES": 512, "CQES": 513, "MAXCMD": 514, "NN": 516, "ONCS": 520, "FUSES": 522, "FNA": 524, "VWC": 525,
			"AWUN": 526, "AWUPF": 528, "SGLS": 536, "MNAN": 540, "SUBNQN": 768, "PSD": 2048, "VendorUnknown": 3072}},
		{nvme.PowerState{}, 32, map[string]uintptr{"MP": 0, "Flags": 3, "ENLAT": 4, "EXLAT": 8}},
		{nvme.IdentifyNamespace{}, 4096, map[string]uintptr{"NCAP": 8, "NUSE": 16, "NSFEAT": 24, "NLBAF": 25,
			"FLBAS": 26, "MC": 27, "DPC": 28, "DPS": 29, "NMIC": 30, "RESCAP": 31, "DLFEAT": 33, "NAWUN": 34,
			"NOIOB": 46, "NVMCAP": 48, "NPWG": 64, "NPDG": 68, "NOWS": 72, "ANAGRPID": 92, "NSATTR": 99,
			"NVMSETID": 100, "NGUID": 104, "EUI64": 120, "LBAF": 128, "VendorUnknown": 384}},
		{nvme.LBAFormat{}, 4, map[string]uintptr{"MS": 0, "LBADS": 2, "RP": 3}},
		{nvme.IdentifyControllerNVM{}, 4096, map[string]uintptr{"WZSL": 1, "DMRL": 3, "DMRSL": 4, "DMSL": 8}},
		{nvme.NamespaceList{}, 4096, nil},
		{nvme.ErrorLogEntry{}, 64, map[string]uintptr{"SQID": 8, "CID": 10, "Status": 12, "ParamErr": 14, "LBA": 16,
			"NSID": 24, "VendorInfo": 28, "Specific": 32}},
		{nvme.SMARTLog{}, 512, map[string]uintptr{"CompositeKelvin": 1, "AvailableSpare": 3, "SpareThreshold": 4,
			"PercentageUsed": 5, "DataUnitsRead": 32, "DataUnitsWritten": 48, "HostReads": 64, "PowerCycles": 112,
			"UnsafeShutdowns": 144, "MediaErrors": 160, "ErrorLogEntries": 176, "WarningTempMinutes": 192,
			"SensorKelvin": 200}},
		{nvme.FirmwareLog{}, 512, map[string]uintptr{"Slots": 8}},
		{nvme.SGLDescriptor{}, 16, map[string]uintptr{"Addr": 0, "Len": 8, "ID": 15}},
		{nvme.DSMRange{}, 16, map[string]uintptr{"Attributes": 0, "Blocks": 4, "SLBA": 8}},
	} {
		typ := reflect.TypeOf(c.v)
		if typ.Size() != c.size || typ.Align() != 1 {
			t.Errorf("%v: size %d, want %d; alignment %d", typ, typ.Size(), c.size, typ.Align())
		}
		for name, at := range c.at {
			if f, ok := typ.FieldByName(name); !ok || f.Offset != at {
				t.Errorf("%v.%s: offset %d, want %d", typ, name, f.Offset, at)
			}
		}
	}
}

// dump prints the doublewords of a command that are not zero.
func dump(b []byte) string {
	var out []string
	for i := 0; i < len(b); i += 4 {
		if w := hex.EncodeToString([]byte{b[i+3], b[i+2], b[i+1], b[i]}); w != "00000000" {
			out = append(out, string("0123456789abcdef"[i/4])+":"+w)
		}
	}
	return strings.Join(out, " ")
}

func TestGoldenCommands(t *testing.T) {
	for want, set := range map[string]func(c *nvme.Command){
		"0:00000002 1:00000007 a:89abcdef b:00000001 c:00000007": func(c *nvme.Command) { c.SetRead(7, 0x189abcdef, 8) },
		"0:00000001 1:00000007 a:00000001 c:4000ffff":            func(c *nvme.Command) { c.SetWrite(7, 1, 65536, true) },
		"0:00000001 1:00000007 a:00000001":                       func(c *nvme.Command) { c.SetWrite(7, 1, 1, false) },
		"0:00000005 1:00000007 a:00000001 c:00000001":            func(c *nvme.Command) { c.SetCompare(7, 1, 2) },
		"0:00000008 1:00000007 a:00000001 c:42000001":            func(c *nvme.Command) { c.SetWriteZeroes(7, 1, 2, true, true) },
		"1:ffffffff": func(c *nvme.Command) { c.SetFlush(nvme.NSIDAll) },
		"0:00000009 1:00000002 a:000000ff b:00000004":            func(c *nvme.Command) { c.SetDSM(2, 256) },
		"0:00000006 1:00000005 a:00000003":                       func(c *nvme.Command) { c.SetIdentify(nvme.CNSDescriptors, 5) },
		"0:00000005 6:00004000 7:00000001 a:00ff0003 b:00090003": func(c *nvme.Command) { c.SetCreateIOCQ(3, 0x100004000, 256, 9, true) },
		"0:00000005 6:00004000 a:ffff0003 b:00000001":            func(c *nvme.Command) { c.SetCreateIOCQ(3, 0x4000, 65536, 0, false) },
		"0:00000001 6:00008000 a:00010003 b:00040007":            func(c *nvme.Command) { c.SetCreateIOSQ(3, 0x8000, 2, 4, nvme.PriorityLow) },
		"a:00000003":                       func(c *nvme.Command) { c.SetDeleteIOSQ(3) },
		"0:00000004 a:00000003":            func(c *nvme.Command) { c.SetDeleteIOCQ(3) },
		"0:00000008 a:12340003":            func(c *nvme.Command) { c.SetAbort(3, 0x1234) },
		"0:0000000c":                       func(c *nvme.Command) { c.SetAsyncEventRequest() },
		"0:00000002 1:ffffffff a:007f8002": func(c *nvme.Command) { c.SetGetLogPage(nvme.LogSMART, nvme.NSIDAll, 512, 0, true) },
		"0:00000002 1:ffffffff a:ffff0001 b:00000001 c:00001000": func(c *nvme.Command) { c.SetGetLogPage(nvme.LogError, nvme.NSIDAll, 131072*4, 4096, false) },
		"0:0000000a 1:00000001 a:00000006":                       func(c *nvme.Command) { c.SetGetFeatures(nvme.FeatVolatileCache, 1) },
		"0:00000009 a:00000007 b:000f000f":                       func(c *nvme.Command) { c.SetSetFeatures(nvme.FeatNumberOfQueues, 0, nvme.QueueCounts(16)) },
		"0:00000009 a:00000008 b:0000050f":                       func(c *nvme.Command) { c.SetSetFeatures(nvme.FeatCoalescing, 0, nvme.Coalesce(16, 5)) },
		"0:00000009 a:00000001 b:0f070307":                       func(c *nvme.Command) { c.SetSetFeatures(nvme.FeatArbitration, 0, nvme.Arbitrate(7, 3, 7, 15)) },
		"0:00000009 a:00000009 b:00010003":                       func(c *nvme.Command) { c.SetSetFeatures(nvme.FeatVectorConfig, 0, nvme.VectorConfig(3, true)) },
	} {
		b := make([]byte, 64)
		for i := range b {
			b[i] = 0xff // each Set starts from nothing
		}
		set(nvme.Overlay[nvme.Command](b))
		if got := dump(b); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestCommandDecodesWhatItEncodes(t *testing.T) {
	var c nvme.Command
	c.SetCreateIOCQ(3, 0x4000, 65536, 9, true)
	qid, n := c.Queue()
	pc, ien, vec := c.CQAttributes()
	if qid != 3 || n != 65536 || !pc || !ien || vec != 9 {
		t.Errorf("%d %d %v %v %d", qid, n, pc, ien, vec)
	}
	c.SetCreateIOSQ(5, 0x4000, 2, 65535, nvme.PriorityHigh)
	qid, n = c.Queue()
	pc, prio, cq := c.SQAttributes()
	if qid != 5 || n != 2 || !pc || prio != nvme.PriorityHigh || cq != 65535 {
		t.Errorf("%d %d %v %d %d", qid, n, pc, prio, cq)
	}
	c.SetGetLogPage(4, 1, 4096, 512, true)
	lid, size, off, retain := c.LogPage()
	if lid != 4 || size != 4096 || off != 512 || !retain {
		t.Errorf("%d %d %d %v", lid, size, off, retain)
	}
	c.SetWriteZeroes(1, 1<<63, 65536, true, false)
	if c.SLBA() != 1<<63 || c.Blocks() != 65536 || !c.Deallocate() || c.FUA() {
		t.Errorf("%+v", c)
	}
	c.SetAbort(7, 65535)
	if sq, cid := c.AbortTarget(); sq != 7 || cid != 65535 {
		t.Errorf("%d %d", sq, cid)
	}
	if sq, cq := nvme.GrantedQueues(nvme.QueueCounts(nvme.MaxQueues)); sq != nvme.MaxQueues || cq != nvme.MaxQueues {
		t.Errorf("%d %d", sq, cq)
	}
	if sq, cq := nvme.GrantedQueues(0x00020000); sq != 1 || cq != 3 {
		t.Errorf("%d %d", sq, cq)
	}
	c.SetDSM(1, 1)
	if n, ad := c.DSMRanges(); n != 1 || !ad {
		t.Errorf("%d %v", n, ad)
	}
}

// TestC17ZeroBasedCounts: a count of nothing must never become the largest one.
func TestC17ZeroBasedCounts(t *testing.T) {
	var c nvme.Command
	for name, f := range map[string]func(n uint32){
		"blocks 65536":    func(n uint32) { c.SetRead(1, 0, n) },
		"zeroes 65536":    func(n uint32) { c.SetWriteZeroes(1, 0, n, false, false) },
		"ranges 256":      func(n uint32) { c.SetDSM(1, n) },
		"entries 65536":   func(n uint32) { c.SetCreateIOCQ(1, 0, n, 0, false) },
		"sq 65536":        func(n uint32) { c.SetCreateIOSQ(1, 0, n, 1, 0) },
		"queues 65535":    func(n uint32) { nvme.QueueCounts(n) },
		"coalesce 256":    func(n uint32) { nvme.Coalesce(n, 0) },
		"admin size 4096": func(n uint32) { nvme.MakeAQA(n, 2) },
	} {
		var limit uint32
		for _, d := range name[strings.LastIndex(name, " ")+1:] {
			limit = limit*10 + uint32(d-'0')
		}
		for n, bad := range map[uint32]bool{0: true, 1: false, limit: false, limit + 1: true, math.MaxUint32: true} {
			if got := panics(func() { f(n) }); got != bad {
				t.Errorf("%s: %d: panicked %v", name, n, got)
			}
		}
	}
	if !panics(func() { c.SetGetLogPage(1, 0, 0, 0, false) }) || !panics(func() { c.SetGetLogPage(1, 0, 6, 0, false) }) {
		t.Error("a log page of no or of broken dwords")
	}
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return false
}

func TestCompletion(t *testing.T) {
	var c nvme.Completion
	c.SQHD.Set(7)
	c.SQID.Set(3)
	c.SetDW3(nvme.MakeDW3(0xfedc, nvme.StatusLBARange|nvme.StatusDNR, true))
	if c.Last.Get() != 0x8101fedc {
		t.Errorf("%08x", c.Last.Get())
	}
	d := c.DW3()
	if d.CID() != 0xfedc || !d.Phase() || d.Status() != nvme.StatusLBARange|nvme.StatusDNR {
		t.Errorf("%08x", uint32(d))
	}
	if d := nvme.MakeDW3(1, 0x7fff, false); d.Phase() || d.Status() != 0x7fff {
		t.Errorf("%08x", uint32(d))
	}
}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		s     nvme.Status
		text  string
		class error
		retry bool
	}{
		{0, "0/00h Successful Completion", nil, false},
		{nvme.StatusUnrecoveredRead, "2/81h Unrecovered Read Error", base.ErrCorrupt, true},
		{nvme.StatusUnrecoveredRead | nvme.StatusDNR, "2/81h Unrecovered Read Error, do not retry", base.ErrCorrupt, false},
		{nvme.StatusInternal.WithCRD(2) | nvme.StatusMore, "0/06h Internal Error, retry delay 2, more in the error log", nil, true},
		{nvme.StatusLBARange, "0/80h LBA Out of Range", base.ErrOutOfRange, false},
		{nvme.StatusNSProtected, "0/20h Namespace is Write Protected", base.ErrReadOnly, false},
		{nvme.StatusCapacity, "0/81h Capacity Exceeded", base.ErrNoSpace, false},
		{nvme.StatusCompareFailure, "2/85h Compare Failure", base.ErrMismatch, false},
		{nvme.MakeStatus(nvme.SCTVendor, 0xab), "7/ABh Vendor Specific", nil, false},
		{nvme.MakeStatus(4, 0), "4/00h unknown status", nil, false},
	} {
		if c.s.String() != c.text || c.s.Retry() != c.retry || c.s.Class() != c.class {
			t.Errorf("%q retry %v class %v, want %+v", c.s, c.s.Retry(), c.s.Class(), c)
		}
		err := c.s.Err(nvme.OpRead, false, 5)
		if (err == nil) != c.s.OK() {
			t.Errorf("%v: %v", c.s, err)
		}
		if err != nil {
			var se *nvme.StatusError
			if !errors.As(err, &se) || se.DW0 != 5 || c.class != nil && !errors.Is(err, c.class) {
				t.Errorf("%v", err)
			}
		}
	}
	err := nvme.StatusInvalidQID.Err(nvme.AdminCreateIOSQ, true, 0)
	if got, want := err.Error(), "create I/O submission queue: NVMe status 1/01h Invalid Queue Identifier"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if nvme.MakeStatus(1, 0x0c) != nvme.StatusInvalidQDelete || nvme.StatusInvalidQDelete.SCT() != 1 || nvme.StatusInvalidQDelete.SC() != 12 {
		t.Error("status code and type mixed up")
	}
}

func TestOpcodes(t *testing.T) {
	if nvme.OpRead.Name(false) != "read" || nvme.OpRead.Name(true) != "get log page" || nvme.Opcode(0xc5).Name(true) != "opcode C5h" {
		t.Error("names")
	}
	for op, want := range map[nvme.Opcode]nvme.DataDirection{nvme.OpRead: nvme.DeviceToHost, nvme.OpWrite: nvme.HostToDevice,
		nvme.OpCompare: nvme.HostToDevice, nvme.OpDSM: nvme.HostToDevice, nvme.OpFlush: nvme.NoData, nvme.OpWriteZeroes: nvme.NoData,
		nvme.AdminIdentify: nvme.DeviceToHost} {
		if op.Direction() != want {
			t.Errorf("%v: %v", op, op.Direction())
		}
	}
}

func TestLe128(t *testing.T) {
	var f nvme.Le128
	f.Set(math.MaxUint64)
	if f.Uint64() != math.MaxUint64 || f.Float() != math.MaxUint64 {
		t.Errorf("%v", f.Float())
	}
	f[8] = 1
	if f.Uint64() != math.MaxUint64 || f.Float() != math.Ldexp(1, 65) {
		t.Errorf("%v", f.Float())
	}
}
