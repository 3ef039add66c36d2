package unix_test

import (
	"syscall"
	"testing"

	"github.com/ugds-store/ugds/internal/unix"
)

// dupFD is a second descriptor of the same open file description.
func dupFD(t *testing.T, f *unix.FD) int {
	t.Helper()
	n, err := syscall.Dup(f.Int())
	if err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(n)
	return n
}
