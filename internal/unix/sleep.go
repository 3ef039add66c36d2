package unix

import (
	"runtime"
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

// lateness is by how much a sleep without timer slack is usually late, most of all
// on a virtual machine whose processor has gone idle.
const lateness = 20 * time.Microsecond

// Delay returns after d, to within a few microseconds while there is a processor
// for the thread: it sleeps without timer slack, and spins for the last 20 µs. It
// is for models of devices; nothing that serves a user spins by the clock.
func Delay(d time.Duration) {
	end := time.Now().Add(d)
	if d > lateness {
		runtime.LockOSThread() // the slack is the thread's
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
		Sleep(d - lateness)
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // the default again
		runtime.UnlockOSThread()
	}
	for time.Now().Before(end) {
		runtime.Gosched()
	}
}
