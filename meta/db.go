package meta

import (
	"errors"
	iofs "io/fs"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// DB is an open metadata directory. All methods are safe for concurrent use.
type DB struct {
	o     Options
	p     *pebble.DB
	fs    *fenceFS
	fence *fence
	lock  *dirLock
	life  *life
	sched *scheduler
	iters atomic.Int64

	turn     chan struct{}       // holds the right to commit
	sent     atomic.Pointer[job] // the commit under way
	logFirst atomic.Bool         // see yieldingComparer
	reap     chan struct{}       // wakes the reaper
	reaped   chan struct{}       // closed when it has ended

	mu         sync.Mutex // guards what follows
	header     Header
	namespaces []Namespace
	failures   int // background errors in a row

	views viewSet

	closeOnce sync.Once
	closed    chan struct{} // closed when closing has ended
	closeErr  error
}

// Header is what the store needs before it looks at objects.
type Header struct {
	Store   [16]byte // of the database; Open has compared it with the identity file
	Epoch   uint64
	LastGen uint64 // generation of the last commit that returned
	NextNS  uint32
}

// Header returns the committed header.
func (d *DB) Header() Header {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.header
}

// Fenced is nil, or why nothing is written any more. The cause has the class
// ErrMetaFull when the disk is full.
func (d *DB) Fenced() error { return d.fence.err() }

// Open opens an existing metadata directory and never makes one. Errors:
// ErrNotFound (no store there), ErrLocked, ErrCorrupt (damaged or of a newer
// program), ErrMismatch (the database belongs to another store than the identity
// file), ErrMetaFull, ErrTimeout. An open that refuses changes nothing, but makes
// a lost lock file again.
func Open(o Options) (*DB, error) {
	o = o.withDefaults()
	id, err := ReadIdentity(o)
	if err != nil {
		return nil, err
	}
	if st, err := o.FS.Stat(o.path(databaseName)); err != nil || !st.IsDir() {
		if err == nil || errors.Is(err, iofs.ErrNotExist) {
			err = base.Errorf("open metadata", o.path(databaseName), base.ErrCorrupt, "the identity is there but the database is missing")
			return nil, base.WithHint(err, "%s", damagedHint)
		}
		return nil, denied(o.Dir, base.Wrap("open metadata", o.Dir, err))
	}
	if !o.ReadOnly {
		if err := RestoreLock(o); err != nil {
			return nil, err
		}
	}
	lock, err := takeLock(o, o.ReadOnly)
	if err != nil {
		return nil, err
	}
	d, err := openLocked(o, lock, false)
	if errors.Is(err, base.ErrMetaFull) && dropBallast(o) {
		d, err = openLocked(o, lock, false)
	}
	if err == nil && d.header.Store != id.Store {
		err = base.Errorf("open metadata", o.Dir, base.ErrMismatch, "the database is of store %x, the identity file of %x", d.header.Store, id.Store)
		d.discard()
	}
	if err != nil {
		return nil, errors.Join(err, lock.release())
	}
	restoreBallast(o, d.fs)
	return d, nil
}

// RestoreLock makes the lock file of a directory again if it was lost: it holds
// nothing. Open does so for writing; it is for who reads first and writes then.
// Errors: those of the file system, ErrMetaFull, ErrLocked if a living owner is found
// whose lock it was.
func RestoreLock(o Options) error {
	o = o.withDefaults()
	_, err := o.FS.Stat(o.path(lockName))
	if errors.Is(err, iofs.ErrNotExist) {
		if err := unowned(o, false); err != nil {
			return err
		}
		err = writeFile(o.FS, o.path(lockName), nil, "")
		if err == nil {
			err = syncDir(o.FS, o.Dir)
		}
	}
	if err != nil {
		return ioError("open metadata", o, o.path(lockName), err)
	}
	return nil
}

// openLocked opens Pebble under a held lock, which stays the caller's when it
// fails.
func openLocked(o Options, lock *dirLock, create bool) (*DB, error) {
	f := newFence(o.OnEvent)
	d := &DB{o: o, fs: newFenceFS(o, f, lock), fence: f, lock: lock, life: newLife(), sched: newScheduler(),
		turn: make(chan struct{}, 1),
		reap: make(chan struct{}, 1), reaped: make(chan struct{}), closed: make(chan struct{})}
	if err := d.openPebble(create); err != nil {
		if !d.fs.waitDrained(time.After(fatalGrace)) {
			lock.after = append(lock.after, d.fs)
			return nil, err
		}
		d.fs.closeFiles()
		return nil, err
	}
	d.fs.opened()
	d.sched.release()
	go d.watchFence()
	go d.reaper()
	if create {
		return d, nil
	}
	if err := d.load(); err != nil {
		d.discard()
		return nil, openError(o, err)
	}
	return d, nil
}

type opened struct {
	p   *pebble.DB
	err error
}

// openPebble runs Pebble's Open on a goroutine of its own: on its fatal path it
// may never return.
func (d *DB) openPebble(create bool) error {
	po := d.pebbleOptions(create)
	done := make(chan opened, 1)
	go func() {
		var r opened
		defer func() {
			if p := recover(); p != nil {
				r = opened{err: panicError(p)}
				d.fence.trip(r.err)
			}
			done <- r
		}()
		r.p, r.err = pebble.Open(d.o.path(databaseName), po)
	}()
	timer := time.NewTimer(openDeadline)
	defer timer.Stop()
	var r opened
	select {
	case r = <-done:
	case <-timer.C:
		d.fence.trip(base.Errorf("open metadata", d.o.Dir, base.ErrTimeout, "Pebble did not open within %v", openDeadline))
		parked.Add(1)
		return openError(d.o, d.fence.err())
	case <-d.fence.ch:
		// The opener may be on its way back with the error, or wait for a parked
		// goroutine for ever.
		select {
		case r = <-done:
		case <-time.After(fatalGrace):
			parked.Add(1)
			return openError(d.o, d.fence.err())
		}
	}
	po.Cache.Unref()
	po.FileCache.Unref()
	if cause := d.fence.err(); cause != nil {
		if r.p != nil {
			parked.Add(1) // what Pebble runs in the background is abandoned
		}
		return openError(d.o, cause)
	}
	if r.err != nil {
		if err := optionsError(d.o, r.err); err != nil {
			return err
		}
		return openError(d.o, r.err)
	}
	d.p = r.p
	return nil
}

// fatalGrace is how long a fatal open may take to clean up.
const fatalGrace = 100 * time.Millisecond

func (d *DB) pebbleOptions(create bool) *pebble.Options {
	po := &pebble.Options{
		FS:                          d.fs,
		Logger:                      logger{d.fence},
		FormatMajorVersion:          pebble.FormatNewest,
		Comparer:                    yieldingComparer(&d.logFirst, runtime.Gosched),
		MemTableSize:                d.o.MemTableBytes,
		MemTableStopWritesThreshold: memTableStop,
		Cache:                       pebble.NewCache(cacheBytes),
		FileCache:                   pebble.NewFileCache(1, tableFiles()),
		MaxOpenFiles:                tableFiles(),
		MaxManifestFileSize:         maxManifestBytes,
		ReadOnly:                    d.o.ReadOnly,
		ErrorIfExists:               create,
		ErrorIfNotExists:            !create,
		EventListener:               d.listener(),
		// With a damaged table their collection repeats at once and for ever.
		DisableTableStats: true,
	}
	// Sampling reads would take Pebble's mutex when an iterator is closed.
	po.Experimental.ReadSamplingMultiplier = -1
	po.Experimental.CompactionScheduler = d.sched
	return po
}

// tableFiles is how many tables may be open, an eighth of the process's limit:
// devices, rings and the caller need descriptors too.
func tableFiles() int {
	l, err := unix.GetRlimit(unix.RlimitNofile)
	if err != nil || l.Soft > maxTableFiles*8 {
		return maxTableFiles
	}
	return max(int(l.Soft/8), minTableFiles)
}

// listener turns Pebble's events into ours. It is called with Pebble's mutex
// held.
func (d *DB) listener() *pebble.EventListener {
	healthy := func(err error) {
		if err == nil {
			d.workDone()
		}
	}
	return &pebble.EventListener{
		BackgroundError: d.backgroundError,
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			d.o.OnEvent(Event{Kind: Corruption, Text: i.String(), Path: i.Path, Err: i.Details})
		},
		FlushEnd:        func(i pebble.FlushInfo) { healthy(i.Err) },
		CompactionEnd:   func(i pebble.CompactionInfo) { healthy(i.Err) },
		WriteStallBegin: func(i pebble.WriteStallBeginInfo) { d.o.OnEvent(Event{Kind: WriteStall, Text: i.Reason}) },
	}
}

