package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	gpuxfer "github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/store"
)

func newWindowBox(t *testing.T, budget int64, f host.Faults) *gpuBox {
	return newGPUBox(t, host.Options{Faults: f}, func(o *store.Options) { o.GPU.WindowBytes = budget })
}

// get reads a value into GPU memory and compares it.
func (b *gpuBox) get(key string, off int64, want []byte) {
	b.t.Helper()
	to := b.at(20 << 20)
	b.poke(to, make([]byte, len(want)))
	n, err := b.ns.Get(bg, []byte(key), store.OnGPU(to, int64(len(want))), store.GetOptions{Off: off, Len: int64(len(want))})
	if n != int64(len(want)) || err != nil {
		b.t.Fatalf("get %s: %d, %v", key, n, err)
	}
	if !bytes.Equal(b.peek(to, len(want)), want) {
		b.t.Fatalf("get %s: other bytes", key)
	}
}

// until waits for what the windows' goroutine does.
func (b *gpuBox) until(what string, ok func(store.WindowStats) bool) {
	b.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(*b.s.Stats().Windows); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("%s: %+v", what, *b.s.Stats().Windows)
		}
	}
}

func (b *gpuBox) deviceReads() (n int64) {
	for _, d := range b.s.Stats().Devices {
		n += d.ReadBytes
	}
	return n
}

// TestWindow: a value that is read again comes from its window, whole and in parts,
// without the device; a replace or delete ends it, and its space returns.
func TestWindow(t *testing.T) {
	b := newWindowBox(t, 64<<20, host.Faults{})
	want := fill(1, 5<<20+777)
	b.poke(b.at(3), want)
	if err := b.put("a", b.at(3), int64(len(want))); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		b.get("a", 0, want)
	}
	b.until("no window after two gets", func(s store.WindowStats) bool { return s.Windows == 1 })
	reads := b.deviceReads()
	b.get("a", 0, want)
	b.get("a", 1_000_001, want[1_000_001:3<<20])
	b.get("a", 4<<20, want[4<<20:])
	if now := b.deviceReads(); now != reads {
		t.Errorf("the device read %d bytes", now-reads)
	}
	st := b.s.Stats()
	if st.Windows.Hits != 3 || st.Windows.Bytes < 5<<20 {
		t.Errorf("%+v", st.Windows)
	}
	var moved int64
	for _, p := range st.GPUs[0].Paths {
		if p.Path == driver.PathWindow && p.Reason == gpuxfer.ReasonWindow {
			moved += p.Bytes
		}
	}
	if sum := int64(len(want)) + 3<<20 - 1_000_001 + int64(len(want)) - 4<<20; moved != sum {
		t.Errorf("%d bytes counted, %d came by the window", moved, sum)
	}
	b.equal()

	next := fill(2, 5<<20+777)
	b.poke(b.at(3), next)
	if err := b.put("a", b.at(3), int64(len(next))); err != nil {
		t.Fatal(err)
	}
	b.get("a", 0, next)
	b.until("the window of a replaced value stays", func(s store.WindowStats) bool { return s.Windows == 0 && s.Bytes == 0 })
	b.get("a", 0, next)
	b.until("no window for the new value", func(s store.WindowStats) bool { return s.Windows == 1 })
	if err := b.ns.Delete(bg, []byte("a"), store.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.until("the window of a deleted value stays", func(s store.WindowStats) bool { return s.Windows == 0 })
}

// TestWindowNotForAll: small values, values whose get is not verified, host memory
// and stores without the option have none.
func TestWindowNotForAll(t *testing.T) {
	b := newWindowBox(t, 64<<20, host.Faults{})
	want := fill(1, 2<<20)
	b.poke(b.at(0), want)
	if err := errors.Join(b.put("small", b.at(0), 1<<20-1), b.put("large", b.at(0), 2<<20)); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		b.get("small", 0, want[:1<<20-1])
		b.get("large", 5, want[5:500_000])
		if _, err := b.ns.GetBytes(bg, []byte("large"), store.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.ns.Get(bg, []byte("large"), store.OnGPU(b.at(20<<20), 2<<20), store.GetOptions{NoVerify: true}); err != nil {
			t.Fatal(err)
		}
	}
	if st := b.s.Stats().Windows; *st != (store.WindowStats{}) {
		t.Errorf("%+v", *st)
	}
	if none := newGPUBox(t, host.Options{}, nil); none.s.Stats().Windows != nil {
		t.Error("windows without the option")
	}
}

