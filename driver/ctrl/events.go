package ctrl

import (
	"sync"

	"github.com/ugds-store/ugds/driver"
)

// events hands changes of state to subscribers, in order, from a goroutine of its
// own, so that a subscriber may call the device.
type events struct {
	mu    sync.Mutex
	ids   int
	subs  []subscriber
	queue []driver.Event
	wake  chan struct{}
	done  sync.WaitGroup
}

type subscriber struct {
	id int
	fn func(driver.Event)
}

// start begins delivery; it ends by itself after StateClosed.
func (e *events) start() {
	e.wake = make(chan struct{}, 1)
	e.done.Go(e.deliver)
}

func (e *events) subscribe(fn func(driver.Event)) (cancel func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ids++
	id := e.ids
	e.subs = append(e.subs, subscriber{id, fn})
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for i := range e.subs {
			if e.subs[i].id == id {
				e.subs = append(e.subs[:i:i], e.subs[i+1:]...)
				return
			}
		}
	}
}

// post queues an event. There are as many as changes of state.
func (e *events) post(ev driver.Event) {
	e.mu.Lock()
	e.queue = append(e.queue, ev)
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *events) deliver() {
	for range e.wake {
		for {
			e.mu.Lock()
			if len(e.queue) == 0 {
				e.mu.Unlock()
				break
			}
			ev, subs := e.queue[0], e.subs
			e.queue = e.queue[1:]
			e.mu.Unlock()
			for _, s := range subs {
				s.fn(ev)
			}
			if ev.State == driver.StateClosed {
				return
			}
		}
	}
}
