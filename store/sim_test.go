package store_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/meta/metatest"
	"github.com/ugds-store/ugds/store"
)

// next is the first event of a kind, of those that come soon.
func next(t *testing.T, sub *store.Subscription, kind store.EventKind) store.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(bg, 20*time.Second)
	defer cancel()
	for {
		e, err := sub.Next(ctx)
		if err != nil {
			t.Fatalf("no event %q: %v", kind, err)
		}
		if e.Kind == kind {
			return e
		}
	}
}

// TestE09EventKinds: a device that stops, what was lost with it, metadata that
// fails, and the end of changes are told.
func TestE09EventKinds(t *testing.T) {
	cfg := sim.Default(64 * base.MiB)
	cfg.Real = true
	model, err := sim.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d, err := ctrl.Open(bg, model, ctrl.Options{Watch: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(bg); err != nil {
			t.Error(err)
		}
	}()
	fs := metatest.NewMem()
	o := store.Options{Devices: devices(d), Meta: meta.Options{Dir: "/meta", FS: fs}, StagingBytes: 4 << 20, RoundAge: time.Hour}
	if _, err := store.Format(bg, store.FormatOptions{Devices: o.Devices, Meta: o.Meta}); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(bg, o)
	if err != nil {
		t.Fatal(err)
	}
	sub := s.Subscribe(1000)
	ns, err := s.Namespace(bg, "n", store.NamespaceOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	put := func(key string, durability store.Durability) error {
		return ns.Put(bg, []byte(key), store.Bytes(fill(1, 5000)), store.PutOptions{Durability: durability})
	}
	if err := put("in the cache", store.Relaxed); err != nil {
		t.Fatal(err)
	}
	model.Power()
	if e := next(t, sub, store.EventLost); string(e.Key) != "in the cache" {
		t.Errorf("lost: %+v", e)
	}
	for { // isolated, resetting, ready
		if e := next(t, sub, store.EventDevice); e.Device != 0 {
			t.Errorf("device: %+v", e)
		} else if e.Err == nil {
			break
		}
	}
	if err := put("after the reset", store.Sync); err != nil {
		t.Errorf("the device is back: %v", err)
	}
	fs.FailAt(1, nil, true)
	if err := put("without metadata", store.Sync); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("metadata that fails: %v", err)
	}
	if e := next(t, sub, store.EventMeta); e.Err == nil {
		t.Errorf("metadata: %+v", e)
	}
	if e := next(t, sub, store.EventReadOnly); e.Err == nil || s.ReadOnly() == nil {
		t.Errorf("read-only: %+v", e)
	}
	sub.Close()
	_ = s.Close(bg) // its metadata is gone
}

// processTime is the processor time of this process so far.
func processTime(t *testing.T) time.Duration {
	t.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// TestH11StagingFull: with every bounce buffer in flight on a device that does not
// answer, a put waits until its time is over and says so; it takes no processor
// meanwhile; and it works when buffers come back.
func TestH11StagingFull(t *testing.T) {
	b := kind{models: []model{{"sim:lba=4096", ctrl.Options{Mode: ctrl.Interrupts, Batches: ctrl.Interrupts}}}}.newBox(t,
		box{sizes: []int64{64 << 20}, tune: func(o *store.Options) { o.StagingBytes = 1 }}) // the smallest pool
	value := fill(3, base.MiB)
	b.sims[0].Hold(true)
	var wg sync.WaitGroup
	for i := range 8 { // more than there are buffers
		wg.Go(func() {
			if err := b.ns.Put(bg, keyN(i), store.Bytes(value), store.PutOptions{Durability: store.Relaxed}); err != nil {
				t.Errorf("put %d: %v", i, err)
			}
		})
	}
	for end := time.Now().Add(10 * time.Second); b.devs[0].Stats().InFlight == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	began, cpu := time.Now(), processTime(t)
	ctx, cancel := context.WithTimeout(bg, time.Second)
	defer cancel()
	err := b.ns.Put(ctx, []byte("late"), store.Bytes(value), store.PutOptions{Durability: store.Relaxed})
	if !errors.Is(err, store.ErrTimeout) {
		t.Errorf("without buffers: %v", err)
	}
	if used, took := processTime(t)-cpu, time.Since(began); used > took/20 {
		t.Errorf("waiting took %v of processor in %v", used, took)
	}
	b.sims[0].Hold(false)
	wg.Wait()
	if err := b.ns.Put(bg, []byte("now"), store.Bytes(value), store.PutOptions{}); err != nil {
		t.Error(err)
	}
	for i := range 8 {
		if got, err := b.ns.GetBytes(bg, keyN(i), store.GetOptions{}); err != nil || !bytes.Equal(got, value) {
			t.Errorf("put %d: %v", i, err)
		}
	}
}
