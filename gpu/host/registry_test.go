package host_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// open makes a backend that must be empty when the test ends.
func open(t *testing.T, o host.Options) (*host.Backend, gpu.Device) {
	t.Helper()
	b, err := host.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b, b.Devices()[0]
}

func alloc(t *testing.T, d gpu.Device, n int64) gpu.Memory {
	t.Helper()
	m, err := d.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func register(t *testing.T, tab *gpu.Table, p gpu.Ptr, n int64) *gpu.Registration {
	t.Helper()
	r, err := tab.Register(p, n)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantReason(t *testing.T, r *gpu.Registration, want string) {
	t.Helper()
	if fd, why := r.Direct(); why != want || (fd >= 0) != (want == "") {
		t.Errorf("%s: descriptor %d, reason %q, want %q", r, fd, why, want)
	}
}

// TestRegisterRefusals: what cannot be direct is staged with its reason or
// refused; nothing is rounded.
func TestRegisterRefusals(t *testing.T) {
	b, d := open(t, host.Options{})
	tab := gpu.NewTable(b, gpu.TableOptions{Export: true})
	m := alloc(t, d, 1<<20)
	for _, c := range []struct {
		off, n int64
		reason string
	}{
		{0, 4096, ""}, {8192, 65536, ""}, {1<<20 - 4096, 4096, ""},
		{1, 4096, gpu.ReasonUnaligned}, {4096, 4095, gpu.ReasonUnaligned},
	} {
		r := register(t, tab, m.Ptr()+gpu.Ptr(c.off), c.n)
		wantReason(t, r, c.reason)
		if r.Ptr() != m.Ptr()+gpu.Ptr(c.off) || r.Size() != c.n {
			t.Errorf("rounded to %s", r)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	h, err := d.AllocHost(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for _, c := range []struct {
		p    gpu.Ptr
		n    int64
		want error
	}{
		{m.Ptr(), 1<<20 + 1, base.ErrOutOfRange}, {m.Ptr(), 0, base.ErrInvalid}, {m.Ptr(), -1, base.ErrInvalid},
		{0, 4096, base.ErrInvalid}, {h.Ptr(), 4096, base.ErrInvalid}, {4096, 4096, base.ErrInvalid},
	} {
		if _, err := tab.Register(c.p, c.n); !errors.Is(err, c.want) {
			t.Errorf("%s, %d: %v, want %v", c.p, c.n, err, c.want)
		}
	}
	if s := tab.Stats(); s != (gpu.Stats{}) {
		t.Errorf("left: %+v", s)
	}
}

// TestD01Seams and D-03, D-04: several allocations in one range, memory without
// the RDMA property, managed memory.
func TestD01Seams(t *testing.T) {
	b, d := open(t, host.Options{})
	tab := gpu.NewTable(b, gpu.TableOptions{Export: true})
	span, err := b.AllocSpan(d, gpu.KindDevice, false, 65536, 65536, 65536)
	if err != nil {
		t.Fatal(err)
	}
	plain, _ := b.AllocSpan(d, gpu.KindDevice, true, 65536)
	managed, _ := b.AllocSpan(d, gpu.KindManaged, false, 65536)
	for _, m := range append(append(span, plain...), managed...) {
		defer m.Close()
	}
	for _, c := range []struct {
		p      gpu.Ptr
		n      int64
		reason string
	}{
		{span[0].Ptr(), 3 * 65536, gpu.ReasonSeam},
		{span[0].Ptr() + 61440, 8192, gpu.ReasonSeam},
		{span[1].Ptr(), 65536, ""},
		{plain[0].Ptr(), 65536, gpu.ReasonNoRDMA},
		{managed[0].Ptr(), 4096, gpu.ReasonManaged},
	} {
		r := register(t, tab, c.p, c.n)
		wantReason(t, r, c.reason)
		r.Close()
	}
	if _, err := tab.Register(span[2].Ptr(), 65537); !errors.Is(err, base.ErrOutOfRange) {
		t.Errorf("behind the span: %v", err)
	}
	r := register(t, tab, span[0].Ptr(), 3*65536)
	defer r.Close()
	n, err := b.Replace(span[1])
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := r.Check(); !errors.Is(err, base.ErrMismatch) {
		t.Errorf("a piece in the middle was replaced: %v", err)
	}
}

// TestD12Overlaps: an exact duplicate counts, every other overlap is refused.
func TestD12Overlaps(t *testing.T) {
	b, d := open(t, host.Options{})
	tab := gpu.NewTable(b, gpu.TableOptions{})
	m := alloc(t, d, 1<<20)
	a := register(t, tab, m.Ptr()+4096, 8192)
	wantReason(t, a, gpu.ReasonNotAsked)
	if again := register(t, tab, m.Ptr()+4096, 8192); again != a {
		t.Error("a duplicate is another registration")
	}
	for _, c := range []struct{ off, n int64 }{{0, 4097}, {4096, 4096}, {8192, 4096}, {12287, 1}, {0, 65536}} {
		if _, err := tab.Register(m.Ptr()+gpu.Ptr(c.off), c.n); !errors.Is(err, base.ErrExists) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	left, right := register(t, tab, m.Ptr(), 4096), register(t, tab, m.Ptr()+12288, 1)
	for off, want := range map[int64]*gpu.Registration{0: left, 4095: left, 4096: a, 12287: a, 12288: right, 12289: nil} {
		if got := tab.Find(m.Ptr()+gpu.Ptr(off), 1); got != want {
			t.Errorf("%d: found %v, want %v", off, got, want)
		}
	}
	if tab.Find(m.Ptr(), 4097) != nil || tab.Find(m.Ptr()+4096, -1) != nil {
		t.Error("a range over a border was found")
	}
	for i, r := range []*gpu.Registration{a, left, a, right} {
		if err := r.Close(); err != nil {
			t.Error(i, err)
		}
	}
	if err := a.Close(); !errors.Is(err, base.ErrClosed) {
		t.Errorf("closed once too often: %v", err)
	}
	if s := tab.Stats(); s.Ranges != 0 || s.Bytes != 0 {
		t.Errorf("%+v", s)
	}
}

// TestPinnedWhileInFlight is I3.
func TestPinnedWhileInFlight(t *testing.T) {
	b, d := open(t, host.Options{})
	tab := gpu.NewTable(b, gpu.TableOptions{})
	r := register(t, tab, alloc(t, d, 4096).Ptr(), 4096)
	gen := r.Generation()
	if err := r.Hold(gen + 1); !errors.Is(err, base.ErrClosed) {
		t.Errorf("another generation: %v", err)
	}
	if err := r.Hold(gen); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); !errors.Is(err, base.ErrBusy) {
		t.Errorf("closed in flight: %v", err)
	}
	if r.InFlight() != 1 || tab.Stats().InFlight != 1 {
		t.Errorf("%d in flight", r.InFlight())
	}
	r.Release()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := r.Hold(gen); !errors.Is(err, base.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("released once too often")
		}
	}()
	r.Release()
}

// TestFreeAndReallocate: the same address is not the same memory.
func TestFreeAndReallocate(t *testing.T) {
	b, d := open(t, host.Options{})
	tab := gpu.NewTable(b, gpu.TableOptions{Export: true})
	m, err := d.Alloc(65536)
	if err != nil {
		t.Fatal(err)
	}
	r := register(t, tab, m.Ptr(), 65536)
	if err := r.Check(); err != nil {
		t.Fatal(err)
	}
	if err := r.Hold(r.Generation()); err != nil {
		t.Fatal(err)
	}
	n, err := b.Replace(m)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	err = r.Check()
	if !errors.Is(err, base.ErrMismatch) || !strings.Contains(err.Error(), "register again") {
		t.Errorf("not noticed: %v", err)
	}
	if err := r.Hold(r.Generation()); !errors.Is(err, base.ErrMismatch) {
		t.Errorf("held stale memory: %v", err)
	}
	if _, err := tab.Register(n.Ptr(), 65536); !errors.Is(err, base.ErrBusy) {
		t.Errorf("replaced a stale range in flight: %v", err)
	}
	r.Release()
	r2 := register(t, tab, n.Ptr(), 65536)
	if r2 == r || tab.Find(n.Ptr(), 1) != r2 || r2.Check() != nil {
		t.Error("the stale range is still there")
	}
	if err := r.Close(); err != nil {
		t.Errorf("closing the stale range: %v", err)
	}
	if err := r2.Close(); err != nil {
		t.Error(err)
	}
}

// TestExportBudget: idle exports leave, busy ones stay, sizes at the limit.
func TestExportBudget(t *testing.T) {
	b, d := open(t, host.Options{})
	tab := gpu.NewTable(b, gpu.TableOptions{Export: true, ExportBudget: 2 * 65536})
	m := alloc(t, d, 1<<20)
	at := func(i int64) gpu.Ptr { return m.Ptr() + gpu.Ptr(i*65536) }
	first, second := register(t, tab, at(0), 65536), register(t, tab, at(1), 65536)
	wantReason(t, first, "")
	wantReason(t, second, "")
	gen := first.Generation()
	if err := second.Hold(second.Generation()); err != nil {
		t.Fatal(err)
	}
	third := register(t, tab, at(2), 65536)
	wantReason(t, third, "")
	wantReason(t, first, gpu.ReasonEvicted)
	if err := first.Hold(gen); !errors.Is(err, base.ErrClosed) {
		t.Errorf("a request of before the eviction: %v", err)
	}
	if err := third.Hold(third.Generation()); err != nil {
		t.Fatal(err)
	}
	fourth := register(t, tab, at(3), 65536)
	wantReason(t, fourth, gpu.ReasonBudget)
	huge := register(t, tab, at(4), 3*65536)
	wantReason(t, huge, gpu.ReasonBudget)
	if s := tab.Stats(); s.ExportedBytes != 2*65536 || s.Ranges != 5 || s.InFlight != 2 {
		t.Errorf("%+v", s)
	}
	second.Release()
	third.Release()
	for _, r := range []*gpu.Registration{first, second, third, fourth, huge} {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if s := tab.Stats(); s.ExportedBytes != 0 {
		t.Errorf("%+v", s)
	}
}

func TestNoDMABuf(t *testing.T) {
	b, d := open(t, host.Options{Faults: host.Faults{NoDMABuf: true}})
	tab := gpu.NewTable(b, gpu.TableOptions{Export: true})
	r := register(t, tab, alloc(t, d, 4096).Ptr(), 4096)
	wantReason(t, r, gpu.ReasonNoDMABuf)
	r.Close()
}

// TestD09Concurrent registers, finds, holds and closes from many goroutines.
func TestD09Concurrent(t *testing.T) {
	b, d := open(t, host.Options{})
	tab := gpu.NewTable(b, gpu.TableOptions{Export: true, ExportBudget: 256 << 10})
	m := alloc(t, d, 64*65536)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 200 {
				p := m.Ptr() + gpu.Ptr((g*4+i%4)*65536)
				r, err := tab.Register(p, 65536)
				if err != nil {
					t.Error(err)
					return
				}
				if tab.Find(p+5, 100) != r {
					t.Error("not found")
				}
				for r.Hold(r.Generation()) != nil { // an eviction came between
				}
				if err := r.Close(); !errors.Is(err, base.ErrBusy) {
					t.Error(err)
				}
				r.Release()
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if s := tab.Stats(); s != (gpu.Stats{}) {
		t.Errorf("left: %+v", s)
	}
}
