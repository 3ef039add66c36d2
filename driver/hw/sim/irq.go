package sim

import (
	"context"
	"sync"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// vector is one MSI-X vector with an eventfd behind it.
type vector struct {
	s      *Sim
	n      int
	signal chan struct{} // holds a token after an interrupt
	closed chan struct{}
	once   sync.Once
}

// Vectors implements hw.Interrupts.
func (s *Sim) Vectors() int { return len(s.vectors) }

// Vector implements hw.Interrupts.
func (s *Sim) Vector(n int) (hw.Vector, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case n < 0 || n >= len(s.vectors):
		return nil, base.Errorf("open vector of", s.id.Target, base.ErrOutOfRange, "%d of %d", n, len(s.vectors))
	case s.vectors[n] != nil:
		return nil, base.Errorf("open vector of", s.id.Target, base.ErrBusy, "vector %d is open", n)
	}
	v := &vector{s: s, n: n, signal: make(chan struct{}, 1), closed: make(chan struct{})}
	s.vectors[n] = v
	return v, nil
}

// Raise sends an interrupt, for tests of the seam.
func (s *Sim) Raise(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raise(uint16(n))
}

func (s *Sim) raise(n uint16) {
	s.counts.Interrupts++
	if v := s.vectors[n]; v != nil {
		v.Wake()
	}
}

// wakeAll makes waiters look again.
func (s *Sim) wakeAll() {
	s.kicks.Add(1)
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Wake implements hw.Vector.
func (v *vector) Wake() {
	select {
	case v.signal <- struct{}{}:
	default:
	}
}

// Close implements hw.Vector.
func (v *vector) Close() error {
	v.once.Do(func() {
		v.s.mu.Lock()
		v.s.vectors[v.n] = nil
		v.s.mu.Unlock()
		close(v.closed)
	})
	return nil
}

// Wait implements hw.Vector. While it waits the model works.
func (v *vector) Wait(ctx context.Context) error {
	for {
		select {
		case <-v.closed:
			return base.Errorf("wait for", v.s.id.Target, base.ErrClosed, "vector %d", v.n)
		default:
		}
		select {
		case <-v.signal:
			return nil
		default:
		}
		if v.s.advance() {
			if ctx.Err() == nil {
				continue
			}
		}
		if err := v.block(ctx); err != nil {
			return err
		}
	}
}

// advance lets the model work until it has nothing to do now or later.
func (s *Sim) advance() bool {
	if s.cfg.Dedicated {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.step(hw.Forever)
}

// A timer of Go may be late by a millisecond when the process is otherwise idle. So
// when something is due within napUnder, one of those who wait sleeps more exactly,
// for napFor at a time.
const (
	napUnder = 2 * time.Millisecond
	napFor   = 100 * time.Microsecond
)

// block sleeps until something may have happened.
func (v *vector) block(ctx context.Context) error {
	rest := time.Duration(time.Hour)
	if v.s.cfg.Real && !v.s.cfg.Dedicated {
		v.s.mu.Lock()
		rest = min(rest, v.s.upcoming()-v.s.clock())
		v.s.mu.Unlock()
	}
	if rest < napUnder && ctx.Err() == nil && v.s.napping.CompareAndSwap(false, true) {
		unix.Delay(min(rest, napFor))
		v.s.napping.Store(false)
		return nil
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-v.signal:
		v.Wake() // the loop takes it
	case <-v.closed:
	case <-v.s.kick:
	case <-timer.C:
	case <-ctx.Done():
		return base.Errorf("wait for", v.s.id.Target, base.ErrTimeout, "vector %d: %w", v.n, ctx.Err())
	}
	return nil
}
