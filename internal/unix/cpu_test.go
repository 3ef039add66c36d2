package unix_test

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/unix"
)

// TestCPU: the number is that of the processor that /proc names for the thread.
func TestCPU(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range 1000 { // until the thread is not moved meanwhile
		before := unix.CPU()
		b, err := os.ReadFile("/proc/thread-self/stat")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		said, err := strconv.Atoi(strings.Fields(rest)[36]) // field 39 of proc(5)
		if err != nil {
			t.Fatal(err)
		}
		if before == said && unix.CPU() == said {
			return
		}
	}
	t.Error("never the processor that /proc names")
}
