package file

import (
	"context"
	"sync"

	"github.com/ugds-store/ugds/driver"
)

// poolWorkers is the number of threads that block in system calls.
const poolWorkers = 32

// pool is the engine for kernels and sandboxes without io_uring.
type pool struct {
	d    *Device
	work chan *cmd // as long as there are slots, so that start never blocks
	wg   sync.WaitGroup
}

func newPool(d *Device, depth int) *pool {
	p := &pool{d: d, work: make(chan *cmd, depth)}
	for range min(poolWorkers, depth) {
		p.wg.Go(p.run)
	}
	return p
}

func (p *pool) run() {
	for c := range p.work {
		res := p.d.exec(c)
		p.d.mu.Lock()
		p.d.finish(c, res)
		p.d.mu.Unlock()
	}
}

func (p *pool) start(c *cmd) { p.work <- c }
func (p *pool) kick()        {}

func (p *pool) await(ctx context.Context, g goal, wake, cancel <-chan struct{}) error {
	for !g.Ended() {
		select {
		case <-wake:
		case <-cancel:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// tick: workers report at once, so that nothing that ended is unseen.
func (p *pool) tick() {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.d.reaped = p.d.now()
}

func (p *pool) buffer(*driver.Region) int32 { return -1 }
func (p *pool) attach(*driver.Region) error { return nil }
func (p *pool) forget(uint64) int32         { return -1 }
func (p *pool) release(int32)               {}
func (p *pool) close()                      { close(p.work); p.wg.Wait() }
