package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/meta/metatest"
	"github.com/ugds-store/ugds/store"
)

// documented tells whether an error is one that callers are told to expect when
// the metadata fails.
func documented(err error) bool {
	return err == nil || errors.Is(err, store.ErrUnknown) || errors.Is(err, store.ErrReadOnly)
}

// faultRun is one run of a fixed script over metadata that fails.
type faultRun struct {
	kind kind
	dir  string
	fs   *metatest.FS
	// may holds the values that a key may have after the next open; nil is absent.
	may map[string][][]byte
}

func (f *faultRun) device(t *testing.T) driver.Device {
	d, _, err := f.kind.open(0, file.Options{Path: filepath.Join(f.dir, "data")})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (f *faultRun) options(d driver.Device) store.Options {
	return store.Options{Devices: devices(d), Meta: meta.Options{Dir: "/meta", FS: f.fs}, StagingBytes: 4 << 20}
}

// newFaultRun formats a store with three objects.
func newFaultRun(t *testing.T, k kind) *faultRun {
	f := &faultRun{kind: k, dir: t.TempDir(), fs: metatest.NewMem(), may: map[string][][]byte{}}
	if err := file.Create(filepath.Join(f.dir, "data"), 64<<20, true); err != nil {
		t.Fatal(err)
	}
	d := f.device(t)
	defer d.Close(bg)
	if _, err := store.Format(bg, store.FormatOptions{Devices: devices(d), Meta: f.options(d).Meta}); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(bg, f.options(d))
	if err != nil {
		t.Fatal(err)
	}
	ns, err := s.Namespace(bg, "n", store.NamespaceOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"a", "b", "c"} {
		f.put(t, ns, k, 1, store.Sync)
	}
	if err := s.Close(bg); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *faultRun) put(t *testing.T, ns *store.Namespace, key string, seed uint64, d store.Durability) {
	v := fill(seed, 5000+int(seed))
	err := ns.Put(bg, []byte(key), store.Bytes(v), store.PutOptions{Replace: true, Durability: d})
	f.note(t, "put "+key, key, v, err, d)
}

// note records what an answer allows.
func (f *faultRun) note(t *testing.T, what, key string, v []byte, err error, d store.Durability) {
	switch {
	case !documented(err):
		t.Errorf("%s: %v", what, err)
	case err == nil && d == store.Sync:
		f.may[key] = [][]byte{v}
	case err == nil || errors.Is(err, store.ErrUnknown):
		f.may[key] = append(f.may[key], v)
	}
}

// script changes every object; a store that turned read-only goes on answering.
func (f *faultRun) script(t *testing.T) {
	d := f.device(t)
	defer d.Close(bg)
	s, err := store.Open(bg, f.options(d))
	if err != nil {
		if errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrMismatch) {
			t.Errorf("open: %v", err)
		}
		return
	}
	ns, err := s.Namespace(bg, "n", store.NamespaceOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	f.put(t, ns, "a", 2, store.Sync)
	f.put(t, ns, "d", 3, store.Relaxed)
	f.note(t, "delete b", "b", nil, ns.Delete(bg, []byte("b"), store.DeleteOptions{}), store.Sync)
	f.put(t, ns, "c", 4, store.Relaxed)
	if err := s.Flush(bg); !documented(err) {
		t.Errorf("flush: %v", err)
	}
	f.put(t, ns, "e", 5, store.Sync)
	// Reads go on, whatever happened, and show one of the allowed states.
	for key := range f.may {
		if err := f.read(ns, key); err != nil {
			t.Errorf("while the process lives: %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(bg, time.Minute)
	defer cancel()
	if err := s.Close(ctx); err != nil && !documented(err) {
		t.Logf("close: %v", err)
	}
}

func (f *faultRun) read(ns *store.Namespace, key string) error {
	got, err := ns.GetBytes(bg, []byte(key), store.GetOptions{})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("%s: %w", key, err)
	}
	for _, v := range f.may[key] {
		if v == nil && err != nil || v != nil && err == nil && bytes.Equal(v, got) {
			return nil
		}
	}
	if err != nil && len(f.may[key]) > 0 && f.neverSync(key) {
		return nil
	}
	return fmt.Errorf("%s: not one of its %d states: %d bytes, %v", key, len(f.may[key]), len(got), err)
}

// neverSync tells whether the key was absent before the script.
func (f *faultRun) neverSync(key string) bool { return key == "d" || key == "e" }

// TestJ01MetadataFaults makes every change of the metadata fail in turn, from
// that one on: the process lives, answers what is documented, goes on reading,
// and the next open shows one of the allowed states.
func TestJ01MetadataFaults(t *testing.T) {
	t.Run("file", func(t *testing.T) { metadataFaults(t, files, 1) })
	t.Run("sim", func(t *testing.T) { metadataFaults(t, kind{models: []model{usual}}, 5) })
}

// metadataFaults makes every step-th change fail.
func metadataFaults(t *testing.T, k kind, step int64) {
	count := newFaultRun(t, k)
	before := count.fs.Changes()
	count.script(t)
	n := count.fs.Changes() - before
	if n < 10 {
		t.Fatalf("only %d changes", n)
	}
	if testing.Short() {
		step = 7
	}
	for _, full := range []bool{false, true} {
		for at := int64(1); at <= n; at += step {
			t.Run(fmt.Sprintf("full=%v/%d", full, at), func(t *testing.T) {
				f := newFaultRun(t, k)
				if full {
					f.fs.FullAt(at)
				} else {
					f.fs.FailAt(at, nil, true)
				}
				f.script(t)
				f.fs.Clear()
				f.reopened(t)
			})
		}
	}
	t.Logf("%d changes", n)
}

// reopened opens again without faults, compares, and puts once more.
func (f *faultRun) reopened(t *testing.T) {
	d := f.device(t)
	defer d.Close(bg)
	s, err := store.Open(bg, f.options(d))
	if err != nil {
		t.Fatalf("open without faults: %v", err)
	}
	ns, err := s.Namespace(bg, "n", store.NamespaceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for key := range f.may {
		if err := f.read(ns, key); err != nil {
			t.Errorf("after reopening: %v", err)
		}
	}
	f.put(t, ns, "a", 9, store.Sync)
	if err := f.read(ns, "a"); err != nil {
		t.Error(err)
	}
	if err := s.Close(bg); err != nil {
		t.Error(err)
	}
}

// TestMetadataHangs lets the sync of a commit hang: its puts are unknown at the
// deadline, the store is read-only and answers all the same, although the goroutine
// that commits does not come back, and a sync that ends at last changes nothing.
func TestMetadataHangs(t *testing.T) {
	for _, callers := range []int{1, 8} {
		t.Run(fmt.Sprintf("%d callers", callers), func(t *testing.T) { metadataHangs(t, callers) })
	}
}

func metadataHangs(t *testing.T, callers int) {
	f := newFaultRun(t, files)
	d := f.device(t)
	defer d.Close(bg)
	o := f.options(d)
	o.Meta.CommitDeadline = 300 * time.Millisecond
	s, err := store.Open(bg, o)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := s.Namespace(bg, "n", store.NamespaceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hang := make(chan struct{})
	f.fs.Before(func(op metatest.Op) {
		if op.Name == "sync" && strings.HasSuffix(op.Path, ".log") {
			<-hang
		}
	})
	value := fill(8, 5000)
	errs := make(chan error, callers)
	for i := range callers {
		go func() {
			errs <- ns.Put(bg, fmt.Appendf(nil, "hang %d", i), store.Bytes(value), store.PutOptions{})
		}()
	}
	for range callers {
		// Those that came behind the first round meet a store that is read-only.
		if err := <-errs; err == nil || !documented(err) {
			t.Errorf("put: %v", err)
		}
	}
	if s.ReadOnly() == nil {
		t.Error("the store takes changes")
	}
	if err := s.Flush(bg); !errors.Is(err, store.ErrReadOnly) {
		t.Errorf("flush: %v", err)
	}
	for _, key := range []string{"a", "b", "c"} {
		if err := f.read(ns, key); err != nil {
			t.Error(err)
		}
	}
	close(hang)
	f.fs.Before(nil)
	if _, err := ns.GetBytes(bg, []byte("hang 0"), store.GetOptions{}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("an unknown put is visible: %v", err)
	}
	ctx, cancel := context.WithTimeout(bg, 20*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil && !documented(err) {
		t.Logf("close: %v", err)
	}
	_ = d.Close(bg)
	f.reopened(t)
}

// TestLargeValuesBehindFence: values of several pieces, whose checksums are in the
// metadata, are read after a commit failed too, that of the object itself included.
func TestLargeValuesBehindFence(t *testing.T) {
	f := newFaultRun(t, files)
	d := f.device(t)
	defer d.Close(bg)
	s, err := store.Open(bg, f.options(d))
	if err != nil {
		t.Fatal(err)
	}
	ns, err := s.Namespace(bg, "n", store.NamespaceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	value := fill(7, 3<<20)
	for _, key := range []string{"large", "large 2"} {
		if err := ns.Put(bg, []byte(key), store.Bytes(value), store.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	f.fs.FailAt(1, nil, true)
	if err := ns.Put(bg, []byte("large"), store.Bytes(fill(8, 2<<20)), store.PutOptions{Replace: true}); !errors.Is(err, store.ErrUnknown) {
		t.Fatalf("put without metadata: %v", err)
	}
	for _, key := range []string{"large", "large 2"} {
		if got, err := ns.GetBytes(bg, []byte(key), store.GetOptions{}); err != nil || !bytes.Equal(got, value) {
			t.Errorf("%s: %d bytes, %v", key, len(got), err)
		}
	}
	_ = s.Close(bg) // its metadata is gone
}

// TestMetadataDiskFull fills a real file system of 48 MiB with metadata.
func TestMetadataDiskFull(t *testing.T) {
	testenv.NeedRoot(t)
	mnt := t.TempDir()
	if err := syscall.Mount("tmpfs", mnt, "tmpfs", 0, "size=48m"); err != nil {
		testenv.Skip(t, "cannot mount: "+err.Error())
	}
	t.Cleanup(func() { _ = syscall.Unmount(mnt, syscall.MNT_DETACH) })
	b := &box{t: t, dir: t.TempDir(), sizes: []int64{256 << 20}, sparse: true, metaDir: filepath.Join(mnt, "meta")}
	b = newBox(t, *b)
	put := map[string]bool{}
	var err error
	for i := 0; err == nil && i < 4000; i++ {
		items := make([]store.PutItem, 200)
		for j := range items {
			// Long random keys: they do not compress.
			key := append([]byte(fmt.Sprintf("%06d-%03d-", i, j)), fill(uint64(i*1000+j), 900)...)
			items[j] = store.PutItem{Key: key, Value: store.Bytes(key[:10])}
		}
		b.ns.PutBatch(bg, items)
		for j := range items {
			if err = items[j].Err; err != nil {
				break
			}
			put[string(items[j].Key)] = true
		}
	}
	if !errors.Is(err, store.ErrMetaFull) {
		t.Fatalf("after %d objects: %v, want ErrMetaFull", len(put), err)
	}
	t.Logf("%d objects, then: %v", len(put), err)
	all := func(when string) {
		t.Helper()
		for key := range put {
			if got, err := b.ns.GetBytes(bg, []byte(key), store.GetOptions{}); err != nil || string(got) != key[:10] {
				t.Fatalf("%s: %v", when, err)
			}
		}
	}
	all("full")
	if err := b.ns.Put(bg, []byte("more"), nil, store.PutOptions{}); !errors.Is(err, store.ErrReadOnly) || errors.Is(err, store.ErrUnknown) {
		t.Errorf("put after that: %v, want ErrReadOnly", err)
	}
	_ = b.s.Close(bg)
	b.s = nil
	b.closeDevices()
	if err := syscall.Mount("tmpfs", mnt, "tmpfs", syscall.MS_REMOUNT, "size=400m"); err != nil {
		t.Fatal(err)
	}
	b.openDevices()
	b.open()
	all("after space was freed")
	if err := b.ns.Put(bg, []byte("more"), nil, store.PutOptions{}); err != nil {
		t.Errorf("put after space was freed: %v", err)
	}
}

// TestOpenFlushesWhatItRead: superblocks that an open has read may lie in the device's
// cache alone, if the process that wrote them was killed. They are durable before the
// metadata goes a step ahead of them: else a power cut would leave the device two behind.
func TestOpenFlushesWhatItRead(t *testing.T) {
	f := newFaultRun(t, files)
	d := f.device(t)
	defer d.Close(bg)
	var flushes atomic.Int64 // before the identity is written
	f.fs.Before(func(op metatest.Op) {
		if op.Name == "create" && filepath.Base(op.Path) == "IDENTITY.tmp" {
			flushes.Store(d.Stats().Flushes)
		}
	})
	s, err := store.Open(bg, f.options(d))
	f.fs.Before(nil)
	if err != nil {
		t.Fatal(err)
	}
	if flushes.Load() == 0 {
		t.Error("no flush before the identity was written")
	}
	if err := s.Close(bg); err != nil {
		t.Error(err)
	}
}
