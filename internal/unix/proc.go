package unix

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Proc identifies a process across reuse of its pid.
type Proc struct {
	PID   int
	Start uint64 // clock ticks after boot when it started, 0 unknown
	Boot  string // boot id, "" unknown
}

// Self is this process.
func Self() Proc {
	_, start, _ := procStat(os.Getpid())
	return Proc{os.Getpid(), start, BootID()}
}

// DieWithParent is how os/exec starts a process that is killed when the thread that
// started it ends, however it does. Go ends a thread only with the process, or with a
// goroutine that is locked to it: start and wait under runtime.LockOSThread.
func DieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL} }

// BootID names this boot of the kernel.
func BootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// Alive tells whether the process still runs. A zombie, a process that is
// exiting, and one with a SIGKILL pending are dead: they issue no more I/O.
func (p Proc) Alive() bool {
	if p.PID <= 0 || p.Boot != "" && p.Boot != BootID() {
		return false
	}
	alive, start, known := procStat(p.PID)
	if !known { // no /proc: ask the kernel with signal 0
		err := unix.Kill(p.PID, 0)
		return err == nil || err == unix.EPERM
	}
	return alive && (p.Start == 0 || start == 0 || p.Start == start)
}

const pfExiting = 0x4 // PF_EXITING of the kernel's task flags

// procStat reads /proc/PID/stat. known is false when /proc is not there.
func procStat(pid int) (alive bool, start uint64, known bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		_, self := os.Stat("/proc/self/stat")
		return false, 0, self == nil
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 20 {
		return true, 0, true
	}
	flags, _ := strconv.ParseUint(f[6], 10, 64)
	start, _ = strconv.ParseUint(f[19], 10, 64)
	dead := f[0] == "Z" || f[0] == "X" || flags&pfExiting != 0 || killPending(dir)
	return !dead, start, true
}

// killPending tells whether SIGKILL was sent and not yet taken.
func killPending(dir string) bool {
	b, _ := os.ReadFile(dir + "/status")
	for line := range strings.Lines(string(b)) {
		name, v, _ := strings.Cut(line, ":")
		if name != "ShdPnd" && name != "SigPnd" {
			continue
		}
		if m, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64); err == nil && m>>8&1 == 1 {
			return true
		}
	}
	return false
}

// ProcName is the command name of a process, "" when unknown.
func ProcName(pid int) string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return strings.TrimSpace(string(b))
}

// LockOwner is the pid that /proc/locks gives for a flock on the file, or 0. It
// may be dead: the kernel goes on showing who took the lock.
func LockOwner(st Stat) int {
	b, _ := os.ReadFile("/proc/locks")
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) >= 6 && f[1] == "FLOCK" && f[5] == lockName(st) {
			pid, _ := strconv.Atoi(f[4])
			return max(pid, 0)
		}
	}
	return 0
}

// lockName is how /proc/locks writes a file: hex major, hex minor, inode.
func lockName(st Stat) string {
	two := func(n uint32) string {
		if s := hex(int64(n)); len(s) >= 2 {
			return s
		}
		return "0" + hex(int64(n))
	}
	return two(st.Dev.Major) + ":" + two(st.Dev.Minor) + ":" + strconv.FormatUint(st.Ino, 10)
}

// LockHolders lists the living processes, other than this one, that have the
// locked open file description itself: the owner or a child that inherited it.
// Processes of other users may be invisible.
func LockHolders(st Stat) []int {
	return others(sameFile(st), func(_, fdinfo string) bool { return strings.Contains(fdinfo, "FLOCK") })
}

// LockedBy is a living process that has the flock on the file, itself included, or 0 if
// none can be seen: it may be of another user or container.
func LockedBy(st Stat) int {
	if pids := LockHolders(st); len(pids) > 0 {
		return pids[0]
	}
	if pid := LockOwner(st); pid > 0 && (Proc{PID: pid}).Alive() {
		return pid
	}
	return 0
}

// Openers lists the living processes, other than this one, that have the file
// open. Of a device node only the kind and the device matter: a container has nodes
// of its own. Processes of other users may be invisible.
func Openers(st Stat) []int {
	return others(openOf(st), func(_, _ string) bool { return true })
}

// Writers lists the living processes, this one included, that have one of the files open
// for writing. Processes of other users may be invisible.
func Writers(files []Stat) []int {
	return withSelf(anyOf(files), forWriting)
}

// Users lists the living processes, this one included, that have one of the files open, if
// only to read, or one that had the path lost until it was removed. Processes of other
// users may be invisible.
func Users(files []Stat, lost string) []int {
	same := anyOf(files)
	return withSelf(func(s Stat) bool { return s.Kind == KindRegular }, func(fd, _ string) bool {
		if st, err := StatPath(fd); err == nil && same(st) {
			return true
		}
		to, _ := os.Readlink(fd)
		return to == lost+" (deleted)"
	})
}

func anyOf(files []Stat) func(Stat) bool {
	type id struct {
		dev Dev
		ino uint64
	}
	wanted := map[id]bool{}
	for _, st := range files {
		wanted[id{st.Dev, st.Ino}] = true
	}
	return func(s Stat) bool { return wanted[id{s.Dev, s.Ino}] }
}

// withSelf is others and this process.
func withSelf(same func(Stat) bool, wanted func(fd, fdinfo string) bool) []int {
	out := others(same, wanted)
	if count(os.Getpid(), same, wanted) > 0 {
		out = append(out, os.Getpid())
	}
	return out
}

// forWriting tells it of a descriptor by what /proc says of that.
func forWriting(_, fdinfo string) bool {
	for line := range strings.Lines(fdinfo) {
		if flags, ok := strings.CutPrefix(line, "flags:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(flags), 8, 64)
			return err == nil && n&unix.O_ACCMODE != unix.O_RDONLY
		}
	}
	return false
}

// OpenHere counts the descriptors of this process that have the file open, as Openers
// looks for them in others.
func OpenHere(st Stat) int {
	return count(os.Getpid(), openOf(st), func(_, _ string) bool { return true })
}

func openOf(st Stat) func(Stat) bool {
	if st.Kind == KindBlock || st.Kind == KindChar {
		return func(s Stat) bool { return s.Kind == st.Kind && s.Rdev == st.Rdev }
	}
	return sameFile(st)
}

func sameFile(st Stat) func(Stat) bool {
	return func(s Stat) bool { return s.Ino == st.Ino && s.Dev == st.Dev }
}

// others lists the living processes but this one that have a descriptor of the
// file whose path and description in /proc are wanted.
func others(same func(Stat) bool, wanted func(fd, fdinfo string) bool) []int {
	dirs, _ := os.ReadDir("/proc")
	var out []int
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err == nil && pid != os.Getpid() && count(pid, same, wanted) > 0 && (Proc{PID: pid}).Alive() {
			out = append(out, pid)
		}
	}
	return out
}

// count tells how many such descriptors a process has.
func count(pid int, same func(Stat) bool, wanted func(fd, fdinfo string) bool) (n int) {
	dir := "/proc/" + strconv.Itoa(pid)
	fds, _ := os.ReadDir(dir + "/fd")
	for _, fd := range fds {
		s, err := StatPath(dir + "/fd/" + fd.Name())
		if err != nil || !same(s) {
			continue
		}
		info, _ := os.ReadFile(dir + "/fdinfo/" + fd.Name())
		if wanted(dir+"/fd/"+fd.Name(), string(info)) {
			n++
		}
	}
	return n
}
