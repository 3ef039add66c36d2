package main

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/gpu"
)

// loop is the plain reader: each thread has two pinned buffers of 4 MiB.
type loop struct {
	lanes []struct {
		s    gpu.Stream
		h    gpu.HostMemory
		tick [2]uint64
	}
}

const loopTask = 4 << 20

func (r *rig) newLoop(threads int) (*loop, error) {
	l := &loop{}
	l.lanes = make([]struct {
		s    gpu.Stream
		h    gpu.HostMemory
		tick [2]uint64
	}, threads)
	for i := range l.lanes {
		var err error
		if l.lanes[i].s, err = r.d.NewStream(); err != nil {
			return nil, err
		}
		if l.lanes[i].h, err = r.d.AllocHost(2 * loopTask); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *loop) close() {
	for i := range l.lanes {
		l.lanes[i].s.Close()
		l.lanes[i].h.Close()
	}
}

func (l *loop) read(f *os.File, p gpu.Ptr, n int64) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for i := range l.lanes {
		wg.Go(func() {
			a := &l.lanes[i]
			for k := 0; ; k ^= 1 {
				off := next.Add(loopTask) - loopTask
				if off >= n {
					break
				}
				size := min(loopTask, n-off)
				buf := a.h.Bytes()[k*loopTask:][:size]
				err := a.s.WaitTick(ctx, a.tick[k])
				if err == nil {
					_, err = f.ReadAt(buf, off)
				}
				if err == nil {
					err = a.s.Copy(gpu.Copy{Dev: p + gpu.Ptr(off), Host: buf})
				}
				if err == nil {
					a.tick[k], err = a.s.Tick()
				}
				if err != nil {
					failed.Store(&err)
					return
				}
			}
			if err := errors.Join(a.s.WaitTick(ctx, a.tick[0]), a.s.WaitTick(ctx, a.tick[1])); err != nil {
				failed.Store(&err)
			}
		})
	}
	wg.Wait()
	if p := failed.Load(); p != nil {
		return *p
	}
	return nil
}
