package store

import (
	"context"
	"time"

	"github.com/ugds-store/ugds/driver"
)

// resetPauseMax bounds the pause between two attempts to reset a device.
const resetPauseMax = 10 * time.Second

// watch follows the state of device d: when it stops, what it may have lost is
// withdrawn before it is brought back.
func (s *Store) watch(d int) {
	events := make(chan driver.Event, 64)
	dev := s.devs[d]
	s.unsub = append(s.unsub, dev.Subscribe(func(e driver.Event) {
		select {
		case events <- e:
		default: // the state is looked at again; only the text is lost
		}
	}))
	s.loops.Add(1)
	go func() {
		defer s.loops.Done()
		for {
			select {
			case <-s.stop:
				return
			case e := <-events:
				s.events.emit(Event{Kind: EventDevice, Device: d, Err: e.Cause})
				s.recoverDevice(d)
			}
		}
	}()
}

// recoverDevice brings an isolated device back, as often as it takes, until the
// store closes or the device is gone.
func (s *Store) recoverDevice(d int) {
	dev := s.devs[d]
	pause := 10 * time.Millisecond
	for {
		switch dev.State() {
		case driver.StateIsolated:
		case driver.StateRemoved:
			s.withdrawDevice(d)
			return
		default:
			return
		}
		s.withdrawDevice(d)
		ctx, cancel := context.WithTimeout(context.Background(), s.opts.ResetTimeout)
		err := dev.Reset(ctx)
		cancel()
		s.count.resets.Add(1)
		if err == nil {
			s.wake() // a mark may be owed
			return
		}
		s.events.emit(Event{Kind: EventDevice, Device: d, Err: err})
		select {
		case <-s.stop:
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, resetPauseMax)
	}
}

// wakeDiscarder lets the discarder look for empty slabs.
func (s *Store) wakeDiscarder() {
	select {
	case s.disc.wake <- struct{}{}:
	default:
	}
}

func (s *Store) discardLoop() {
	defer s.loops.Done()
	for {
		select {
		case <-s.stop:
			return
		case <-s.disc.wake:
			s.discardIdle()
		}
	}
}
