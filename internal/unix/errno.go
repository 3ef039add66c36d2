package unix

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// Errno is a Linux error number. errors.As finds it inside the errors of this
// package and of the drivers.
type Errno = syscall.Errno

// The error numbers that other packages tell apart.
const (
	EAGAIN     = unix.EAGAIN
	EBADF      = unix.EBADF
	EBUSY      = unix.EBUSY
	ECANCELED  = unix.ECANCELED
	EDQUOT     = unix.EDQUOT
	EEXIST     = unix.EEXIST
	EFAULT     = unix.EFAULT
	EFBIG      = unix.EFBIG
	EINTR      = unix.EINTR
	EINVAL     = unix.EINVAL
	EISDIR     = unix.EISDIR
	EIO        = unix.EIO
	EMFILE     = unix.EMFILE
	EMSGSIZE   = unix.EMSGSIZE
	ENODATA    = unix.ENODATA
	ENODEV     = unix.ENODEV
	ENOENT     = unix.ENOENT
	ENOMEM     = unix.ENOMEM
	ENOSPC     = unix.ENOSPC
	ENOSYS     = unix.ENOSYS
	ENOTTY     = unix.ENOTTY
	ENXIO      = unix.ENXIO
	EOPNOTSUPP = unix.EOPNOTSUPP
	EPERM      = unix.EPERM
	EACCES     = unix.EACCES
	ERANGE     = unix.ERANGE
	EROFS      = unix.EROFS
	ESRCH      = unix.ESRCH
	ESTALE     = unix.ESTALE
	ETIME      = unix.ETIME
	ETXTBSY    = unix.ETXTBSY
)

// ErrnoOf gives the error number inside err, or 0.
func ErrnoOf(err error) Errno {
	if err == nil {
		return 0
	}
	if e, ok := err.(Errno); ok { // without the allocation of errors.As
		return e
	}
	var e Errno
	if errors.As(err, &e) {
		return e
	}
	return 0
}
