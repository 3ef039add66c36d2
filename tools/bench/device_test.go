package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/internal/base"
)

func deviceRows(t *testing.T, p DevicePlan) []DeviceRow {
	t.Helper()
	r, err := RunDevice(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != len(p.Cases) {
		t.Fatalf("%d rows of %d", len(r.Rows), len(p.Cases))
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Bytes != row.Requests*row.Size || row.Requests < int64(row.Threads*row.Depth) || row.P50 > row.P90 || row.P90 > row.P99 ||
			row.P99 > row.P999 || row.P999 > row.Max || row.PerSecond <= 0 || row.Clock == wallClock && row.Submit+row.Room+row.Wait > 1.01 {
			t.Errorf("%+v", row)
		}
	}
	return r.Rows
}

// TestDeviceModelTime compares figures with those that the service model must give:
// a page of 4 KiB takes 60 µs on its die and passes a link of 6 GB/s, so that one
// request at a time has 60.68 µs, and the link is full at a depth that keeps all
// dies busy (I-05: depth is not counted twice, nor bytes that were not moved).
func TestDeviceModelTime(t *testing.T) {
	near := func(what string, got, want, within float64) {
		t.Helper()
		if got < want*(1-within) || got > want*(1+within) {
			t.Errorf("%s: %g, want %g within %.0f %%", what, got, want, 100*within)
		}
	}
	const page = 60e-6 + 4096/6e9
	for _, target := range []string{"sim:size=64MiB,service=fixed,clock=virtual", "sim:size=64MiB,service=fixed,clock=virtual,lba=512"} {
		rows := deviceRows(t, DevicePlan{Target: target, Cases: []DeviceCase{
			{Op: OpRead, Size: 4096, Threads: 1, Depth: 1, Batch: 1, Completion: Polling, Bytes: 4 * base.MiB},
			{Op: OpRead, Size: 4096, Threads: 1, Depth: 8, Batch: 1, Completion: Polling, Bytes: 16 * base.MiB, Seed: 3},
			{Op: OpRead, Size: 4096, Threads: 4, Depth: 1, Batch: 1, Completion: Polling, Bytes: 16 * base.MiB},
			{Op: OpRead, Size: base.MiB, Threads: 1, Depth: 16, Batch: 1, Completion: Polling, Bytes: 128 * base.MiB},
			{Op: OpRead, Size: 4096, Threads: 1, Depth: 512, Batch: 1, Completion: Polling, Bytes: base.MiB},
		}})
		near("p50 of one", rows[0].P50, page, 0.02)
		near("p99.9 of one", rows[0].P999, page, 0.02)
		near("requests of one", rows[0].PerSecond, 1/page, 0.02)
		near("MB/s of one", rows[0].MBPerS, 4096/page/1e6, 0.02)
		near("p50 of 8", rows[1].P50, page, 0.02)
		near("requests of 4 callers", rows[2].PerSecond, 4/page, 0.1) // some meet on a die
		near("MB/s of a full link", rows[3].MBPerS, 6000, 0.05)
		if got := rows[1].PerSecond; got > 8/page*1.001 || got < 7/page {
			t.Errorf("8 at a time: %g a second, at most %g are possible", got, 8/page)
		}
		if last := &rows[4]; last.P90 > 2*last.P50 { // a quarter of them are the last ones, which end in any order
			t.Errorf("the last ones were noticed late: p50 %g, p90 %g", last.P50, last.P90)
		}
		if rows[0].Clock != "model" || !rows[0].Compared || rows[0].Commands != 1 {
			t.Errorf("%+v", rows[0])
		}
	}
}

// TestDeviceRoom: a queue that takes one command at a time makes callers wait in
// Submit, where they notice no end. Each call then takes as long as the others that
// are in flight with it, none until the end of the run, at every depth.
func TestDeviceRoom(t *testing.T) {
	const page = 60e-6 + 4096/6e9
	c := DeviceCase{Op: OpRead, Size: 4096, Threads: 1, Depth: 32, Batch: 1, Completion: Polling, Bytes: 4 * base.MiB}
	deep := c
	deep.Depth = 64
	for _, row := range deviceRows(t, DevicePlan{Target: "sim:size=64MiB,service=fixed,clock=virtual,mqes=2,queues=1", Cases: []DeviceCase{c, deep}}) {
		for what, got := range map[string]float64{"p50": row.P50, "p90": row.P90, "max": row.Max} {
			if want := float64(row.Depth) * page; got < want*0.95 || got > want*1.05 {
				t.Errorf("depth %d: %s %g, want %g", row.Depth, what, got, want)
			}
		}
		if row.Room < 0.9 || row.Room > 1 {
			t.Errorf("depth %d: %g of the time waiting for room", row.Depth, row.Room)
		}
	}
}

// TestDeviceCasesAreAlone: what a case tells does not depend on the one before it, of
// whose small requests a controller thinks for a while.
func TestDeviceCasesAreAlone(t *testing.T) {
	small := DeviceCase{Op: OpRead, Size: 4096, Threads: 1, Depth: 1, Batch: 1, Completion: Polling, Bytes: base.MiB}
	large := small
	large.Size, large.Bytes = base.MiB, 8*base.MiB
	const target = "sim:size=64MiB,service=fixed,clock=virtual"
	alone := deviceRows(t, DevicePlan{Target: target, Cases: []DeviceCase{large}})[0]
	behind := deviceRows(t, DevicePlan{Target: target, Cases: []DeviceCase{small, large}})[1]
	if alone.Room != 0 || behind.Room != 0 {
		t.Errorf("%g of the time waiting for room alone, %g behind another", alone.Room, behind.Room)
	}
}

// TestDeviceShapes runs each way of completion, with batches, callers and writes, by
// the wall's clock: every figure is there and what was moved compares.
func TestDeviceShapes(t *testing.T) {
	var cases []DeviceCase
	for _, how := range Completions {
		for _, op := range []string{OpRead, OpWrite} {
			cases = append(cases,
				DeviceCase{Op: op, Size: 4096, Threads: 2, Depth: 32, Batch: 8, Completion: how, Bytes: 4 * base.MiB, Seed: 1},
				DeviceCase{Op: op, Size: 1 * base.MiB, Threads: 1, Depth: 2, Batch: 1, Completion: how, Bytes: 16 * base.MiB, Seed: 1})
		}
	}
	for _, row := range deviceRows(t, DevicePlan{Target: "sim:size=64MiB", Cases: cases}) {
		if row.Clock != "wall" || !row.Compared || (row.CPU == nil) != (row.Wall < leastForCPU.Seconds()) || row.Size == base.MiB && row.Commands < 8 {
			t.Errorf("%+v", row)
		}
	}
}

// TestDeviceWithoutInterrupts: a report of interrupts that there were not says so, and
// marks the rows.
func TestDeviceWithoutInterrupts(t *testing.T) {
	c := []DeviceCase{{Op: OpRead, Size: 4096, Threads: 1, Depth: 1, Batch: 1, Completion: Interrupt, Bytes: 4096}}
	for target, told := range map[string]bool{"sim:size=8MiB,vectors=1": true, "sim:size=8MiB": false} {
		r, err := RunDevice(t.Context(), DevicePlan{Target: target, Cases: c})
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := r.WriteTable(&b, false); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String(), `too few interrupts for "interrupt": all is polled`) != told || strings.Contains(b.String(), " interrupt* ") != told || !strings.Contains(b.String(), "n/a") {
			t.Errorf("%s: %s", target, b.String())
		}
	}
}

