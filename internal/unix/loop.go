package unix

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// LoopsOver names what the kernel itself uses a regular file or block device for, by its
// name: loop devices over it, which claim nothing, and swap. Writing to it would destroy
// what is seen through those.
func LoopsOver(st Stat) []string {
	var out []string
	for _, l := range loops() {
		if l.over(st) {
			out = append(out, "it is behind the loop device /dev/"+l.name)
		}
	}
	if st.Kind != KindRegular {
		return out // BlockHolders knows of its swap
	}
	b, _ := os.ReadFile("/proc/swaps")
	for line := range strings.Lines(string(b)) {
		name, _, _ := strings.Cut(line, " ")
		if s, err := StatPath(unescape(name)); err == nil && sameFile(st)(s) {
			out = append(out, "it is in use as swap")
		}
	}
	return out
}

// BehindLoop is the path of the file or device behind a loop device or a partition of
// one, "" for other devices.
func BehindLoop(d Dev) string { return loopFile(BlockAttr(d, "loop/backing_file")) }

// loop is a loop device that has a file.
type loop struct{ name, file string }

func loops() (out []loop) {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil { // it may have been taken off
			name := filepath.Base(filepath.Dir(filepath.Dir(f)))
			out = append(out, loop{name, loopFile(strings.TrimSuffix(string(b), "\n"))})
		}
	}
	return out
}

// loopFile is a path as the kernel shows it, which marks what has no name any more.
func loopFile(s string) string { return strings.TrimSuffix(s, " (deleted)") }

// over tells whether st is what the loop device is over. The device itself knows; where it
// cannot be asked, in a container for example, its path decides, though it may be one of
// another mount namespace.
func (l loop) over(st Stat) bool {
	if i, ok := l.ask(); ok {
		if st.Kind == KindBlock {
			return devOf(i.Rdevice) == st.Rdev && devOf(i.Rdevice) != devOf(i.Device)
		}
		return i.Inode == st.Ino && devOf(i.Device) == st.Dev
	}
	s, err := StatPath(l.file)
	return err == nil && openOf(st)(s)
}

func (l loop) ask() (*unix.LoopInfo64, bool) {
	f, err := Open("/dev/"+l.name, ReadOnly|NonBlock, 0)
	if err != nil {
		return nil, false
	}
	defer func() { _ = f.Close() }()
	i, err := unix.IoctlLoopGetStatus64(f.Int())
	return i, err == nil
}

// devOf takes a device number of the kernel's long form apart.
func devOf(d uint64) Dev { return Dev{unix.Major(d), unix.Minor(d)} }
