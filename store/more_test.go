package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

func TestLeaseLife(t *testing.T) { everyKind(t, testLeaseLife) }

func testLeaseLife(t *testing.T, k kind) {
	b := k.newBox(t, box{})
	want := fill(1, 3<<20+5)
	for _, k := range []string{"a", "b", "d"} {
		if err := b.ns.Put(bg, []byte(k), store.Bytes(want), store.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	keys := [][]byte{[]byte("a"), []byte("b"), []byte("c"), []byte("d")}
	l, err := b.ns.Lookup(bg, keys, store.LookupOptions{})
	if err != nil || l.Len() != 2 || l.Present(3) {
		t.Fatalf("lookup: %d leading keys, %v", l.Len(), err)
	}
	all, err := b.ns.Lookup(bg, keys, store.LookupOptions{All: true})
	if err != nil || all.Len() != 2 || all.Present(2) || !all.Present(3) || all.Size(3) != int64(len(want)) {
		t.Fatalf("lookup of all: %d leading keys, %v", all.Len(), err)
	}
	all.Release()
	all.Release()
	if _, err := all.Get(bg, 0, nil, store.GetOptions{}); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after release: %v, want ErrClosed", err)
	}
	// What is leased stays, and its space is not reused, through a delete and
	// more puts than the device could hold otherwise.
	if err := b.ns.Delete(bg, []byte("a"), store.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 80 {
		key := []byte(fmt.Sprintf("churn-%d", i%4))
		if err := b.ns.Put(bg, key, store.Bytes(fill(uint64(i), 3<<20)), store.PutOptions{Replace: true}); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, len(want))
	if _, err := l.Get(bg, 0, store.Bytes(got), store.GetOptions{}); err != nil || !bytes.Equal(got, want) {
		t.Errorf("leased value changed: %v", err)
	}
	if err := l.Renew(time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		_, err := l.Get(bg, 0, store.Bytes(got), store.GetOptions{})
		if errors.Is(err, store.ErrLeaseExpired) {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("lease did not expire: %v", err)
		}
	}
	if err := l.Renew(0); !errors.Is(err, store.ErrLeaseExpired) {
		t.Errorf("renew after expiry: %v", err)
	}
	l.Release()
}

func TestLookupLimits(t *testing.T) {
	b := newBox(t, box{})
	keys := make([][]byte, store.MaxBatchKeys+1)
	for i := range keys {
		keys[i] = []byte{1}
	}
	if l, err := b.ns.Lookup(bg, keys[:store.MaxBatchKeys], store.LookupOptions{}); err != nil {
		t.Error(err)
	} else {
		gets := make([]store.LeaseItem, store.MaxBatchKeys+1)
		if l.GetBatch(bg, gets); !errors.Is(gets[0].Err, store.ErrInvalid) {
			t.Errorf("get %d by a lease: %v, want ErrInvalid", len(gets), gets[0].Err)
		}
		l.Release()
	}
	if _, err := b.ns.Lookup(bg, keys, store.LookupOptions{}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("%d keys: %v, want ErrInvalid", len(keys), err)
	}
	for what, err := range map[string]error{
		"exists": b.ns.ExistsMany(keys, make([]bool, len(keys))),
		"delete": b.ns.DeleteBatch(bg, keys, store.DeleteOptions{})[0],
		"verify": b.ns.Verify(bg, keys)[0],
	} {
		if !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s of %d keys: %v, want ErrInvalid", what, len(keys), err)
		}
	}
	n := store.MaxBatchKeys
	for what, err := range map[string]error{
		"exists": b.ns.ExistsMany(keys[:n], make([]bool, n)),
		"delete": b.ns.DeleteBatch(bg, keys[:n], store.DeleteOptions{})[n-1],
		"verify": b.ns.Verify(bg, keys[:n])[n-1],
	} {
		if want := map[bool]error{true: store.ErrNotFound}[what != "exists"]; !errors.Is(err, want) {
			t.Errorf("%s of %d keys: %v", what, n, err)
		}
	}
	gets, puts := make([]store.GetItem, n+1), make([]store.PutItem, n+1)
	b.ns.GetBatch(bg, gets)
	b.ns.PutBatch(bg, puts)
	if !errors.Is(gets[0].Err, store.ErrInvalid) || !errors.Is(puts[n].Err, store.ErrInvalid) {
		t.Errorf("batches of %d: %v, %v", n+1, gets[0].Err, puts[n].Err)
	}
	if _, err := b.ns.Lookup(bg, [][]byte{nil}, store.LookupOptions{}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("empty key: %v, want ErrInvalid", err)
	}
	if _, err := b.ns.Lookup(bg, keys[:1], store.LookupOptions{TTL: -1}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("negative time: %v, want ErrInvalid", err)
	}
}

// TestIndexBehindForGood: a value whose checksums went, since the index had no memory
// for the version that replaced it, is an error and not an endless search for them.
func TestIndexBehindForGood(t *testing.T) {
	b := newBox(t, box{})
	key := []byte("k")
	err := b.ns.Put(bg, key, store.Bytes(fill(1, 2<<20)), store.PutOptions{})
	if err := errors.Join(err, store.Outdate(b.ns, key)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(bg, 20*time.Second)
	defer cancel()
	if _, err := b.ns.GetBytes(ctx, key, store.GetOptions{}); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("%v, want ErrUnknown", err)
	}
}

func TestEvents(t *testing.T) { everyKind(t, testEvents) }

func testEvents(t *testing.T, k kind) {
	b := k.newBox(t, box{})
	sub, slow := b.s.Subscribe(100), b.s.Subscribe(2)
	defer slow.Close()
	key := []byte("k")
	for _, d := range []store.Durability{store.Sync, store.Relaxed} {
		if err := b.ns.Put(bg, key, store.Bytes([]byte("abc")), store.PutOptions{Durability: d}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.ns.GetBytes(bg, key, store.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := b.ns.Delete(bg, key, store.DeleteOptions{Durability: d}); err != nil {
			t.Fatal(err)
		}
	}
	var last uint64
	for i, want := range []store.EventKind{store.EventStored, store.EventAccessed, store.EventDeleted,
		store.EventStored, store.EventAccessed, store.EventDeleted} {
		e, err := sub.Next(bg)
		if err != nil || e.Kind != want || string(e.Key) != "k" || e.Namespace != "default" || e.Size != 3 || e.Generation < last {
			t.Errorf("event %d: %+v, %v, want %v", i, e, err, want)
		}
		last = e.Generation
	}
	if slow.Missed() != 4 {
		t.Errorf("the slow one missed %d events, want 4", slow.Missed())
	}
	ctx, cancel := context.WithTimeout(bg, 10*time.Millisecond)
	defer cancel()
	if _, err := sub.Next(ctx); !errors.Is(err, store.ErrTimeout) {
		t.Errorf("no event: %v, want ErrTimeout", err)
	}
	sub.Close()
	if _, err := sub.Next(bg); !errors.Is(err, store.ErrClosed) {
		t.Errorf("closed: %v, want ErrClosed", err)
	}
}

func TestNamespaces(t *testing.T) { everyKind(t, testNamespaces) }

func testNamespaces(t *testing.T, k kind) {
	b := k.newBox(t, box{})
	lay := [16]byte{1, 2, 3}
	n, err := b.s.Namespace(bg, "models/llama ü", store.NamespaceOptions{Create: true, Layout: lay})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.s.Namespace(bg, "nobody", store.NamespaceOptions{}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("missing: %v", err)
	}
	if _, err := b.s.Namespace(bg, "models/llama ü", store.NamespaceOptions{Layout: [16]byte{9}}); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("another layout: %v, want ErrMismatch", err)
	}
	for _, bad := range []string{"", strings.Repeat("n", store.MaxNamespaceLen+1)} {
		if _, err := b.s.Namespace(bg, bad, store.NamespaceOptions{Create: true}); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("name of %d bytes: %v, want ErrInvalid", len(bad), err)
		}
	}
	if _, err := b.s.Namespace(bg, strings.Repeat("n", store.MaxNamespaceLen), store.NamespaceOptions{Create: true}); err != nil {
		t.Error(err)
	}
	key := []byte("same key")
	for i, ns := range []*store.Namespace{b.ns, n} {
		if err := ns.Put(bg, key, store.Bytes(fill(uint64(i), 100+i)), store.PutOptions{Durability: store.Relaxed}); err != nil {
			t.Fatal(err)
		}
	}
	if u := n.Usage(); u.Objects != 1 || u.Bytes != 101 || u.SlotBytes != 4096 {
		t.Errorf("usage %+v", u)
	}
	b.reopen()
	n, err = b.s.Namespace(bg, "models/llama ü", store.NamespaceOptions{Layout: lay})
	if err != nil {
		t.Fatal(err)
	}
	for i, ns := range []*store.Namespace{b.ns, n} {
		if got, err := ns.GetBytes(bg, key, store.GetOptions{}); err != nil || !bytes.Equal(got, fill(uint64(i), 100+i)) {
			t.Errorf("namespace %d: %v", i, err)
		}
	}
	if all, err := b.s.Namespaces(bg); err != nil || len(all) != 3 || all[0].Name != "default" || all[1].Usage.Objects != 1 {
		t.Errorf("namespaces %+v, %v", all, err)
	}
}

// TestCancelledCalls ends callers' waits at random moments: nothing leaks, no
// key stays claimed, and what was given back is given back once.
func TestCancelledCalls(t *testing.T) { everyKind(t, testCancelledCalls) }

func testCancelledCalls(t *testing.T, k kind) {
	b := k.newBox(t, box{})
	value := fill(5, 6<<20)
	for i := range 60 {
		ctx, cancel := context.WithTimeout(bg, time.Duration(i*i)*2*time.Microsecond)
		key := []byte(fmt.Sprintf("c-%d", i%5))
		o := store.PutOptions{Replace: true, Durability: store.Durability(i % 2)}
		if err := b.ns.Put(ctx, key, store.Bytes(value), o); err != nil && !errors.Is(err, store.ErrTimeout) {
			t.Fatalf("put: %v", err)
		}
		if got, err := b.ns.GetBytes(ctx, key, store.GetOptions{}); err != nil &&
			!errors.Is(err, store.ErrTimeout) && !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("get: %v", err)
		} else if err == nil && !bytes.Equal(got, value) {
			t.Fatal("wrong bytes")
		}
		cancel()
	}
	checkAccounts(t, b)
	for i := range 5 {
		err := b.ns.Delete(bg, []byte(fmt.Sprintf("c-%d", i)), store.DeleteOptions{})
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Error(err)
		}
	}
	checkEmpty(t, b)
}

