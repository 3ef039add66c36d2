package vfio

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

const aNode = "0000:01:00.0"

// TestNodeOf: a group is used where it is whole, iommufd where that is and a group is
// not; where neither is, what is missed belongs to the node that is there, else a group.
func TestNodeOf(t *testing.T) {
	for _, c := range []struct {
		files string // below the folder of nodes
		want  string
	}{
		{"vfio/7 vfio/vfio", "vfio/7"},
		{"vfio/7 vfio/vfio vfio/devices/vfio3 iommu", "vfio/7"},
		{"vfio/vfio vfio/devices/vfio3 iommu", "vfio/devices/vfio3"}, // no groups: CONFIG_VFIO_GROUP=n, or not shown to a container
		{"vfio/7 vfio/devices/vfio3 iommu", "vfio/devices/vfio3"},    // no container
		{"vfio/devices/vfio3 iommu", "vfio/devices/vfio3"},
		{"vfio/devices/vfio3", "vfio/devices/vfio3"}, // /dev/iommu is missed
		{"vfio/7 vfio/devices/vfio3", "vfio/7"},
		{"vfio/devices/vfio4 iommu", "vfio/7"}, // of another device
		{"iommu", "vfio/7"},
		{"", "vfio/7"},
	} {
		in := tree(t, map[string]string{aNode: driverName})
		in.dev += "2" // without the group that the tree has
		put(t, in.device(aNode), "vfio-dev/vfio3/dev", "511:3\n")
		for _, f := range strings.Fields(c.files) {
			put(t, in.dev, f, "")
		}
		n := NodeOf(in.sysfs, in.dev, aNode)
		if n.Path != in.dev+"/"+c.want || n.IOMMUFD != strings.Contains(c.want, "devices") ||
			strings.Contains(n.Why(), "by iommufd") != n.IOMMUFD {
			t.Errorf("%q: %+v, %s; want %s", c.files, n, n.Why(), c.want)
		}
	}
}

// TestOpenIOMMUFD: a device without a group is opened by its own node, and what is no
// VFIO there is refused, with everything closed.
func TestOpenIOMMUFD(t *testing.T) {
	in := tree(t, map[string]string{aNode: driverName})
	in.viable = func(*unix.FD) (bool, error) { t.Error("a group was opened"); return false, nil }
	put(t, in.device(aNode), "vfio-dev/vfio3/dev", "511:3\n")
	put(t, in.dev, "vfio/devices/vfio3", "")
	put(t, in.dev, "iommu", "")
	d, err := open(in, aNode)
	if d != nil || unix.ErrnoOf(err) != unix.ENOTTY || !strings.Contains(err.Error(), "bind to iommufd pci:"+aNode) {
		t.Errorf("%v, %v", d, err)
	}
	if err := os.Remove(in.dev + "/iommu"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(in.dev + "/vfio/7"); err != nil { // this kernel has no groups
		t.Fatal(err)
	}
	if _, err := open(in, aNode); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), in.dev+"/iommu: ") ||
		!strings.Contains(err.Error(), "modprobe iommufd") {
		t.Errorf("without /dev/iommu: %v", err)
	}
}

// TestIOMMUFDBindErrors: what the kernel says of a bind is told in the words that a
// group's errors have.
func TestIOMMUFDBindErrors(t *testing.T) {
	alone := tree(t, map[string]string{aNode: driverName})
	shared := tree(t, map[string]string{aNode: driverName, "0000:01:00.1": "ahci"})
	for _, c := range []struct {
		in   system
		err  unix.Errno
		want error
		says string
	}{
		{alone, unix.EINVAL, base.ErrLocked, "another process has it, or its memory accesses are not coherent"},
		{alone, unix.EBUSY, base.ErrLocked, "another process has it ("},
		{alone, unix.EPERM, unix.EPERM, "this or another process has a device of its IOMMU group"},
		{alone, unix.EPERM, unix.EPERM, "allow_unsafe_interrupts"},
		{shared, unix.EPERM, base.ErrGroupNotViable, "0000:01:00.1 (ahci)"},
		{alone, unix.ENODEV, unix.ENODEV, "bind to iommufd"},
	} {
		l := &link{in: c.in, name: "pci:" + aNode, address: aNode}
		if err := l.bindError(c.in.dev+"/vfio/devices/vfio3", c.err); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v, want %v and %q", c.err, err, c.want, c.says)
		}
	}
}

