package store_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// TestReaderAfterClose: a reader that was closed reads nothing any more, above all
// not what others put where its value lay.
func TestReaderAfterClose(t *testing.T) {
	b := newBox(t, box{})
	put := func(key string, seed uint64) {
		t.Helper()
		if err := b.ns.Put(bg, []byte(key), store.Bytes(fill(seed, 8000)), store.PutOptions{NoChecksum: true}); err != nil {
			t.Fatal(err)
		}
	}
	put("old", 1)
	r, err := b.ns.NewReader(bg, []byte("old"))
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 8000)
	if err := r.ReadRange(bg, got, 0); err != nil || !bytes.Equal(got, fill(1, 8000)) {
		t.Fatalf("before the close: %v", err)
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := b.ns.Delete(bg, []byte("old"), store.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); b.s.Stats().WaitingMark > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	put("new", 2)
	if err := r.ReadRange(bg, got, 0); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after the close: %v, want ErrClosed; the bytes of another object: %v", err, bytes.Equal(got, fill(2, 8000)))
	}
}

// TestWriterNeedsOneBuffer: a writer of buffers waits for a bounce buffer only while
// it holds none, else a few of them would wait for each other for ever.
func TestWriterNeedsOneBuffer(t *testing.T) {
	b := newBox(t, box{tune: func(o *store.Options) { o.StagingBytes = 1 }}) // the smallest pool
	b.s.LeaveStaging(t, 1)
	ctx, cancel := context.WithTimeout(bg, 20*time.Second)
	defer cancel()
	w, err := b.ns.NewWriter(ctx, []byte("k"), store.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	value := fill(3, 3*base.MiB+5)
	for part := value; len(part) > 0; {
		n := min(len(part), 2*base.MiB-7)
		if done, err := w.WriteBuffers(store.Bytes(part[:n])); err != nil || done != int64(n) {
			t.Fatalf("%d of %d bytes: %v", done, n, err)
		}
		part = part[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteBuffers(store.Bytes(value)); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after the close: %v, want ErrClosed", err)
	}
	if got, err := b.ns.GetBytes(bg, []byte("k"), store.GetOptions{}); err != nil || !bytes.Equal(got, value) {
		t.Errorf("%d bytes: %v", len(got), err)
	}
}

// TestCloseTellsWhatWasLost: a close that could not make a relaxed put durable says
// so, as a flush does, and once.
func TestCloseTellsWhatWasLost(t *testing.T) {
	for _, flush := range []bool{false, true} {
		b := kind{models: []model{{"sim:lba=4096", ctrl.Options{}}}}.newBox(t,
			box{tune: func(o *store.Options) { o.RoundAge = time.Hour }})
		if err := b.ns.Put(bg, []byte("k"), store.Bytes(fill(1, 5000)), store.PutOptions{Durability: store.Relaxed}); err != nil {
			t.Fatal(err)
		}
		b.sims[0].Power()
		if flush {
			if err := b.s.Flush(bg); err == nil {
				t.Error("a flush that lost a put says nothing")
			}
		}
		err := b.s.Close(bg)
		if b.s = nil; (err == nil) != flush {
			t.Errorf("close: %v; a flush had told before: %v", err, flush)
		}
	}
}

// TestSpaceOfRoundBeingPublished: what a delete frees counts as on its way until it
// is free, also while the round that committed the delete is being published.
func TestSpaceOfRoundBeingPublished(t *testing.T) {
	b := newBox(t, box{sizes: []int64{64 << 20}, tune: func(o *store.Options) { o.RoundAge, o.IdleMark = time.Hour, time.Hour }})
	items := make([]store.PutItem, 64)
	for i := range items {
		items[i] = store.PutItem{Key: keyN(i), Value: store.Bytes(make([]byte, base.MiB))}
	}
	b.ns.PutBatch(bg, items)
	if err := items[len(items)-1].Err; !errors.Is(err, store.ErrNoSpace) {
		t.Fatalf("the store is not full: %v", err)
	}
	if err := b.ns.Delete(bg, keyN(0), store.DeleteOptions{Durability: store.Relaxed}); err != nil {
		t.Fatal(err)
	}
	release := b.ns.HoldKey(keyN(0)) // the round can commit, but not publish
	flushed, allocated := make(chan error, 1), make(chan error, 1)
	go func() { flushed <- b.s.Flush(bg) }()
	for end := time.Now().Add(time.Minute); b.s.Pending() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	go func() { allocated <- b.s.TryAllocate(base.MiB) }()
	select {
	case err := <-allocated:
		t.Errorf("before the deleted object's space was free: %v", err)
		allocated <- nil
	case <-time.After(50 * time.Millisecond): // it waits
	}
	release()
	if err := errors.Join(<-flushed, <-allocated); err != nil {
		t.Error(err)
	}
}

// TestLeaseRenewedInTime: a timer that fired while the lease was renewed ends nothing.
func TestLeaseRenewedInTime(t *testing.T) {
	b := newBox(t, box{})
	if err := b.ns.Put(bg, []byte("k"), store.Bytes([]byte("abc")), store.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	l, err := b.ns.Lookup(bg, [][]byte{[]byte("k")}, store.LookupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if err := l.Renew(time.Hour); err != nil {
		t.Fatal(err)
	}
	l.Expire()
	if _, err := l.Get(bg, 0, store.Bytes(make([]byte, 3)), store.GetOptions{}); err != nil {
		t.Errorf("after it was renewed for an hour: %v", err)
	}
}

// TestLeasedGetNamesItsKey: events and errors of a get by a lease name the key, as it
// was when it was looked up.
func TestLeasedGetNamesItsKey(t *testing.T) {
	b := newBox(t, box{})
	if err := b.ns.Put(bg, []byte("key"), store.Bytes([]byte("abc")), store.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	keys := [][]byte{[]byte("none"), []byte("key")}
	l, err := b.ns.Lookup(bg, keys, store.LookupOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	copy(keys[1], "xxx") // the caller's again
	sub := b.s.Subscribe(10)
	defer sub.Close()
	if _, err := l.Get(bg, 1, store.Bytes(make([]byte, 3)), store.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := next(t, sub, store.EventAccessed); string(e.Key) != "key" {
		t.Errorf("%+v", e)
	}
	if _, err := l.Get(bg, 1, store.Bytes(make([]byte, 2)), store.GetOptions{}); err == nil || !strings.Contains(err.Error(), "key") {
		t.Errorf("a get with too little memory: %v", err)
	}
}

// TestLookupAllocations: the lease of one short key is one piece of memory, key
// included.
func TestLookupAllocations(t *testing.T) {
	b := newBox(t, box{})
	if err := b.ns.Put(bg, []byte("key"), store.Bytes([]byte("abc")), store.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	keys := [][]byte{[]byte("key")}
	n := testing.AllocsPerRun(100, func() {
		l, err := b.ns.Lookup(bg, keys, store.LookupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		l.Release()
	})
	if n > 5 {
		t.Errorf("a lookup of one key allocates %v times, the lease, its timer (2), the extent and the pin are 5", n)
	}
}

// TestValueOverLimits: a value that no record can describe fails alone; the store goes
// on.
func TestValueOverLimits(t *testing.T) {
	b := newBox(t, box{})
	if err := b.ns.PutHuge([]byte("most"), meta.MaxPieces); err != nil {
		t.Error(err)
	}
	if err := b.ns.PutHuge([]byte("too much"), meta.MaxPieces+1); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("one piece too many: %v, want ErrInvalid", err)
	}
	if err := b.ns.Put(bg, []byte("k"), store.Bytes([]byte("abc")), store.PutOptions{}); err != nil {
		t.Errorf("after that: %v", err)
	}
	if err := b.ns.Delete(bg, []byte("most"), store.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// TestRegionHeldByCall: a region whose bytes the processor copies is not closed
// meanwhile, and can be closed when the call has returned, whatever came of it.
func TestRegionHeldByCall(t *testing.T) {
	b := newBox(t, box{tune: func(o *store.Options) { o.StagingBytes = 1 }})
	b.s.LeaveStaging(t, 0)
	value := fill(1, 100_000)
	r, err := driver.AllocRegion(base.MiB, "test")
	if err != nil {
		t.Fatal(err)
	}
	copy(r.CPU()[1:], value)
	ctx, cancel := context.WithCancel(bg)
	answer := make(chan error, 1)
	go func() { // off any block, so that it is copied, once there is a bounce buffer
		answer <- b.ns.Put(ctx, []byte("k"), store.InRegion(r, 1, int64(len(value))), store.PutOptions{})
	}()
	for end := time.Now().Add(time.Minute); r.InFlight() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the region is not held")
		}
	}
	if err := r.Close(); !errors.Is(err, store.ErrBusy) {
		t.Errorf("close under a put: %v, want ErrBusy", err)
	}
	cancel()
	if err := <-answer; !errors.Is(err, store.ErrTimeout) {
		t.Errorf("put: %v", err)
	}
	if _, err := b.ns.Get(bg, []byte("k"), store.InRegion(r, 0, 10), store.GetOptions{}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if err := b.ns.Put(bg, []byte("small"), store.InRegion(r, 1, 100), store.PutOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := b.ns.Get(bg, []byte("small"), store.InRegion(r, 0, 10), store.GetOptions{}); !errors.Is(err, store.ErrOutOfRange) {
		t.Errorf("get into too little: %v", err)
	}
	if got, err := b.ns.Get(bg, []byte("small"), store.InRegion(r, 0, 100), store.GetOptions{}); err != nil || !bytes.Equal(r.CPU()[:got], value[:100]) {
		t.Errorf("get: %d bytes, %v", got, err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("close after the calls: %v", err)
	}
}

// TestClosedRegion: memory that was given back is neither read nor written, whatever
// the way that the bytes would have taken.
func TestClosedRegion(t *testing.T) {
	b := newBox(t, box{})
	for i, n := range []int64{100, 8192, 3*base.MiB + 5} {
		if err := b.ns.Put(bg, keyN(i), store.Bytes(fill(1, int(n))), store.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		r, err := driver.AllocRegion(4*base.MiB, "test")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		for _, d := range []store.Durability{store.Sync, store.Relaxed} {
			if err := b.ns.Put(bg, []byte("new"), store.InRegion(r, 0, n), store.PutOptions{Durability: d}); !errors.Is(err, store.ErrClosed) {
				t.Errorf("put of %d bytes: %v, want ErrClosed", n, err)
			}
		}
		if _, err := b.ns.Get(bg, keyN(i), store.InRegion(r, 4, 4*base.MiB-4), store.GetOptions{}); !errors.Is(err, store.ErrClosed) {
			t.Errorf("get of %d bytes: %v, want ErrClosed", n, err)
		}
		w, err := b.ns.NewWriter(bg, []byte("new"), store.PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.WriteBuffers(store.InRegion(r, 0, n)); !errors.Is(err, store.ErrClosed) {
			t.Errorf("write of %d bytes: %v, want ErrClosed", n, err)
		}
		w.Abort()
	}
}

// TestJ06CloseWithUsers: a close while callers put, get, list, look up and flush ends
// each of them with ErrClosed and nothing else, and keeps what they were told is there.
func TestJ06CloseWithUsers(t *testing.T) { everyKind(t, testJ06CloseWithUsers) }

func testJ06CloseWithUsers(t *testing.T, k kind) {
	const keys, users = 20, 32
	b := k.newBox(t, box{sizes: []int64{64 << 20}})
	value := func(i int) []byte { return fill(uint64(i), 1000+3000*i) }
	for i := range keys {
		if err := b.ns.Put(bg, keyN(i), store.Bytes(value(i)), store.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ns, s := b.ns, b.s
	uses := []func(i int) error{
		func(i int) error {
			return ns.Put(bg, keyN(i), store.Bytes(value(i)), store.PutOptions{Replace: true, Durability: store.Durability(i % 2)})
		},
		func(i int) error { _, err := ns.GetBytes(bg, keyN(i), store.GetOptions{}); return err },
		func(i int) error { _, err := ns.Exists(bg, keyN(i)); return err },
		func(i int) error {
			for _, err := range ns.List(bg, store.ListOptions{}) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		func(i int) error {
			l, err := ns.Lookup(bg, [][]byte{keyN(i)}, store.LookupOptions{})
			if err == nil {
				l.Release()
			}
			return err
		},
		func(int) error { return s.Flush(bg) },
	}
	var wg, begun sync.WaitGroup
	begun.Add(users)
	for u := range users {
		wg.Go(func() {
			for i := u; ; i++ {
				err := uses[u%len(uses)](i % keys)
				if i == u {
					begun.Done()
				}
				if err != nil {
					if !errors.Is(err, store.ErrClosed) {
						t.Errorf("use %d: %v", u%len(uses), err)
					}
					return
				}
			}
		})
	}
	begun.Wait()
	ctx, cancel := context.WithTimeout(bg, time.Minute)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
	wg.Wait()
	b.s = nil
	b.reopen()
	for i := range keys {
		if got, err := b.ns.GetBytes(bg, keyN(i), store.GetOptions{}); err != nil || !bytes.Equal(got, value(i)) {
			t.Errorf("%s: %v, or other bytes", keyN(i), err)
		}
	}
	checkAccounts(t, b)
}
