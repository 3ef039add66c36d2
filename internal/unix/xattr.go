package unix

import "golang.org/x/sys/unix"

// SetXattr sets an extended attribute of an open file.
func SetXattr(f *FD, name, value string) error {
	return unix.Fsetxattr(f.Int(), name, []byte(value), 0)
}

// GetXattr reads an extended attribute of at most 1,024 bytes; ENODATA when
// there is none.
func GetXattr(f *FD, name string) (string, error) {
	var buf [1024]byte
	n, err := unix.Fgetxattr(f.Int(), name, buf[:])
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// RemoveXattr removes an extended attribute.
func RemoveXattr(f *FD, name string) error { return unix.Fremovexattr(f.Int(), name) }
