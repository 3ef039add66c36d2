package unix

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ioctl calls ioctl with a pointer argument. T is the kernel's struct.
func Ioctl[T any](f *FD, req uintptr, arg *T) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(f.Int()), req, uintptr(unsafe.Pointer(arg)))
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

// BlockSize64 is the size of a block device in bytes.
func BlockSize64(f *FD) (int64, error) {
	var n uint64
	err := Ioctl(f, unix.BLKGETSIZE64, &n)
	return int64(n), err
}

// LogicalBlock is the logical sector size of a block device in bytes.
func LogicalBlock(f *FD) (int64, error) {
	var n int32
	err := Ioctl(f, unix.BLKSSZGET, &n)
	return int64(n), err
}

// BlockReadOnly tells whether a block device refuses writes.
func BlockReadOnly(f *FD) (bool, error) {
	var n int32
	err := Ioctl(f, unix.BLKROGET, &n)
	return n != 0, err
}

// BlockDiscard discards [off, off+n) of a block device.
func BlockDiscard(f *FD, off, n int64) error {
	return Ioctl(f, unix.BLKDISCARD, &[2]uint64{uint64(off), uint64(n)})
}

// String is the form of /sys/dev/block and /proc/self/mountinfo: "8:1".
func (d Dev) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// BlockQueue reads an attribute of a block device's request queue, such as
// "write_cache"; for a partition, that of the whole disk. "" when unknown.
func BlockQueue(d Dev, attr string) string {
	dir := "/sys/dev/block/" + d.String()
	for _, p := range []string{dir + "/queue/" + attr, dir + "/../queue/" + attr} {
		if b, err := os.ReadFile(p); err == nil {
			return strings.TrimSpace(string(b))
		}
	}
	return ""
}

// BlockQueueInt is BlockQueue for numbers; 0 when unknown.
func BlockQueueInt(d Dev, attr string) int64 {
	n, _ := strconv.ParseInt(BlockQueue(d, attr), 10, 64)
	return n
}

// BlockAttr reads an attribute of the device itself or of its whole disk, such
// as "device/model"; "" when unknown.
func BlockAttr(d Dev, attr string) string {
	dir := "/sys/dev/block/" + d.String()
	for _, p := range []string{dir + "/" + attr, dir + "/../" + attr} {
		if b, err := os.ReadFile(p); err == nil {
			return strings.TrimSpace(string(b))
		}
	}
	return ""
}

// BlockHolders names what uses the block device: mount points, swap, and
// devices stacked on it or on its partitions. It is only for messages: mount
// namespaces hide mounts, so that an empty answer does not mean free.
func BlockHolders(d Dev) []string { return BlockHoldersIn("/sys", "/proc", d) }

// BlockHoldersIn is BlockHolders with other places of sysfs and proc.
func BlockHoldersIn(sysfs, proc string, d Dev) []string {
	var out []string
	devs := append([]Dev{d}, partitions(sysfs, d)...)
	mounts, _ := mountsOf(proc, "self")
	for _, dev := range devs {
		for _, m := range mounts {
			if m.of(sysfs, dev) {
				out = append(out, m.Source+" is mounted on "+m.Point)
			}
		}
		holders, _ := os.ReadDir(sysfs + "/dev/block/" + dev.String() + "/holders")
		for _, h := range holders {
			out = append(out, "the device "+deviceName(h.Name())+" is built on it")
		}
	}
	if len(out) == 0 {
		out = btrfsOn(sysfs, devs)
	}
	return append(out, swapsOn(sysfs, proc, devs)...)
}

// btrfsOn names a mounted btrfs that one of devs is a part of, though the mount names
// another of its devices.
func btrfsOn(sysfs string, devs []Dev) []string {
	parts, _ := filepath.Glob(sysfs + "/fs/btrfs/*/devices/*")
	for _, p := range parts {
		b, _ := os.ReadFile(p + "/dev")
		if dev, ok := ParseDev(strings.TrimSpace(string(b))); ok && slices.Contains(devs, dev) {
			return []string{"it is a part of the mounted btrfs " + filepath.Base(filepath.Dir(filepath.Dir(p)))}
		}
	}
	return nil
}

// deviceName is a block device by its name, with what it is called: a volume of the
// device mapper is known by another name than dm-3.
func deviceName(name string) string {
	b, err := os.ReadFile("/sys/class/block/" + name + "/dm/name")
	if err != nil {
		return name
	}
	return name + " (" + strings.TrimSpace(string(b)) + ")"
}

// partitions lists the partitions of a whole disk.
func partitions(sysfs string, d Dev) []Dev {
	files, _ := filepath.Glob(sysfs + "/dev/block/" + d.String() + "/*/partition")
	var out []Dev
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(f), "dev"))
		if err != nil {
			continue
		}
		if p, ok := ParseDev(strings.TrimSpace(string(b))); ok {
			out = append(out, p)
		}
	}
	return out
}

func swapsOn(sysfs, proc string, devs []Dev) []string {
	b, _ := os.ReadFile(proc + "/swaps")
	var out []string
	for line := range strings.Lines(string(b)) {
		name, _, _ := strings.Cut(line, " ")
		if !strings.HasPrefix(name, "/") {
			continue
		}
		dev, ok := blockDev(sysfs, name)
		if ok && slices.Contains(devs, dev) {
			out = append(out, name+" is in use as swap")
		}
	}
	return out
}

// blockDev is the number of the block device that a path names: by its node, or, where
// that is not to be seen, by its name.
func blockDev(sysfs, path string) (Dev, bool) {
	if st, err := StatPath(path); err == nil {
		return st.Rdev, st.Kind == KindBlock
	}
	b, _ := os.ReadFile(sysfs + "/class/block/" + filepath.Base(path) + "/dev")
	return ParseDev(strings.TrimSpace(string(b)))
}

// ParseDev reads the form of String, as attributes named dev have it.
func ParseDev(s string) (Dev, bool) {
	a, b, ok := strings.Cut(s, ":")
	major, err1 := strconv.ParseUint(a, 10, 32)
	minor, err2 := strconv.ParseUint(b, 10, 32)
	return Dev{uint32(major), uint32(minor)}, ok && err1 == nil && err2 == nil
}
