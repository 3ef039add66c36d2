// Package base holds what every layer shares: the error classes of the
// project, units, and small arithmetic on sizes. It does no I/O.
package base

import (
	"errors"
	"fmt"
)

// The error classes. Callers test them with errors.Is; the text of a returned
// error has the form "operation object: cause" and wraps the class together
// with the NVMe status or errno that caused it. All are safe for concurrent use.
var (
	ErrNotFound     = errors.New("not found")
	ErrExists       = errors.New("already exists")
	ErrNoSpace      = errors.New("no space")
	ErrBusy         = errors.New("busy")
	ErrLocked       = errors.New("locked by another owner")
	ErrMisaligned   = errors.New("misaligned")
	ErrOutOfRange   = errors.New("out of range")
	ErrTimeout      = errors.New("timed out")
	ErrIsolated     = errors.New("device isolated")
	ErrDeviceGone   = errors.New("device gone")
	ErrCorrupt      = errors.New("corrupt")
	ErrUnknown      = errors.New("outcome unknown")
	ErrReadOnly     = errors.New("read-only")
	ErrClosed       = errors.New("closed")
	ErrNotSupported = errors.New("not supported")
	ErrInvalid      = errors.New("invalid argument")
	ErrMismatch     = errors.New("identity mismatch")
	ErrMetaFull     = errors.New("metadata disk full")
	ErrInUse        = errors.New("in use")
	ErrLeaseExpired = errors.New("lease expired")
)

// Error says what was tried on what, and why it failed.
type Error struct {
	Op     string // the operation, for example "open"
	Object string // what it was applied to: a key, a path, a device
	Err    error  // the cause; errors.Is sees through it
	Hint   string // what the user can do, or ""
}

// Error implements error.
func (e *Error) Error() string {
	s := e.Op
	if e.Object != "" {
		s += " " + e.Object
	}
	s += ": " + e.Err.Error()
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Wrap puts operation and object before err; a nil err stays nil.
func Wrap(op, object string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Object: object, Err: err}
}

// Errorf makes an error of the given class: "op object: class: detail".
// The detail may itself wrap a cause with %w.
func Errorf(op, object string, class error, format string, args ...any) error {
	return &Error{Op: op, Object: object, Err: &classed{class, fmt.Errorf(format, args...)}}
}

// WithHint adds what the user can do to err, which must not be nil.
func WithHint(err error, format string, args ...any) error {
	hint := fmt.Sprintf(format, args...)
	var e *Error
	if errors.As(err, &e) && e == err && e.Hint == "" {
		c := *e
		c.Hint = hint
		return &c
	}
	return &hinted{err, hint}
}

type hinted struct {
	err  error
	hint string
}

func (h *hinted) Error() string { return h.err.Error() + " (" + h.hint + ")" }
func (h *hinted) Unwrap() error { return h.err }

// classed joins a class and its detail in one line.
type classed struct {
	class  error
	detail error
}

func (c *classed) Error() string   { return c.class.Error() + ": " + c.detail.Error() }
func (c *classed) Unwrap() []error { return []error{c.class, c.detail} }
