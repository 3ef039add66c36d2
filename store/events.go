package store

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/internal/base"
)

// events hands events to subscribers. Each has a bounded ring of its own: a slow
// one loses the oldest events and is told how many.
type events struct {
	mu   sync.Mutex
	subs []*Subscription
	n    atomic.Int32 // len(subs), for a quick look
	over bool
}

// Subscription receives the events of a store from the moment it was made.
type Subscription struct {
	of *events

	mu     sync.Mutex
	ring   []Event
	head   int // oldest
	used   int
	missed int64
	closed bool
	ready  chan struct{} // holds a token when there is something to look at
}

// maxSubscription bounds the ring of one subscriber, in events.
const maxSubscription = 1 << 20

// Subscribe makes a subscription that holds up to size events, 1 to 1,048,576.
func (s *Store) Subscribe(size int) *Subscription {
	size = min(max(size, 1), maxSubscription)
	sub := &Subscription{of: &s.events, ring: make([]Event, size), ready: make(chan struct{}, 1)}
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	if s.events.over {
		sub.closed = true
		return sub
	}
	s.events.subs = append(s.events.subs, sub)
	s.events.n.Store(int32(len(s.events.subs)))
	return sub
}

// Next waits for the next event. ErrClosed after Close of the subscription or of
// the store, once the events left were read; ErrTimeout when ctx ends.
func (sub *Subscription) Next(ctx context.Context) (Event, error) {
	for {
		sub.mu.Lock()
		if sub.used > 0 {
			e := sub.ring[sub.head]
			sub.ring[sub.head] = Event{}
			sub.head = (sub.head + 1) % len(sub.ring)
			sub.used--
			sub.mu.Unlock()
			return e, nil
		}
		closed := sub.closed
		sub.mu.Unlock()
		if closed {
			return Event{}, base.Wrap("read", "events", ErrClosed)
		}
		select {
		case <-sub.ready:
		case <-ctx.Done():
			return Event{}, base.Errorf("read", "events", ErrTimeout, "%w", ctx.Err())
		}
	}
}

// Missed is how many events were dropped because the ring was full.
func (sub *Subscription) Missed() int64 {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	return sub.missed
}

// Close ends the subscription. Closing twice is harmless.
func (sub *Subscription) Close() {
	ev := sub.of
	ev.mu.Lock()
	for i, o := range ev.subs {
		if o == sub {
			ev.subs = append(ev.subs[:i], ev.subs[i+1:]...)
			break
		}
	}
	ev.n.Store(int32(len(ev.subs)))
	ev.mu.Unlock()
	sub.end()
}

func (sub *Subscription) end() {
	sub.mu.Lock()
	sub.closed = true
	sub.mu.Unlock()
	sub.signal()
}

func (sub *Subscription) signal() {
	select {
	case sub.ready <- struct{}{}:
	default:
	}
}

func (sub *Subscription) add(e Event) {
	sub.mu.Lock()
	if sub.used == len(sub.ring) {
		sub.head = (sub.head + 1) % len(sub.ring)
		sub.used--
		sub.missed++
	}
	sub.ring[(sub.head+sub.used)%len(sub.ring)] = e
	sub.used++
	sub.mu.Unlock()
	sub.signal()
}

func (ev *events) emit(e Event) {
	if ev.n.Load() == 0 {
		return
	}
	ev.mu.Lock()
	defer ev.mu.Unlock()
	for _, s := range ev.subs {
		s.add(e)
	}
}

func (ev *events) accessed(ns string, key []byte, v *version) {
	if ev.n.Load() == 0 {
		return
	}
	ev.emit(Event{Kind: EventAccessed, Namespace: ns, Key: append([]byte(nil), key...),
		Size: v.length, Generation: v.gen})
}

// close ends every subscription.
func (ev *events) close() {
	ev.mu.Lock()
	subs := ev.subs
	ev.subs, ev.over = nil, true
	ev.n.Store(0)
	ev.mu.Unlock()
	for _, s := range subs {
		s.end()
	}
}
