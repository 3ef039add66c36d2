package store_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/store"
)

// hashTree hashes every file below dir, by path.
func hashTree(t testing.TB, dir string) map[string][32]byte {
	t.Helper()
	out := map[string][32]byte{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		_, err = io.Copy(h, f)
		out[path] = [32]byte(h.Sum(nil))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func sameTree(t testing.TB, what string, a, b map[string][32]byte) {
	t.Helper()
	for path, h := range a {
		// The owner's process number beside the data is text only.
		if strings.HasSuffix(path, ".owner") {
			continue
		}
		if g, ok := b[path]; !ok || g != h {
			t.Errorf("%s: %s was changed", what, path)
		}
	}
	for path := range b {
		if _, ok := a[path]; !ok && !strings.HasSuffix(path, ".owner") {
			t.Errorf("%s: %s was made", what, path)
		}
	}
}

func keyN(i int) []byte { return []byte(fmt.Sprintf("key-%02d", i)) }

func filled(t *testing.T, sizes ...int64) *box { return files.filled(t, sizes...) }

// filled makes a closed store with some objects.
func (k kind) filled(t *testing.T, sizes ...int64) *box {
	if len(sizes) == 0 {
		sizes = []int64{64 << 20}
	}
	b := k.newBox(t, box{sizes: sizes})
	for i := range 40 {
		key := []byte(fmt.Sprintf("key-%02d", i))
		if err := b.ns.Put(bg, key, store.Bytes(fill(uint64(i), 1000*i+1)), store.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	b.close()
	return b
}

// tryOpen opens the store for writing and gives the error.
func (b *box) tryOpen(readOnly bool) error {
	b.openDevices()
	o := b.options()
	o.ReadOnly = readOnly
	s, err := store.Open(bg, o)
	if err == nil {
		b.s = s
		b.ns, err = s.Namespace(bg, "default", store.NamespaceOptions{})
		return err
	}
	b.closeDevices()
	return err
}

// refused checks that opening gives the error and changes nothing.
func (b *box) refused(t *testing.T, what string, want error) {
	t.Helper()
	before := hashTree(t, b.dir)
	for _, ro := range []bool{false, true} {
		err := b.tryOpen(ro)
		if !errors.Is(err, want) {
			t.Errorf("%s (read-only %v): %v, want %v", what, ro, err, want)
		}
		b.close()
	}
	sameTree(t, what, before, hashTree(t, b.dir))
}

func (b *box) readAllBack(t *testing.T, what string) {
	t.Helper()
	for i := range 40 {
		got, err := b.ns.GetBytes(bg, []byte(fmt.Sprintf("key-%02d", i)), store.GetOptions{})
		if err != nil || !bytes.Equal(got, fill(uint64(i), 1000*i+1)) {
			t.Errorf("%s: key-%02d: %v", what, i, err)
			return
		}
	}
}

// patch overwrites bytes of a file.
func patch(t testing.TB, path string, off int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

// superOffs are the places of the four copies on a device of 64 MiB.
var superOffs = []int64{64 << 10, 128 << 10, 64<<20 - 128<<10, 64<<20 - 64<<10}

// TestJ24DamagedSuperblocks damages every subset of the copies: two valid ones
// open and repair the rest, one opens read-only, none is refused.
func TestJ24DamagedSuperblocks(t *testing.T) { everyKind(t, testJ24DamagedSuperblocks) }

func testJ24DamagedSuperblocks(t *testing.T, k kind) {
	orig := k.filled(t)
	saved := ends(t, orig.path(0))
	for set := range 16 {
		valid := 4
		b := *orig
		for off, data := range saved {
			patch(t, b.path(0), off, data)
		}
		for i, off := range superOffs {
			if set>>i&1 != 0 {
				valid--
				patch(t, b.path(0), off+20, []byte{0xff, 0x5a})
			}
		}
		name := fmt.Sprintf("damaged %04b", set)
		switch valid {
		case 0:
			b.refused(t, name, store.ErrCorrupt)
			continue
		case 1:
			before := hashTree(t, b.dir)
			if err := b.tryOpen(false); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			b.readAllBack(t, name)
			if err := b.ns.Put(bg, []byte("new"), nil, store.PutOptions{}); !errors.Is(err, store.ErrReadOnly) {
				t.Errorf("%s: put: %v, want ErrReadOnly", name, err)
			}
			b.close()
			sameTree(t, name, before, hashTree(t, b.dir))
			continue
		}
		if r := b.check(t); r.Faults() > 0 || len(r.Findings) != 4-valid {
			t.Errorf("%s: findings %v", name, r.Findings)
		}
		if err := b.tryOpen(false); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		b.readAllBack(t, name)
		b.close()
		if r := b.check(t); !r.Clean() {
			t.Errorf("%s: after repair: %v", name, r.Findings)
		}
		// The epoch rose: bring the metadata back to where the saved device is.
		saved = ends(t, b.path(0))
	}
}

// ends reads the first and the last MiB of a device of 64 MiB, where all stands
// that an open writes.
func ends(t testing.TB, path string) map[int64][]byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[int64][]byte{}
	for _, off := range []int64{0, 63 << 20} {
		out[off] = make([]byte, 1<<20)
		if _, err := f.ReadAt(out[off], off); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// check runs store.Check on the closed store.
func (b *box) check(t testing.TB) *store.Report {
	t.Helper()
	b.openDevices()
	defer b.closeDevices()
	r, err := store.Check(bg, b.options(), store.CheckOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRefusals(t *testing.T) { everyKind(t, testRefusals) }

func testRefusals(t *testing.T, k kind) {
	t.Run("truncated device", func(t *testing.T) {
		b := k.filled(t)
		if err := os.Truncate(b.path(0), 63<<20); err != nil {
			t.Fatal(err)
		}
		b.refused(t, "truncated", store.ErrCorrupt)
	})
	t.Run("foreign superblock", func(t *testing.T) {
		a, b := k.filled(t, 64<<20, 64<<20), k.filled(t, 64<<20, 64<<20)
		copyFile(t, a.path(1), b.path(1))
		b.refused(t, "a device of another store", store.ErrMismatch)
	})
	t.Run("one device twice", func(t *testing.T) {
		b := k.filled(t, 64<<20, 64<<20)
		copyFile(t, b.path(0), b.path(1))
		b.refused(t, "device 0 twice", store.ErrMismatch)
	})
	t.Run("missing device", func(t *testing.T) {
		b := k.filled(t, 64<<20, 64<<20)
		b.sizes = b.sizes[:1]
		b.refused(t, "one of two", store.ErrMismatch)
	})
	t.Run("J-17 two identities on one device", func(t *testing.T) {
		a, b := k.filled(t), k.filled(t)
		raw, err := os.ReadFile(a.path(0))
		if err != nil {
			t.Fatal(err)
		}
		patch(t, b.path(0), superOffs[2], raw[superOffs[2]:superOffs[2]+4096])
		b.refused(t, "copies of two stores", store.ErrMismatch)
	})
	t.Run("metadata of another store", func(t *testing.T) {
		a, b := k.filled(t), k.filled(t)
		replaceDir(t, a.meta().Dir, b.meta().Dir)
		b.refused(t, "another store's metadata", store.ErrMismatch)
	})
	t.Run("J-09 no metadata", func(t *testing.T) {
		b := k.filled(t)
		if err := os.RemoveAll(b.meta().Dir); err != nil {
			t.Fatal(err)
		}
		b.refused(t, "no metadata", store.ErrNotFound)
	})
	t.Run("not a store", func(t *testing.T) {
		b := k.filled(t)
		patch(t, b.path(0), 0, make([]byte, 1<<20))
		patch(t, b.path(0), 63<<20, make([]byte, 1<<20))
		b.refused(t, "zeros", store.ErrCorrupt)
	})
}

// TestOlderMetadata brings back older copies of the same store's metadata.
func TestOlderMetadata(t *testing.T) { everyKind(t, testOlderMetadata) }

func testOlderMetadata(t *testing.T, k kind) {
	t.Run("across epochs", func(t *testing.T) {
		b := k.filled(t)
		old := t.TempDir()
		replaceDir(t, b.meta().Dir, old)
		for range 2 {
			if err := b.tryOpen(false); err != nil {
				t.Fatal(err)
			}
			b.close()
		}
		replaceDir(t, old, b.meta().Dir)
		b.refused(t, "metadata of an earlier epoch", store.ErrMismatch)
	})
	t.Run("within an epoch", func(t *testing.T) {
		b := k.newBox(t, box{sizes: []int64{64 << 20}})
		old := t.TempDir()
		for i := range 20 {
			if err := b.ns.Put(bg, []byte(fmt.Sprintf("k%d", i)), store.Bytes(fill(1, 100)), store.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			if i == 10 { // what a snapshot of the metadata disk holds
				replaceDir(t, b.meta().Dir, old)
			}
		}
		b.close()
		replaceDir(t, old, b.meta().Dir)
		b.refused(t, "metadata of a moment ago", store.ErrMismatch)
	})
	t.Run("older device", func(t *testing.T) {
		b := k.filled(t)
		saved := filepath.Join(t.TempDir(), "device")
		copyFile(t, b.path(0), saved)
		for range 3 {
			if err := b.tryOpen(false); err != nil {
				t.Fatal(err)
			}
			b.close()
		}
		copyFile(t, saved, b.path(0))
		b.refused(t, "device of an earlier epoch", store.ErrMismatch)
	})
}

func TestSecondOpener(t *testing.T) { everyKind(t, testSecondOpener) }

func testSecondOpener(t *testing.T, k kind) {
	b := k.newBox(t, box{sizes: []int64{64 << 20}})
	if _, _, err := k.open(0, file.Options{Path: b.path(0)}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("second opener of the device: %v, want ErrLocked", err)
	}
	o := store.Options{Devices: b.devs, Meta: b.meta()}
	if _, err := store.Open(bg, o); !errors.Is(err, store.ErrLocked) {
		t.Errorf("second store in the process: %v, want ErrLocked", err)
	}
	if err := b.ns.Put(bg, []byte("still works"), nil, store.PutOptions{}); err != nil {
		t.Error(err)
	}
}

// TestFlippedData finds every flipped byte of a value, and only there.
func TestFlippedData(t *testing.T) { everyKind(t, testFlippedData) }

func testFlippedData(t *testing.T, k kind) {
	b := k.newBox(t, box{sizes: []int64{64 << 20}})
	want := fill(3, 2<<20+100)
	if err := b.ns.Put(bg, []byte("k"), store.Bytes(want), store.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := b.ns.Put(bg, []byte("other"), store.Bytes(fill(4, 5000)), store.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	b.close()
	raw, err := os.ReadFile(b.path(0))
	if err != nil {
		t.Fatal(err)
	}
	at := int64(bytes.Index(raw, want[1<<20+500:1<<20+600]))
	if at < 0 {
		t.Fatal("the value is not on the device")
	}
	patch(t, b.path(0), at, []byte{raw[at] ^ 1})
	if err := b.tryOpen(false); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ns.GetBytes(bg, []byte("k"), store.GetOptions{}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("get: %v, want ErrCorrupt", err)
	}
	if _, err := b.ns.GetBytes(bg, []byte("k"), store.GetOptions{Off: 10, Len: 10}); err != nil {
		t.Errorf("a range of a whole piece: %v", err)
	}
	if _, err := b.ns.GetBytes(bg, []byte("k"), store.GetOptions{Off: 1 << 20, Len: 1}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("a range of the damaged piece: %v, want ErrCorrupt", err)
	}
	if _, err := b.ns.GetBytes(bg, []byte("k"), store.GetOptions{NoVerify: true}); err != nil {
		t.Errorf("unverified: %v", err)
	}
	if _, err := b.ns.GetBytes(bg, []byte("other"), store.GetOptions{}); err != nil {
		t.Errorf("another object: %v", err)
	}
}

// TestDeviceFull fills a store: ErrNoSpace tells what is free, what was there
// stays readable, and freed space is used again at once.
func TestDeviceFull(t *testing.T) { everyKind(t, testDeviceFull) }

func testDeviceFull(t *testing.T, k kind) {
	b := k.newBox(t, box{sizes: []int64{64 << 20}})
	var keys [][]byte
	var err error
	for i := 0; ; i++ {
		key := []byte(fmt.Sprintf("full-%03d", i))
		if err = b.ns.Put(bg, key, store.Bytes(fill(uint64(i), 1<<20)), store.PutOptions{Durability: store.Relaxed}); err != nil {
			break
		}
		keys = append(keys, key)
	}
	if !errors.Is(err, store.ErrNoSpace) || !strings.Contains(err.Error(), "free") {
		t.Fatalf("full: %v", err)
	}
	for i, k := range keys {
		if got, err := b.ns.GetBytes(bg, k, store.GetOptions{}); err != nil || !bytes.Equal(got, fill(uint64(i), 1<<20)) {
			t.Fatalf("%s: %v", k, err)
		}
	}
	for round := range 3 {
		if err := b.ns.Delete(bg, keys[round], store.DeleteOptions{Durability: store.Relaxed}); err != nil {
			t.Fatal(err)
		}
		if err := b.ns.Put(bg, keys[round], store.Bytes(fill(99, 1<<20)), store.PutOptions{}); err != nil {
			t.Fatalf("after a delete: %v", err)
		}
	}
	if err := b.ns.Put(bg, []byte("tiny"), store.Bytes(make([]byte, 2<<20)), store.PutOptions{}); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("still full: %v", err)
	}
	b.reopen()
	if r := b.s.Stats(); r.Objects != int64(len(keys)) {
		t.Errorf("%d objects, want %d", r.Objects, len(keys))
	}
}

func TestFormatRefuses(t *testing.T) { everyKind(t, testFormatRefuses) }

func testFormatRefuses(t *testing.T, k kind) {
	b := k.filled(t)
	b.openDevices()
	defer b.closeDevices()
	before := hashTree(t, b.dir)
	o := store.FormatOptions{Devices: b.devs, Meta: b.meta()}
	if _, err := store.Format(bg, o); !errors.Is(err, store.ErrExists) {
		t.Errorf("format over a store: %v, want ErrExists", err)
	}
	for _, bad := range []store.FormatOptions{
		{Meta: b.meta()},
		{Devices: make([]driver.Device, store.MaxStoreDevices+1), Meta: b.meta()},
		{Devices: b.devs, Meta: b.meta(), SlabBytes: -1},
		{Devices: b.devs, Meta: b.meta(), SlabBytes: 32 << 10},
		{Devices: b.devs, Meta: b.meta(), SlabBytes: 3 << 20},
		{Devices: b.devs, Meta: b.meta(), SlabBytes: 128 << 20},
	} {
		if _, err := store.Format(bg, bad); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%d devices, slab %d: %v, want ErrInvalid", len(bad.Devices), bad.SlabBytes, err)
		}
	}
	sameTree(t, "refused formats", before, hashTree(t, b.dir))
	o.Overwrite = true
	if _, err := store.Format(bg, o); err != nil {
		t.Fatalf("overwrite: %v", err)
	}
	b.open()
	if u := b.s.Usage(); u.Objects != 0 {
		t.Errorf("a new store has %d objects", u.Objects)
	}
	b.close()
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// replaceDir makes to a copy of from.
func replaceDir(t testing.TB, from, to string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(to, 0o700); err != nil {
		t.Fatal(err)
	}
}

// TestLostLock: the lock file of the metadata holds nothing, so an open for writing makes a
// lost one again. One for reading, which changes nothing, says so.
func TestLostLock(t *testing.T) {
	b := files.filled(t)
	if err := os.Remove(filepath.Join(b.meta().Dir, "LOCK")); err != nil {
		t.Fatal(err)
	}
	if err := b.tryOpen(true); !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), "for writing") {
		t.Errorf("for reading: %v", err)
	}
	for _, readOnly := range []bool{false, true} {
		if err := b.tryOpen(readOnly); err != nil {
			t.Fatalf("read-only %v: %v", readOnly, err)
		}
		b.readAllBack(t, "after a lost lock")
		b.close()
	}
	lock := filepath.Join(b.meta().Dir, "LOCK")
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	if r := b.check(t); len(r.Findings) != 1 || r.Findings[0].Mends != "lock file" {
		t.Errorf("check: %+v", r.Findings)
	}
	if _, err := os.Stat(lock); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a check alone: %v", err)
	}
	r := b.repair(t, store.CheckOptions{})
	if want := []store.Rewritten{{Target: b.meta().Dir, What: "lock file"}}; !r.Clean() || !slices.Equal(r.Rewritten, want) {
		t.Errorf("repair: %+v, %+v", r.Findings, r.Rewritten)
	}
}

// TestDamagedSettings: Pebble's settings hold nothing of the store either. No open removes
// a damaged file of them, a repair does.
func TestDamagedSettings(t *testing.T) {
	b := files.filled(t)
	names, err := filepath.Glob(filepath.Join(b.meta().Dir, "db", "OPTIONS-*"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	patch(t, names[0], 20, []byte("XXXXXXXX"))
	b.refused(t, "settings", store.ErrCorrupt)
	if r := b.check(t); len(r.Findings) != 1 || r.Findings[0].Mends != "Pebble's settings" {
		t.Errorf("check: %+v", r.Findings)
	}
	r := b.repair(t, store.CheckOptions{})
	if want := []store.Rewritten{{Target: b.meta().Dir, What: "Pebble's settings"}}; !r.Clean() || !slices.Equal(r.Rewritten, want) {
		t.Errorf("repair: %+v, %+v", r.Findings, r.Rewritten)
	}
	if now, _ := filepath.Glob(filepath.Join(b.meta().Dir, "db", "OPTIONS-*")); len(now) != 1 || now[0] == names[0] {
		t.Errorf("after the repair: %q", now)
	}
	if err := b.tryOpen(true); err != nil {
		t.Fatal(err)
	}
	b.readAllBack(t, "after the repair")
	b.close()
}

// TestCutOff: a file that was cut off anywhere is a damaged device and no wrong argument;
// the size that the message names brings back what lies below the cut.
func TestCutOff(t *testing.T) {
	b := files.filled(t)
	whole, err := os.ReadFile(b.path(0))
	if err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int64]string{
		4096: "at least 67108864", 5120: "at least 67108864", 64 << 10: "at least 67108864",
		68 << 10: "truncate -s 67108864 ", 132 << 10: "truncate -s 67108864 ", 40 << 20: "truncate -s 67108864 ",
	} {
		if err := os.WriteFile(b.path(0), whole[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		b.refused(t, fmt.Sprint(size), store.ErrCorrupt)
		if err := b.tryOpen(true); errors.Is(err, store.ErrOutOfRange) || !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes: %v", size, err)
		}
		if r := b.check(t); r.Faults() != 1 || r.Findings[0].Hint == "" {
			t.Errorf("%d bytes: %+v", size, r.Findings)
		}
		if err := os.Truncate(b.path(0), int64(len(whole))); err != nil {
			t.Fatal(err)
		}
		if size != 40<<20 {
			continue
		}
		if err := b.tryOpen(false); err != nil {
			t.Fatal(err)
		}
		b.readAllBack(t, "brought back")
		b.close()
		if whole, err = os.ReadFile(b.path(0)); err != nil { // of a later epoch now
			t.Fatal(err)
		}
	}
}
