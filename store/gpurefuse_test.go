package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	gpuxfer "github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/store"
)

// TestT10Strict: a strict store refuses what it would stage and says why; a partial
// last block may pass.
func TestT10Strict(t *testing.T) {
	b := newGPUBox(t, host.Options{}, func(o *store.Options) { o.Strict = true })
	check := func(what string, err error, reason string) {
		t.Helper()
		if !errors.Is(err, store.ErrNotSupported) || !strings.Contains(err.Error(), "strict") || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("put", b.put("a", b.at(0), 4096), gpuxfer.ReasonUnregistered)
	check("put of plain bytes", b.ns.Put(bg, []byte("a"), store.Bytes(fill(1, 9000)), store.PutOptions{}), "plain memory")
	if there, err := b.ns.Exists(bg, []byte("a")); there || err != nil {
		t.Error(there, err)
	}
	want := fill(2, 100)
	b.poke(b.at(0), want)
	if err := b.put("small", b.at(0), 100); err != nil {
		t.Errorf("a partial last block: %v", err)
	}
	if _, err := b.ns.Get(bg, []byte("small"), store.OnGPU(b.at(4096), 100), store.GetOptions{}); err != nil || !bytes.Equal(b.peek(b.at(4096), 100), want) {
		t.Errorf("a partial last block: %v", err)
	}
	reg, err := driver.AllocRegion(8192, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer reg.Close()
	copy(reg.CPU(), fill(3, 8192))
	if err := b.ns.Put(bg, []byte("direct"), store.InRegion(reg, 0, 8192), store.PutOptions{}); err != nil {
		t.Errorf("what goes direct: %v", err)
	}
	_, err = b.ns.Get(bg, []byte("direct"), store.OnGPU(b.at(0), 8192), store.GetOptions{})
	check("get", err, gpuxfer.ReasonUnregistered)
	if errs := b.ns.Verify(bg, [][]byte{[]byte("direct")}); errs[0] != nil {
		t.Errorf("verifying moves no value: %v", errs[0])
	}
}

// TestI3GPUHeld: memory cannot be unregistered while a call uses it, for reads and
// writes, and can afterwards.
func TestI3GPUHeld(t *testing.T) {
	gate, on := make(chan struct{}), atomic.Bool{}
	b := newGPUBox(t, host.Options{Faults: host.Faults{Run: func(gpu.Copy) error {
		if on.Load() {
			<-gate
		}
		return nil
	}}}, nil)
	const n = 300_000
	want := fill(4, n)
	b.poke(b.at(0), want)
	r, err := b.s.RegisterGPU(b.at(0), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() error{
		"put": func() error { return b.put("a", b.at(0), n) },
		"get": func() error {
			_, err := b.ns.Get(bg, []byte("b"), store.OnGPU(b.at(0), n), store.GetOptions{})
			return err
		},
	} {
		if err := b.put("b", b.at(0), n); err != nil {
			t.Fatal(err)
		}
		on.Store(true)
		done := make(chan error, 1)
		go func() { done <- call() }()
		for end := time.Now().Add(time.Minute); r.InFlight() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s holds nothing", name)
			}
		}
		if err := r.Close(); !errors.Is(err, store.ErrBusy) {
			t.Errorf("%s: closed while in flight: %v", name, err)
		}
		on.Store(false)
		close(gate)
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r.InFlight() != 0 {
			t.Errorf("%s: %d holds are left", name, r.InFlight())
		}
		gate = make(chan struct{})
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := b.ns.Get(bg, []byte("b"), store.OnGPU(b.at(0), n), store.GetOptions{}); err != nil || !bytes.Equal(b.peek(b.at(0), n), want) {
		t.Error(err)
	}
}

// TestGPUMemoryReplaced: registered memory that was freed and allocated again at the
// same address is noticed.
func TestGPUMemoryReplaced(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	if err := b.put("a", b.at(0), 5000); err != nil {
		t.Fatal(err)
	}
	r, err := b.s.RegisterGPU(b.mem.Ptr(), gpuBoxBytes)
	if err != nil {
		t.Fatal(err)
	}
	if b.mem, err = b.g.Replace(b.mem); err != nil {
		t.Fatal(err)
	}
	if err := b.put("b", b.at(0), 5000); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("put: %v", err)
	}
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), 5000), store.GetOptions{}); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("get: %v", err)
	}
	if there, _ := b.ns.Exists(bg, []byte("b")); there {
		t.Error("the refused put left an object")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := b.put("b", b.at(0), 5000); err != nil {
		t.Errorf("after it was closed: %v", err)
	}
}

