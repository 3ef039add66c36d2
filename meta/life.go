package meta

import (
	"sync"

	"github.com/ugds-store/ugds/internal/base"
)

// life counts the users of a DB, so that Close can turn new ones away and wait
// for the others.
type life struct {
	mu     sync.Mutex
	n      int
	ended  bool
	stop   chan struct{} // closed when Close begins
	idle   chan struct{} // closed when the last user leaves after that
	closed bool
}

func newLife() *life { return &life{stop: make(chan struct{}), idle: make(chan struct{})} }

func (l *life) enter(op string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return base.Errorf(op, "", base.ErrClosed, "the metadata is closed")
	}
	l.n++
	return nil
}

func (l *life) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n--
	l.signal()
}

func (l *life) signal() {
	if l.ended && l.n == 0 && !l.closed {
		l.closed = true
		close(l.idle)
	}
}

// end turns new users away. It may be called more than once.
func (l *life) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.ended = true
		close(l.stop)
	}
	l.signal()
}

// ending reports whether Close has begun.
func (l *life) ending() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

func (l *life) users() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}
