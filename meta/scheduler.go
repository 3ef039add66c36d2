package meta

import (
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// scheduler grants Pebble's compactions, one at a time. Unlike Pebble's own it
// grants none while Open runs, because an Open that fails afterwards frees what
// the compaction uses and the process ends with a panic; it pauses after a
// failure, because Pebble itself tries again at once; and it has no goroutine.
type scheduler struct {
	mu       sync.Mutex
	granting sync.WaitGroup // calls of grant that are under way
	db       pebble.DBForCompaction
	held     bool // Open runs
	ended    bool
	running  bool
	waiting  bool // a compaction was refused, and Pebble waits to be asked
	refusals int  // compactions refused
	pause    time.Duration
	until    time.Time // no compaction before
}

// Pauses after failures in a row.
const (
	minCompactionPause = 50 * time.Millisecond
	maxCompactionPause = 10 * time.Second
)

var (
	_ pebble.CompactionScheduler   = (*scheduler)(nil)
	_ pebble.CompactionGrantHandle = (*scheduler)(nil)
)

func newScheduler() *scheduler { return &scheduler{held: true} }

// Register implements pebble.CompactionScheduler.
func (s *scheduler) Register(_ int, db pebble.DBForCompaction) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.db = db
}

// Unregister implements pebble.CompactionScheduler.
func (s *scheduler) Unregister() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.granting.Wait()
}

// TrySchedule implements pebble.CompactionScheduler. Pebble's mutex is held.
func (s *scheduler) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.free() {
		s.waiting = true
		s.refusals++
		return false, nil
	}
	s.running = true
	return true, s
}

// free reports whether a compaction may start.
func (s *scheduler) free() bool {
	return !s.held && !s.ended && !s.running && !time.Now().Before(s.until)
}

// UpdateGetAllowedWithoutPermission implements pebble.CompactionScheduler.
func (s *scheduler) UpdateGetAllowedWithoutPermission() {}

// Started implements pebble.CompactionGrantHandle.
func (s *scheduler) Started() {}

// MeasureCPU implements pebble.CompactionGrantHandle.
func (s *scheduler) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements pebble.CompactionGrantHandle.
func (s *scheduler) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// Done implements pebble.CompactionGrantHandle.
func (s *scheduler) Done() {
	s.mu.Lock()
	s.running = false
	s.mu.Unlock()
	s.grant()
}

// release ends the phase in which Open runs.
func (s *scheduler) release() {
	s.mu.Lock()
	s.held = false
	s.mu.Unlock()
	s.grant()
}

// failed starts a pause, longer each time; ok ends the series.
func (s *scheduler) failed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pause = min(max(2*s.pause, minCompactionPause), maxCompactionPause)
	s.until = time.Now().Add(s.pause)
	time.AfterFunc(s.pause, s.grant)
}

func (s *scheduler) ok() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pause = 0
}

// grant starts the compaction that waits, if one does. It takes Pebble's mutex.
// Once refused, Pebble does not call TrySchedule again before it was asked and
// had nothing to do: so it is asked after each compaction until then.
func (s *scheduler) grant() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.free() && s.waiting && s.db != nil {
		s.running = true
		refusals := s.refusals
		s.granting.Add(1)
		db := s.db
		s.mu.Unlock()
		ok, _ := db.GetWaitingCompaction()
		ok = ok && db.Schedule(s)
		s.granting.Done()
		s.mu.Lock()
		if ok {
			return // the compaction's end asks again
		}
		s.running = false
		s.waiting = s.refusals != refusals // refused while it was asked
	}
}
