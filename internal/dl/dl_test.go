package dl

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// fake is a linker with one library of two functions.
func fake() *Linker {
	return &Linker{
		Open: func(name string) (uintptr, error) {
			if name == "libfake.so.1" {
				return 7, nil
			}
			return 0, fmt.Errorf("%s: no such file", name)
		},
		Sym: func(h uintptr, name string) (uintptr, error) {
			switch name {
			case "sum":
				return 100, nil
			case "store":
				return 200, nil
			}
			return 0, errors.New("undefined symbol " + name)
		},
		Call: func(fn uintptr, args ...uintptr) (r uintptr) {
			if fn == 200 { // store(p, v)
				Cell(Memory(args[0], 8), 0).Store(uint64(args[1]))
				return 0
			}
			for _, a := range args {
				r += a
			}
			return r
		},
	}
}

func TestOpen(t *testing.T) {
	table := []Symbol{{Name: "sum"}, {Name: "store"}, {Name: "gone", Optional: true}}
	l, err := Open(fake(), table, "libother.so", "libfake.so.1")
	if err != nil {
		t.Fatal(err)
	}
	if l.Name() != "libfake.so.1" || !l.Has(0) || l.Has(2) || l.Symbol(2) != "gone" {
		t.Errorf("%+v", l)
	}
	if r := l.Call(0, 1, 2, 3); r != 6 {
		t.Errorf("sum is %d", r)
	}
	f := NewFrame()
	defer f.Done()
	w := f.Word(0)
	l.Call(1, w.Addr, 0x1_0000_0005)
	if w.Uint64() != 0x1_0000_0005 || w.Uint32() != 5 {
		t.Errorf("stored %#x", w.Uint64())
	}
	defer func() {
		if recover() == nil {
			t.Error("a missing function was called")
		}
	}()
	l.Call(2)
}

func TestOpenRefuses(t *testing.T) {
	_, err := Open(fake(), nil, "liba.so", "libb.so")
	if !errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), "liba.so: no such file; libb.so") {
		t.Error(err)
	}
	_, err = Open(fake(), []Symbol{{Name: "lost"}}, "libfake.so.1")
	if !errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), "no function lost") {
		t.Error(err)
	}
}

func TestFrame(t *testing.T) {
	f := NewFrame()
	b, addr := f.Bytes(13)
	w := f.Word(9)
	if addr%8 != 0 || w.Addr != addr+16 {
		t.Errorf("bytes at %#x, word at %#x", addr, w.Addr)
	}
	copy(b, "libcuda.so.1")
	if got := Text(addr); got != "libcuda.so.1" {
		t.Errorf("%q", got)
	}
	f.Done()
	if f.used != 0 || f.words[0] != 0 || Text(0) != "" {
		t.Error("not cleared")
	}
	defer func() {
		if recover() == nil {
			t.Error("a frame has no end")
		}
	}()
	new(Frame).Bytes(8*frameWords + 1)
}

func TestMemoryAndCells(t *testing.T) {
	m, err := dma.Alloc(4096, "dl test")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	view := Memory(Addr(m.Bytes()), 4096)
	Cell(m.Bytes(), 16).Store(1 << 40)
	if Cell(view, 16).Load() != 1<<40 || view[21] != 1 {
		t.Error("the view shows other memory")
	}
	if Addr(nil) != 0 {
		t.Error("address of nothing")
	}
	Pinned([]byte("abc\x00"), func(addr uintptr) {
		if Text(addr) != "abc" {
			t.Error("pinned bytes differ")
		}
	})
	defer func() {
		if recover() == nil {
			t.Error("a crooked cell was made")
		}
	}()
	Cell(m.Bytes(), 4)
}

// TestF09Callbacks: a million host functions use one C function.
func TestF09Callbacks(t *testing.T) {
	c := newCallbacks()
	made, ran := 0, 0
	var call func(uintptr) uintptr
	link := &Linker{Callback: func(fn any) uintptr {
		made++
		call = fn.(func(uintptr) uintptr)
		return 0xc0de
	}}
	for range 1_000_000 {
		fn, arg, _, err := c.once(link, func() { ran++ })
		if err != nil || fn != 0xc0de || arg == 0 {
			t.Fatal(fn, arg, err)
		}
		call(arg)
		call(arg) // a second call of the same number does nothing
	}
	if made != 1 || ran != 1_000_000 || len(c.calls) != 0 {
		t.Errorf("%d functions made, %d calls run, %d kept", made, ran, len(c.calls))
	}
	_, arg, cancel, _ := c.once(link, func() { ran++ })
	cancel()
	call(arg)
	if ran != 1_000_000 {
		t.Error("a cancelled call ran")
	}
}

func TestCallbackLimit(t *testing.T) {
	c := newCallbacks()
	for i := range MaxCallbacks + 1 {
		_, err := c.function(fmt.Sprint(i), func() uintptr { return 1 })
		if want := i < MaxCallbacks; (err == nil) != want {
			t.Errorf("%d: %v", i, err)
		}
	}
	if _, err := c.function("0", nil); err != nil {
		t.Errorf("one that exists: %v", err)
	}
}
