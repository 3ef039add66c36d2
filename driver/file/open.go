package file

import (
	"context"
	"errors"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Open opens and locks o.Path and makes it a device. The file keeps its size
// while the device is open. Errors: ErrNotFound; ErrLocked when another owner
// has it; ErrInUse for what is mounted, behind a loop device or otherwise held;
// ErrInvalid for what cannot be a device; ErrReadOnly for a file that cannot be
// written; ErrNotSupported when o.Engine was asked for and is refused. ctx
// bounds only the wait for a dead owner's requests.
func Open(ctx context.Context, o Options) (*Device, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	h, err := acquire(ctx, &o)
	if err != nil {
		return nil, err
	}
	if err := h.describe(&o); err != nil {
		h.release()
		return nil, err
	}
	d, err := newDevice(h, &o)
	if err != nil {
		h.release()
		return nil, err
	}
	return d, nil
}

// release gives the lock back and closes the file. Nothing may be in flight.
func (h *handle) release() {
	h.owner.clear(h.fd)
	_ = unix.Unflock(h.fd) // at once, although the ring's last reference may linger
	_ = h.fd.Close()
	if h.side != nil {
		_ = h.side.Close()
	}
}

// tryOpen opens and locks once; errHeld when somebody else has the file.
func tryOpen(o *Options) (*handle, error) {
	st, err := unix.StatPath(o.Path)
	if err != nil {
		return nil, openError(o, err)
	}
	if err := refuseKind(o.Path, st.Kind); err != nil {
		return nil, err
	}
	if !o.ReadOnly {
		if err := unclaimed(o.Path, st); err != nil {
			return nil, err
		}
	}
	h := &handle{stat: st, readOnly: o.ReadOnly}
	h.fs, _ = unix.StatFS(o.Path)
	flags := unix.ReadWrite
	if o.ReadOnly {
		flags = unix.ReadOnly
	} else if st.Kind == unix.KindBlock {
		flags |= unix.Excl // the kernel's own claim: a mounted device refuses it
	}
	if err := h.open(o, flags); err != nil {
		return nil, err
	}
	if err := h.lock(o); err != nil {
		_ = h.fd.Close()
		return nil, err
	}
	return h, nil
}

// open opens with O_DIRECT if possible and checks that it got what was
// described.
func (h *handle) open(o *Options, flags int) error {
	want := h.stat
	var err error
	if h.direct = h.wantDirect(o); h.direct {
		h.fd, err = unix.Open(o.Path, flags|unix.Direct, 0)
		if err == unix.EINVAL {
			h.direct = false
			h.reason("buffered: %s refuses O_DIRECT", h.fs.Type)
		}
	}
	if !h.direct {
		h.fd, err = unix.Open(o.Path, flags, 0)
	}
	if err != nil {
		return openError(o, err)
	}
	if h.stat, err = unix.FStat(h.fd); err == nil && (h.stat.Ino != want.Ino || h.stat.Dev != want.Dev) {
		err = errHeld // replaced under us: look again
	}
	if err != nil {
		_ = h.fd.Close()
		return openError(o, err)
	}
	return nil
}

// lock takes the lock of the open file description and leaves the record.
func (h *handle) lock(o *Options) error {
	how := unix.LockExclusive
	if o.ReadOnly {
		how = unix.LockShared
	}
	on := h.fd
	if o.Hooks.SideLock {
		side, err := openSide(o.Path + ".lock")
		if err != nil {
			return openError(o, err)
		}
		h.side, on = side, side
	}
	if err := unix.TryFlock(on, how); err != nil {
		if h.side != nil {
			_ = h.side.Close()
		}
		if err == unix.EAGAIN {
			err = errHeld
		}
		return openError(o, err)
	}
	if h.stat.Kind == unix.KindBlock {
		if ro, err := unix.BlockReadOnly(h.fd); err == nil && ro && !o.ReadOnly {
			return openError(o, unix.EROFS)
		}
	}
	if !o.ReadOnly {
		var err error
		if h.owner, err = writeRecord(h.fd, h.stat, o.Owner); err != nil {
			h.reason("the owner's pid could not be recorded: %v", err)
		}
	}
	return nil
}

func openSide(path string) (*unix.FD, error) {
	f, err := unix.Open(path, unix.ReadWrite, 0)
	if err == unix.ENOENT {
		f, err = unix.Open(path, unix.ReadWrite|unix.CreateNew, 0o600)
	}
	return f, err
}

// NotFound is the error for a device whose file does not exist.
func NotFound(path string, err error) error {
	return base.WithHint(base.Errorf("open", path, base.ErrNotFound, "%w", err),
		"check the name; if it was a device of a store, bring it back from a copy; format begins an empty store")
}

// openError gives err its class.
func openError(o *Options, err error) error {
	path := o.Path
	switch {
	case errors.Is(err, errHeld):
		return errHeld
	case err == unix.EBUSY:
		return errHeld
	case err == unix.ENOENT:
		return NotFound(path, err)
	case err == unix.EROFS, err == unix.EACCES, err == unix.EPERM:
		if !o.ReadOnly {
			return base.WithHint(base.Errorf("open", path, base.ErrReadOnly, "it cannot be written: %w", err),
				"check the permissions of the file and of its file system")
		}
		// Of block devices others know more.
		if st, serr := unix.StatPath(path); err == unix.EACCES && (serr != nil || st.Kind == unix.KindRegular) {
			whose, _ := unix.Whose(path)
			return base.WithHint(base.Wrap("open", path, err), "%s", whose)
		}
	case err == unix.EMFILE:
		return base.WithHint(base.Wrap("open", path, err), "raise the limit of open files (ulimit -n)")
	case err == unix.ENXIO, err == unix.ENODEV:
		return base.Errorf("open", path, base.ErrDeviceGone, "%w", err)
	}
	return base.Wrap("open", path, err)
}