// TestGPURefusals: what is no GPU memory, and stores without a GPU.
func TestGPURefusals(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	for name, c := range map[string]struct {
		v    store.Range
		want error
	}{
		"host memory":  {store.Range{GPU: 4096, Len: 10}, store.ErrInvalid},
		"past the end": {store.Range{GPU: b.at(gpuBoxBytes - 10), Len: 11}, store.ErrOutOfRange},
		"two memories": {store.Range{GPU: b.at(0), Len: 1, Bytes: []byte("x")}, store.ErrInvalid},
		"negative":     {store.Range{GPU: b.at(0), Len: -1}, store.ErrInvalid},
		"no memory":    {store.Range{Len: 5}, store.ErrInvalid},
	} {
		if err := b.ns.Put(bg, []byte("k"), store.Buffers{c.v}, store.PutOptions{}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if err := b.s.WarmGPU(bg, 0); err != nil {
		t.Error(err)
	}
	if err := b.s.WarmGPU(bg, 1); !errors.Is(err, store.ErrNotFound) {
		t.Error(err)
	}
	if err := b.put("small", b.at(0), 100); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ns.Get(bg, []byte("small"), store.OnGPU(b.at(0), 99), store.GetOptions{}); !errors.Is(err, store.ErrOutOfRange) {
		t.Error(err)
	}
	none := newBox(t, box{})
	_, err := none.s.RegisterGPU(b.at(0), 1)
	for _, err := range []error{none.ns.Put(bg, []byte("k"), store.OnGPU(b.at(0), 1), store.PutOptions{}), err, none.s.WarmGPU(bg, 0)} {
		if !errors.Is(err, store.ErrNotSupported) || !strings.Contains(err.Error(), "without a GPU") {
			t.Errorf("a store without a GPU: %v", err)
		}
	}
}

// TestGPUCorrupt: checksums are verified on the way to a GPU.
func TestGPUCorrupt(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	const n = 2<<20 + 5
	b.poke(b.at(0), fill(5, n))
	if err := b.put("a", b.at(0), n); err != nil {
		t.Fatal(err)
	}
	b.close()
	data, err := os.ReadFile(b.path(0))
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(data, fill(5, n)[:4096])
	if at < 0 {
		t.Fatal("the value is not on the first device")
	}
	f, err := os.OpenFile(b.path(0), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt([]byte{^data[at+1<<20+7]}, int64(at+1<<20+7))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	b.openDevices()
	b.open()
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), n), store.GetOptions{}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("a changed byte: %v", err)
	}
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), n), store.GetOptions{NoVerify: true}); err != nil {
		t.Error(err)
	}
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), 1000), store.GetOptions{Len: 1000}); err != nil {
		t.Errorf("another piece: %v", err)
	}
}

// TestGPUCopyFails: a copy that cannot be queued fails its value and nothing else; a
// GPU that breaks costs buffers, and the store goes on for host memory.
func TestGPUCopyFails(t *testing.T) {
	boom := errors.New("boom")
	var queue, run atomic.Bool
	b := newGPUBox(t, host.Options{Faults: host.Faults{
		NoMover: true,
		Queue: func(c gpu.Copy) error {
			if queue.Load() {
				return boom
			}
			return nil
		},
		Run: func(c gpu.Copy) error {
			if run.Load() {
				return boom
			}
			return nil
		},
	}}, nil)
	if err := b.put("a", b.at(0), 200_000); err != nil {
		t.Fatal(err)
	}
	used := b.ns.Usage()
	run.Store(true)
	items := []store.PutItem{{Key: []byte("bad"), Value: store.OnGPU(b.at(0), 9000)}, {Key: []byte("good"), Value: store.Bytes(fill(1, 9000))}}
	b.ns.PutBatch(bg, items)
	run.Store(false)
	if !errors.Is(items[0].Err, boom) || items[1].Err != nil {
		t.Errorf("%v, %v", items[0].Err, items[1].Err)
	}
	if st := b.s.Stats(); st.LostBuffers == 0 {
		t.Error("the buffer of a copy in doubt is used again")
	}
	if err := b.put("b", b.at(0), 9000); err != nil {
		t.Errorf("another lane: %v", err)
	}
	lost := b.s.Stats().LostBuffers
	queue.Store(true)
	for range 20 { // more often than there are lanes
		if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), 200_000), store.GetOptions{}); !errors.Is(err, boom) {
			t.Fatalf("a copy that was refused: %v", err)
		}
	}
	queue.Store(false)
	if now := b.s.Stats().LostBuffers; now != lost {
		t.Errorf("copies that never began cost %d buffers", now-lost)
	}
	if got, err := b.ns.GetBytes(bg, []byte("good"), store.GetOptions{}); err != nil || !bytes.Equal(got, fill(1, 9000)) {
		t.Errorf("host memory: %v", err)
	}
	if now := b.ns.Usage(); now.Objects != used.Objects+2 {
		t.Errorf("%+v, before %+v", now, used)
	}
	// The GPU breaks for good: it is given up before it has all of the memory.
	run.Store(true)
	var err error
	for i := 0; i < 20 && !errors.Is(err, store.ErrIsolated); i++ {
		_, err = b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), 200_000), store.GetOptions{})
	}
	if !errors.Is(err, store.ErrIsolated) || !errors.Is(err, boom) {
		t.Errorf("a GPU that fails all the time: %v", err)
	}
	for i := range 4 {
		key := []byte(fmt.Sprint("host", i))
		if err := b.ns.Put(bg, key, store.Bytes(fill(1, 3<<20)), store.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if got, err := b.ns.GetBytes(bg, key, store.GetOptions{}); err != nil || !bytes.Equal(got, fill(1, 3<<20)) {
			t.Fatalf("host memory beside a broken GPU: %v", err)
		}
	}
}

// TestI4GPUTimeout: a caller that gives up leaves nothing behind that lands later in
// its memory.
func TestI4GPUTimeout(t *testing.T) {
	b := newGPUBox(t, host.Options{}, nil)
	want := fill(6, 4<<20)
	b.poke(b.at(0), want)
	if err := b.put("a", b.at(0), 4<<20); err != nil {
		t.Fatal(err)
	}
	b.poke(b.at(0), make([]byte, 4<<20))
	r, err := b.s.RegisterGPU(b.at(0), 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if _, err := b.ns.Get(ctx, []byte("a"), store.OnGPU(b.at(0), 4<<20), store.GetOptions{}); !errors.Is(err, store.ErrTimeout) {
		t.Errorf("an ended context: %v", err)
	}
	if err := r.Close(); err != nil { // nothing holds it
		t.Error(err)
	}
	seen := b.peek(b.at(0), 4<<20)
	b.reopen() // waits for what is still under way
	if !bytes.Equal(b.peek(b.at(0), 4<<20), seen) {
		t.Error("bytes landed after the call returned")
	}
}
