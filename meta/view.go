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
	dead    []*pebble.Snapshot // without users, to be closed by the committer
}

type view struct {
	snap    *pebble.Snapshot
	refs    int
	retired bool
}

// refresh replaces the view. Only the committer and Open call it: it takes
// Pebble's mutex.
func (s *viewSet) refresh(p *pebble.DB) {
	next := &view{snap: p.NewSnapshot()}
	s.mu.Lock()
	old := s.current
	s.current = next
	if old != nil {
		s.retire(old)
	}
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

// get lends the view. Readers never close a snapshot: that takes Pebble's mutex,
// which may be held for ever behind the fence.
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