// TestDeviceFile: a file is read without leave and written only with it, and never
// if it holds a store.
func TestDeviceFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, bytes.Repeat([]byte("mine"), 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	read := DeviceCase{Op: OpRead, Size: 65536, Threads: 1, Depth: 8, Batch: 2, Bytes: 4 * base.MiB}
	write := read
	write.Op = OpWrite
	if rows := deviceRows(t, DevicePlan{Target: path, Cases: []DeviceCase{read}}); rows[0].Compared {
		t.Error("what the file holds is not known")
	}
	if _, err := RunDevice(t.Context(), DevicePlan{Target: path, Cases: []DeviceCase{write}}); !errors.Is(err, base.ErrInvalid) {
		t.Errorf("write without leave: %v", err)
	}
	if data, err := os.ReadFile(path); err != nil || !bytes.Equal(data, bytes.Repeat([]byte("mine"), 16<<20)) {
		t.Errorf("the file changed: %v", err)
	}
	if rows := deviceRows(t, DevicePlan{Target: path, Cases: []DeviceCase{write, read}, Overwrite: true}); !rows[0].Compared || !rows[1].Compared {
		t.Error("not compared")
	}
	p := smallPlace(t)
	for _, target := range p.storeDevices() {
		if _, err := RunDevice(t.Context(), DevicePlan{Target: target, Cases: []DeviceCase{write}, Overwrite: true}); !errors.Is(err, base.ErrExists) {
			t.Errorf("a store: %v", err)
		}
		deviceRows(t, DevicePlan{Target: target, Cases: []DeviceCase{read}})
	}
	polled := read
	polled.Completion = Polling
	for what, c := range map[string]DeviceCase{"completion": polled,
		"size": {Op: OpRead, Size: 100, Threads: 1, Depth: 1, Batch: 1}, "batch": {Op: OpRead, Size: 4096, Threads: 1, Depth: 1, Batch: 2},
		"threads": {Op: OpRead, Size: 4096, Threads: 65, Depth: 1, Batch: 1}, "op": {Op: "erase", Size: 4096, Threads: 1, Depth: 1, Batch: 1},
		"depth": {Op: OpRead, Size: 4096, Threads: 1, Depth: MaxDeviceDepth + 1, Batch: 1}} {
		if _, err := RunDevice(t.Context(), DevicePlan{Target: path, Cases: []DeviceCase{c}}); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	asleep := polled
	asleep.Completion = Interrupt
	timeless := DeviceCase{Op: OpRead, Size: 4096, Threads: 1, Depth: 1, Batch: 1, Bytes: 1 << 20, Completion: Polling}
	if _, err := RunDevice(t.Context(), DevicePlan{Target: "sim:size=64MiB,clock=virtual", Cases: []DeviceCase{timeless}}); !errors.Is(err, base.ErrInvalid) ||
		!strings.Contains(err.Error(), "service=fixed") {
		t.Errorf("no time passes: %v", err)
	}
	if _, err := RunDevice(t.Context(), DevicePlan{Target: "sim:size=64MiB,clock=virtual", Cases: []DeviceCase{asleep}}); !errors.Is(err, base.ErrInvalid) {
		t.Errorf("interrupts in virtual time: %v", err)
	}
	if _, err := RunDevice(t.Context(), DevicePlan{Target: "sim:path=" + path + "x", Cases: []DeviceCase{polled}}); !errors.Is(err, base.ErrNotFound) {
		t.Errorf("no such file: %v", err)
	}
}

// TestDeviceWrong: other bytes than were written are noticed.
func TestDeviceWrong(t *testing.T) {
	b := make([]byte, 8192)
	stampAll(b, 4096, 4096)
	if err := checkStamps("x", b, 4096, 4096); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{"place": checkStamps("x", b, 8192, 4096), "second block": checkStamps("x", append(b[:4096:4096], b[:4096]...), 4096, 4096)} {
		if !errors.Is(err, base.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestDeviceTable: the table names the clock, and the verdict follows the shares.
func TestDeviceTable(t *testing.T) {
	r := &DeviceReport{Transport: "sim", NUMANode: 1, Rows: []DeviceRow{{DeviceCase: DeviceCase{Op: OpRead, Size: 4096, Threads: 1, Depth: 1, Bytes: 16384}, Clock: "model"}}}
	text := func(explain bool) string {
		var b strings.Builder
		if err := r.WriteTable(&b, explain); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if s := text(false); !strings.Contains(s, "MODEL'S VIRTUAL CLOCK") || strings.Contains(s, "limits") {
		t.Error(s)
	}
	r.Rows[0].Clock, r.Rows[0].Wait = "wall", 0.7
	if s := text(true); !strings.Contains(s, "the device (0 %") || !strings.Contains(s, "NUMA node 1") || !strings.Contains(s, "link: not known") {
		t.Error(s)
	}
	r.Rows[0].Wait, r.Rows[0].Room = 0.1, 0.8
	if s := text(true); !strings.Contains(s, "the device (0 %") || !strings.Contains(s, "80 % in waiting for room") || strings.Contains(s, "if it has room") {
		t.Error(s)
	}
	r.Rows[0].Wait, r.Rows[0].Room, r.Rows[0].Submit = 0.3, 0.3, 0.4
	if s := text(true); !strings.Contains(s, "the device (40 %") {
		t.Error(s)
	}
	r.Rows[0].Room = 0
	r.Rows[0].Wait, r.Rows[0].Submit, r.Link.Width, r.Link.MaxWidth = 0.2, 0.6, "2", "4"
	if s := text(true); !strings.Contains(s, "the host (60 %") || !strings.Contains(s, "could do more") {
		t.Error(s)
	}
	r.Rows[0].Completion, r.Rows[0].Engine = Hybrid, "hybrid, batches "+ctrl.NoInterrupts
	if s := text(true); !strings.Contains(s, "batches are polled") || !strings.Contains(s, "hybrid*, callers") || strings.Contains(s, "--bytes") {
		t.Error(s)
	}
	r.Rows[0].Depth = 32
	if s := text(false); !strings.Contains(s, "More than --bytes") {
		t.Error(s)
	}
	if data, err := json.Marshal(r); err != nil || !strings.Contains(string(data), `"p999_seconds"`) {
		t.Errorf("%s, %v", data, err)
	}
}
