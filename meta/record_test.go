package meta

import (
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// goldenRecords are the records whose encoding may never change.
func goldenRecords() map[string]Record {
	return map[string]Record{
		"empty":       {},
		"one extent":  {Gen: 1, Length: 4096, CRC: 0xe3069283, CreatedUnixNano: 1700000000123456789, Extents: []uint64{0x0100000000100001}},
		"two pieces":  {Gen: 1 << 40, Length: 1<<20 + 1, CRC: 0xffffffff, Extents: []uint64{1, 2}, PieceCRCs: []uint32{3, 4}},
		"no checksum": {Gen: 9, Length: 3 << 20, Flags: FlagNoChecksum, Extents: []uint64{1<<64 - 1}},
	}
}

func TestRecordGolden(t *testing.T) {
	const file = "testdata/records.golden"
	key := appendObjectKey(nil, 7, []byte("golden key"))
	var out strings.Builder
	for _, name := range []string{"empty", "one extent", "two pieces", "no checksum"} {
		r := goldenRecords()[name]
		b := make([]byte, r.encodedLen())
		r.encode(key, b)
		fmt.Fprintf(&out, "%s: %x\n", name, b)
	}
	fmt.Fprintf(&out, "object key: %x\nnamespace key: %x\n", key, namespaceKey("kv"))
	fmt.Fprintf(&out, "namespace: %x\n", encodeNamespace(Namespace{ID: 7, Name: "kv", Layout: [16]byte{1, 2}}))
	fmt.Fprintf(&out, "epoch: %x\nstore: %x\n", encodeSingleton(keyEpoch, 258), encodeStore([16]byte{3}))
	id, _ := testID.encode()
	fmt.Fprintf(&out, "identity: %x\n", id)
	if *rewrite {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || string(want) != out.String() {
		t.Fatalf("the format has changed (%v):\n%s", err, out.String())
	}
	for line := range strings.Lines(string(want)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), ": ")
		r, ok := goldenRecords()[name]
		if !ok {
			continue
		}
		b, _ := hex.DecodeString(text)
		var got Record
		if err := got.decode(key, b); err != nil || !same(got, r) {
			t.Errorf("%s: %v %+v", name, err, got)
		}
	}
}

// reseal gives b a right checksum again.
func reseal(key, b []byte) []byte {
	copy(b[44:], []byte{0, 0, 0, 0})
	c := recordSum(key, b)
	copy(b[44:], []byte{byte(c), byte(c >> 8), byte(c >> 16), byte(c >> 24)})
	return b
}

