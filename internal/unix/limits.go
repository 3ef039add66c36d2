package unix

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Rlimit is a soft and a hard limit; Unlimited means none.
type Rlimit struct{ Soft, Hard uint64 }

// Unlimited is the value of a limit that does not exist.
const Unlimited = math.MaxUint64

// Resources that have limits.
const (
	RlimitNofile  = unix.RLIMIT_NOFILE  // descriptors
	RlimitMemlock = unix.RLIMIT_MEMLOCK // bytes
)

// GetRlimit reads a limit of this process.
func GetRlimit(resource int) (Rlimit, error) {
	var r unix.Rlimit
	err := unix.Getrlimit(resource, &r)
	return Rlimit{r.Cur, r.Max}, err
}

// SetRlimit changes a limit of this process; raising the hard one needs
// CAP_SYS_RESOURCE.
func SetRlimit(resource int, l Rlimit) error {
	return unix.Setrlimit(resource, &unix.Rlimit{Cur: l.Soft, Max: l.Hard})
}

// ThreadCPU is the processor time that the calling thread has used so far; the
// caller has locked its goroutine to the thread.
func ThreadCPU() (time.Duration, error) {
	var r unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_THREAD, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), err
}

// PinThread binds the calling thread to one processor, for measurements; the caller
// has locked its goroutine to the thread. EINVAL for a processor that the process
// does not have.
func PinThread(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(0, &set)
}
