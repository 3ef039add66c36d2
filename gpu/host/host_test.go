package host_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
)

func stream(t *testing.T, d gpu.Device) gpu.Stream {
	t.Helper()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func pinned(t *testing.T, d gpu.Device, n int64) gpu.HostMemory {
	t.Helper()
	h, err := d.AllocHost(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func wait(t *testing.T, s gpu.Stream) error {
	t.Helper()
	n, err := s.Tick()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.WaitTick(ctx, n)
}

func TestCopyAndMove(t *testing.T) {
	_, d := open(t, host.Options{})
	m, h, s := alloc(t, d, 8192), pinned(t, d, 8192), stream(t, d)
	for i := range h.Bytes()[:4096] {
		h.Bytes()[i] = byte(i * 7)
	}
	in, out := h.Bytes()[:100], h.Bytes()[4096:4196]
	if err := s.Copy(gpu.Copy{Dev: m.Ptr() + 3, Host: in}); err != nil {
		t.Fatal(err)
	}
	gpu.PutMove(h.Bytes()[8000:], 0, gpu.Move{Src: m.Ptr() + 3, Dst: m.Ptr() + 5000, N: 100})
	gpu.PutMove(h.Bytes()[8000:], 1, gpu.Move{Src: h.Ptr() + 5, Dst: m.Ptr() + 7000, N: 1})
	if err := s.Move(h.Ptr()+8000, 2); err != nil {
		t.Fatal(err)
	}
	err := s.Copy(gpu.Copy{Dev: m.Ptr() + 5000, Host: out, ToHost: true},
		gpu.Copy{Dev: m.Ptr() + 7000, Host: h.Bytes()[5000:5001], ToHost: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := wait(t, s); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(in, out) || h.Bytes()[5000] != h.Bytes()[5] {
		t.Error("other bytes came back")
	}
}

// TestIllegalAccessBreaksTheStream: nothing lands beside an allocation, and
// what was queued behind the failure never runs.
func TestIllegalAccessBreaksTheStream(t *testing.T) {
	_, d := open(t, host.Options{})
	m, h := alloc(t, d, 100), pinned(t, d, 4096)
	for name, c := range map[string]gpu.Copy{
		"behind":     {Dev: m.Ptr() + 1, Host: h.Bytes()[:100]},
		"before":     {Dev: m.Ptr() - 1, Host: h.Bytes()[:2]},
		"not pinned": {Dev: m.Ptr(), Host: make([]byte, 10)},
	} {
		s := stream(t, d)
		if err := s.Copy(c); err != nil {
			t.Fatal(name, err)
		}
		if err := wait(t, s); !errors.Is(err, base.ErrOutOfRange) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCellsEventsAndCalls(t *testing.T) {
	_, d := open(t, host.Options{})
	h := pinned(t, d, 4096)
	a, b := stream(t, d), stream(t, d)
	ev, _ := d.NewEvent()
	var order atomic.Int64
	if err := a.AwaitCell(h.Ptr(), 5); err != nil {
		t.Fatal(err)
	}
	a.Call(func() { order.CompareAndSwap(1, 2) })
	a.Record(ev)
	b.Await(ev)
	b.Call(func() { order.CompareAndSwap(2, 3) })
	b.WriteCell(h.Ptr()+8, 77)
	if done, _ := ev.Done(); done {
		t.Error("the event is done before its stream went on")
	}
	order.Store(1)
	dl.Cell(h.Bytes(), 0).Store(6)
	if err := wait(t, b); err != nil {
		t.Fatal(err)
	}
	if done, _ := ev.Done(); !done || order.Load() != 3 || dl.Cell(h.Bytes(), 8).Load() != 77 {
		t.Errorf("order %d, cell %d", order.Load(), dl.Cell(h.Bytes(), 8).Load())
	}
}

// TestWatch: the work waits for the last bytes and copies all of them, and gives up in
// time.
func TestWatch(t *testing.T) {
	_, d := open(t, host.Options{})
	m, h, s, w := alloc(t, d, 4096), pinned(t, d, 8192), stream(t, d), stream(t, d)
	entry, in, out := h.Bytes(), h.Bytes()[1024:][:512], h.Bytes()[4096:][:512]
	for i := range in {
		in[i] = byte(i) | 1
	}
	watch := func(wait time.Duration) {
		t.Helper()
		gpu.PutWatch(entry, gpu.Watch{Src: m.Ptr() + 8, Dst: h.Ptr() + 4096, N: 512, Value: dl.Cell(in, 504).Load(), For: wait})
		if err := s.Watch(h.Ptr()); err != nil {
			t.Fatal(err)
		}
	}
	watch(time.Millisecond)
	if err := wait(t, s); err != nil || gpu.WatchEnded(entry).Load() != gpu.WatchGaveUp || bytes.Equal(in, out) {
		t.Errorf("%v, ended %d", err, gpu.WatchEnded(entry).Load())
	}
	watch(time.Minute)
	if err := gpu.WaitCell(t.Context(), gpu.WatchBegun(entry), 1, func() error { return nil }); err != nil || gpu.WatchEnded(entry).Load() != 0 {
		t.Fatalf("%v, ended %d", err, gpu.WatchEnded(entry).Load())
	}
	err := w.Copy(gpu.Copy{Dev: m.Ptr() + 8, Host: in[:504]})
	if err == nil { // the last bytes behind the others
		err = w.WriteCell(m.Ptr()+512, dl.Cell(in, 504).Load())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := wait(t, s); err != nil || gpu.WatchEnded(entry).Load() != gpu.WatchSaw || !bytes.Equal(in, out) {
		t.Errorf("%v, ended %d, or other bytes", err, gpu.WatchEnded(entry).Load())
	}
	for _, bad := range []gpu.Ptr{1, h.Ptr() + 8190} {
		broken := stream(t, d)
		if err := broken.Watch(bad); err != nil {
			t.Fatal(err)
		}
		if err := wait(t, broken); !errors.Is(err, base.ErrOutOfRange) {
			t.Errorf("entry at %s: %v", bad, err)
		}
	}
}

func TestFaults(t *testing.T) {
	boom := errors.New("boom")
	var fail atomic.Bool
	_, d := open(t, host.Options{Devices: 2, Bytes: 1 << 20, Faults: host.Faults{NoMover: true, NoMemOps: true, NoFlush: true,
		Alloc: func(n int64) error {
			if n == 13 {
				return boom
			}
			return nil
		},
		Queue: func(c gpu.Copy) error {
			if len(c.Host) == 13 {
				return boom
			}
			return nil
		},
		Run: func(gpu.Copy) error {
			if fail.Load() {
				return boom
			}
			return nil
		},
		Capturing: func(h uintptr) bool { return h == 99 },
	}})
	m, h, s := alloc(t, d, 4096), pinned(t, d, 4096), stream(t, d)
	if _, err := d.Alloc(13); err != boom {
		t.Error(err)
	}
	if _, err := d.Alloc(1 << 20); !errors.Is(err, base.ErrNoSpace) {
		t.Error(err)
	}
	if err := s.Copy(gpu.Copy{Dev: m.Ptr(), Host: h.Bytes()[:13]}); err != boom {
		t.Error(err)
	}
	for _, err := range []error{s.Move(h.Ptr(), 1), s.Watch(h.Ptr()), s.WriteCell(h.Ptr(), 1), s.AwaitCell(h.Ptr(), 1), d.FlushWrites()} {
		if !errors.Is(err, base.ErrNotSupported) {
			t.Error(err)
		}
	}
	w, _ := d.WrapStream(99)
	defer w.Close()
	if on, _ := w.Capturing(); !on {
		t.Error("not capturing")
	}
	fail.Store(true)
	s.Copy(gpu.Copy{Dev: m.Ptr(), Host: h.Bytes()[:1]})
	if err := wait(t, s); err != boom {
		t.Error(err)
	}
}

func TestDevicesShareAndEnd(t *testing.T) {
	b, d := open(t, host.Options{Devices: 2, Faults: host.Faults{Ordering: gpu.OrderingOwner}})
	if in := b.Devices()[1].Info(); in.Index != 1 || in.Ordering != gpu.OrderingOwner || in.UUID == d.Info().UUID {
		t.Errorf("%+v", in)
	}
	m := alloc(t, d, 4096)
	handle, err := d.IPCHandle(m.Ptr())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.IPCHandle(m.Ptr() + 1); !errors.Is(err, base.ErrInvalid) {
		t.Error(err)
	}
	o, err := b.Devices()[1].OpenIPC(handle)
	if err != nil || o.Ptr() != m.Ptr() || o.Close() != nil {
		t.Error(err)
	}
	if _, err := d.OpenIPC([64]byte{1: 9}); !errors.Is(err, base.ErrNotFound) {
		t.Error(err)
	}
	if err := d.FlushWrites(); err != nil || b.Flushes() != 1 {
		t.Error(err, b.Flushes())
	}
	if err := b.Close(); !errors.Is(err, base.ErrBusy) {
		t.Errorf("closed with memory left: %v", err)
	}
	if _, err := host.Open(host.Options{Devices: 65}); !errors.Is(err, base.ErrInvalid) {
		t.Error(err)
	}
}
