package meta

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/meta/metatest"
)

// The script of the fault tests: commits of generation 1 to n, with records
// large enough that the small memtables of scriptOptions are flushed and
// compacted on the way.
const scriptCommits = 40

func scriptOptions(fs vfs.FS) Options {
	return Options{Dir: "/d/m", FS: fs, MemTableBytes: 24 << 10}
}

// scriptBatch is the commit of generation gen, applied to model as well.
func scriptBatch(gen uint64, model map[string]Record) *Batch {
	b := NewBatch()
	for i := range uint64(3) {
		key := fmt.Sprintf("key %02d", (gen*7+i*5)%29)
		if gen%4 == 0 && i == 0 {
			b.Delete(1, []byte(key))
			delete(model, "1/"+key)
			continue
		}
		r := testRecord(gen, int64(gen%5)*40<<20)
		b.Put(1, []byte(key), r)
		model["1/"+key] = *r
	}
	b.SetLastGen(gen)
	return b
}

// scriptModel is the state after the commit of generation gen.
func scriptModel(gen uint64) map[string]Record {
	model := map[string]Record{}
	for g := uint64(1); g <= gen; g++ {
		scriptBatch(g, model)
	}
	return model
}

// runScript commits from the given generation on and returns the last one that
// was acknowledged, and the error that stopped it.
func runScript(d *DB, from uint64) (uint64, error) {
	for gen := from; gen <= scriptCommits; gen++ {
		if err := d.Commit(ctx(), scriptBatch(gen, map[string]Record{})); err != nil {
			return gen - 1, err
		}
	}
	return scriptCommits, nil
}

// checkState fails unless d shows the state after some commit between low and
// high, and returns which.
func checkState(t testing.TB, d *DB, low, high uint64) uint64 {
	t.Helper()
	gen := d.Header().LastGen
	if gen < low || gen > high {
		t.Fatalf("generation %d after reopening, want %d to %d", gen, low, high)
	}
	if got, want := scan(t, d), scriptModel(gen); !maps.EqualFunc(got, want, same) {
		t.Fatalf("state of generation %d: got %d records, want %d", gen, len(got), len(want))
	}
	return gen
}

// countChanges runs the script without faults and returns the number of changes
// of create, open, commits and close together.
func countChanges(t testing.TB) int64 {
	t.Helper()
	fs := memFS()
	d := newDB(t, scriptOptions(fs))
	if _, err := runScript(d, 1); err != nil {
		t.Fatal(err)
	}
	closeDB(t, d)
	return fs.Changes()
}

// afterFence checks what must hold on a fenced DB: commits are refused, readers
// see the acknowledged state, and no change reaches the disk any more.
func afterFence(t *testing.T, d *DB, fs *metatest.FS, acked uint64) {
	t.Helper()
	if d.Fenced() == nil {
		t.Fatal("a commit failed but the fence is up")
	}
	if !d.fs.waitDrained(time.After(time.Minute)) {
		t.Fatal("changes hang in the file system")
	}
	before := fs.Changes()
	b := scriptBatch(acked+2, map[string]Record{})
	if err := d.Commit(ctx(), b); !errors.Is(err, base.ErrReadOnly) || errors.Is(err, base.ErrUnknown) {
		t.Fatalf("commit behind the fence: %v", err)
	}
	if _, err := d.CreateNamespace(ctx(), "late", [16]byte{}); !errors.Is(err, base.ErrReadOnly) {
		t.Fatalf("namespace behind the fence: %v", err)
	}
	for i, model := 0, scriptModel(acked); i < 3; i++ { // some are there, some are not
		key := fmt.Sprintf("key %02d", i)
		r, err := d.Get(1, []byte(key))
		want, there := model["1/"+key]
		if there && (err != nil || !same(r, want)) || !there && !errors.Is(err, base.ErrNotFound) {
			t.Fatalf("get %s behind the fence: %v, %v; there: %v", key, r, err, there)
		}
	}
	if err := d.WriteIdentity(testID); !errors.Is(err, base.ErrReadOnly) {
		t.Fatalf("identity behind the fence: %v", err)
	}
	if got, want := scan(t, d), scriptModel(acked); !maps.EqualFunc(got, want, same) {
		t.Fatalf("readers behind the fence see %d records, want %d of generation %d", len(got), len(want), acked)
	}
	time.Sleep(time.Millisecond)
	if now := fs.Changes(); now != before {
		t.Fatalf("%d changes passed the fence", now-before)
	}
}

