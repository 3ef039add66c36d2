package meta

import (
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/meta/metatest"
)

// image is the content of a metadata directory.
type image map[string][]byte

func takeImage(t testing.TB, fs vfs.FS, dir string) image {
	t.Helper()
	img := image{}
	var walk func(dir string)
	walk = func(dir string) {
		names, err := fs.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			p := fs.PathJoin(dir, name)
			st, err := fs.Stat(p)
			if err != nil {
				t.Fatal(err)
			}
			if st.IsDir() {
				img[p] = nil
				walk(p)
			} else {
				img[p] = append([]byte{}, readFile(t, fs, p)...)
			}
		}
	}
	walk(dir)
	return img
}

func (img image) fs(t testing.TB) *metatest.FS {
	t.Helper()
	fs := memFS()
	for _, p := range slices.Sorted(maps.Keys(img)) {
		if err := fs.MkdirAll(path.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if img[p] != nil {
			overwrite(t, fs, p, img[p])
		} else if err := fs.MkdirAll(p, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return fs
}

// digest tells images apart.
func (img image) digest() string {
	var s strings.Builder
	for _, p := range slices.Sorted(maps.Keys(img)) {
		fmt.Fprintf(&s, "%s %d %08x\n", p, len(img[p]), crc32.ChecksumIEEE(img[p]))
	}
	return s.String()
}

// find gives the names of the files that end or begin so, sorted.
func (img image) find(match func(base string) bool) (names []string) {
	for p, b := range img {
		if b != nil && match(path.Base(p)) {
			names = append(names, p)
		}
	}
	slices.Sort(names)
	return names
}

// current is the MANIFEST that the marker names.
func (img image) current(t testing.TB) string {
	t.Helper()
	for _, name := range img.find(isManifest) {
		if img.find(func(base string) bool { return strings.HasSuffix(base, "."+path.Base(name)) }) != nil {
			return name
		}
	}
	t.Fatal("no current MANIFEST")
	return ""
}

func isLog(name string) bool      { return strings.HasSuffix(name, ".log") }
func isTable(name string) bool    { return strings.HasSuffix(name, ".sst") }
func isManifest(name string) bool { return strings.HasPrefix(name, "MANIFEST-") }
func isOptions(name string) bool  { return strings.HasPrefix(name, "OPTIONS-") }

// scriptImage is the directory after the script: without a close, so that the
// log has no clean end, or with one.
func scriptImage(t testing.TB, o Options, closed bool) image {
	t.Helper()
	fs := metatest.NewCrashFS()
	o.FS = fs
	d := newDB(t, o)
	if _, err := runScript(d, 1); err != nil {
		t.Fatal(err)
	}
	clone := fs.Clone(nil, 0)
	closeDB(t, d)
	if closed {
		clone = fs
	}
	return takeImage(t, clone, "/d")
}

// verdictOf opens the image and reads everything. It returns the generation
// found, or the error that refused it, after checking, if strict, that a refused
// open has changed nothing: damage inside a table is found only after Pebble has
// opened and written its log out.
func verdictOf(t testing.TB, o Options, img image, strict bool) (uint64, error) {
	t.Helper()
	fs := img.fs(t)
	o.FS = fs
	d, err := Open(o)
	if err != nil {
		if after := takeImage(t, fs, "/d").digest(); after != img.digest() && strict {
			t.Fatalf("the refused open changed the directory\nbefore:\n%safter:\n%s", img.digest(), after)
		}
		return 0, err
	}
	defer closeDB(t, d)
	got := map[string]Record{}
	err = d.Scan(ctx(), func(ns uint32, key []byte, r *Record) error {
		c := *r
		c.Extents, c.PieceCRCs = slices.Clone(r.Extents), slices.Clone(r.PieceCRCs)
		got[fmt.Sprintf("%d/%s", ns, key)] = c
		return nil
	})
	if err != nil {
		return 0, err
	}
	gen := d.Header().LastGen
	if want := scriptModel(gen); !maps.EqualFunc(got, want, same) {
		t.Fatalf("the state is not that of generation %d", gen)
	}
	return gen, nil
}

// flips calls verdict for one flipped byte at each of many offsets of a file,
// and counts the outcomes.
func flips(t *testing.T, o Options, img image, name string, strict bool, judge func(at int, gen uint64, err error)) {
	t.Helper()
	rng := newRand(t)
	good := img[name]
	most := 300
	switch {
	case *long:
		most = 20000
	case testenv.Race: // the race detector makes each one slow, and one goroutine has no races
		most = 24
	}
	for _, at := range offsets(rng, len(good), most) {
		bad := slices.Clone(good)
		bad[at] ^= byte(1 + rng.IntN(255))
		copied := maps.Clone(img)
		copied[name] = bad
		gen, err := verdictOf(t, o, copied, strict)
		judge(at, gen, err)
	}
}

func offsets(rng *rand.Rand, n, most int) []int {
	if n <= most {
		return rng.Perm(n)
	}
	ends := min(32, most/4)
	out := rng.Perm(n)[:most-2*ends]
	for i := range ends { // both ends matter most
		out = append(out, i, n-1-i)
	}
	return out
}

// lastRecord is the offset at which the last record of a log begins, and where
// it ends.
func lastRecord(t testing.TB, name string, b []byte) (start, end int) {
	t.Helper()
	l, ok := logName(path.Base(name))
	if !ok {
		t.Fatal(name)
	}
	l.b = b
	for at := 0; at < len(b); {
		if skip := l.padding(at); skip > 0 {
			at += skip
			continue
		}
		pos, _, n := l.chunk(at)
		if n == 0 {
			break
		}
		if pos == full || pos == first {
			start = at
		}
		at += n
		end = at
	}
	return start, end
}

// TestLogFlips flips bytes of the newest log. Pebble alone would cut the log off
// at most of them; what it does is reported by TestWhatPebbleDoes.
func TestLogFlips(t *testing.T) {
	for _, closed := range []bool{false, true} {
		t.Run(fmt.Sprint("closed ", closed), func(t *testing.T) {
			o := Options{Dir: "/d/m"} // one large log of several blocks
			img := scriptImage(t, o, closed)
			logs := img.find(isLog)
			name := logs[len(logs)-1]
			start, end := lastRecord(t, name, img[name])
			if len(img[name]) < logBlock {
				t.Fatalf("the log has only %d bytes", len(img[name]))
			}
			counts := map[string]int{}
			flips(t, o, img, name, true, func(at int, gen uint64, err error) {
				switch {
				case errors.Is(err, base.ErrCorrupt):
					counts["refused"]++
				case err != nil:
					t.Errorf("offset %d: %v", at, err)
				case at >= end && gen == scriptCommits:
					counts["harmless"]++
				case !closed && at >= start && gen == scriptCommits-1:
					counts["last record dropped"]++
				default:
					t.Errorf("offset %d of %d (last record %d to %d): generation %d", at, len(img[name]), start, end, gen)
				}
			})
			t.Logf("%d bytes, last record at %d: %v", len(img[name]), start, counts)
		})
	}
}

// TestManifestFlips flips bytes of the MANIFEST. Without its last edit the
// database may be older, which the commit marks of the store notice; it is never
// wrong.
func TestManifestFlips(t *testing.T) {
	img := scriptImage(t, scriptOptions(nil), true)
	name := img.current(t)
	start, _ := lastRecord(t, name, img[name])
	counts := map[string]int{}
	flips(t, scriptOptions(nil), img, name, true, func(at int, gen uint64, err error) {
		switch {
		case errors.Is(err, base.ErrCorrupt):
			counts["refused"]++
		case err != nil:
			t.Errorf("offset %d: %v", at, err)
		case gen == scriptCommits:
			counts["harmless"]++
		case at >= start:
			counts[fmt.Sprintf("older: generation %d", gen)]++
		default:
			t.Errorf("offset %d of %d (last edit at %d): generation %d", at, len(img[name]), start, gen)
		}
	})
	t.Logf("%d bytes, last edit at %d: %v", len(img[name]), start, counts)
}

// TestTableFlips flips bytes of every table, and of OPTIONS.
func TestTableFlips(t *testing.T) {
	o := scriptOptions(nil)
	img := scriptImage(t, o, true)
	for kind, match := range map[string]func(string) bool{"tables": isTable, "options": isOptions} {
		counts := map[string]int{}
		for _, name := range img.find(match) {
			flips(t, o, img, name, !match("x.sst"), func(at int, gen uint64, err error) {
				switch {
				case errors.Is(err, base.ErrCorrupt) && errors.Is(err, ErrOptionsDamaged) == match("OPTIONS-1"):
					counts["refused"]++
				case err == nil && gen == scriptCommits:
					counts["harmless"]++
				default:
					t.Errorf("%s offset %d: generation %d, %v", name, at, gen, err)
				}
			})
		}
		t.Logf("%s: %v", kind, counts)
		if kind == "tables" && counts["refused"] == 0 {
			t.Error("no flip in a table was refused")
		}
	}
}

// TestDamagedOptions: Pebble's settings hold nothing that is needed. An open says so and
// changes nothing; DropOptions removes the file if it is damaged, and only then.
func TestDamagedOptions(t *testing.T) {
	o := scriptOptions(nil)
	good := scriptImage(t, o, true)
	names := good.find(isOptions)
	name := names[len(names)-1]
	for what, text := range map[string]string{
		"no value": "[Options]\nXXXX\n", "another order of keys": "[Options]\n  comparer=other\n",
		"another place of the logs": "[Options]\n  wal_dir=/elsewhere\n",
	} {
		img := maps.Clone(good)
		img[name] = []byte(text)
		if _, err := verdictOf(t, o, img, true); !errors.Is(err, ErrOptionsDamaged) || !errors.Is(err, base.ErrCorrupt) ||
			!strings.Contains(err.Error(), name) || strings.Contains(err.Error(), damagedHint) {
			t.Errorf("%s: %v", what, err)
		}
		fs := img.fs(t)
		w := o
		w.FS = fs
		w.ReadOnly = true
		if err := DropOptions(w); !errors.Is(err, base.ErrReadOnly) {
			t.Errorf("%s: %v", what, err)
		}
		w.ReadOnly = false
		if err := DropOptions(w); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if gen, err := verdictOf(t, o, takeImage(t, fs, "/d"), true); gen != scriptCommits || err != nil {
			t.Errorf("%s, removed: generation %d, %v", what, gen, err)
		}
	}
	w := o
	w.FS = good.fs(t)
	d := openDB(t, w)
	if err := DropOptions(w); !errors.Is(err, base.ErrLocked) {
		t.Errorf("in use: %v", err)
	}
	closeDB(t, d)
	before := takeImage(t, w.FS, "/d")
	if err := DropOptions(w); err != nil || takeImage(t, w.FS, "/d").digest() != before.digest() {
		t.Errorf("a good one: %v", err)
	}
}

// TestFilesMissing removes each file in turn: the open is refused or the state
// is right, or, without the newest log, older.
func TestFilesMissing(t *testing.T) {
	o := scriptOptions(nil)
	img := scriptImage(t, o, true)
	for name, b := range img {
		if b == nil {
			continue
		}
		copied := maps.Clone(img)
		delete(copied, name)
		gen, err := verdictOf(t, o, copied, true)
		switch {
		case errors.Is(err, base.ErrCorrupt), errors.Is(err, base.ErrNotFound) && path.Base(name) == identityName:
		case err == nil && (gen == scriptCommits || isLog(name)):
		default:
			t.Errorf("without %s: generation %d, %v", name, gen, err)
		}
		if err != nil && path.Dir(name) == "/d/m/db" {
			for _, raw := range []string{"objstorage", "pristine", "database does not", "\n"} {
				if strings.Contains(err.Error(), raw) {
					t.Errorf("without %s: %q", name, err)
				}
			}
			kind, _, _ := strings.Cut(strings.TrimPrefix(path.Base(name), "marker."), ".")
			gap := isLog(name) && strings.Contains(err.Error(), "a log is missing") // seen at the log behind it, whose name is told
			if !gap && !strings.Contains(err.Error(), kind) {
				t.Errorf("without %s, which is not named: %v", name, err)
			}
		}
		t.Logf("without %-32s generation %d, %v", name, gen, err)
	}
}
