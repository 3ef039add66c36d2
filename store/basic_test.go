package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/store"
)

// sizes around every border: empty, one byte, blocks, pieces, slabs.
var borderSizes = []int{0, 1, 511, 512, 4095, 4096, 4097, 65536, 65537, 1<<20 - 1, 1 << 20, 1<<20 + 1,
	2<<20 - 4096, 2 << 20, 3<<20 + 17, 5<<20 + 1}

func TestPutGetReopen(t *testing.T) {
	for _, on := range []box{{engine: file.EngineURing}, {engine: file.EnginePool}, {kind: sims}, {kind: sims, sizes: []int64{64 << 20}},
		{kind: sims, sizes: []int64{64 << 20, 64 << 20, 64 << 20}}} {
		if on.sizes == nil {
			on.sizes = []int64{64 << 20, 96 << 20}
		}
		for _, d := range []store.Durability{store.Sync, store.Relaxed} {
			t.Run(fmt.Sprintf("%s%s %d/%d", on.kind.name, on.engine, len(on.sizes), d), func(t *testing.T) {
				b := newBox(t, on)
				for i, n := range borderSizes {
					key := []byte(fmt.Sprintf("key-%d", i))
					if err := b.ns.Put(bg, key, store.Bytes(fill(uint64(i), n)), store.PutOptions{Durability: d}); err != nil {
						t.Fatal(err)
					}
				}
				for range 2 {
					for i, n := range borderSizes {
						got, err := b.ns.GetBytes(bg, []byte(fmt.Sprintf("key-%d", i)), store.GetOptions{})
						if err != nil || !bytes.Equal(got, fill(uint64(i), n)) {
							t.Fatalf("size %d: %v", n, err)
						}
					}
					b.reopen()
				}
				checkAccounts(t, b)
			})
		}
	}
}

// checkAccounts compares what is counted in several places (I10, and usage).
func checkAccounts(t *testing.T, b *box) {
	t.Helper()
	if err := b.s.Flush(bg); err != nil {
		t.Fatal(err)
	}
	st, u := b.s.Stats(), b.s.Usage()
	var n, size, slots int64
	for info, err := range b.ns.List(bg, store.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		n, size, slots = n+1, size+info.Size, slots+info.SlotBytes
	}
	if u.Objects != n || u.Bytes != size || u.SlotBytes != slots || st.Objects != n {
		t.Errorf("usage %+v, stats %d objects, listed %d objects, %d bytes, %d of slots", u, st.Objects, n, size, slots)
	}
}

func TestKeysAndErrors(t *testing.T) { everyKind(t, testKeysAndErrors) }

func testKeysAndErrors(t *testing.T, k kind) {
	b := k.newBox(t, box{})
	long := bytes.Repeat([]byte("k"), store.MaxKeyLen)
	for _, key := range [][]byte{[]byte(" a b/c/ü\x00\xff"), {0}, long} {
		if err := b.ns.Put(bg, key, store.Bytes([]byte("v")), store.PutOptions{}); err != nil {
			t.Errorf("key of %d bytes: %v", len(key), err)
		}
		if got, err := b.ns.GetBytes(bg, key, store.GetOptions{}); err != nil || string(got) != "v" {
			t.Errorf("key of %d bytes: %q, %v", len(key), got, err)
		}
	}
	for _, key := range [][]byte{nil, {}, append(long, 'k')} {
		if err := b.ns.Put(bg, key, nil, store.PutOptions{}); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("key of %d bytes: %v, want ErrInvalid", len(key), err)
		}
	}
	if _, err := b.ns.GetBytes(bg, []byte("none"), store.GetOptions{}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("missing key: %v", err)
	}
	if err := b.ns.Delete(bg, []byte("none"), store.DeleteOptions{}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("delete of a missing key: %v", err)
	}
	if err := b.ns.Put(bg, long, store.Bytes([]byte("w")), store.PutOptions{}); !errors.Is(err, store.ErrExists) {
		t.Errorf("second put: %v", err)
	}
	if err := b.ns.Put(bg, long, store.Bytes([]byte("w")), store.PutOptions{Replace: true}); err != nil {
		t.Errorf("replace: %v", err)
	}
	if got, err := b.ns.GetBytes(bg, long, store.GetOptions{}); err != nil || string(got) != "w" {
		t.Errorf("after replace: %q, %v", got, err)
	}
}

func TestRanges(t *testing.T) { everyKind(t, testRanges) }

func testRanges(t *testing.T, k kind) {
	b := k.newBox(t, box{})
	const size = 3<<20 + 1000
	want := fill(9, size)
	if err := b.ns.Put(bg, []byte("k"), store.Bytes(want), store.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, o := range []store.GetOptions{
		{Off: 0, Len: 1}, {Off: 4095, Len: 2}, {Off: 1<<20 - 1, Len: 2}, {Off: 5, Len: 1 << 20},
		{Off: size - 1, Len: 1}, {Off: size, Exact: true}, {Off: 0, Exact: true}, {Off: 1 << 20, Len: 1 << 20},
		{Off: 100}, {Off: 2<<20 + 7, Len: 12345},
	} {
		for _, noVerify := range []bool{false, true} {
			o.NoVerify = noVerify
			end := o.Off + o.Len
			if o.Len == 0 && !o.Exact {
				end = size
			}
			got, err := b.ns.GetBytes(bg, []byte("k"), o)
			if err != nil || !bytes.Equal(got, want[o.Off:end]) {
				t.Errorf("%+v: %d bytes, %v", o, len(got), err)
			}
		}
	}
	for _, o := range []store.GetOptions{{Off: size + 1, Exact: true}, {Off: -1, Len: 1}, {Off: 0, Len: -1}, {Off: 0, Len: size + 1},
		{Off: 1, Len: 1<<63 - 1}} {
		if _, err := b.ns.GetBytes(bg, []byte("k"), o); !errors.Is(err, store.ErrOutOfRange) {
			t.Errorf("%+v: %v, want ErrOutOfRange", o, err)
		}
	}
	if _, err := b.ns.Get(bg, []byte("k"), store.Bytes(make([]byte, size-1)), store.GetOptions{}); !errors.Is(err, store.ErrOutOfRange) {
		t.Errorf("small buffer: %v", err)
	}
}
