package meta

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta/metatest"
)

// events collects what OnEvent hears.
type events struct {
	mu  sync.Mutex
	all []Event
}

func (e *events) add(ev Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
}

func (e *events) find(k Kind) *Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.all {
		if e.all[i].Kind == k {
			return &e.all[i]
		}
	}
	return nil
}

// slowSync is the first event of a slow sync of a log: on a busy machine others
// may be slow, too.
func (e *events) slowSync() *Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.all {
		if e.all[i].Kind == DiskSlow && e.all[i].Text == "sync" && isLog(e.all[i].Path) {
			return &e.all[i]
		}
	}
	return nil
}

// await waits for an event of the kind.
func (e *events) await(t *testing.T, k Kind) Event {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ev := e.find(k); ev != nil {
			return *ev
		}
	}
	t.Fatalf("no event %v", k)
	return Event{}
}

// TestCloseWithUsers closes while goroutines read and commit: they get ErrClosed
// and Close returns nil.
func TestCloseWithUsers(t *testing.T) {
	for range 20 {
		d := newDB(t, scriptOptions(memFS()))
		if _, err := runScript(d, 1); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		use := func(f func() error) {
			wg.Go(func() {
				for {
					if err := f(); err != nil {
						if !errors.Is(err, base.ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		var gen atomic.Uint64
		gen.Store(scriptCommits)
		for range 8 {
			use(func() error { _, err := d.Get(1, []byte("key 01")); return ignore(err, base.ErrNotFound) })
			use(func() error { return d.Scan(ctx(), func(uint32, []byte, *Record) error { return nil }) })
			use(func() error {
				it := d.Iter(1, []byte("key"), nil)
				for it.Next() {
				}
				return it.Close()
			})
			use(func() error {
				b := NewBatch()
				b.Put(1, []byte("x"), testRecord(gen.Add(1), 1))
				return d.Commit(ctx(), b)
			})
		}
		time.Sleep(2 * time.Millisecond)
		closeDB(t, d)
		wg.Wait()
		closeDB(t, d) // again
		if _, err := d.Namespaces(); !errors.Is(err, base.ErrClosed) {
			t.Fatal(err)
		}
	}
}

func ignore(err, class error) error {
	if errors.Is(err, class) {
		return nil
	}
	return err
}

func TestCloseWaitsForIterators(t *testing.T) {
	d := newDB(t, Options{Dir: "/m", FS: memFS()})
	put(t, d, 1, 1, "a", "b")
	it := d.Iter(1, nil, nil)
	if !it.Next() {
		t.Fatal(it.Err())
	}
	short, cancel := context.WithTimeout(ctx(), 20*time.Millisecond)
	defer cancel()
	if err := d.Close(short); !errors.Is(err, base.ErrBusy) {
		t.Fatal(err)
	}
	if string(it.Key()) != "a" || it.Record().Gen != 1 {
		t.Error("the iterator's record is gone")
	}
	if it.Next() || !errors.Is(it.Err(), base.ErrClosed) {
		t.Error(it.Err())
	}
	_ = it.Close()
	closeDB(t, d)
}

// TestCommitDeadline lets a log sync hang: the commit is unknown, the fence
// falls, readers see the state before, and Close gives the lock back only when
// the last change has ended.
func TestCommitDeadline(t *testing.T) {
	var ev events
	fs := memFS()
	o := Options{Dir: "/m", FS: fs, SlowAfter: 20 * time.Millisecond, OnEvent: ev.add}
	d := newDB(t, o)
	put(t, d, 1, 1, "a")
	d.o.CommitDeadline = 500 * time.Millisecond
	hang := make(chan struct{})
	fs.Before(func(op metatest.Op) {
		if op.Name == "sync" && isLog(op.Path) {
			<-hang
		}
	})
	b := NewBatch()
	b.Put(1, []byte("b"), testRecord(2, 1))
	b.SetLastGen(2)
	start := time.Now()
	err := d.Commit(ctx(), b)
	if !errors.Is(err, base.ErrUnknown) || !errors.Is(err, base.ErrTimeout) || time.Since(start) > 30*time.Second {
		t.Fatal(err)
	}
	if e := ev.slowSync(); e == nil || e.Duration < 20*time.Millisecond {
		t.Fatalf("%+v", e)
	}
	ev.await(t, Fenced) // the fence is told of beside the commit
	if d.Fenced() == nil || d.Header().LastGen != 1 || len(scan(t, d)) != 1 {
		t.Fatal("not as after an unknown commit")
	}
	b.Reset()
	b.Put(1, []byte("c"), testRecord(3, 1))
	if err := d.Commit(ctx(), b); !errors.Is(err, base.ErrReadOnly) {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx(), 30*time.Millisecond)
	defer cancel()
	if err := d.Close(short); !errors.Is(err, base.ErrTimeout) {
		t.Fatal(err)
	}
	if _, err := Open(o); !errors.Is(err, base.ErrLocked) {
		t.Fatalf("a late write could still land: %v", err)
	}
	fs.Before(nil)
	close(hang)
	closeDB(t, d)
	d = openDB(t, o)
	if gen := d.Header().LastGen; gen != 1 && gen != 2 || len(scan(t, d)) != int(gen) {
		t.Fatal(gen)
	}
	closeDB(t, d)
}

// TestCommitContext ends a context while a commit waits for its turn, and while
// it is on its way.
func TestCommitContext(t *testing.T) {
	fs := memFS()
	d := newDB(t, Options{Dir: "/m", FS: fs})
	entered, hang := make(chan struct{}), make(chan struct{})
	fs.Before(func(op metatest.Op) {
		if op.Name == "sync" && isLog(op.Path) {
			entered <- struct{}{}
			<-hang
		}
	})
	c, cancel := context.WithCancel(ctx())
	first := make(chan error, 1)
	commit := func(key string) error {
		b := NewBatch()
		b.Put(1, []byte(key), testRecord(1, 1))
		return d.Commit(c, b)
	}
	go func() { first <- commit("a") }()
	<-entered
	cancel()
	if err := commit("b"); !errors.Is(err, base.ErrTimeout) || !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := d.Get(1, []byte("a")); !errors.Is(err, base.ErrNotFound) {
		t.Fatalf("a commit is visible before it is durable: %v", err)
	}
	close(hang)
	if err := <-first; err != nil {
		t.Fatalf("a context ended a commit that was on its way: %v", err)
	}
	fs.Before(nil)
	if got := scan(t, d); len(got) != 1 {
		t.Fatal(got)
	}
	closeDB(t, d)
}

// TestBackgroundErrors lets every table write fail: events, no endless loop, a
// degraded state, and recovery.
func TestBackgroundErrors(t *testing.T) {
	var ev events
	o := scriptOptions(nil)
	fs := &tablesFail{FS: memFS()}
	o.FS, o.OnEvent = fs, ev.add
	d := newDB(t, o)
	fs.on.Store(true)
	done := make(chan error, 1)
	go func() { _, err := runScript(d, 1); done <- err }()
	e := ev.await(t, Degraded)
	if e.Err == nil || d.Fenced() != nil || ev.find(BackgroundError) == nil {
		t.Fatalf("%+v, fence %v", e, d.Fenced())
	}
	if n := fs.tries.Load(); n > 100 {
		t.Errorf("%d tries without a pause", n)
	}
	fs.on.Store(false)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ev.await(t, Recovered)
	checkState(t, d, scriptCommits, scriptCommits)
	closeDB(t, d)
}

// TestCloseDeadline closes while a flush cannot end.
func TestCloseDeadline(t *testing.T) {
	fs := memFS()
	o := scriptOptions(fs)
	d := newDB(t, o)
	hang, entered := make(chan struct{}), make(chan struct{})
	var once sync.Once
	fs.Before(func(op metatest.Op) {
		if isTable(op.Path) {
			once.Do(func() { close(entered) })
			<-hang
		}
	})
	go func() { _, _ = runScript(d, 1) }()
	<-entered
	acked := d.Header().LastGen
	short, cancel := context.WithTimeout(ctx(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := d.Close(short)
	if !errors.Is(err, base.ErrTimeout) && !errors.Is(err, base.ErrBusy) || time.Since(start) > 30*time.Second {
		t.Fatal(err)
	}
	close(hang)
	_ = d.Close(ctx())
	fs.Before(nil)
	d = openDB(t, o)
	checkState(t, d, acked, scriptCommits)
	closeDB(t, d)
}

// TestErrorTexts looks at what an operator reads.
func TestErrorTexts(t *testing.T) {
	fs := memFS()
	o := Options{Dir: "/m", FS: fs}
	d := newDB(t, o)
	put(t, d, 1, 1, "a")
	fs.FullAt(1)
	b := NewBatch()
	b.Put(1, []byte("b"), testRecord(2, 1))
	err := d.Commit(ctx(), b)
	if !errors.Is(err, base.ErrUnknown) || !errors.Is(err, base.ErrMetaFull) {
		t.Fatal(err)
	}
	for _, want := range []string{".log", "free", "no space left"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	b.Reset()
	b.Delete(1, []byte("a"))
	if err := d.Commit(ctx(), b); !errors.Is(err, base.ErrReadOnly) || !errors.Is(err, base.ErrMetaFull) {
		t.Fatal(err)
	}
	closeDB(t, d)
}
