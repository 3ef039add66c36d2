package meta

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/meta/metatest"
)

// TestPowerCutAtEveryChange cuts power before every change of create, open,
// commits and close, and opens what is left.
func TestPowerCutAtEveryChange(t *testing.T) {
	rounds := 2
	switch {
	case *long:
		rounds = 50
	case testenv.Race:
		rounds = 1
	}
	rng := newRand(t)
	cuts, none := 0, 0
	for range rounds {
		fs := metatest.NewCrashFS()
		type cut struct {
			fs         *metatest.FS
			acked, max uint64
			created    bool
		}
		var mu sync.Mutex
		var all []cut
		var acked, sent atomic.Uint64
		var created atomic.Bool
		fs.Before(func(metatest.Op) {
			mu.Lock()
			defer mu.Unlock()
			c := cut{acked: acked.Load(), created: created.Load()}
			c.fs = fs.Clone(rng, rng.IntN(5)*25)
			c.max = sent.Load()
			all = append(all, c)
		})
		d := newDB(t, scriptOptions(fs))
		created.Store(true)
		for gen := uint64(1); gen <= scriptCommits; gen++ {
			sent.Store(gen)
			if err := d.Commit(ctx(), scriptBatch(gen, map[string]Record{})); err != nil {
				t.Fatal(err)
			}
			acked.Store(gen)
		}
		closeDB(t, d)
		fs.Before(nil)
		for _, c := range all {
			cuts++
			o := scriptOptions(c.fs)
			d, err := Open(o)
			if !c.created && errors.Is(err, base.ErrNotFound) {
				none++
				if err := Create(o, testID); err != nil {
					t.Fatalf("create after a cut: %v", err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			gen := checkState(t, d, c.acked, c.max)
			if _, err := runScript(d, gen+1); err != nil {
				t.Fatal(err)
			}
			closeDB(t, d)
		}
	}
	t.Logf("%d cuts, %d of them before the metadata existed", cuts, none)
}

// TestLogMissing removes every log but the newest from images that need several
// of them: each table waits for three more commits. What is left may be older,
// never a state that was not.
func TestLogMissing(t *testing.T) {
	fs := metatest.NewCrashFS()
	var mu sync.Mutex
	var images []image
	var commits atomic.Int64
	var slow atomic.Bool // while the script runs
	fs.Before(func(op metatest.Op) {
		if op.Name == "create" && isTable(op.Path) && slow.Load() {
			want := commits.Load() + 3
			for end := time.Now().Add(time.Minute); commits.Load() < want && slow.Load() && time.Now().Before(end); time.Sleep(time.Millisecond) {
			}
		}
		if op.Name == "sync" && isLog(op.Path) {
			commits.Add(1)
			mu.Lock()
			defer mu.Unlock()
			images = append(images, takeImage(t, fs.Clone(nil, 0), "/d"))
		}
	})
	d := newDB(t, scriptOptions(fs))
	slow.Store(true)
	if _, err := runScript(d, 1); err != nil {
		t.Fatal(err)
	}
	slow.Store(false)
	closeDB(t, d)
	refused, harmless, older := 0, 0, 0
	for _, img := range images {
		logs := img.find(isLog)
		if len(logs) < 2 {
			continue
		}
		want, err := verdictOf(t, scriptOptions(nil), img, true)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range logs[:len(logs)-1] {
			copied := maps.Clone(img)
			delete(copied, name)
			gen, err := verdictOf(t, scriptOptions(nil), copied, true)
			switch {
			case errors.Is(err, base.ErrCorrupt):
				refused++
			case err == nil && gen == want:
				harmless++
			case err == nil && gen < want: // verdictOf has compared it with the model
				older++
			default:
				t.Errorf("without %s of %d logs: generation %d, want %d, %v", path.Base(name), len(logs), gen, want, err)
			}
		}
	}
	t.Logf("%d images: refused %d, harmless %d, older %d", len(images), refused, harmless, older)
	if refused == 0 {
		t.Error("no image needed an older log")
	}
}

// TestModel compares a DB with a map through random commits and reopenings.
func TestModel(t *testing.T) {
	rng := newRand(t)
	fs := memFS()
	o := scriptOptions(fs)
	d := newDB(t, o)
	model := map[string]Record{}
	rounds := 400
	if *long {
		rounds = 20000
	}
	for gen := uint64(1); gen <= uint64(rounds); gen++ {
		b := NewBatch()
		for range rng.IntN(8) + 1 {
			ns, key := uint32(1+rng.IntN(3)), fmt.Sprintf("k%d", rng.IntN(200))
			if rng.IntN(3) == 0 {
				b.Delete(ns, []byte(key))
				delete(model, fmt.Sprintf("%d/%s", ns, key))
				continue
			}
			r := testRecord(gen, rng.Int64N(40<<20))
			b.Put(ns, []byte(key), r)
			model[fmt.Sprintf("%d/%s", ns, key)] = *r
		}
		b.SetLastGen(gen)
		if err := d.Commit(ctx(), b); err != nil {
			t.Fatal(err)
		}
		if rng.IntN(20) == 0 {
			closeDB(t, d)
			d = openDB(t, o)
		}
		if rng.IntN(10) == 0 {
			if got := scan(t, d); !maps.EqualFunc(got, model, same) {
				t.Fatalf("generation %d: got %d records, want %d", gen, len(got), len(model))
			}
			checkIter(t, d, model, uint32(1+rng.IntN(3)), fmt.Sprint("k", rng.IntN(20)), fmt.Sprint("k", rng.IntN(200)))
		}
	}
	closeDB(t, d)
}

// checkIter compares a listing with the model.
func checkIter(t *testing.T, d *DB, model map[string]Record, ns uint32, prefix, after string) {
	t.Helper()
	want := map[string]Record{}
	for k, r := range model {
		if key, ok := strings.CutPrefix(k, fmt.Sprint(ns, "/")); ok && strings.HasPrefix(key, prefix) && key > after {
			want[key] = r
		}
	}
	it := d.Iter(ns, []byte(prefix), []byte(after))
	defer it.Close()
	previous := ""
	for it.Next() {
		key := string(it.Key())
		if key <= previous || !same(*it.Record(), want[key]) {
			t.Fatalf("%q after %q in a listing of %q after %q", key, previous, prefix, after)
		}
		previous = key
		delete(want, key)
	}
	if it.Err() != nil || len(want) != 0 {
		t.Fatalf("%d keys are missing in a listing of %q after %q: %v", len(want), prefix, after, it.Err())
	}
}
