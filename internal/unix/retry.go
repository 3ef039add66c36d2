package unix

import (
	"os"
	"time"
)

// Retry calls fn again while it is interrupted by a signal. The Go runtime
// preempts with signals, so EINTR is common. deadline is absolute, so that
// interruptions cannot stretch the wait for ever; the zero time means that fn
// bounds itself. Past the deadline the error is os.ErrDeadlineExceeded.
func Retry(deadline time.Time, fn func() error) error {
	for {
		err := fn()
		if err != EINTR {
			return err
		}
		if !deadline.IsZero() && !time.Now().Before(deadline) {
			return os.ErrDeadlineExceeded
		}
	}
}

// retryInt is Retry for calls that also give a number and end by themselves.
func retryInt(fn func() (int, error)) (int, error) {
	for {
		n, err := fn()
		if err != EINTR {
			return n, err
		}
	}
}
