package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/meta/metatest"
	"github.com/ugds-store/ugds/store"
)

// next is the first event of a kind, of those that come soon.
func next(t *testing.T, sub *store.Subscription, kind store.EventKind) store.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(bg, time.Minute)
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
	ctx, cancel := context.WithTimeout(bg, time.Minute)
	defer cancel()
	for left := []store.EventKind{store.EventMeta, store.EventReadOnly}; len(left) > 0; { // either may be first
		e, err := sub.Next(ctx)
		if err != nil {
			t.Fatalf("no events %v: %v", left, err)
		}
		if i := slices.Index(left, e.Kind); i >= 0 {
			if left = slices.Delete(left, i, i+1); e.Err == nil {
				t.Errorf("%+v", e)
			}
		}
	}
	if s.ReadOnly() == nil {
		t.Error("not read-only")
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
// meanwhile; what needs no device is answered (I-07); and it works when buffers come
// back.
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
	for end := time.Now().Add(time.Minute); b.devs[0].Stats().InFlight == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	began, cpu := time.Now(), processTime(t)
	ctx, cancel := context.WithTimeout(bg, time.Second)
	defer cancel()
	err := b.ns.Put(ctx, []byte("late"), store.Bytes(value), store.PutOptions{Durability: store.Relaxed})
	if !errors.Is(err, store.ErrTimeout) {
		t.Errorf("without buffers: %v", err)
	}
	// One that does not wait takes a whole processor, or its share of a busy machine.
	if used, took := processTime(t)-cpu, time.Since(began); used > took/4 {
		t.Errorf("waiting took %v of processor in %v", used, took)
	}
	ctx, cancel = context.WithTimeout(bg, time.Minute)
	defer cancel()
	if there, err := b.ns.Exists(ctx, []byte("late")); there || err != nil {
		t.Errorf("exists: %v, %v", there, err)
	}
	if _, err := b.ns.Stat(ctx, []byte("late")); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("stat: %v", err)
	}
	for info, err := range b.ns.List(ctx, store.ListOptions{}) {
		t.Errorf("list: %s, %v", info.Key, err)
	}
	if st := b.s.Stats(); st.Devices[0].InFlight == 0 {
		t.Error("nothing is under way any more: the test shows nothing")
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

// failures sums the errors that were counted by one way.
func failures(paths []driver.PathCount, way driver.Path) (n int64) {
	for _, p := range paths {
		if p.Path == way {
			n += p.Errors
		}
	}
	return n
}

// TestT36FailedValues: a get and a put that the device fails are errors of the way that
// they took.
func TestT36FailedValues(t *testing.T) {
	b := kind{models: []model{usual}}.newBox(t, box{})
	value := fill(1, 64<<10)
	if err := b.ns.Put(bg, []byte("k"), store.Bytes(value), store.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, fail := range []func() error{
		func() error { _, err := b.ns.GetBytes(bg, []byte("k"), store.GetOptions{}); return err },
		func() error { return b.ns.Put(bg, []byte("large"), store.Bytes(value), store.PutOptions{}) },
		func() error { return b.ns.Put(bg, []byte("small"), store.Bytes(value[:4096]), store.PutOptions{}) },
	} {
		before := failures(b.s.Stats().Paths, driver.PathStaged)
		b.sims[0].Script(sim.Rule{Kind: sim.FaultStatus, Ops: []nvme.Opcode{nvme.OpRead, nvme.OpWrite}, Count: 1,
			Status: nvme.StatusTransferError | nvme.StatusDNR})
		if err := fail(); err == nil {
			t.Errorf("%d: it did not fail", i)
		}
		if after := failures(b.s.Stats().Paths, driver.PathStaged); after != before+1 {
			t.Errorf("%d: %d errors counted before, %d after", i, before, after)
		}
	}
}

// TestSSDAlone: one controller of a pool stops under a living process, in each of the
// ways in which it can. The driver notices, isolates and resets it; what no flush had
// covered goes back to its last durable value, on that device alone; the store goes
// on.
func TestSSDAlone(t *testing.T) {
	stops := map[string]func(s *sim.Sim){
		"power": func(s *sim.Sim) { s.Power() },
		"fatal": func(s *sim.Sim) { s.Fatal() },
		"link":  func(s *sim.Sim) { s.Ones() },
		"deadline": func(s *sim.Sim) {
			s.Script(sim.Rule{Kind: sim.FaultLoseCompletion, Ops: []nvme.Opcode{nvme.OpRead}, Count: 1})
		},
	}
	for n := 1; n <= 3; n++ {
		for name, stop := range stops {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				ssdAlone(t, n, stop)
			})
		}
	}
}

func ssdAlone(t *testing.T, n int, stop func(s *sim.Sim)) {
	o := ctrl.Options{Watch: time.Millisecond, Deadline: ctrl.Deadlines{ReadWrite: 300 * time.Millisecond}}
	b := kind{models: []model{{"sim:lba=512,mdts=2", o}, {"sim:lba=4096", o}, {"sim:lba=512,mqes=8", o}}}.newBox(t,
		box{sizes: []int64{64 << 20, 64 << 20, 64 << 20}[:n], tune: func(o *store.Options) { o.RoundAge = time.Hour }})
	sub := b.s.Subscribe(10_000)
	defer sub.Close()
	const keys = 12
	value := func(version uint64, i int) []byte { // of many sizes, so that slabs of every device are used
		return fill(version<<8+uint64(i), 5000+4000*i*i)
	}
	for i := range keys {
		if err := b.ns.Put(bg, keyN(i), store.Bytes(value(1, i)), store.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	victim, before := -1, b.s.Stats().Devices
	for i := range keys {
		if err := b.ns.Put(bg, keyN(i), store.Bytes(value(2, i)), store.PutOptions{Replace: true, Durability: store.Relaxed}); err != nil {
			t.Fatal(err)
		}
	}
	for i, d := range b.s.Stats().Devices {
		if d.WriteBytes > before[i].WriteBytes {
			victim = i
		}
	}
	stop(b.sims[victim])
	for i := range keys { // a read finds out, if it needs one
		_, _ = b.ns.GetBytes(bg, keyN(i), store.GetOptions{})
	}
	for e := next(t, sub, store.EventDevice); e.Err != nil; e = next(t, sub, store.EventDevice) {
		if e.Device != victim {
			t.Errorf("device %d stopped: %v", e.Device, e.Err)
		}
	}
	if err := b.s.Flush(bg); err != nil {
		t.Logf("flush: %v", err) // tells what was lost
	}
	lost := 0
	check := func(when string) {
		t.Helper()
		lost = 0
		for i := range keys {
			switch got, err := b.ns.GetBytes(bg, keyN(i), store.GetOptions{}); {
			case err != nil:
				t.Errorf("%s: key %d: %v", when, i, err)
			case bytes.Equal(got, value(1, i)):
				lost++
			case !bytes.Equal(got, value(2, i)):
				t.Errorf("%s: key %d has the bytes of no put", when, i)
			}
		}
	}
	check("after the reset")
	if lost == 0 || n > 1 && lost == keys {
		t.Errorf("%d of %d values went back on a pool of %d", lost, keys, n)
	}
	if err := b.ns.Put(bg, []byte("on"), store.Bytes(value(3, 1)), store.PutOptions{}); err != nil {
		t.Errorf("put after the reset: %v", err)
	}
	was := lost
	b.reopen()
	check("after opening again")
	if lost != was {
		t.Errorf("%d values had gone back, %d after opening again", was, lost)
	}
}
