package mmio_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/mmio"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const window = 8192

// file is a file of one window, which stands in for a device: truncating it
// makes the mapping fault as a BAR does whose device was pulled out.
func file(t *testing.T) *unix.FD {
	t.Helper()
	f, err := unix.Open(filepath.Join(t.TempDir(), "bar"), unix.ReadWrite|unix.CreateNew, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := unix.Truncate(f, window); err != nil {
		t.Fatal(err)
	}
	return f
}

func mapped(t *testing.T, f *unix.FD) *mmio.BAR {
	t.Helper()
	b, err := mmio.Map(f, 0, window, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func TestAccess(t *testing.T) {
	f := file(t)
	b := mapped(t, f)
	if b.Size() != window {
		t.Errorf("size %d", b.Size())
	}
	if err := errors.Join(b.Store32(0x14, 0x89abcdef), b.Store64(0x28, 0x0123456789abcdef)); err != nil {
		t.Fatal(err)
	}
	d, err := b.Doorbell(window - 4)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Ring(0x55aa1234); err != nil {
		t.Fatal(err)
	}
	v32, err1 := b.Load32(0x14)
	v64, err2 := b.Load64(0x28)
	if v32 != 0x89abcdef || v64 != 0x0123456789abcdef || err1 != nil || err2 != nil {
		t.Errorf("%#x %#x %v %v", v32, v64, err1, err2)
	}
	raw := make([]byte, window)
	if _, err := unix.Pread(f, raw, 0); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[int]string{0x14: "\xef\xcd\xab\x89\x00", 0x28: "\xef\xcd\xab\x89\x67\x45\x23\x01\x00", window - 8: "\x00\x00\x00\x00\x34\x12\xaa\x55"} {
		if got := string(raw[at : at+len(want)]); got != want {
			t.Errorf("at %#x: % x, want % x", at, got, want)
		}
	}
}

func TestBadOffsets(t *testing.T) {
	b := mapped(t, file(t))
	for _, c := range []struct {
		off  uint64
		want error
	}{{1, base.ErrMisaligned}, {window, base.ErrOutOfRange}, {window - 4, nil}, {^uint64(3), base.ErrOutOfRange}} {
		_, err1 := b.Load32(c.off)
		_, err2 := b.Doorbell(c.off)
		for _, err := range []error{err1, b.Store32(c.off, 0), err2} {
			if !errors.Is(err, c.want) {
				t.Errorf("%#x: %v, want %v", c.off, err, c.want)
			}
		}
	}
	for _, c := range []struct {
		off  uint64
		want error
	}{{4, base.ErrMisaligned}, {window - 8, nil}, {window, base.ErrOutOfRange}, {^uint64(7), base.ErrOutOfRange}} {
		_, err := b.Load64(c.off)
		for _, err := range []error{err, b.Store64(c.off, 0)} {
			if !errors.Is(err, c.want) {
				t.Errorf("%#x: %v, want %v", c.off, err, c.want)
			}
		}
	}
	d, _ := b.Doorbell(0)
	if err := errors.Join(b.Close(), b.Close()); err != nil {
		t.Error(err)
	}
	_, err := b.Load32(0)
	for _, err := range []error{err, d.Ring(1), b.Store64(0, 1)} {
		if !errors.Is(err, base.ErrClosed) {
			t.Errorf("after close: %v", err)
		}
	}
}

// TestH04SurpriseRemoval: every kind of access to a BAR that has gone is an
// error, from many goroutines, and the process lives.
func TestH04SurpriseRemoval(t *testing.T) {
	f := file(t)
	b := mapped(t, f)
	d, err := b.Doorbell(0x1000)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Ring(1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Truncate(f, 0); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				_, err1 := b.Load32(0x1c)
				_, err2 := b.Load64(0)
				for i, err := range []error{err1, err2, b.Store32(0x14, 1), b.Store64(0x28, 1), d.Ring(1)} {
					if !errors.Is(err, base.ErrDeviceGone) {
						t.Errorf("access %d: %v", i, err)
					}
				}
			}
		})
	}
	wg.Wait()
	if _, err := b.Load32(0x1c); err == nil || !strings.Contains(err.Error(), "0x1c") {
		t.Errorf("%v does not tell where", err)
	}
	if old := debug.SetPanicOnFault(false); old {
		t.Error("the guard stays on in this goroutine")
	}
	if err := unix.Truncate(f, window); err != nil { // it comes back
		t.Fatal(err)
	}
	if _, err := b.Load32(0x1c); err != nil {
		t.Error(err)
	}
}

func TestMapRefuses(t *testing.T) {
	if _, err := mmio.Map(file(t), 1, 4096, "odd"); err == nil || !strings.Contains(err.Error(), "odd") {
		t.Errorf("%v", err)
	}
}

// TestEntryOrder: one side writes three words and then the tag, the other reads
// the tag and then the words. Without the barriers, or with a compiler that moves
// the accesses, the words may be old; the race detector watches as well.
func TestEntryOrder(t *testing.T) {
	m, err := dma.Alloc(16, "entry")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	b := m.Bytes()
	var wg sync.WaitGroup
	ack, err := dma.Alloc(4, "ack")
	if err != nil {
		t.Fatal(err)
	}
	defer ack.Free()
	const rounds = 2000
	wg.Go(func() {
		for i := uint32(1); i <= rounds; i++ {
			for mmio.LoadEntry32(ack.Bytes()) != i-1 {
				runtime.Gosched()
			}
			for k := range 12 {
				b[k] = byte(i)
			}
			mmio.StoreEntry32(b[12:], i)
		}
	})
	for i := uint32(1); i <= rounds; i++ {
		for mmio.LoadEntry32(b[12:]) != i {
			runtime.Gosched()
		}
		for k := range 12 {
			if b[k] != byte(i) {
				t.Fatalf("round %d: byte %d is %d", i, k, b[k])
			}
		}
		mmio.StoreEntry32(ack.Bytes(), i)
	}
	wg.Wait()
	b[0], b[1], b[2], b[3] = 1, 2, 3, 4
	if v := mmio.LoadEntry32(b); v != 0x04030201 {
		t.Errorf("%#x", v)
	}
}

func TestOverlay(t *testing.T) {
	type wire struct {
		a uint8
		b [4]byte
	}
	raw := make([]byte, 12)
	w := mmio.Overlay[wire](raw)
	w.b[3], w.a = 9, 1
	if raw[4] != 9 || raw[0] != 1 {
		t.Errorf("% x", raw)
	}
	if s := mmio.OverlaySlice[wire](raw); len(s) != 2 || s[0].b[3] != 9 {
		t.Errorf("%v", s)
	}
	if s := mmio.OverlaySlice[wire](raw[:4]); s != nil {
		t.Errorf("%v", s)
	}
	for name, f := range map[string]func(){
		"too short":    func() { mmio.Overlay[wire](raw[:4]) },
		"aligned type": func() { mmio.Overlay[uint32](raw) },
		"pointer":      func() { mmio.Overlay[*int](raw) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func BenchmarkRing(b *testing.B) {
	path := filepath.Join(b.TempDir(), "bar")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		b.Fatal(err)
	}
	f, err := unix.Open(path, unix.ReadWrite, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	bar, err := mmio.Map(f, 0, 4096, "bench")
	if err != nil {
		b.Fatal(err)
	}
	defer bar.Close()
	d, err := bar.Doorbell(0)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := d.Ring(1); err != nil {
			b.Fatal(err)
		}
	}
}
