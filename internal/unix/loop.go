package unix

import (
	"os"
	"path/filepath"
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
	var mine loop
	var rest []loop
	for _, l := range loops() {
		dev, ok := ParseDev(BlockAttr(d, "../dev"))
		switch {
		case l.dev == d || ok && l.dev == dev && BlockAttr(d, "partition") != "":
			mine = l
		case l.over(st):
			rest = append(rest, l)
		}
	}
	for _, l := range rest {
		if who := BlockHolders(l.dev); len(who) > 0 && mine.overlaps(l) {
			out = append(out, who...)
		}
	}
	return out
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
