package meta

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// The fence is a one-way door. Pebble treats some failures as fatal and wants
// the process to end; the store wants to live on and serve reads. So on the
// fatal path the fence falls: the file system wrapper lets no further change
// pass, the goroutine that failed is parked for ever, the DB takes no more
// commits, and what it holds is given back when the process ends or, for locks
// and descriptors, at Close.
//
// Where Pebble 2.1.7 ends a process or panics because of a file (read in its
// source), and what happens here:
//
//	db.go applyInternal            Fatalf  WAL write or sync failed          parked inside the wrapper, before
//	db.go commitWrite              panic   WAL writer already failed         Pebble sees the error
//	db.go rotateWAL                panic   WAL close, create or stat failed; likewise: this panic cannot be
//	                                       its mutex is not held but will    recovered, the runtime ends the
//	                                       be unlocked by a defer            process
//	wal/standalone_manager Create  Fatalf  WAL vanished before its open      likewise
//	version_set.go UpdateVersion   Fatalf  MANIFEST create, write, sync,     likewise: at the Fatalf Pebble holds
//	  (called logAndApply before)          marker                            the mutex that readers need
//	vfs/atomicfs Marker.Move       panic   directory sync failed, on a       likewise: the goroutine is Pebble's
//	                                       flush goroutine
//	version_set.go create          Fatalf  MANIFEST of a new database        panic, recovered in Create
//	event.go DataCorruption        Fatalf  only without a listener           own listener
//	table_stats.go                 Fatalf  remote objects only               not reachable
//	open.go replayWAL              panic   ingested tables in the WAL        recovered in Open; never written
//	format_major_version.go        Fatalf  a migration did not finish        panic, recovered in Open
//	compaction*.go, obsolete_files.go, merging_iter.go, level_iter.go, ingest.go:
//	                               Fatalf, panic on broken invariants        Fatalf parks; panics of the caller's
//	                                                                         goroutine are recovered, those on
//	                                                                         Pebble's own goroutines are not reachable
//
// A flush or compaction that fails to write a table is not fatal: Pebble tries
// again at once and for ever. The wrapper slows that down (fencefs.go).
type fence struct {
	ch      chan struct{} // closed when the fence falls
	onEvent func(Event)

	mu    sync.Mutex
	cause atomic.Pointer[error]
}

func newFence(onEvent func(Event)) *fence {
	return &fence{ch: make(chan struct{}), onEvent: onEvent}
}

// err is nil, or why the fence fell.
func (f *fence) err() error {
	if p := f.cause.Load(); p != nil {
		return *p
	}
	return nil
}

// trip lets the fence fall. The first cause stays.
func (f *fence) trip(cause error) {
	f.mu.Lock()
	first := f.cause.Load() == nil
	if first {
		f.cause.Store(&cause)
		close(f.ch)
	}
	f.mu.Unlock()
	if first {
		abandoned.Store(true)
		f.onEvent(Event{Kind: Fenced, Text: "metadata is read-only until the store is opened again", Err: cause})
	}
}

var parked atomic.Int64

// ParkedGoroutines counts the goroutines of this process that were parked for
// ever on Pebble's fatal path, or that wait for one that was. They are no leaks.
func ParkedGoroutines() int64 { return parked.Load() }

// ExemptGoroutine reports whether a goroutine with this stack belongs to a DB
// that was abandoned behind its fence; leak checks pass over it. Without such a
// DB nothing is exempt.
func ExemptGoroutine(stack string) bool {
	return abandoned.Load() && (strings.Contains(stack, "cockroachdb/pebble") || strings.Contains(stack, "meta.park"))
}

// abandoned tells that this process has left a Pebble database behind.
var abandoned atomic.Bool

// park never returns.
func park() {
	parked.Add(1)
	select {}
}

// fatalPanic carries the text of a fatal error out of Pebble's Open.
type fatalPanic struct{ error }

// logger is Pebble's: silent, and its Fatalf ends nothing.
type logger struct{ fence *fence }

var _ pebble.Logger = logger{}

// Infof drops the message: libraries of the project do not log.
func (logger) Infof(string, ...interface{}) {}

// Errorf drops the message: errors arrive as events.
func (logger) Errorf(string, ...interface{}) {}

// Fatalf lets the fence fall and does not return. Inside Pebble's Open it
// panics, because Open cleans up behind a panic of its own goroutine; elsewhere
// it parks.
func (l logger) Fatalf(format string, args ...interface{}) {
	err := fatalError(format, args)
	l.fence.trip(err)
	if insideOpen() {
		panic(fatalPanic{err})
	}
	park()
}

// insideOpen reports whether the calling goroutine is the one that runs Pebble's
// Open.
func insideOpen() bool {
	pc := make([]uintptr, 128)
	frames := runtime.CallersFrames(pc[:runtime.Callers(2, pc)])
	for {
		fr, more := frames.Next()
		if strings.HasSuffix(fr.Function, "cockroachdb/pebble/v2.Open") {
			return true
		}
		if !more {
			return false
		}
	}
}
