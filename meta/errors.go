package meta

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"regexp"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/ugds-store/ugds/internal/base"
)

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// ioError puts operation and path before an error of the file system, and the
// free bytes behind it when the disk is full. A nil err stays nil.
func ioError(op string, o Options, path string, err error) error {
	if err == nil {
		return nil
	}
	if !isNoSpace(err) {
		return denied(o.Dir, base.Wrap(op, path, err))
	}
	return fullError(op, path, freeBytes(o.FS, o.Dir), err)
}

// fullError is ErrMetaFull with the path and the free bytes.
func fullError(op, path string, free int64, err error) error {
	text := "free space unknown"
	if free >= 0 {
		text = base.FormatBytes(free) + " free"
	}
	e := base.Errorf(op, path, base.ErrMetaFull, "%s: %w", text, err)
	return base.WithHint(e, "free space on the metadata disk, then open the store again")
}

// freeBytes is the space left on the disk of dir, or -1.
func freeBytes(fs FS, dir string) int64 {
	u, err := fs.GetDiskUsage(dir)
	if err != nil {
		return -1
	}
	return int64(u.AvailBytes)
}

// readError classes an error of a read through Pebble.
func readError(op, object string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, base.ErrCorrupt) || errors.Is(err, base.ErrClosed):
		return base.Wrap(op, object, plain(err))
	case pebble.IsCorruptionError(err):
		return base.Errorf(op, object, base.ErrCorrupt, "%w", plain(err))
	}
	return base.Wrap(op, object, err)
}

// plainError is an error of Pebble without what only programs understand.
type plainError struct{ err error }

// plain gives err a text for people.
func plain(err error) error { return &plainError{err} }

// Error says in one line what Pebble said. It leaves out the line by which Pebble
// carries details of a corruption, and names the files that are missing where Pebble
// takes the database for another one.
func (p *plainError) Error() string {
	switch {
	case errors.Is(p.err, pebble.ErrDBDoesNotExist):
		return "its file db/marker.manifest.* is missing"
	case errors.Is(p.err, pebble.ErrDBNotPristine):
		return "its file db/marker.format-version.* is missing"
	}
	s := strings.ReplaceAll(p.err.Error(), "\n<corruption detail carrier>", "")
	s = missingTable.ReplaceAllString(s, "the table $1.sst is missing")
	return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ")
}

// missingTable is what Pebble says of a table that the MANIFEST names and the directory
// lacks.
var missingTable = regexp.MustCompile(`(?:L\d+: \d+: )?file (\d+) \(type sstable\) unknown to the objstorage provider`)

func (p *plainError) Unwrap() error { return p.err }

// openError classes what Pebble's Open answered. Whatever is not an error of
// the operating system is a complaint about content.
func openError(o Options, err error) error {
	var errno syscall.Errno
	switch {
	case isNoSpace(err):
		return ioError("open metadata", o, o.path(databaseName), err)
	case errors.Is(err, base.ErrCorrupt):
		return base.WithHint(base.Wrap("open metadata", o.Dir, plain(err)), "%s", damagedHint)
	case errors.Is(err, base.ErrMetaFull), errors.Is(err, base.ErrTimeout):
		return base.Wrap("open metadata", o.Dir, err)
	case errors.Is(err, iofs.ErrNotExist):
		e := base.Errorf("open metadata", o.Dir, base.ErrCorrupt, "a file is missing: %w", plain(err))
		return base.WithHint(e, "%s", damagedHint)
	case errors.As(err, &errno):
		return denied(o.Dir, base.Wrap("open metadata", o.Dir, plain(err)))
	}
	e := base.Errorf("open metadata", o.Dir, base.ErrCorrupt, "%w", plain(err))
	return base.WithHint(e, "%s", damagedHint)
}

// damagedHint is what helps against damaged metadata.
const damagedHint = "bring the whole directory back as it was after the last use of the store; without it the values cannot be found again"

// panicError turns a recovered panic into an error.
func panicError(r any) error {
	if err, ok := r.(error); ok {
		return err
	}
	return fmt.Errorf("panic: %v", r)
}

// fatalError keeps the error among the arguments of a Fatalf, so that its class
// survives.
func fatalError(format string, args []any) error {
	for _, a := range args {
		if err, ok := a.(error); ok {
			return fmt.Errorf("%s: %w", strings.TrimRight(strings.Split(format, "%")[0], ": "), err)
		}
	}
	return fmt.Errorf(format, args...)
}