// TestLockedBy: whoever has the device is named, this process and the owner of its group's
// node, too; the one descriptor of the attempt itself does not count.
func TestLockedBy(t *testing.T) {
	in := tree(t, map[string]string{aNode: driverName})
	put(t, in.dev, "vfio/devices/vfio3", "")
	group, own := in.dev+"/vfio/7", in.dev+"/vfio/devices/vfio3"
	l := &link{in: in, name: "pci:" + aNode, address: aNode}
	says := func(what string, err error, want string) {
		t.Helper()
		if !errors.Is(err, base.ErrLocked) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	opened := func(path string) func() {
		t.Helper()
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return func() { _ = f.Close() }
	}
	attempt := opened(own)
	defer attempt()
	says("nobody is seen", l.bindError(own, unix.EINVAL), "another process has it, or")
	earlier := opened(own)
	says("bound by this process", l.bindError(own, unix.EINVAL), "this process has it, or another device of its IOMMU group")
	earlier()
	earlier = opened(group)
	says("the group is this process's", l.locked(group, 0, unseen), "this process has it, or another device of its IOMMU group")
	says("the group is this process's, by iommufd", l.bindError(own, unix.EBUSY), "this process has it, or another device")
	earlier()
	pid := strconv.Itoa(testenv.Hold(t, group))
	says("the group is another's, by iommufd", l.bindError(own, unix.EBUSY), "process "+pid+" (sleep) has it (")
	pid = strconv.Itoa(testenv.Hold(t, own))
	says("another has bound it", l.bindError(own, unix.EINVAL), "process "+pid+" (sleep) has it (")
}

// fakeSpace is an address space that maps in units of so many bytes.
type fakeSpace struct {
	type1
	unit uint64
}

func (s *fakeSpace) ranges() ([][2]uint64, uint64, error) {
	return [][2]uint64{{0, 1 << 40}}, s.unit, nil
}

// TestUnitOfMaps: an IOMMU or a kernel whose pages are larger than the driver's is refused
// at once, and not by the first map.
func TestUnitOfMaps(t *testing.T) {
	for unit, fits := range map[uint64]bool{0: true, 512: true, 4096: true, 16384: false, 65536: false} {
		l := &link{name: "pci:" + aNode, memory: &fakeSpace{unit: unit}}
		err := l.measure()
		if fits != (err == nil) || !fits && (!errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), strconv.FormatUint(unit, 10))) {
			t.Errorf("%d bytes: %v", unit, err)
		}
	}
}

// TestMapErrors: each way says which of its limits was met, and refuses memory that it
// cannot map as not supported, so that it is copied instead.
func TestMapErrors(t *testing.T) {
	for _, c := range []struct {
		memory addressSpace
		err    unix.Errno
		want   error
		says   string
	}{
		{&type1{}, unix.ENOMEM, unix.ENOMEM, "counts mapped memory: raise ulimit -l"},
		{&ioas{}, unix.ENOMEM, unix.ENOMEM, "all processes of this user have mapped: raise ulimit -l"},
		{&type1{}, unix.EFAULT, base.ErrNotSupported, "cannot pin"},
		{&ioas{}, unix.EFAULT, base.ErrNotSupported, "no BARs"},
		{&type1{}, unix.ENOSPC, base.ErrNoSpace, "dma_entry_limit"},
	} {
		d := &Device{link: &link{memory: c.memory}}
		if err := d.mapError(4096, c.err); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%T: %v: %v, want %v and %q", c.memory, c.err, err, c.want, c.says)
		}
	}
}
