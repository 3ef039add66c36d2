package meta

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// viewSet holds the snapshot that readers use: the state after the last commit
// that returned. Pebble itself shows a batch before it is durable.
type viewSet struct {
	mu      sync.Mutex
	current *view
	dead    []*pebble.Snapshot // without users, to be closed by the reaper
}

// reapBatch is how many views without users may wait for the reaper. Each makes
// a flush keep one more version of the keys that changed meanwhile.
const reapBatch = 16

type view struct {
	snap    *pebble.Snapshot
	refs    int
	retired bool
}

// install makes snap the view. It takes no lock of Pebble.
func (s *viewSet) install(snap *pebble.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.current
	s.current = &view{snap: snap}
	if old != nil {
		s.retire(old)
	}
}

// full tells that the reaper has work.
func (s *viewSet) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dead) >= reapBatch
}

// reap closes views that nobody uses any more. Closing waits for a version edit
// of Pebble that is under way, and behind the fence perhaps for ever, so only
// the reaper calls it, on a goroutine of its own.
func (s *viewSet) reap() {
	s.mu.Lock()
	dead := s.dead
	s.dead = nil
	s.mu.Unlock()
	for _, snap := range dead {
		_ = snap.Close()
	}
}

func (s *viewSet) retire(v *view) {
	v.retired = true
	if v.refs == 0 {
		s.dead = append(s.dead, v.snap)
	}
}

// get lends the view. Readers never close a snapshot.
func (s *viewSet) get() *view {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.refs++
	return s.current
}

func (s *viewSet) put(v *view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.refs--; v.refs == 0 && v.retired {
		s.dead = append(s.dead, v.snap)
	}
}

// close closes all snapshots; nobody uses one any more.
func (s *viewSet) close() {
	s.mu.Lock()
	dead := s.dead
	if s.current != nil {
		dead = append(dead, s.current.snap)
	}
	s.current, s.dead = nil, nil
	s.mu.Unlock()
	for _, snap := range dead {
		_ = snap.Close()
	}
}
