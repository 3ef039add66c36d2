package ctl

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// TestDeviceList: what is free, what somebody has, what does not exist, and what
// cannot be a target.
func TestDeviceList(t *testing.T) {
	l := newLab(t)
	data := filepath.Join(l.target.Dir, dataName)
	list := func(args ...string) map[string]targetDoc {
		t.Helper()
		l.out.Reset()
		l.JSON = true
		want := ExitOK
		if slices.Contains(args, "pci:ffff:ff:1f.7") { // what is not there ends with its status
			want = ExitNotFound
		}
		if err := DeviceList(t.Context(), l.Env, &Target{}, args, t.TempDir()); ExitCode(err) != want {
			t.Fatal(err)
		}
		var doc deviceListDoc
		if err := json.Unmarshal(l.out.Bytes(), &doc); err != nil {
			t.Fatal(err)
		}
		out := map[string]targetDoc{}
		for _, d := range doc.Targets {
			out[d.Target] = d
		}
		return out
	}
	none := filepath.Join(t.TempDir(), "none")
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, make([]byte, 5<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	got := list(data, none, "sim:size=64MiB", "pci:ffff:ff:1f.7", short, "sim:size=32MiB")
	for _, target := range []string{short, "sim:size=32MiB"} {
		if d := got[target]; d.Usable || !strings.Contains(d.Why, "a store needs 64.0 MiB") {
			t.Errorf("too small: %+v", d)
		}
	}
	if d := got["pci:ffff:ff:1f.7"]; d.Usable || !strings.Contains(d.Why, "no NVMe controller at this address") || d.Transport != "pci" {
		t.Errorf("no controller: %+v", d)
	}
	if d := got[data]; !d.Usable || !strings.Contains(d.Holds, "device 0 of 1") || d.Bytes != 64*base.MiB || d.Transport != "file" {
		t.Errorf("free: %+v", d)
	}
	if d := got[none]; d.Usable || !strings.Contains(d.Why, "not found") {
		t.Errorf("none: %+v", d)
	}
	if d := got["sim:size=64MiB"]; !d.Usable || d.Bytes != 64*base.MiB || d.Holds != "" || d.Transport != "sim" {
		t.Errorf("model: %+v", d)
	}
	s, err := l.open(t.Context(), "test", l.target, false)
	if err != nil {
		t.Fatal(err)
	}
	if d := list(data)[data]; d.Usable || !strings.Contains(d.Why, "locked by another owner") {
		t.Errorf("open: %+v", d)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if err := DeviceList(t.Context(), l.Env, &Target{}, []string{"tape:1"}, t.TempDir()); !errors.Is(err, base.ErrInvalid) {
		t.Errorf("tape: %v", err)
	}
}

// TestDeviceListText: the table of a machine with a controller.
func TestDeviceListText(t *testing.T) {
	root := t.TempDir()
	sys := filepath.Join(root, "sys")
	for name, text := range map[string]string{
		"bus/pci/devices/0000:01:00.0/class": "0x010802", "bus/pci/devices/0000:01:00.0/numa_node": "1",
		"bus/pci/devices/0000:01:00.0/nvme/nvme0/x": "", "class/nvme/nvme0/model": "A disk\x1b[31m",
		"class/nvme/nvme0/nvme0n1/x": "", "class/block/nvme0n1/size": "2048",
		"bus/pci/devices/0000:02:00.0/class": "0x010802", "../dev/nvme0n1": strings.Repeat("\x00", 1080) + "\x53\xef" + strings.Repeat("\x00", 64<<10),
	} {
		path := filepath.Join(sys, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := DeviceList(t.Context(), &Env{Stdout: &out}, &Target{}, nil, sys); err != nil {
		t.Fatal(err)
	}
	want := `CONTROLLER    DISK          SIZE     USABLE  WHAT, WHY
0000:01:00.0  nvme0                  yes     A disk\x1b[31m, NUMA node 1
              /dev/nvme0n1  1.0 MiB  yes     holds an ext2/3/4 file system; as
                                               /dev/nvme0n1
0000:02:00.0                         no      no driver has it: ugdsctl device
                                               bind 0000:02:00.0
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

// TestHealth: a controller that failed a read and warns of its spare says both.
func TestHealth(t *testing.T) {
	s, err := sim.Open(sim.Default(64 * base.MiB))
	if err != nil {
		t.Fatal(err)
	}
	d, err := ctrl.Open(t.Context(), s, ctrl.Options{Watch: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(t.Context())
	s.Script(sim.Rule{Kind: sim.FaultStatus, Ops: []nvme.Opcode{nvme.OpRead}, Count: 1, Status: nvme.StatusUnrecoveredRead | nvme.StatusDNR})
	s.SMART(func(l *nvme.SMARTLog) {
		l.CriticalWarning, l.AvailableSpare = nvme.WarnSpare, 3
		l.DataUnitsRead.Set(2)
		l.CompositeKelvin.Set(kelvin + 71)
	})
	r, err := driver.AllocRegion(4096, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := driver.Do(t.Context(), d, driver.Request{Op: driver.OpRead, Off: 8192, Len: 4096, Segs: []driver.Seg{r.Seg(0, 4096)}}); err == nil {
		t.Fatal("the read did not fail")
	}
	h, err := healthOf(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if h.OK || !strings.Contains(h.Warning, "spare") || h.SMART.SparePercent != 3 || h.SMART.ReadBytes != 2*nvme.DataUnit ||
		h.SMART.TemperatureC == nil || *h.SMART.TemperatureC != 71 {
		t.Errorf("%+v", h)
	}
	if len(h.Errors) != 1 || h.Errors[0].LBA != 2 || h.Errors[0].NSID != 1 || !strings.Contains(strings.ToLower(h.Errors[0].Status), "read") {
		t.Errorf("errors: %+v", h.Errors)
	}
	var text strings.Builder
	for _, r := range h.rows() {
		text.WriteString(r[0] + ": " + r[1] + "\n")
	}
	for _, want := range []string{"71 °C", "spare: 3 %", "error 1: ", "block 2", "ready, spare below its threshold"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
}

// TestDeviceVerbs: what is no controller says so, and nothing is reset without yes.
func TestDeviceVerbs(t *testing.T) {
	l := newLab(t)
	data := filepath.Join(l.target.Dir, dataName)
	for what, err := range map[string]error{
		"health":       DeviceHealth(t.Context(), l.Env, l.target, nil),
		"plan":         DeviceReset(t.Context(), l.Env, &Target{}, DeviceResetOptions{Target: data}),
		"a controller": notController("x", "y", "block"),
		"reset":        DeviceReset(t.Context(), l.Env, &Target{}, DeviceResetOptions{Target: data, Yes: true}),
	} {
		if !errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), "not a controller") {
			t.Errorf("%s of a file: %v", what, err)
		}
	}
	if err := DeviceReset(t.Context(), l.Env, &Target{}, DeviceResetOptions{Target: "pci:ffff:ff:1f.7"}); !errors.Is(err, base.ErrNotFound) {
		t.Errorf("plan of nothing: %v", err)
	}
	l.out.Reset()
	if err := DeviceReset(t.Context(), l.Env, &Target{}, DeviceResetOptions{Target: "sim:size=64MiB"}); ExitCode(err) != ExitUsage || !Quiet(err) {
		t.Errorf("plan of a model: %v", err)
	}
	if err := DeviceReset(t.Context(), l.Env, &Target{}, DeviceResetOptions{Target: "sim:size=64MiB", Yes: true}); err != nil {
		t.Errorf("model: %v", err)
	}
	if out := l.out.String(); !strings.Contains(out, "Nothing was changed") || !strings.Contains(out, "was ready after") {
		t.Error(out)
	}
}

// TestOneOfSeveralFails: a target that cannot be opened is an error, and the others are shown.
func TestOneOfSeveralFails(t *testing.T) {
	args := []string{"sim:size=64MiB", filepath.Join(t.TempDir(), "none"), "sim:size=64MiB,nsid=3"}
	for name, show := range map[string]func(*Env) error{
		"info":   func(e *Env) error { return DeviceInfo(t.Context(), e, &Target{}, args) },
		"health": func(e *Env) error { return DeviceHealth(t.Context(), e, &Target{}, args) },
	} {
		var out bytes.Buffer
		e := &Env{Stdout: &out, Stderr: io.Discard}
		if err := show(e); !errors.Is(err, base.ErrNotFound) || !strings.Contains(out.String(), "nsid=3") ||
			strings.Count(out.String(), "sim:size=64MiB") != 2 {
			t.Errorf("%s: %v\n%s", name, err, &out)
		}
	}
}