// backgroundError counts a failed flush or compaction. While Open runs it ends
// the open, because Pebble would try for ever.
func (d *DB) backgroundError(err error) {
	d.fs.stats.background.Add(1)
	d.o.OnEvent(Event{Kind: BackgroundError, Text: err.Error(), Err: err})
	if d.fs.opening.Load() {
		d.fence.trip(err)
	}
	d.sched.failed()
	d.mu.Lock()
	d.failures++
	degraded := d.failures == degradedAfter
	d.mu.Unlock()
	if degraded {
		d.o.OnEvent(Event{Kind: Degraded, Text: "flushes or compactions of the metadata keep failing", Err: err})
	}
}

func (d *DB) workDone() {
	d.fs.backoff.Store(0)
	d.sched.ok()
	d.mu.Lock()
	was := d.failures
	d.failures = 0
	d.mu.Unlock()
	if was >= degradedAfter {
		d.o.OnEvent(Event{Kind: Recovered, Text: "flushes and compactions of the metadata work again"})
	}
}

// load reads header and namespaces and takes the first view.
func (d *DB) load() error {
	schema, err := d.singleton(keySchema)
	if err != nil {
		return err
	}
	if schema != schemaVersion {
		return base.Errorf("metadata", d.o.Dir, base.ErrCorrupt, "schema version %d, this program knows %d", schema, schemaVersion)
	}
	b, closer, err := d.p.Get(keyStore)
	if err != nil {
		return err
	}
	d.header.Store, err = decodeStore(b)
	if err := errors.Join(err, closer.Close()); err != nil {
		return err
	}
	if d.header.Epoch, err = d.singleton(keyEpoch); err != nil {
		return err
	}
	if d.header.LastGen, err = d.singleton(keyLastGen); err != nil {
		return err
	}
	next, err := d.singleton(keyNextNS)
	if err != nil {
		return err
	}
	d.header.NextNS = uint32(next)
	if err := d.loadNamespaces(); err != nil {
		return err
	}
	d.views.install(d.p.NewSnapshot())
	return nil
}

func (d *DB) singleton(key []byte) (uint64, error) {
	b, closer, err := d.p.Get(key)
	if err != nil {
		if errors.Is(err, pebble.ErrNotFound) {
			err = base.Errorf("metadata", d.o.Dir, base.ErrCorrupt, "singleton %x is missing", key)
		}
		return 0, err
	}
	v, err := decodeSingleton(key, b)
	return v, errors.Join(err, closer.Close())
}