// TestWindowBudget: the least recently used window makes room.
func TestWindowBudget(t *testing.T) {
	b := newWindowBox(t, 7<<20, host.Faults{})
	values := map[string][]byte{}
	for i, key := range []string{"a", "b", "c"} {
		values[key] = fill(uint64(i), 3<<20)
		b.poke(b.at(0), values[key])
		if err := b.put(key, b.at(0), 3<<20); err != nil {
			t.Fatal(err)
		}
	}
	for i, key := range []string{"a", "b", "c"} {
		for range 2 {
			b.get(key, 0, values[key])
		}
		b.until(key, func(s store.WindowStats) bool { return s.Opened == int64(i+1) })
	}
	if st := b.s.Stats().Windows; st.Windows != 2 || st.Bytes > 7<<20 {
		t.Errorf("%+v", st)
	}
	hits := b.s.Stats().Windows.Hits
	b.get("b", 0, values["b"])
	b.get("c", 0, values["c"])
	b.get("a", 0, values["a"]) // evicted: from the device
	if got := b.s.Stats().Windows.Hits - hits; got != 2 {
		t.Errorf("%d hits, want 2", got)
	}
	tooMuch := newWindowBox(t, 1<<20, host.Faults{})
	tooMuch.poke(tooMuch.at(0), values["a"])
	if err := tooMuch.put("a", tooMuch.at(0), 3<<20); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		tooMuch.get("a", 0, values["a"])
	}
	tooMuch.until("a value larger than the budget", func(s store.WindowStats) bool { return s.Refused == 1 && s.Windows == 0 })
}

// TestI2WindowHoldsItsExtents: while a GPU copies from a window, the space of its
// deleted value is not free; afterwards it is.
func TestI2WindowHoldsItsExtents(t *testing.T) {
	gate, on := make(chan struct{}), atomic.Bool{}
	b := newWindowBox(t, 64<<20, host.Faults{Run: func(gpu.Copy) error {
		if on.Load() {
			<-gate
		}
		return nil
	}})
	want := fill(1, 4<<20)
	b.poke(b.at(0), want)
	if err := b.put("a", b.at(0), 4<<20); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		b.get("a", 0, want)
	}
	b.until("no window", func(s store.WindowStats) bool { return s.Windows == 1 })
	on.Store(true)
	done := make(chan error, 1)
	go func() {
		_, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(8<<20), 4<<20), store.GetOptions{})
		done <- err
	}()
	b.until("no hit", func(s store.WindowStats) bool { return s.Hits == 1 })
	if err := errors.Join(b.ns.Delete(bg, []byte("a"), store.DeleteOptions{}), b.s.Flush(bg)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // a mark, which would make the space free
	if used := b.s.Stats().Space.Allocated; used < 4<<20 {
		t.Errorf("only %d bytes are in use while the window is read", used)
	}
	on.Store(false)
	close(gate)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !bytes.Equal(b.peek(b.at(8<<20), 4<<20), want) {
		t.Error("other bytes")
	}
	b.until("the window stays", func(s store.WindowStats) bool { return s.Windows == 0 && s.Bytes == 0 })
}

// TestWindowsUnderChange: values are replaced and deleted in a small pool while others
// read them by windows; every get gives one whole version.
func TestWindowsUnderChange(t *testing.T) {
	b := newWindowBox(t, 12<<20, host.Faults{})
	const keys, size = 6, 2 << 20
	pattern := func(key, version int) []byte { return fill(uint64(key*1000+version), size) }
	var begun, done [keys]atomic.Int64 // versions
	for k := range keys {
		b.poke(b.at(k*size), pattern(k, 0))
		if err := b.put(fmt.Sprint(k), b.at(k*size), size); err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		rng := testenv.Seed(t)
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			k := rng.IntN(keys)
			begun[k].Store(int64(i))
			if err := b.ns.Put(bg, []byte(fmt.Sprint(k)), store.Bytes(pattern(k, i)), store.PutOptions{Replace: true}); err != nil {
				t.Error(err)
				return
			}
			done[k].Store(int64(i))
		}
	})
	readers := sync.WaitGroup{}
	for r := range 3 {
		readers.Go(func() {
			to := b.at(keys*size + r*size)
			for i := range 48 {
				k := (i/4 + r) % keys
				least := done[k].Load()
				if _, err := b.ns.Get(bg, []byte(fmt.Sprint(k)), store.OnGPU(to, size), store.GetOptions{}); err != nil {
					t.Error(err)
					return
				}
				most := begun[k].Load()
				got := b.peek(to, size)
				whole := false
				for v := least; v <= most && !whole; v++ {
					whole = bytes.Equal(got[:64], fill(uint64(k*1000+int(v)), 64)) && bytes.Equal(got, pattern(k, int(v)))
				}
				if !whole {
					t.Errorf("key %d: no version of %d to %d", k, least, most)
					return
				}
			}
		})
	}
	readers.Wait()
	close(stop)
	wg.Wait()
	t.Logf("%+v", *b.s.Stats().Windows)
}
