package gpu

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// How WaitCell waits: a bounded spin, then yielding, then short sleeps, so that
// a wait for a copy of a few microseconds costs no scheduling and a long one no
// processor. The sleep is the thread's: one by the runtime takes at least a
// millisecond on an idle machine, whatever was asked for.
const (
	spinLoads  = 256
	yieldFor   = 5 * time.Millisecond
	sleepFor   = 100 * time.Microsecond
	probeEvery = 2 * time.Millisecond
)

// CopyTick is Copy and then Tick, and gives the mark. Streams that can save calls of
// the library by doing both at once have a method of that name. On an error any of it
// may be queued.
func CopyTick(s Stream, list ...Copy) (uint64, error) {
	if both, ok := s.(interface {
		CopyTick(list ...Copy) (uint64, error)
	}); ok {
		return both.CopyTick(list...)
	}
	if err := s.Copy(list...); err != nil {
		return 0, err
	}
	return s.Tick()
}

// WaitCell waits until cell is n or more, by wrapping difference. probe is
// called every few milliseconds and ends the wait with its error: a GPU that
// failed never stores its mark. ErrTimeout when ctx ends first. For backends.
func WaitCell(ctx context.Context, cell *atomic.Uint64, n uint64, probe func() error) error {
	for range spinLoads {
		if int64(cell.Load()-n) >= 0 {
			return nil
		}
	}
	began := time.Now()
	probed := began
	for {
		for range 32 {
			if int64(cell.Load()-n) >= 0 {
				return nil
			}
			runtime.Gosched()
		}
		now := time.Now()
		if err := ctx.Err(); err != nil {
			return base.Errorf("wait for", "gpu stream", base.ErrTimeout, "%w", err)
		}
		if now.Sub(probed) >= probeEvery {
			if err := probe(); err != nil {
				return err
			}
			probed = now
		}
		if now.Sub(began) > yieldFor {
			unix.Sleep(sleepFor)
		}
	}
}
