package probe_test

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestParse(t *testing.T) {
	for in, want := range map[string]probe.Target{
		"/a/b":             {Scheme: "file", Rest: "/a/b"},
		"a":                {Scheme: "file", Rest: "a"},
		"./pci:x":          {Scheme: "file", Rest: "./pci:x"},
		"file:rel:ative":   {Scheme: "file", Rest: "rel:ative"},
		"pci:0000:01:00.0": {Scheme: "pci", Rest: "0000:01:00.0"},
		"sim:size=1GiB":    {Scheme: "sim", Rest: "size=1GiB"},
	} {
		if got, err := probe.Parse(in); got != want || err != nil {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
	for in, hint := range map[string]string{"": "name a path", "file:": "name a path", "http://x": "name a path", "nvme:1": "name a path",
		"pci:": "name a path", "sim:lba=3": "", "pci:01:00.0": "write 0000:01:00.0", "pci:0000:0A:00.0": "write 0000:0a:00.0",
		"pci:0000:01:00.8": "like 0000:01:00.0", "pci:../0000:01:00.0": "like 0000:01:00.0"} {
		if _, err := probe.Parse(in); !errors.Is(err, base.ErrInvalid) || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestOpen(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "data")
	if err := file.Create(path, base.MiB, false); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{path, "file:" + path} {
		d, err := probe.Open(ctx, target, probe.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if d.Info().Capacity != base.MiB || d.Info().Target != "file:"+path {
			t.Errorf("%+v", d.Info())
		}
		if err := d.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	for target, want := range map[string]error{
		"pci:ffff:ff:1f.7":       base.ErrNotFound,
		"sim:path=" + path + "x": base.ErrNotFound,
		"nvme:1":                 base.ErrInvalid,
		path + "x":               base.ErrNotFound,
	} {
		d, err := probe.Open(ctx, target, probe.Options{})
		if !errors.Is(err, want) || d != nil {
			t.Errorf("%s: %v, %v", target, d, err)
		}
	}
}

func TestExplain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	if err := file.Create(path, base.MiB, false); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{
		path:               "regular file",
		path + "x":         "format makes it",
		"/":                "directory",
		"/dev/null":        "cannot be a device",
		"pci:ffff:ff:1f.7": "no NVMe controller",
		"sim:mdts=1":       "in memory",
		"sim:path=" + path: "regular file",
		"sim:path=/":       "cannot be behind",
		"sim:mdts=x":       "mdts=x",
		"x:y":              "unknown scheme",
	} {
		if got := strings.Join(probe.Explain(target), "\n"); !strings.Contains(got, want) {
			t.Errorf("%s: %q lacks %q", target, got, want)
		}
	}
}

func TestTargetFile(t *testing.T) {
	for target, want := range map[string]struct {
		path string
		size int64
		ok   bool
		as   string // with /new as path
	}{
		"/a/b":                         {"/a/b", 0, true, "/new"},
		"file:a":                       {"a", 0, true, "file:/new"},
		"sim:mdts=1,path=/a,,b":        {"/a,b", 0, true, "sim:mdts=1,path=/new"},
		"sim:path=a,size=1MiB":         {"a", base.MiB, true, "sim:path=/new,size=1MiB"},
		"sim:size=1MiB":                {},
		"pci:0000:01:00.0":             {},
		"sim:lba=512,size=3KiB,path=a": {"a", 3 * base.KiB, true, "sim:lba=512,size=3KiB,path=/new"},
	} {
		parsed, err := probe.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		path, size, ok := parsed.File()
		if path != want.path || size != want.size || ok != want.ok {
			t.Errorf("%s: %q, %d, %v", target, path, size, ok)
		}
		if ok && probe.WithPath(target, "/new") != want.as {
			t.Errorf("%s: %s", target, probe.WithPath(target, "/new"))
		}
	}
	const target = "sim:path=a"
	again, err := probe.Parse(probe.WithPath(target, "/x,y,,z"))
	if path, _, ok := again.File(); path != "/x,y,,z" || !ok || err != nil {
		t.Errorf("%q, %v, %v", path, ok, err)
	}
}

// TestSim: a model with a file behind it keeps what was written, has one writer or
// several readers, and takes no writes when it was opened for reading; one without
// a file forgets.
func TestSim(t *testing.T) {
	ctx := context.Background()
	target := "sim:lba=512,path=" + filepath.Join(t.TempDir(), "blocks")
	open := func(target string, readOnly bool) (driver.Device, error) {
		return probe.Open(ctx, target, probe.Options{File: file.Options{ReadOnly: readOnly}})
	}
	if _, err := open(target, false); !errors.Is(err, base.ErrNotFound) {
		t.Errorf("without the file: %v", err)
	}
	path, _, _ := mustParse(t, target).File()
	if err := file.Create(path, base.MiB, true); err != nil {
		t.Fatal(err)
	}
	d, err := open(target, false)
	if err != nil {
		t.Fatal(err)
	}
	if i := d.Info(); i.Transport != "sim" || i.Capacity != base.MiB || i.BlockSize != 512 || i.Target != target {
		t.Errorf("%+v", i)
	}
	if err := move(t, d, driver.OpWrite, []byte("kept")); err != nil {
		t.Error(err)
	}
	for _, readOnly := range []bool{false, true} {
		if _, err := open(target, readOnly); !errors.Is(err, base.ErrLocked) {
			t.Errorf("second owner, for reading %v: %v", readOnly, err)
		}
	}
	closeAll(t, d)
	var readers []driver.Device
	for range 2 {
		d, err := open(target, true)
		if err != nil {
			t.Fatal(err)
		}
		readers = append(readers, d)
		got := make([]byte, 4)
		if err := move(t, d, driver.OpRead, got); err != nil || string(got) != "kept" {
			t.Errorf("%q, %v", got, err)
		}
		if err := move(t, d, driver.OpWrite, []byte("lost")); err == nil {
			t.Error("a reader writes")
		}
	}
	closeAll(t, readers...)
	for i := range 2 { // in memory
		d, err := open("sim:size=1MiB", false)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if err := move(t, d, driver.OpRead, got); err != nil || string(got) != "\x00\x00\x00\x00" {
			t.Errorf("open %d: %q, %v", i, got, err)
		}
		if err := move(t, d, driver.OpWrite, []byte("gone")); err != nil {
			t.Error(err)
		}
		closeAll(t, d)
	}
}

func mustParse(t *testing.T, target string) probe.Target {
	t.Helper()
	p, err := probe.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func closeAll(t *testing.T, devs ...driver.Device) {
	t.Helper()
	for _, d := range devs {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// move reads or writes the beginning of the first block.
func move(t *testing.T, d driver.Device, op driver.Op, p []byte) error {
	t.Helper()
	r, err := driver.AllocRegion(d.Info().BlockSize, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	copy(r.CPU(), p)
	b := driver.Batch{Reqs: []driver.Request{{Op: op, Len: r.Size(), Segs: []driver.Seg{r.Seg(0, r.Size())}}}}
	if err := errors.Join(d.Submit(t.Context(), &b), b.Wait(t.Context())); err != nil {
		return err
	}
	if op == driver.OpRead {
		copy(p, r.CPU())
	}
	return b.Reqs[0].Err
}

// TestModelBehindLoop: a model does not take a file that a loop device is over.
func TestModelBehindLoop(t *testing.T) {
	testenv.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "a")
	if err := file.Create(path, base.MiB, true); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "-f", "--show", path).Output()
	if err != nil {
		testenv.Skip(t, "losetup: "+err.Error())
	}
	defer func() { _ = exec.Command("losetup", "-d", strings.TrimSpace(string(out))).Run() }()
	d, err := probe.Open(t.Context(), "sim:path="+path, probe.Options{})
	if !errors.Is(err, base.ErrInUse) {
		t.Errorf("a model: %v", err)
	}
	if d != nil {
		_ = d.Close(t.Context())
	}
}
