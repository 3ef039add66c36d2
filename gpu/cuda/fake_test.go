//go:build !nogpu

package cuda

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/gputest"
	"github.com/ugds-store/ugds/internal/dl"
	"github.com/ugds-store/ugds/internal/testenv"
)

// The knobs of the fake library, in the order of fakegpu.h.
const (
	kCount = iota
	kOrdering
	kFlush
	kDMABuf
	kMemOps
	kCapturing
	kCapability
	kNeedContext
	kStuck
)

const (
	fakeSet = iota
	fakeFail
	fakeLog
	fakeClear
	fakeBlocks
	fakeAlloc
	fakeCurrent
	fakeFailed
	fakeHeld
)

// fake is a fake driver library of its own for one test.
type fake struct {
	t    *testing.T
	path string
	lib  *dl.Library
}

// built keeps the compiled library for each set of defines.
var built = struct {
	sync.Mutex
	lib map[string][]byte
}{lib: map[string][]byte{}}

func newFake(t *testing.T, defines ...string) *fake {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		testenv.Skip(t, "needs gcc")
	}
	link, err := linker()
	if err != nil {
		testenv.Skip(t, err.Error())
	}
	f := &fake{t: t, path: filepath.Join(t.TempDir(), "libfakecuda.so")}
	// The same library under another name is another one for the linker, with
	// state of its own; compiling it takes longer than everything else.
	built.Lock()
	defer built.Unlock()
	key := strings.Join(defines, " ")
	if built.lib[key] == nil {
		args := append(defines, "-shared", "-fPIC", "-pthread", "-I", "../testdata", "-o", f.path, "testdata/fakecuda.c")
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
		data, err := os.ReadFile(f.path)
		if err != nil {
			t.Fatal(err)
		}
		built.lib[key] = data
	} else if err := os.WriteFile(f.path, built.lib[key], 0o700); err != nil {
		t.Fatal(err)
	}
	var symbols []dl.Symbol
	for _, s := range []string{"fake_set", "fake_fail", "fake_log", "fake_clear", "fake_blocks", "fake_alloc", "fake_current",
		"fake_failed", "fake_held"} {
		symbols = append(symbols, dl.Symbol{Name: s})
	}
	if f.lib, err = dl.Open(link, symbols, f.path); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fake) set(knob int, v uintptr) { f.lib.Call(fakeSet, uintptr(knob), v) }

func (f *fake) fail(name string, after, code int) {
	dl.Pinned([]byte(name+"\x00"), func(p uintptr) { f.lib.Call(fakeFail, p, uintptr(after), uintptr(code)) })
}

// calls gives the functions called since the last time.
func (f *fake) calls() string {
	s := dl.Text(f.lib.Call(fakeLog))
	f.lib.Call(fakeClear)
	return s
}

func (f *fake) open() *Backend {
	f.t.Helper()
	b, err := Open(Options{Library: f.path})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := b.Close(); err != nil {
			f.t.Error(err)
		}
		if n := f.lib.Call(fakeBlocks); n != 0 {
			f.t.Errorf("%d allocations left", n)
		}
	})
	return b
}

// left is what the library was asked for and not given back.
func (f *fake) left() uintptr { return f.lib.Call(fakeBlocks) + f.lib.Call(fakeHeld) }

// TestEveryCallFails: whichever call of the library fails, the error is told, with
// its number, and nothing that was made before is left.
func TestEveryCallFails(t *testing.T) {
	f := newFake(t)
	for n := 0; ; n++ {
		before := f.left()
		f.fail("*", n, 999)
		b, err := Open(Options{Library: f.path})
		if err == nil {
			err = errors.Join(gputest.EveryCall(b, true), b.Close())
		}
		name := dl.Text(f.lib.Call(fakeFailed))
		if name == "" {
			f.fail("*", 0, 0)
			if err != nil || n < 30 {
				t.Fatalf("%d calls, %v", n, err)
			}
			return
		}
		var told *Error
		if !errors.As(err, &told) || told.Code != 999 || told.Call != name {
			t.Errorf("call %d, %s: %v", n, name, err)
		}
		if left := f.left() - before; left != 0 && !gives.MatchString(name) {
			t.Errorf("call %d, %s: %d things are left", n, name, left)
		}
	}
}

// gives are the functions that give something back, or without which nothing can be:
// what they fail with stays.
var gives = regexp.MustCompile("Free|Destroy|Unregister|Release|Unload|IpcClose|CtxPush|GetDevice$|SetDevice")

// use gives memory of n bytes, pinned memory of as many, and a stream.
func use(t *testing.T, d gpu.Device, n int64) (gpu.Memory, gpu.HostMemory, gpu.Stream) {
	t.Helper()
	m, err := d.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	h, err := d.AllocHost(n)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), h.Close(), m.Close(), s.Close(), h.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	})
	return m, h, s
}

func finish(t *testing.T, s gpu.Stream) error {
	t.Helper()
	n, err := s.Tick()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.WaitTick(ctx, n)
}
