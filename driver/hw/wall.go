package hw

import (
	"runtime"
	"time"
)

// Wall is the clock of transports to hardware: the monotonic clock of the system
// since NewWall. A Pause gives the processor to another goroutine for an instant.
type Wall struct{ start time.Time }

// NewWall starts a clock.
func NewWall() Wall { return Wall{time.Now()} }

// Now implements Clock.
func (w Wall) Now() time.Duration { return time.Since(w.start) }

// Pause implements Clock. It does not sleep: a sleep takes many times as long as a
// command.
func (w Wall) Pause(time.Duration) { runtime.Gosched() }
