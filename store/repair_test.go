package store_test

import (
	"bytes"
	"errors"
	"os"
	"sort"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/alloc"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// forge changes the metadata of a closed store.
func (b *box) forge(t *testing.T, change func(db *meta.DB, batch *meta.Batch)) {
	t.Helper()
	db, err := meta.Open(b.meta())
	if err != nil {
		t.Fatal(err)
	}
	batch := meta.NewBatch()
	change(db, batch)
	batch.SetLastGen(db.Header().LastGen)
	if err := db.Commit(bg, batch); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(bg); err != nil {
		t.Fatal(err)
	}
}

// repair runs store.Repair on the closed store.
func (b *box) repair(t *testing.T, c store.CheckOptions) *store.Report {
	t.Helper()
	b.openDevices()
	defer b.closeDevices()
	r, err := store.Repair(bg, b.options(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func removed(r *store.Report) string {
	var keys []string
	for _, k := range r.Removed {
		keys = append(keys, string(k.Key))
	}
	sort.Strings(keys)
	return strings.Join(keys, " ")
}

// TestRepair forges faults in single objects: open refuses, check names them,
// repair removes exactly those, and the rest is as it was.
func TestRepair(t *testing.T) { everyKind(t, testRepair) }

func testRepair(t *testing.T, k kind) {
	for _, c := range []struct {
		name    string
		forge   func(db *meta.DB, batch *meta.Batch)
		removed string
	}{
		{"overlap with a right one", func(db *meta.DB, batch *meta.Batch) {
			r, _ := db.Get(1, []byte("key-20"))
			r.CRC++
			batch.Put(1, []byte("forged"), &r)
		}, "forged"},
		{"overlap of two wrong ones", func(db *meta.DB, batch *meta.Batch) {
			r, _ := db.Get(1, []byte("key-20"))
			r.CRC++
			batch.Put(1, []byte("key-20"), &r)
			batch.Put(1, []byte("forged"), &r)
		}, "forged key-20"},
		{"the same right data twice", func(db *meta.DB, batch *meta.Batch) {
			r, _ := db.Get(1, []byte("key-20"))
			r.Gen += 100
			batch.Put(1, []byte("forged"), &r)
		}, "key-20"},
		{"outside the device", func(db *meta.DB, batch *meta.Batch) {
			r, _ := db.Get(1, []byte("key-20"))
			r.Extents = []uint64{alloc.Extent{Start: 1 << 30, Blocks: 5}.Pack()}
			batch.Put(1, []byte("key-20"), &r)
		}, "key-20"},
		{"no such device", func(db *meta.DB, batch *meta.Batch) {
			r, _ := db.Get(1, []byte("key-20"))
			r.Extents = []uint64{alloc.Extent{Dev: 9, Start: 1 << 10, Blocks: 5}.Pack()}
			batch.Put(1, []byte("key-20"), &r)
		}, "key-20"},
		{"longer than its space", func(db *meta.DB, batch *meta.Batch) {
			r, _ := db.Get(1, []byte("key-20"))
			r.Length = 1 << 19
			batch.Put(1, []byte("key-20"), &r)
		}, "key-20"},
		{"no such namespace", func(db *meta.DB, batch *meta.Batch) {
			r, _ := db.Get(1, []byte("key-20"))
			batch.Put(77, []byte("lost"), &r)
		}, "lost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := k.filled(t)
			b.forge(t, c.forge)
			b.refused(t, c.name, store.ErrCorrupt)
			before := hashTree(t, b.dir)
			if r := b.check(t); r.Clean() || r.Faults() == 0 {
				t.Errorf("check: %+v", r.Findings)
			}
			sameTree(t, "check", before, hashTree(t, b.dir))
			r := b.repair(t, store.CheckOptions{})
			if got := removed(r); got != c.removed {
				t.Errorf("removed %q, want %q: %+v", got, c.removed, r.Findings)
			}
			if r := b.check(t); !r.Clean() {
				t.Errorf("after repair: %+v", r.Findings)
			}
			if err := b.tryOpen(false); err != nil {
				t.Fatal(err)
			}
			for i := range 40 {
				key := keyN(i)
				_, err := b.ns.GetBytes(bg, key, store.GetOptions{})
				gone := strings.Contains(c.removed, string(key))
				if gone != errors.Is(err, store.ErrNotFound) || !gone && err != nil {
					t.Errorf("%s: %v", key, err)
				}
			}
		})
	}
}

// TestVerifyData finds the one value with a flipped byte.
func TestVerifyData(t *testing.T) { everyKind(t, testVerifyData) }

func testVerifyData(t *testing.T, k kind) {
	b := k.filled(t)
	raw, err := os.ReadFile(b.path(0))
	if err != nil {
		t.Fatal(err)
	}
	at := int64(bytes.Index(raw, fill(30, 30001)))
	patch(t, b.path(0), at+15000, []byte{raw[at+15000] ^ 0x10})
	if r := b.check(t); !r.Clean() || r.Verified {
		t.Errorf("without reading the data: %+v", r.Findings)
	}
	var last, all int64
	c := store.CheckOptions{VerifyData: true, Progress: func(done, total int64) { last, all = done, total }}
	b.openDevices()
	r, err := store.Check(bg, b.options(), c)
	b.closeDevices()
	if err != nil || !r.Verified || r.Faults() != 1 || string(r.Findings[len(r.Findings)-1].Key) != "key-30" {
		t.Fatalf("%v, findings %+v", err, r.Findings)
	}
	if last != all || all != r.Usage.Bytes {
		t.Errorf("progress ended at %d of %d, the store has %d", last, all, r.Usage.Bytes)
	}
	if err := b.tryOpen(true); err != nil {
		t.Fatal(err)
	}
	errs := b.ns.Verify(bg, [][]byte{keyN(29), keyN(30), keyN(0), []byte("none"), nil})
	for i, want := range []error{nil, store.ErrCorrupt, nil, store.ErrNotFound, store.ErrInvalid} {
		if !errors.Is(errs[i], want) {
			t.Errorf("verify %d: %v, want %v", i, errs[i], want)
		}
	}
	b.close()
	if got := removed(b.repair(t, c)); got != "key-30" {
		t.Errorf("removed %q", got)
	}
	if r := b.check(t); !r.Clean() {
		t.Errorf("after repair: %+v", r.Findings)
	}
}

// TestRepairTellsFirst refuses to be told: then nothing is removed.
func TestRepairTellsFirst(t *testing.T) {
	b := filled(t)
	b.forge(t, func(db *meta.DB, batch *meta.Batch) {
		r, _ := db.Get(1, []byte("key-20"))
		r.CRC++
		batch.Put(1, []byte("forged"), &r)
	})
	full := errors.New("the list cannot be written")
	told := 0
	c := store.CheckOptions{Removing: func(x store.Removed) error { told++; return full }}
	b.openDevices()
	r, err := store.Repair(bg, b.options(), c)
	b.closeDevices()
	if !errors.Is(err, full) || told != 1 || len(r.Removed) != 0 {
		t.Fatalf("told %d times, %v", told, err)
	}
	if b.check(t).Clean() {
		t.Error("it removed what it could not tell of")
	}
	c.Removing = func(store.Removed) error { return nil }
	if got := removed(b.repair(t, c)); got != "forged" {
		t.Errorf("then removed %q", got)
	}
}

// TestRepairTellsWhatItWrites damages superblock copies and the label: a repair
// writes just those anew and says so; the label is its work alone.
func TestRepairTellsWhatItWrites(t *testing.T) {
	for _, c := range []struct {
		name string
		at   []int64
		want []string
	}{
		{"first copy", []int64{64 << 10}, []string{"superblock copy 0"}},
		{"two copies", []int64{128 << 10, 64<<20 - 64<<10}, []string{"superblock copy 1", "superblock copy 3"}},
		{"label", []int64{0}, []string{"label"}},
		{"label and copy", []int64{446, 64<<20 - 128<<10}, []string{"label", "superblock copy 2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := filled(t)
			head := func() []byte {
				data, err := os.ReadFile(b.path(0))
				if err != nil {
					t.Fatal(err)
				}
				return data[:4096]
			}
			before := head()
			for _, off := range c.at {
				patch(t, b.path(0), off, []byte("damage"))
			}
			r := b.check(t)
			if r.Clean() || r.Faults() > 0 || len(r.Findings) != len(c.want) || len(r.Rewritten) > 0 {
				t.Errorf("check: %+v", r)
			}
			for _, f := range r.Findings {
				if !strings.Contains(f.Hint, "--repair --yes") {
					t.Errorf("it does not say what helps: %+v", f)
				}
			}
			var got []string
			for _, w := range b.repair(t, store.CheckOptions{}).Rewritten {
				if w.Target != "file:"+b.path(0) {
					t.Errorf("target %q", w.Target)
				}
				got = append(got, w.What)
			}
			if strings.Join(got, ", ") != strings.Join(c.want, ", ") {
				t.Errorf("written anew: %q, want %q", got, c.want)
			}
			if r := b.check(t); !r.Clean() {
				t.Errorf("after repair: %+v", r.Findings)
			}
			if !bytes.Equal(head(), before) {
				t.Error("the label is not what the format wrote")
			}
		})
	}
}

// TestRepairReadOnly: with so few superblock copies that the store only opens for reading
// a repair removes nothing, as a check says.
func TestRepairReadOnly(t *testing.T) {
	b := filled(t)
	raw, err := os.ReadFile(b.path(0))
	if err != nil {
		t.Fatal(err)
	}
	at := int64(bytes.Index(raw, fill(30, 30001)))
	patch(t, b.path(0), at, []byte{raw[at] ^ 1})
	for _, off := range []int64{64 << 10, 128 << 10, 64<<20 - 128<<10} {
		patch(t, b.path(0), off, []byte("damage"))
	}
	before := hashTree(t, b.dir)
	c := store.CheckOptions{VerifyData: true}
	if r := b.repair(t, c); !r.BeyondRepair() || r.Faults() != 1 || len(r.Removed) > 0 || len(r.Rewritten) > 0 {
		t.Errorf("%+v", r)
	}
	sameTree(t, "repair", before, hashTree(t, b.dir))
}

// TestDoomedOnce: an object with two faults is removed, and counted, once.
func TestDoomedOnce(t *testing.T) {
	r := &store.Report{Findings: []store.Finding{
		{Severity: store.SevError, Area: "object", Namespace: "a", Key: []byte("k")},
		{Severity: store.SevError, Area: "data", Namespace: "a", Key: []byte("k")},
		{Severity: store.SevWarning, Area: "object", Namespace: "a", Key: []byte("right")},
		{Severity: store.SevError, Area: "data", Namespace: "b", Key: []byte("k")},
		{Severity: store.SevError, Area: "identity"},
	}}
	if d := r.Doomed(); len(d) != 2 || d[0].Area != "object" || d[1].Namespace != "b" {
		t.Errorf("%+v", d)
	}
}
