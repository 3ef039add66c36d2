package unix

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Event is an eventfd: a counter that the kernel, a device's interrupt or this
// process raises, and for which a goroutine waits without holding a thread. All
// methods are safe for concurrent use; one goroutine at a time waits.
type Event struct {
	n int // the descriptor, as long as f is open
	f *os.File
}

// NewEvent makes an event that has not come. name is for messages.
func NewEvent(name string) (*Event, error) {
	n, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	// Non-blocking, so that the runtime waits for it with its poller.
	return &Event{n: n, f: os.NewFile(uintptr(n), name)}, nil
}

// FD is the descriptor, for the kernel to raise; it is valid until Close.
func (e *Event) FD() int { return e.n }

// Wait returns nil when the event has come at least once since Wait last returned
// nil, and forgets it. When ctx ends first it is the context's error; after Close it
// is os.ErrClosed.
func (e *Event) Wait(ctx context.Context) error {
	var b [8]byte
	if e.f.SetReadDeadline(time.Time{}) != nil {
		return os.ErrClosed
	}
	if ctx.Done() != nil {
		ended := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			defer close(ended)
			_ = e.f.SetReadDeadline(time.Unix(1, 0)) // ends the read
		})
		defer func() {
			if !stop() {
				<-ended // so that it does not end the next wait
			}
		}()
	}
	_, err := e.f.Read(b[:])
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrClosed):
		return os.ErrClosed
	case ctx.Err() == nil:
		return err
	}
	return ctx.Err()
}

// Raise makes the event come.
func (e *Event) Raise() {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], 1)
	_, _ = e.f.Write(b[:]) // it fails only when closed, or when the counter is full
}

// Close ends a wait and frees the descriptor. Closing twice gives os.ErrClosed.
func (e *Event) Close() error { return e.f.Close() }