func TestRecordRefused(t *testing.T) {
	key := appendObjectKey(nil, 7, []byte("k"))
	good := func() []byte {
		r := goldenRecords()["two pieces"]
		b := make([]byte, r.encodedLen())
		r.encode(key, b)
		return b
	}
	refused := func(what string, key, b []byte) {
		t.Helper()
		var r Record
		if err := r.decode(key, b); !errors.Is(err, base.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range good() {
		for _, x := range []byte{1, 0x80, 0xff} {
			b := good()
			b[i] ^= x
			refused(fmt.Sprint("byte ", i), key, b)
		}
	}
	for n := range good() {
		refused(fmt.Sprint("cut at ", n), key, good()[:n])
	}
	refused("longer", key, append(good(), 0))
	refused("another key", appendObjectKey(nil, 7, []byte("l")), good())
	refused("another namespace", appendObjectKey(nil, 8, []byte("k")), good())
	edit := func(at int, v byte) []byte { b := good(); b[at] = v; return reseal(key, b) }
	refused("newer version", key, edit(0, 2))
	refused("reserved byte", key, edit(2, 1))
	refused("unknown flag", key, edit(5, 1))
	refused("negative length", key, edit(23, 0x80))
	refused("length without its pieces", key, edit(18, 0x40))
	refused("flag that forbids pieces", key, edit(4, byte(FlagNoChecksum)))
}

func TestInvalidArguments(t *testing.T) {
	d := newDB(t, Options{Dir: "/m", FS: memFS()})
	defer closeDB(t, d)
	ok := testRecord(1, 10)
	for what, fill := range map[string]func(b *Batch){
		"empty key":         func(b *Batch) { b.Put(1, nil, ok) },
		"long key":          func(b *Batch) { b.Put(1, make([]byte, 1025), ok) },
		"namespace 0":       func(b *Batch) { b.Put(0, []byte("k"), ok) },
		"long key, deleted": func(b *Batch) { b.Delete(1, make([]byte, 1025)) },
		"negative length":   func(b *Batch) { b.Put(1, []byte("k"), &Record{Length: -1}) },
		"pieces missing":    func(b *Batch) { b.Put(1, []byte("k"), &Record{Length: 1<<20 + 1}) },
		"pieces too many":   func(b *Batch) { b.Put(1, []byte("k"), &Record{Length: 1 << 20, PieceCRCs: []uint32{1}}) },
		"unknown flag":      func(b *Batch) { b.Put(1, []byte("k"), &Record{Flags: 2}) },
		"checksum of none":  func(b *Batch) { b.Put(1, []byte("k"), &Record{Flags: FlagNoChecksum, CRC: 1}) },
	} {
		b := NewBatch()
		b.Put(1, []byte("good"), ok)
		fill(b)
		if err := d.Commit(ctx(), b); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if len(scan(t, d)) != 0 {
		t.Error("a refused batch was applied")
	}
	long := strings.Repeat("k", 1024)
	put(t, d, 1, 5, "k", long)
	if _, err := d.Get(1, []byte(long)); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"", long + "k"} {
		if _, err := d.Get(1, []byte(key)); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("get of %d bytes: %v", len(key), err)
		}
	}
	b := NewBatch()
	b.SetLastGen(4)
	if err := d.Commit(ctx(), b); !errors.Is(err, base.ErrInvalid) {
		t.Errorf("generation back: %v", err)
	}
	if err := d.RaiseEpoch(ctx(), 7); !errors.Is(err, base.ErrInvalid) {
		t.Errorf("epoch back: %v", err)
	}
	for _, name := range []string{"", strings.Repeat("n", 256)} {
		if _, err := d.CreateNamespace(ctx(), name, [16]byte{}); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("namespace of %d bytes: %v", len(name), err)
		}
	}
	if _, err := d.CreateNamespace(ctx(), strings.Repeat("n", 255), [16]byte{}); err != nil {
		t.Error(err)
	}
	if _, err := d.CreateNamespace(ctx(), strings.Repeat("n", 255), [16]byte{}); !errors.Is(err, base.ErrExists) {
		t.Errorf("namespace twice: %v", err)
	}
}

func TestBatchReuse(t *testing.T) {
	d := newDB(t, Options{Dir: "/m", FS: memFS()})
	defer closeDB(t, d)
	b := d.NewBatch()
	for gen := uint64(1); gen <= 3; gen++ {
		b.Put(1, fmt.Appendf(nil, "k%d", gen), testRecord(gen, 1))
		b.SetLastGen(gen)
		if b.Len() != 1 || b.Bytes() < 50 {
			t.Fatal(b.Len(), b.Bytes())
		}
		if err := d.Commit(ctx(), b); err != nil {
			t.Fatal(err)
		}
		if err := d.Commit(ctx(), b); !errors.Is(err, base.ErrInvalid) {
			t.Fatalf("committed twice: %v", err)
		}
		b.Reset()
	}
	if got := scan(t, d); len(got) != 3 {
		t.Fatal(got)
	}
}

func FuzzRecord(f *testing.F) {
	key := appendObjectKey(nil, 7, []byte("k"))
	for _, r := range goldenRecords() {
		b := make([]byte, r.encodedLen())
		r.encode(key, b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= recordHeader {
			reseal(key, b)
		}
		var r Record
		if r.decode(key, b) != nil {
			return
		}
		again := make([]byte, r.encodedLen())
		r.encode(key, again)
		if string(again) != string(b) {
			t.Fatalf("%x is read as %+v and written as %x", b, r, again)
		}
	})
}
