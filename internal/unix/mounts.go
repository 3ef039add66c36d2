package unix

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Mount is one line of /proc/self/mountinfo.
type Mount struct {
	Dev    Dev
	Point  string // where
	Type   string // file system
	Source string // usually a device node
}

// of tells whether it is a mount of a block device: by its number, or, of a file system
// that may have several devices and so has a number of its own, by its source.
func (m *Mount) of(sysfs string, d Dev) bool {
	if m.Dev == d {
		return true
	}
	if m.Dev.Major != 0 || !strings.HasPrefix(m.Source, "/dev/") {
		return false
	}
	dev, ok := blockDev(sysfs, m.Source)
	return ok && dev == d
}

// MountedElsewhere finds a process that has a block device, or a partition of it, mounted
// in its own mount namespace, such as one in a container, and where; 0 if there is none
// that can be seen.
func MountedElsewhere(d Dev) (pid int, point string) {
	devs := append([]Dev{d}, partitions("/sys", d)...)
	own, _ := os.Readlink("/proc/self/ns/mnt")
	seen := map[string]bool{own: true}
	dirs, _ := os.ReadDir("/proc")
	for _, e := range dirs {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		ns, err := os.Readlink("/proc/" + e.Name() + "/ns/mnt")
		if err != nil || seen[ns] {
			continue
		}
		seen[ns] = true
		mounts, _ := mountsOf("/proc", e.Name())
		for _, m := range mounts {
			if slices.ContainsFunc(devs, func(d Dev) bool { return m.of("/sys", d) }) {
				return n, m.Point
			}
		}
	}
	return 0, ""
}

// mountsOf lists the mounts that a process sees. proc is usually /proc.
func mountsOf(proc, process string) ([]Mount, error) {
	b, err := os.ReadFile(proc + "/" + process + "/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []Mount
	for line := range strings.Lines(string(b)) {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 2 {
			continue
		}
		dev, _ := ParseDev(l[2])
		out = append(out, Mount{Dev: dev, Point: unescape(l[4]), Type: r[0], Source: unescape(r[1])})
	}
	return out, nil
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// FS describes a file system.
type FS struct {
	Type       string // "ext4", "xfs", "tmpfs", … or the magic number
	BlockBytes int64
	TotalBytes int64
	FreeBytes  int64 // for this user
	FreeInodes int64
}

// StatFS describes the file system that holds path.
func StatFS(path string) (FS, error) {
	var s unix.Statfs_t
	err := Retry(time.Time{}, func() error { return unix.Statfs(path, &s) })
	if err != nil {
		return FS{}, err
	}
	return FS{
		Type: fsType(int64(s.Type)), BlockBytes: int64(s.Bsize),
		TotalBytes: int64(s.Blocks) * int64(s.Bsize),
		FreeBytes:  int64(s.Bavail) * int64(s.Bsize), FreeInodes: int64(s.Ffree),
	}, nil
}

func fsType(magic int64) string {
	switch magic {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.F2FS_SUPER_MAGIC:
		return "f2fs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay"
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	case unix.FUSE_SUPER_MAGIC:
		return "fuse"
	}
	return "0x" + hex(magic)
}

func hex(n int64) string {
	const digits = "0123456789abcdef"
	var b [16]byte
	i := len(b)
	for u := uint64(n); ; u >>= 4 {
		i--
		b[i] = digits[u&15]
		if u < 16 {
			return string(b[i:])
		}
	}
}
