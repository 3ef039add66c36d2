package file

import (
	"sync"

	"github.com/ugds-store/ugds/driver"
)

// events hands changes of state to subscribers, in order, from a goroutine of
// its own, so that a subscriber may call the device.
type events struct {
	mu    sync.Mutex
	next  int
	subs  map[int]func(driver.Event)
	queue []driver.Event
	wake  chan struct{}
}

// start begins delivery; it ends by itself after StateClosed.
func (e *events) start() {
	e.subs = make(map[int]func(driver.Event))
	e.wake = make(chan struct{}, 1)
	go e.deliver()
}

func (e *events) subscribe(fn func(driver.Event)) (cancel func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := e.next
	e.next++
	e.subs[id] = fn
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.subs, id)
	}
}

// post queues ev. The queue is bounded by the number of state changes.
func (e *events) post(ev driver.Event) {
	e.mu.Lock()
	e.queue = append(e.queue, ev)
	e.mu.Unlock()
	signal(e.wake)
}

func (e *events) deliver() {
	for range e.wake {
		for {
			e.mu.Lock()
			if len(e.queue) == 0 {
				e.mu.Unlock()
				break
			}
			ev := e.queue[0]
			e.queue = e.queue[1:]
			fns := make([]func(driver.Event), 0, len(e.subs))
			for id := range e.next { // in the order of subscription
				if fn := e.subs[id]; fn != nil {
					fns = append(fns, fn)
				}
			}
			e.mu.Unlock()
			for _, fn := range fns {
				fn(ev)
			}
			if ev.State == driver.StateClosed {
				return
			}
		}
	}
}
