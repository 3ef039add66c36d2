package unix

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// LoopsOver names what the kernel itself uses a regular file or block device for, by its
// name: loop devices over it, its partitions or the disk that it is a partition of, which
// claim nothing, and swap. Writing to it would destroy what is seen through those.
func LoopsOver(st Stat) []string { return LoopsOverIn("/proc", st) }

// LoopsOverIn is LoopsOver with another place of proc.
func LoopsOverIn(proc string, st Stat) []string {
	var out []string
	devs := []Dev{st.Rdev}
	if st.Kind == KindBlock {
		devs = append(devs, partitions("/sys", st.Rdev)...)
		if disk, ok := ParseDev(BlockAttr(st.Rdev, "../dev")); ok && BlockAttr(st.Rdev, "partition") != "" {
			devs = append(devs, disk)
		}
	}
	for _, l := range loops() {
		for _, st.Rdev = range devs {
			if l.over(st) {
				out = append(out, "it is behind the loop device /dev/"+l.name)
				break
			}
		}
	}
	return append(out, swapOn(proc, st)...)
}

// swapOn tells that a regular file is swap; BlockHolders knows of that of block devices.
func swapOn(proc string, st Stat) []string {
	b, _ := os.ReadFile(proc + "/swaps")
	for line := range strings.Lines(string(b)) {
		name, _, _ := strings.Cut(line, " ")
		if s, err := StatPath(unescape(name)); err == nil && st.Kind == KindRegular && sameFile(st)(s) {
			return []string{"it is in use as swap"}
		}
	}
	return nil
}

// UsedBehind names what else uses the file or device behind the loop device d, which
// BehindLoop names and st describes: what is mounted or swapped on there or built on it, by
// itself or by another loop device that sees some of the same bytes.
func UsedBehind(d Dev, st Stat) []string {
	out := swapOn("/proc", st)
	if st.Kind == KindBlock {
		out = BlockHolders(st.Rdev)
	}
	for _, l := range beside(d, st) {
		out = append(out, BlockHolders(l.dev)...)
	}
	return out
}

// LoopsBeside are the paths of the other loop devices over what is behind the loop device
// d, as in UsedBehind, that see some of the same bytes, and of their partitions.
func LoopsBeside(d Dev, st Stat) (out []string) {
	for _, l := range beside(d, st) {
		out = append(out, "/dev/"+l.name)
		parts, _ := filepath.Glob("/sys/block/" + l.name + "/" + l.name + "p*/partition")
		for _, p := range parts {
			out = append(out, "/dev/"+filepath.Base(filepath.Dir(p)))
		}
	}
	return out
}

// beside lists the other loop devices over st that see some of the bytes of d, which is
// one, or a partition of one.
func beside(d Dev, st Stat) (out []loop) {
	disk := d
	if whole, ok := ParseDev(BlockAttr(d, "../dev")); ok && BlockAttr(d, "partition") != "" {
		disk = whole
	}
	var mine loop
	for _, l := range loops() {
		switch {
		case l.dev == disk:
			mine = l
		case l.over(st):
			out = append(out, l)
		}
	}
	return slices.DeleteFunc(out, func(l loop) bool { return !mine.overlaps(l) })
}

// overlaps tells whether two loop devices over one file see some of the same bytes, as far
// as they can be asked.
func (l loop) overlaps(other loop) bool {
	a, aok := l.ask()
	b, bok := other.ask()
	ends := func(i, j *unix.LoopInfo64) bool { return i.Sizelimit > 0 && i.Offset+i.Sizelimit <= j.Offset }
	return !aok || !bok || !ends(a, b) && !ends(b, a)
}

// BehindLoop is the path of the file or device behind a loop device or a partition of
// one, "" for other devices.
func BehindLoop(d Dev) string { return loopFile(BlockAttr(d, "loop/backing_file")) }

// loop is a loop device that has a file.
type loop struct {
	name, file string
	dev        Dev
}

func loops() (out []loop) {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil { // it may have been taken off
			name := filepath.Base(filepath.Dir(filepath.Dir(f)))
			no, _ := os.ReadFile("/sys/block/" + name + "/dev")
			dev, _ := ParseDev(strings.TrimSpace(string(no)))
			out = append(out, loop{name, loopFile(strings.TrimSuffix(string(b), "\n")), dev})
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
