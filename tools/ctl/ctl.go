// Package ctl holds the verbs of the command line as a library: each takes its
// options as a struct, works on the store that a Target names, and writes what
// a person or, with JSON, a script reads. cmd/ugdsctl declares the flags.
//
// docs/cli.md describes the verbs, their exit statuses and their documents.
package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"time"

	"github.com/ugds-store/ugds/internal/base"
)

// Env is where a verb reads and writes.
type Env struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	JSON   bool // one document on Stdout instead of text
	Screen bool // Stdout is a terminal: no bar while a value goes there
	// Progress starts a progress bar for total bytes, or steps, or of unknown length for
	// 0. Nil shows none.
	Progress func(title string, total int64, steps bool) Bar
	// Getenv gives a variable of the environment. Nil means that there are none.
	Getenv func(name string) (value string, ok bool)
}

// Bar is a progress bar.
type Bar interface {
	Add(n int64) // n bytes or steps more
	Done()       // takes the bar away
}

type noBar struct{}

func (noBar) Add(int64) {}
func (noBar) Done()     {}

// progress shows how many bytes are done, steps how many steps.
func (e *Env) progress(title string, total int64) Bar { return e.bar(title, total, false) }
func (e *Env) steps(title string, total int) Bar      { return e.bar(title, int64(total), true) }

func (e *Env) bar(title string, total int64, steps bool) Bar {
	if e.Progress == nil {
		return noBar{}
	}
	return e.Progress(title, total, steps)
}

// Target names a store.
type Target struct {
	Dir       string        // the directory with store.toml
	Devices   []string      // instead of those that store.toml names
	Meta      string        // instead of the directory that store.toml names
	Namespace string        // "" means DefaultNamespace
	Hex       bool          // keys are given and shown in hexadecimal
	Wait      time.Duration // for an owner that has died but whose writes still land
	GPU       string        // values are put from and got into this GPU's memory; see gputool.Open
	GPUSet    []string      // settings of the transfers, NAME=VALUE, before the environment's and store.toml's
}

// DefaultNamespace is where keys live unless the user says otherwise.
const DefaultNamespace = "default"

func (t *Target) namespace() string {
	if t.Namespace == "" {
		return DefaultNamespace
	}
	return t.Namespace
}

// Exit statuses. Those of fsck stand apart.
const (
	ExitOK          = 0
	ExitFailure     = 1
	ExitUsage       = 2 // wrong arguments, or --yes is missing
	ExitNotFound    = 3 // a key, namespace or store does not exist
	ExitExists      = 4 // a key or file exists and was not to be replaced
	ExitLocked      = 5 // another process owns the store
	ExitInterrupted = 130
	ExitPipe        = 141 // the reader of the output went away

	ExitRepaired   = 1 // fsck: faults were found and repaired
	ExitFaultsLeft = 4 // fsck: faults are left
	ExitNoCheck    = 8 // fsck: could not run
)

// status is an error with its own exit status.
type status struct {
	code int
	err  error
}

func (s *status) Error() string { return s.err.Error() }
func (s *status) Unwrap() error { return s.err }

// errQuiet is an error whose text has been written already.
var errQuiet = errors.New("")

// quietly ends the program with a status and no further text.
func quietly(code int) error { return &status{code, errQuiet} }

// Quiet tells whether err has nothing to say: its text was part of the output,
// or nobody reads it.
func Quiet(err error) bool {
	return errors.Is(err, errQuiet) || errors.Is(err, syscall.EPIPE)
}

// interrupted is what an operation that the user stopped ends with.
type interrupted struct{}

func (interrupted) Error() string        { return "interrupted" }
func (interrupted) Is(target error) bool { return target == context.Canceled }

// usageError is about wrong arguments; it says no more than what is wrong.
type usageError struct{ verb, text string }

func (u *usageError) Error() string        { return u.verb + ": " + u.text }
func (u *usageError) Is(target error) bool { return target == base.ErrInvalid }

// usage makes an error for wrong arguments.
func usage(verb, format string, args ...any) error {
	return &usageError{verb, fmt.Sprintf(format, args...)}
}

// UsageError makes an error for wrong arguments of a verb.
func UsageError(verb, format string, args ...any) error { return usage(verb, format, args...) }

// classes gives each error class its name in documents and its exit status.
var classes = []struct {
	err  error
	name string
	code int
}{
	{context.Canceled, "interrupted", ExitInterrupted}, // before the class that wraps it
	{base.ErrNotFound, "not_found", ExitNotFound},
	{base.ErrExists, "exists", ExitExists},
	{base.ErrLocked, "locked", ExitLocked},
	{base.ErrInUse, "in_use", ExitLocked},
	{base.ErrInvalid, "invalid", ExitUsage},
	{base.ErrOutOfRange, "out_of_range", ExitUsage},
	{base.ErrMetaFull, "metadata_full", ExitFailure},
	{base.ErrNoSpace, "no_space", ExitFailure},
	{base.ErrBusy, "busy", ExitFailure},
	{base.ErrMisaligned, "misaligned", ExitFailure},
	{base.ErrTimeout, "timeout", ExitFailure},
	{base.ErrIsolated, "isolated", ExitFailure},
	{base.ErrDeviceGone, "device_gone", ExitFailure},
	{base.ErrCorrupt, "corrupt", ExitFailure},
	{base.ErrUnknown, "unknown", ExitFailure},
	{base.ErrReadOnly, "read_only", ExitFailure},
	{base.ErrClosed, "closed", ExitFailure},
	{base.ErrNotSupported, "not_supported", ExitFailure},
	{base.ErrMismatch, "mismatch", ExitFailure},
	{base.ErrLeaseExpired, "lease_expired", ExitFailure},
	{context.DeadlineExceeded, "timeout", ExitFailure},
	{syscall.EPIPE, "pipe", ExitPipe},
	{fs.ErrNotExist, "not_found", ExitNotFound},
	{fs.ErrExist, "exists", ExitExists},
}

// ExitCode is the status with which a program ends after err.
func ExitCode(err error) int {
	var s *status
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &s):
		return s.code
	}
	_, code := classify(err)
	return code
}

// noClass is the name of an error that has no class.
const noClass = "failure"

func classify(err error) (name string, code int) {
	for _, c := range classes {
		if errors.Is(err, c.err) {
			return c.name, c.code
		}
	}
	return noClass, ExitFailure
}
