package unix

import (
	"time"

	"golang.org/x/sys/unix"
)

// Sleep pauses the calling thread for d and the kernel's timer slack, about
// 60 µs. It is for loops whose rest is shorter than a millisecond: time.Sleep
// takes that long when the process is otherwise idle. A signal ends it early.
func Sleep(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil)
}