// faultRun runs create, open, script and close with a fault armed by arm, then
// clears it and checks what the next open shows.
func faultRun(t *testing.T, k int64, arm func(fs *metatest.FS)) (outcome string) {
	fs := metatest.NewCrashFS()
	o := scriptOptions(fs)
	arm(fs)
	err := Create(o, testID)
	if err != nil {
		fs.Clear()
		_, found := ReadIdentity(o) // the last sync failed, and so did the removal
		if err := Create(o, testID); err != nil && (found != nil || !errors.Is(err, base.ErrExists)) {
			t.Fatalf("step %d: create again: %v", k, err)
		}
		closeDB(t, openDB(t, o))
		return "create"
	}
	d, err := Open(o)
	if err != nil {
		if errors.Is(err, base.ErrCorrupt) || errors.Is(err, base.ErrLocked) {
			t.Fatalf("step %d: open: %v", k, err)
		}
		fs.Clear()
		d = openDB(t, o)
		checkState(t, d, 0, 0)
		closeDB(t, d)
		return "open"
	}
	acked, err := runScript(d, 1)
	high := acked
	outcome = "none"
	if err != nil {
		outcome = "commit"
		if errors.Is(err, base.ErrUnknown) {
			high++
		} else if !errors.Is(err, base.ErrReadOnly) {
			t.Fatalf("step %d: commit %d: %v", k, acked+1, err)
		}
		afterFence(t, d, fs, acked)
	}
	if err := d.Close(ctx()); err != nil && outcome == "none" {
		outcome = "close"
	}
	rng := newRand(t)
	for _, percent := range []int{0, 50} {
		c := openDB(t, scriptOptions(fs.Clone(rng, percent)))
		checkState(t, c, acked, high)
		closeDB(t, c)
	}
	fs.Clear()
	d = openDB(t, o)
	gen := checkState(t, d, acked, high)
	if _, err := runScript(d, gen+1); err != nil {
		t.Fatalf("step %d: going on after reopening: %v", k, err)
	}
	checkState(t, d, scriptCommits, scriptCommits)
	closeDB(t, d)
	return outcome
}

// forEachFault runs faultRun for every step, a few at a time; under the race
// detector for every fifth, since the goroutines are the same in all.
func forEachFault(t *testing.T, arm func(k int64) func(fs *metatest.FS)) {
	n, start, stride := countChanges(t), int64(1), int64(1)
	if testenv.Race {
		stride = 5
		start += newRand(t).Int64N(stride)
	}
	var mu sync.Mutex
	outcomes := map[string]int{}
	t.Run("steps", func(t *testing.T) {
		const lanes = 8
		for lane := range int64(lanes) {
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				for k := start + lane*stride; k <= n; k += lanes * stride {
					what := faultRun(t, k, arm(k))
					mu.Lock()
					outcomes[what]++
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("%d steps, failed in: %v; %d goroutines parked", n, outcomes, ParkedGoroutines())
	for _, what := range []string{"create", "open", "commit"} {
		if outcomes[what] == 0 {
			t.Errorf("no fault hit %s", what)
		}
	}
}

func TestEveryChangeFailsOnce(t *testing.T) {
	forEachFault(t, func(k int64) func(*metatest.FS) {
		return func(fs *metatest.FS) { fs.FailAt(k, nil, false) }
	})
}

func TestEveryChangeFailsFromThenOn(t *testing.T) {
	forEachFault(t, func(k int64) func(*metatest.FS) {
		return func(fs *metatest.FS) { fs.FailAt(k, syscall.EROFS, true) }
	})
}

func TestDiskFullAtEveryChange(t *testing.T) {
	forEachFault(t, func(k int64) func(*metatest.FS) {
		return func(fs *metatest.FS) { fs.FullAt(k) }
	})
}
