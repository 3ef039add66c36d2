// Package base holds what every layer shares: the error classes of the
// project, units, and small arithmetic on sizes. It does no I/O.
package base

import (
	"errors"
	"fmt"
	"os"
	"strings"
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

	// ErrGroupNotViable is an ErrInUse: other drivers have devices of the IOMMU
	// group of one that VFIO is to give away.
	ErrGroupNotViable = fmt.Errorf("IOMMU group not viable: %w", ErrInUse)
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
	s := e.head() + e.Err.Error()
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// head is what stands before the cause.
func (e *Error) head() string {
	if e.Object == "" {
		return e.Op + ": "
	}
	return e.Op + " " + e.Object + ": "
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

// TooSmall is the cause of the error for a file or device of fewer bytes than it must have.
type TooSmall struct {
	Bytes int64 // that it has
	Made  int64 // that it was made with; 0 if that is not known
}

// Error implements error.
func (e *TooSmall) Error() string {
	if e.Made > 0 {
		return fmt.Sprintf("it has only %d bytes of %d", e.Bytes, e.Made)
	}
	return fmt.Sprintf("it has only %d bytes", e.Bytes)
}

// CutOff is the error of the given class for path, of which why is the cause.
func CutOff(path string, class error, why *TooSmall) error {
	err := Errorf("open", path, class, "%w", why)
	if why.Made > 0 {
		return WithHint(err, "%s", CutOffHint(why.Made))
	}
	return WithHint(err, "if it was a device of a store, it was cut off: bring it back from a copy; else name another file")
}

// CutOffHint says what helps where a device had made bytes and has fewer.
func CutOffHint(made int64) string {
	return fmt.Sprintf("it was cut off or is another device: name the right one, or bring it back from a copy; if it is a file without a copy, "+
		"`truncate -s %d FILE` makes what lies below the cut readable again, and `ugdsctl fsck --verify-data --repair --yes` then removes the other values", made)
}

// OwnerHint says what helps against process pid, 0 if it is not known, which has what
// only one process at a time can have.
func OwnerHint(pid int) string {
	const rest = "wait for it, or end it first"
	switch {
	case pid <= 0:
		return rest
	case pid == os.Getpid():
		return "it is this process: close it there first"
	}
	return fmt.Sprintf("`ugdsctl stats --pid %d` shows what its stores do, if it has any; %s", pid, rest)
}

type hinted struct {
	err  error
	hint string
}

func (h *hinted) Error() string { return h.err.Error() + " (" + h.hint + ")" }
func (h *hinted) Unwrap() error { return h.err }

// Parts takes the text of err apart for a list, where other columns say what was
// tried on what and one hint serves many lines: the cause without the operation
// and object of err itself, and the outermost hint, or "".
func Parts(err error) (cause, hint string) {
	cause, hint = err.Error(), hintOf(err)
	if hint != "" {
		cause = strings.ReplaceAll(cause, " ("+hint+")", "")
	}
	if e, ok := err.(*Error); ok {
		cause = strings.TrimPrefix(cause, e.head())
	}
	return cause, hint
}

func hintOf(err error) string {
	var e *Error
	var h *hinted
	switch {
	case errors.As(err, &h): // goes around an Error, or hides none that has a hint
		return h.hint
	case errors.As(err, &e) && e.Hint != "":
		return e.Hint
	case e != nil:
		return hintOf(e.Err)
	}
	return ""
}

// classed joins a class and its detail in one line.
type classed struct {
	class  error
	detail error
}

func (c *classed) Error() string   { return c.class.Error() + ": " + c.detail.Error() }
func (c *classed) Unwrap() []error { return []error{c.class, c.detail} }
