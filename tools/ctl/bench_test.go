package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/tools/bench"
)

func smallBench(t *testing.T) BenchOptions {
	return BenchOptions{TempDir: t.TempDir(), Ops: []string{"put", "get"}, Sizes: []string{"4KiB"}, Callers: []int{2},
		Batches: []int{1}, Depths: []int{0}, Sync: "both", Against: []string{"raw"}, Bytes: base.MiB, Rounds: 1, Seed: 1}
}

func (l *lab) bench(ctx context.Context, o BenchOptions) (doc benchDoc, err error) {
	l.out.Reset()
	l.JSON = true
	defer func() { l.JSON = false }()
	err = Bench(ctx, l.Env, l.target, o)
	if jerr := json.Unmarshal(l.out.Bytes(), &doc); jerr != nil && err == nil {
		err = jerr
	}
	return doc, err
}

// benchKeys lists what the bench has left in the store.
func (l *lab) benchKeys(t *testing.T) string {
	l.target.Namespace = bench.Namespace
	defer func() { l.target.Namespace = "" }()
	return l.keys(t)
}

// TestBenchOnStore: a bench on the user's store leaves it as it was, also when
// an earlier one died in the middle.
func TestBenchOnStore(t *testing.T) {
	l := newLab(t)
	l.put(t, "mine", []byte("value"))
	o := smallBench(t)
	o.HTML = filepath.Join(t.TempDir(), "b.html")
	l.target.Namespace = bench.Namespace
	l.put(t, "bench/1/0", []byte("left by a bench that died"))
	l.target.Namespace = ""
	doc, err := l.bench(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if doc.Version != DocVersion || doc.Missed == nil || len(doc.Report.Groups) != 3 || len(doc.Report.Groups[0].Rows) != 2 {
		t.Errorf("%+v", doc)
	}
	if page, err := os.ReadFile(o.HTML); err != nil || !strings.Contains(string(page), "<svg") {
		t.Errorf("page: %v", err)
	}
	if left := l.benchKeys(t); left != "" {
		t.Errorf("left in the store: %s", left)
	}
	if keys := l.keys(t); keys != "mine\n" {
		t.Errorf("the user's keys: %q", keys)
	}
	if left, err := os.ReadDir(o.TempDir); err != nil || len(left) > 0 {
		t.Errorf("files left: %v, %v", left, err)
	}
}

// TestBenchStops: an interrupt in the middle leaves neither files nor objects.
func TestBenchStops(t *testing.T) {
	l := newLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := smallBench(t)
	o.Ops = []string{"get"}
	calls := 0
	o.Exec = func(ctx context.Context, in []byte) ([]byte, error) {
		if calls++; calls == 3 { // what the store's objects were put for
			cancel()
			return nil, errors.New("the process was interrupted")
		}
		var c bench.Case
		if err := json.Unmarshal(in, &c); err != nil {
			return nil, err
		}
		s, err := bench.RunCase(ctx, c)
		if err != nil {
			return nil, err
		}
		return json.Marshal(s)
	}
	if _, err := l.bench(ctx, o); ExitCode(err) != ExitInterrupted {
		t.Fatal(err)
	}
	if calls != 3 {
		t.Errorf("%d processes", calls)
	}
	if left := l.benchKeys(t); left != "" {
		t.Errorf("left in the store: %s", left)
	}
	if left, err := os.ReadDir(o.TempDir); err != nil || len(left) > 0 {
		t.Errorf("files left: %v, %v", left, err)
	}
}

func TestBenchRefusals(t *testing.T) {
	l := newLab(t)
	raw := filepath.Join(l.target.Dir, dataName)
	for name, change := range map[string]func(*BenchOptions){
		"op": func(o *BenchOptions) { o.Ops = []string{"x"} }, "size": func(o *BenchOptions) { o.Sizes = []string{"x"} },
		"zero": func(o *BenchOptions) { o.Sizes = []string{"0"} }, "callers": func(o *BenchOptions) { o.Callers = []int{0} },
		"durability": func(o *BenchOptions) { o.Sync = "x" }, "against": func(o *BenchOptions) { o.Against = []string{"x"} },
		"bytes": func(o *BenchOptions) { o.Bytes = 1 }, "rounds": func(o *BenchOptions) { o.Rounds = 0 },
		"suite": func(o *BenchOptions) { o.Ops, o.Suite = nil, "x" }, "scale": func(o *BenchOptions) { o.Scale = []int{0} },
		"too much": func(o *BenchOptions) { o.Sizes, o.Batches = []string{"1GiB"}, []int{64} },
	} {
		o := smallBench(t)
		change(&o)
		if _, err := l.bench(t.Context(), o); ExitCode(err) != ExitUsage {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []struct {
		given  string
		change func(*BenchOptions)
	}{
		{"gpu", func(o *BenchOptions) { o.Workload = BenchGather }}, {"gpu", func(o *BenchOptions) { o.Scale = []int{1000} }},
		{"size", func(o *BenchOptions) { o.Ops = nil }}, {"suite", func(*BenchOptions) {}},
		{"depth", func(*BenchOptions) {}}, // 0, as it is when it is not given
		{"op", func(o *BenchOptions) { o.Scale = []int{1000} }}, {"explain", func(*BenchOptions) {}},
	} {
		o := smallBench(t)
		o.Given, o.GPU, o.Suite, o.Ranges = []string{c.given}, "host", "quick", 1
		c.change(&o)
		if _, err := l.bench(t.Context(), o); ExitCode(err) != ExitUsage || !strings.Contains(err.Error(), "--"+c.given) {
			t.Errorf("%s: %v", c.given, err)
		}
	}
	for name, change := range map[string]func(*BenchOptions){
		"--against loop":     func(o *BenchOptions) { o.Against, o.Sync, o.Given = []string{"loop"}, "relaxed", []string{"against"} },
		"--durability":       func(o *BenchOptions) { o.Ops, o.Sync = []string{"get"}, "sync" },
		"op names get twice": func(o *BenchOptions) { o.Ops = []string{"get", "put", "get"} },
		"size names 4096 t":  func(o *BenchOptions) { o.Sizes = []string{"4KiB", "8KiB", "4096"} },
		"batch names 2 twi":  func(o *BenchOptions) { o.Batches = []int{2, 1, 2} },
		"quick and gates":    func(o *BenchOptions) { o.Ops, o.Suite = nil, "none" },
		"is a directory":     func(o *BenchOptions) { o.HTML = t.TempDir() },
		"no directory":       func(o *BenchOptions) { o.HTML = filepath.Join(t.TempDir(), "none", "x.html") },
	} {
		o := smallBench(t)
		o.Exec = func(context.Context, []byte) ([]byte, error) {
			t.Errorf("%s: measured", name)
			return nil, errors.New("x")
		}
		change(&o)
		if _, err := l.bench(t.Context(), o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	o := smallBench(t)
	o.Scale, o.Rounds = []int{1000}, 0
	if _, err := l.bench(t.Context(), o); ExitCode(err) != ExitUsage {
		t.Errorf("a scale of no rounds: %v", err)
	}
	o = smallBench(t)
	o.Raw, o.Yes = raw, true
	l.target = &Target{}
	if _, err := l.bench(t.Context(), o); ExitCode(err) != ExitExists {
		t.Errorf("a store as a raw device: %v", err)
	}
	o.Raw = filepath.Join(t.TempDir(), "raw")
	for text, want := range map[string]string{"": o.Raw + "; say --yes", "CD001": "which holds an ISO 9660 image; say --yes"} {
		if err := os.WriteFile(o.Raw, isoLike(text), 0o600); err != nil {
			t.Fatal(err)
		}
		o.Yes = false
		if _, err := l.bench(t.Context(), o); ExitCode(err) != ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("without --yes: %v, want %q", err, want)
		}
	}
}

// TestBenchRawNames: --raw takes a path with its scheme, too, and what is no path is
// refused before anything is overwritten; a store that is held is told of once.
func TestBenchRawNames(t *testing.T) {
	l := newLab(t)
	raw := filepath.Join(t.TempDir(), "raw")
	if err := os.WriteFile(raw, make([]byte, 8*base.MiB), 0o600); err != nil {
		t.Fatal(err)
	}
	o := smallBench(t)
	o.Raw, o.Yes, o.Against = "file:"+raw, true, []string{"raw", "ring"}
	if err := Bench(t.Context(), l.Env, &Target{}, o); err != nil {
		t.Error(err)
	}
	for _, target := range []string{"sim:path=" + raw, "pci:0000:01:00.0"} {
		o.Raw = target
		if err := Bench(t.Context(), l.Env, &Target{}, o); ExitCode(err) != ExitUsage || !strings.Contains(err.Error(), "a file or block device") {
			t.Errorf("%s: %v", target, err)
		}
	}
	s, err := l.open(t.Context(), "put", l.target, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := Bench(t.Context(), l.Env, l.target, smallBench(t)); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("a store that is held: %v", err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

// isoLike is a file with text where an ISO 9660 image has its mark.
func isoLike(text string) []byte {
	b := make([]byte, 2*base.MiB)
	copy(b[32769:], text)
	return b
}

// TestBenchDevice: a device is measured without a store, one at a time, in every
// combination; what makes no sense is refused in words.
func TestBenchDevice(t *testing.T) {
	l := newLab(t)
	l.JSON = true
	run := func(target string, o BenchOptions) (benchDeviceDoc, error) {
		t.Helper()
		l.out.Reset()
		var doc benchDeviceDoc
		err := Bench(t.Context(), l.Env, &Target{Devices: []string{target}}, o)
		if err == nil {
			err = json.Unmarshal(l.out.Bytes(), &doc)
		}
		return doc, err
	}
	good := BenchOptions{Ops: []string{"read", "write"}, Sizes: []string{"4KiB"}, Callers: []int{1, 2}, Depths: []int{0, 4},
		Batches: []int{1, 8}, Bytes: base.MiB, Completion: []string{"polling", "hybrid"}}
	doc, err := run("sim:size=64MiB", good)
	if err != nil || len(doc.Device.Rows) != 24 || doc.Verb != "bench" { // 2 ways, 2 operations, 2 callers, and 0/1, 0/8, 4/1 of depth and batch
		t.Fatalf("%v: %+v", err, doc.Device)
	}
	data := filepath.Join(l.target.Dir, dataName)
	mine := filepath.Join(t.TempDir(), "mine")
	for text, want := range map[string]string{"": "holds nothing: it is blank", "CD001": "holds an ISO 9660 image"} {
		if err := os.WriteFile(mine, isoLike(text), 0o600); err != nil {
			t.Fatal(err)
		}
		o := good
		o.Completion = nil
		if _, err := run(mine, o); ExitCode(err) != ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("without --yes: %v, want %q", err, want)
		}
	}
	for what, c := range map[string]struct {
		target string
		change func(*BenchOptions)
		class  error
	}{
		"op":         {"sim:size=64MiB", func(o *BenchOptions) { o.Ops = []string{"put"} }, base.ErrInvalid},
		"completion": {"sim:size=64MiB", func(o *BenchOptions) { o.Completion = []string{"guess"} }, base.ErrInvalid},
		"kernel":     {data, func(o *BenchOptions) {}, base.ErrInvalid},
		"size":       {"sim:size=64MiB", func(o *BenchOptions) { o.Sizes = []string{"much"} }, base.ErrInvalid},
		"batch":      {"sim:size=64MiB", func(o *BenchOptions) { o.Depths, o.Batches = []int{1}, []int{2} }, base.ErrInvalid},
		"html":       {"sim:size=64MiB", func(o *BenchOptions) { o.Given = []string{"html"} }, base.ErrInvalid},
		"no bytes":   {"sim:size=64MiB", func(o *BenchOptions) { o.Bytes = 0 }, base.ErrInvalid},
		"target":     {"tape:1", func(o *BenchOptions) {}, base.ErrInvalid},
		"workload":   {"sim:size=64MiB", func(o *BenchOptions) { o.Workload = "scatter" }, base.ErrInvalid},
		"without":    {mine, func(o *BenchOptions) { o.Completion = nil }, base.ErrInvalid},
		"store":      {data, func(o *BenchOptions) { o.Completion, o.Yes = nil, true }, base.ErrExists},
		"store, no":  {data, func(o *BenchOptions) { o.Completion = nil }, base.ErrExists}, // --yes would not do it
	} {
		o := good
		c.change(&o)
		if _, err := run(c.target, o); !errors.Is(err, c.class) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := Bench(t.Context(), l.Env, &Target{}, BenchOptions{Explain: true, Given: []string{"explain"}}); ExitCode(err) != ExitUsage {
		t.Errorf("explain alone: %v", err)
	}
}

// TestBenchGather: of a new store, of the user's, of a model in memory, and of
// nothing else; the user's store is as it was.
func TestBenchGather(t *testing.T) {
	l := newLab(t)
	l.put(t, "mine", []byte("value"))
	l.JSON = true
	o := BenchOptions{TempDir: t.TempDir(), Workload: BenchGather, Sizes: []string{"64KiB"}, Bytes: base.MiB, Ranges: 50, Rounds: 1}
	for name, target := range map[string]*Target{"new": {}, "mine": l.target, "model": {Devices: []string{"sim:size=64MiB"}}} {
		l.out.Reset()
		var doc benchGatherDoc
		if err := Bench(t.Context(), l.Env, target, o); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if err := json.Unmarshal(l.out.Bytes(), &doc); err != nil || len(doc.Gather.Rows) != 4 {
			t.Errorf("%s: %v %+v", name, err, doc.Gather)
		}
	}
	if left, err := os.ReadDir(o.TempDir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	l.JSON = false
	if keys := l.keys(t); keys != "mine\n" {
		t.Errorf("keys %q", keys)
	}
	if left := l.benchKeys(t); left != "" {
		t.Errorf("left in the store: %s", left)
	}
	data := filepath.Join(l.target.Dir, dataName)
	for what, targets := range map[string][]string{"file": {data}, "model with a file": {"sim:path=" + data}, "two": {"sim:size=64MiB", "sim:size=64MiB,seed=1"}} {
		if err := Bench(t.Context(), l.Env, &Target{Devices: targets}, o); ExitCode(err) != ExitUsage {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestBenchWallClock: a store is not measured on a model whose clock is not the wall's,
// whatever the workload; nothing was made before.
func TestBenchWallClock(t *testing.T) {
	l := newLab(t)
	const model = "sim:size=64MiB,service=fixed,clock=virtual"
	gather := BenchOptions{TempDir: t.TempDir(), Workload: BenchGather, Sizes: []string{"64KiB"}, Bytes: base.MiB, Ranges: 50, Rounds: 1}
	sweep := smallBench(t)
	store := &Target{Devices: []string{"sim:size=64MiB", model}, Meta: filepath.Join(t.TempDir(), "meta")}
	for _, c := range []struct {
		target *Target
		o      BenchOptions
	}{{&Target{Devices: []string{model}}, gather}, {store, gather}, {store, sweep}} {
		err := Bench(t.Context(), l.Env, c.target, c.o)
		if ExitCode(err) != ExitUsage || !strings.Contains(err.Error(), model+": ") || !strings.Contains(err.Error(), "clock=real") {
			t.Errorf("%q on %q: %v", c.o.Workload, c.target.Devices, err)
		}
		if left, err := os.ReadDir(c.o.TempDir); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
}

// TestSameClass: a second error is left out for its class, which one of another process
// keeps, and never for its text.
func TestSameClass(t *testing.T) {
	locked := base.Errorf("open", "x", base.ErrLocked, "pid 7 has it")
	told := errors.New(locked.Error())
	for _, c := range []struct {
		a, b error
		same bool
	}{
		{locked, base.Errorf("open", "y", base.ErrLocked, "pid 8 has it"), true},
		{base.Wrap("bench", "case", ofChild([]byte(`{"class":"locked"}`), told)), locked, true},
		{base.Wrap("bench", "case", ofChild([]byte(`{"class":"no_space"}`), told)), locked, false},
		{ofChild(nil, told), locked, false}, {ofChild([]byte(`{"class":"failure"}`), told), told, false},
	} {
		if got := sameClass(c.a, c.b); got != c.same || c.a.Error() != locked.Error() && !strings.HasSuffix(c.a.Error(), locked.Error()) {
			t.Errorf("%v and %v: %v", c.a, c.b, got)
		}
	}
}