func TestClosedStore(t *testing.T) { everyKind(t, testClosedStore) }

func testClosedStore(t *testing.T, k kind) {
	b := k.newBox(t, box{})
	if err := b.ns.Put(bg, []byte("k"), store.Bytes([]byte("v")), store.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	l, err := b.ns.Lookup(bg, [][]byte{[]byte("k")}, store.LookupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := b.ns.NewWriter(bg, []byte("w"), store.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s, ns := b.s, b.ns
	b.close()
	if err := s.Close(bg); !errors.Is(err, store.ErrClosed) {
		t.Errorf("second close: %v, want ErrClosed", err)
	}
	for what, call := range map[string]func() error{
		"put":    func() error { return ns.Put(bg, []byte("k"), nil, store.PutOptions{}) },
		"get":    func() error { _, err := ns.GetBytes(bg, []byte("k"), store.GetOptions{}); return err },
		"delete": func() error { return ns.Delete(bg, []byte("k"), store.DeleteOptions{}) },
		"exists": func() error { _, err := ns.Exists(bg, []byte("k")); return err },
		"stat":   func() error { _, err := ns.Stat(bg, []byte("k")); return err },
		"lookup": func() error { _, err := ns.Lookup(bg, nil, store.LookupOptions{}); return err },
		"lease":  func() error { _, err := l.Get(bg, 0, nil, store.GetOptions{}); return err },
		"flush":  func() error { return s.Flush(bg) },
		"writer": func() error { return w.Close() },
		"open":   func() error { _, err := s.Namespace(bg, "x", store.NamespaceOptions{}); return err },
		"list": func() error {
			for _, err := range ns.List(bg, store.ListOptions{}) {
				return err
			}
			return nil
		},
	} {
		if err := call(); !errors.Is(err, store.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", what, err)
		}
	}
	l.Release()
}

// TestReadOnlyOpen reads and changes nothing.
func TestReadOnlyOpen(t *testing.T) { everyKind(t, testReadOnlyOpen) }

func testReadOnlyOpen(t *testing.T, k kind) {
	b := k.filled(t)
	before := hashTree(t, b.dir)
	if err := b.tryOpen(true); err != nil {
		t.Fatal(err)
	}
	b.readAllBack(t, "read-only")
	n := 0
	for _, err := range b.ns.List(bg, store.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 40 {
		t.Errorf("%d objects listed, want 40", n)
	}
	if err := b.ns.Put(bg, []byte("x"), nil, store.PutOptions{}); !errors.Is(err, store.ErrReadOnly) {
		t.Errorf("put: %v", err)
	}
	if err := b.ns.Delete(bg, []byte("key-01"), store.DeleteOptions{}); !errors.Is(err, store.ErrReadOnly) {
		t.Errorf("delete: %v", err)
	}
	if _, err := b.s.Namespace(bg, "new", store.NamespaceOptions{Create: true}); !errors.Is(err, store.ErrReadOnly) {
		t.Errorf("new namespace: %v", err)
	}
	b.close()
	sameTree(t, "read-only", before, hashTree(t, b.dir))
}

// TestCounters checks I10: what the devices counted is what the mover counted,
// when idle, on every path.
func TestCounters(t *testing.T) { everyKind(t, testCounters) }

func testCounters(t *testing.T, k kind) {
	b := k.newBox(t, box{sizes: []int64{64 << 20, 64 << 20}})
	reg, err := driver.AllocRegion(8<<20, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer reg.Close()
	for i, n := range borderSizes {
		key := []byte(fmt.Sprint(i))
		if err := b.ns.Put(bg, key, store.InRegion(reg, 0, int64(n)), store.PutOptions{Durability: store.Relaxed}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.ns.Get(bg, key, store.InRegion(reg, 0, int64(n)), store.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.ns.GetBytes(bg, key, store.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	b.equal()
	paths := map[driver.Path]bool{}
	for _, p := range b.s.Stats().Paths {
		paths[p.Path] = true
	}
	for _, p := range []driver.Path{driver.PathDirect, driver.PathStaged, driver.PathTail} {
		if !paths[p] {
			t.Errorf("nothing took the path %v", p)
		}
	}
}

func TestWriterLimits(t *testing.T) { everyKind(t, testWriterLimits) }

func testWriterLimits(t *testing.T, k kind) {
	b := k.newBox(t, box{sizes: []int64{64 << 20}})
	free := b.s.Stats().Space.Allocated
	w, err := b.ns.NewWriter(bg, []byte("big"), store.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(w, io.LimitReader(zeros{}, 200<<20))
	if !errors.Is(err, store.ErrNoSpace) {
		t.Fatalf("200 MiB into 64: %v, want ErrNoSpace", err)
	}
	took := "took " + base.FormatBytes(b.s.Stats().Space.Allocated-free) + ", which come back: allocate "
	if !strings.Contains(err.Error(), took) {
		t.Errorf("%v, want %q", err, took)
	}
	if err := w.Close(); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("close after an error: %v", err)
	}
	if got := b.s.Stats().Space.Allocated; got != free {
		t.Errorf("%d bytes allocated after the writer failed, %d before", got, free)
	}
	if ok, _ := b.ns.Exists(bg, []byte("big")); ok {
		t.Error("a failed writer left its key")
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestTrim gives the space of deleted objects back to the host, and only that.
func TestTrim(t *testing.T) {
	b := newBox(t, box{sizes: []int64{64 << 20}, sparse: true})
	keep := fill(7, 3<<20)
	for i := range 10 {
		if err := b.ns.Put(bg, keyN(i), store.Bytes(keep), store.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	used := func() int64 {
		var st syscall.Stat_t
		if err := syscall.Stat(b.path(0), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	full := used()
	for i := range 9 {
		if err := b.ns.Delete(bg, keyN(i), store.DeleteOptions{Durability: store.Relaxed}); err != nil {
			t.Fatal(err)
		}
	}
	b.reopen() // nothing is a candidate any more
	n, err := b.s.Trim(bg, nil)
	if err != nil || n < 50<<20 {
		t.Fatalf("trimmed %d bytes, %v", n, err)
	}
	if now := used(); now > full-25<<20 {
		t.Errorf("the host gave %d bytes before and %d after", full, now)
	}
	if got, err := b.ns.GetBytes(bg, keyN(9), store.GetOptions{}); err != nil || !bytes.Equal(got, keep) {
		t.Errorf("what was kept: %v", err)
	}
	plain := newBox(t, box{sizes: []int64{64 << 20}})
	if _, err := plain.s.Trim(bg, nil); !errors.Is(err, store.ErrNotSupported) {
		t.Errorf("a reserved file: %v, want ErrNotSupported", err)
	}
}

// TestOpenWithADoneContext gives an error and leaves nothing behind: no lock, no
// goroutine, and the store opens again.
func TestOpenWithADoneContext(t *testing.T) { everyKind(t, testOpenWithADoneContext) }

func testOpenWithADoneContext(t *testing.T, k kind) {
	b := k.filled(t)
	ctx, cancel := context.WithCancel(bg)
	cancel()
	for _, ro := range []bool{false, true} {
		b.openDevices()
		o := b.options()
		o.ReadOnly = ro
		if s, err := store.Open(ctx, o); err == nil {
			t.Error("opened with a context that was over")
			_ = s.Close(bg)
		}
		b.closeDevices()
		if err := b.tryOpen(ro); err != nil {
			t.Fatalf("after that: %v", err)
		}
		b.readAllBack(t, "after a cancelled open")
		b.close()
	}
}
