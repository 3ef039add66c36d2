package xfer_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
)

// layer is a source with fixed settings.
func layer(name string, set map[string]string) xfer.Layer {
	return xfer.Layer{Name: name, Get: func(s string) (string, bool) { v, ok := set[s]; return v, ok }}
}

func load(t *testing.T, layers ...xfer.Layer) xfer.Settings {
	t.Helper()
	s, err := xfer.LoadSettings(layers...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func list(s xfer.Settings) string {
	var b strings.Builder
	for _, v := range s.List() {
		b.WriteString(v.Name + "=" + v.Value + " (" + v.Source + ")\n")
	}
	return b.String()
}

func TestT06CompatParser(t *testing.T) {
	for text, want := range map[string]xfer.Compat{
		"on": xfer.CompatOn, "TRUE": xfer.CompatOn, "yes": xfer.CompatOn, "1": xfer.CompatOn,
		"off": xfer.CompatOff, "False": xfer.CompatOff, "no": xfer.CompatOff, "0": xfer.CompatOff,
		"auto": xfer.CompatAuto, "AUTO": xfer.CompatAuto,
	} {
		if got, err := xfer.ParseCompat(text); got != want || err != nil {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"maybe", "", "2", " on"} {
		if _, err := xfer.ParseCompat(text); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestT12Precedence: the first layer that has a setting wins, and is named; each
// layer removed in turn.
func TestT12Precedence(t *testing.T) {
	flag := layer("flag", map[string]string{"compat_mode": "off"})
	env := xfer.Environment(func(v string) (string, bool) {
		s, ok := map[string]string{"UGDS_COMPAT_MODE": "on", "UGDS_NTHREADS": "3", "UGDS_TASK_SIZE": "1MiB"}[v]
		return s, ok
	})
	file := layer("store.toml", map[string]string{"compat_mode": "auto", "num_threads": "5", "bounce_buffer_size": "4MiB"})
	for _, c := range []struct {
		layers []xfer.Layer
		want   []string
	}{
		{[]xfer.Layer{flag, env, file}, []string{"compat_mode=OFF (flag)", "num_threads=3 (environment)", "task_size=1.0 MiB (environment)", "bounce_buffer_size=4.0 MiB (store.toml)"}},
		{[]xfer.Layer{env, file}, []string{"compat_mode=ON (environment)"}},
		{[]xfer.Layer{file}, []string{"compat_mode=AUTO (store.toml)", "num_threads=5 (store.toml)"}},
	} {
		got := list(load(t, c.layers...))
		for _, want := range c.want {
			if !strings.Contains(got, want+"\n") {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
	}
}

// TestTwoNames: a setting with two names in the environment is refused if they differ,
// whatever a layer above says.
func TestTwoNames(t *testing.T) {
	for _, c := range []struct {
		one, two string
		bad      bool
	}{{"2", "3", true}, {"3", "3", false}, {"", "3", false}, {"3", "", false}, {"", "", false}} {
		env := xfer.Environment(func(v string) (string, bool) {
			s := map[string]string{"UGDS_NUM_THREADS": c.one, "UGDS_NTHREADS": c.two}[v]
			return s, s != ""
		})
		_, err := xfer.LoadSettings(layer("flag", map[string]string{"num_threads": "4"}), env)
		if errors.Is(err, base.ErrInvalid) != c.bad || c.bad && !strings.Contains(err.Error(), "UGDS_NTHREADS") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestT13Defaults: with nothing set, every setting is shown with its default. Task
// size, threads and bounce buffers are ours: KvikIO's one thread leaves most of
// the copy engine idle.
func TestT13Defaults(t *testing.T) {
	want := "compat_mode=AUTO (default)\nstrict=false (default)\ngds_threshold=16.0 KiB (default)\n" +
		"task_size=by the size of the transfer (default)\nnum_threads=16 (default)\nbounce_buffer_size=2.0 MiB (default)\n"
	if got := list(load(t)); got != want {
		t.Errorf("got\n%s", got)
	}
}

func TestSettingLimits(t *testing.T) {
	for _, c := range []struct{ name, bad string }{
		{"compat_mode", "maybe"}, {"strict", "perhaps"}, {"gds_threshold", "-1"}, {"gds_threshold", "2TiB"}, {"task_size", "4095"},
		{"num_threads", "0"}, {"num_threads", "257"}, {"num_threads", "many"}, {"bounce_buffer_size", "60KiB"},
		{"bounce_buffer_size", "65MiB"}, {"bounce_buffer_size", "65537"}, {"task_size", "big"},
	} {
		_, err := xfer.LoadSettings(layer("environment", map[string]string{c.name: c.bad}))
		if !errors.Is(err, base.ErrInvalid) || !strings.Contains(err.Error(), c.name) {
			t.Errorf("%s=%s: %v", c.name, c.bad, err)
		}
	}
	for _, c := range []struct{ name, good string }{
		{"gds_threshold", "0"}, {"gds_threshold", "1TiB"}, {"task_size", "4096"}, {"num_threads", "1"}, {"num_threads", "256"},
		{"bounce_buffer_size", "64KiB"}, {"bounce_buffer_size", "64MiB"}, {"strict", "yes"}, {"strict", "0"},
	} {
		s := load(t, layer("flag", map[string]string{c.name: c.good}))
		if err := tryMover(t, s); err != nil {
			t.Errorf("%s=%s: %v", c.name, c.good, err)
		}
	}
}

// tryMover makes a mover with the settings.
func tryMover(t *testing.T, s xfer.Settings) error {
	t.Helper()
	b, err := host.Open(host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := xfer.New(b, b.Devices()[0], nil, s.Options())
	if err == nil {
		err = m.Close(ctx(t))
	}
	return errors.Join(err, b.Close())
}

// read moves n bytes of a file with these settings and gives the one line of the
// statistics.
func read(t *testing.T, n int64, set map[string]string) (driver.PathCount, error) {
	t.Helper()
	s := load(t, layer("flag", set))
	r := newRig(t, host.Options{}, s.Options())
	data := noise(t, n)
	got, err := r.m.Read(ctx(t), xfer.Reader(bytes.NewReader(data)), 0, r.mem.Ptr(), n)
	if err != nil {
		return driver.PathCount{}, err
	}
	if got != n || !bytes.Equal(r.peek(r.mem.Ptr(), n), data) {
		t.Fatalf("%v: %d of %d bytes, or other ones", set, got, n)
	}
	counts := r.m.Paths()
	if len(counts) != 1 || counts[0].Bytes != n {
		t.Fatalf("%v: %+v", set, counts)
	}
	return counts[0], nil
}

// TestT17ToT21Tasks: a transfer is cut into tasks of the size that was set, with
// disjoint offsets, whatever the number of threads. A thousandth of KvikIO's
// sizes.
func TestT17ToT21Tasks(t *testing.T) {
	for _, c := range []struct {
		n, ops int64
	}{{1 << 20, 256}, {1<<20 + 1, 257}, {4096, 1}, {100, 1}} { // T17, T18, T19
		for _, threads := range []string{"1", "4", "16"} { // T21
			got, err := read(t, c.n, map[string]string{"task_size": "4KiB", "num_threads": threads, "gds_threshold": "0"})
			if err != nil || got.Ops != c.ops {
				t.Errorf("%d bytes, %s threads: %d tasks, want %d, %v", c.n, threads, got.Ops, c.ops, err)
			}
		}
	}
	got, err := read(t, 1<<20, map[string]string{"task_size": "1GiB", "bounce_buffer_size": "2MiB"}) // T20
	if err != nil || got.Ops != 1 {
		t.Errorf("a task larger than the transfer: %d, %v", got.Ops, err)
	}
	got, err = read(t, 1<<20, map[string]string{"task_size": "1GiB", "bounce_buffer_size": "64KiB"}) // T29
	if err != nil || got.Ops != 16 {
		t.Errorf("a bounce buffer smaller than the task: %d copies, %v", got.Ops, err)
	}
}

// TestT14T15Threshold: the edge, without a direct path: what is smaller is staged
// because it is small, what is not because a file cannot do better.
func TestT14T15Threshold(t *testing.T) {
	for _, c := range []struct {
		set  map[string]string
		edge int64
	}{{map[string]string{"gds_threshold": "1Mi"}, 1 << 20}, {nil, 16384}} {
		below, err := read(t, c.edge-1, c.set)
		if err != nil || below.Reason != xfer.ReasonSmall {
			t.Errorf("below %d: %+v, %v", c.edge, below, err)
		}
		at, err := read(t, c.edge, c.set)
		if err != nil || at.Reason != xfer.ReasonFile {
			t.Errorf("at %d: %+v, %v", c.edge, at, err)
		}
	}
	r := newRig(t, host.Options{}, xfer.Options{})
	if n, err := r.m.Read(ctx(t), xfer.Reader(failing{}), 0, r.mem.Ptr(), 0); n != 0 || err != nil || len(r.m.Paths()) != 0 {
		t.Errorf("nothing to read: %d, %v, %+v", n, err, r.m.Paths())
	}
}

// TestT36FailedTransfer: a transfer that failed is an error of its path and not a byte.
func TestT36FailedTransfer(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{})
	for failures := range int64(3) {
		if n, err := r.m.Read(ctx(t), xfer.Reader(failing{}), 0, r.mem.Ptr(), 20_000); n != 0 || !errors.Is(err, errBad) {
			t.Fatal(n, err)
		}
		if c := counts(t, r.m); c.Errors != failures+1 || c.Bytes != 0 || c.Ops != 0 || c.Reason != xfer.ReasonFile {
			t.Errorf("after %d failures: %+v", failures+1, c)
		}
	}
}

// TestT08ToT10NoDirectPath: the twins for machines without one. AUTO stages and
// says why; ON stages because it was told to; OFF and strict refuse before a byte
// moves, but OFF lets pass what is below the threshold.
func TestT08ToT10NoDirectPath(t *testing.T) {
	got, err := read(t, 100000, map[string]string{"compat_mode": "AUTO"})
	if err != nil || got.Path != driver.PathStaged || got.Reason != xfer.ReasonFile {
		t.Errorf("AUTO: %+v, %v", got, err)
	}
	got, err = read(t, 100000, map[string]string{"compat_mode": "ON"})
	if err != nil || got.Path != driver.PathStaged || got.Reason != xfer.ReasonCompat {
		t.Errorf("ON: %+v, %v", got, err)
	}
	if _, err = read(t, 100000, map[string]string{"compat_mode": "OFF"}); !errors.Is(err, base.ErrNotSupported) ||
		!strings.Contains(err.Error(), xfer.ReasonFile) {
		t.Errorf("OFF: %v", err)
	}
	if got, err = read(t, 16383, map[string]string{"compat_mode": "OFF"}); err != nil || got.Reason != xfer.ReasonSmall {
		t.Errorf("OFF, small: %+v, %v", got, err)
	}
	for _, n := range []int64{1, 100000} {
		if _, err = read(t, n, map[string]string{"strict": "on"}); !errors.Is(err, base.ErrNotSupported) {
			t.Errorf("strict, %d bytes: %v", n, err)
		}
	}
}

// TestT11Proof: what a call answers does not tell the path: only the statistics
// do.
func TestT11Proof(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{})
	data := noise(t, 98304)
	for name, e := range endpoints(t, r, data) {
		if n, err := r.m.Read(ctx(t), e, 0, r.mem.Ptr(), 98304); n != 98304 || err != nil {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	reasons := map[string]bool{}
	for _, c := range r.m.Paths() {
		reasons[c.Reason] = true
	}
	for _, want := range []string{xfer.ReasonFile, xfer.ReasonPinned, xfer.ReasonUnregistered} {
		if !reasons[want] {
			t.Errorf("no %q among %v", want, reasons)
		}
	}
}
