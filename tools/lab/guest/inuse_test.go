//go:build ugds_lab

package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Controllers of the shape "bind" by their place, beside the first; see
// tools/lab/shapes.go.
const (
	usedSSD    = 1
	twoSpaces  = 2
	mountPoint = "/tmp/mounted"
	heldDisk   = "UGDS_LAB_DISK" // tells TestHolderChild which
)

// inUse is a disk that something uses, and must not be taken away.
type inUse struct {
	t       *testing.T
	address string
	disk    string
}

// refused wants a bind to be refused in words that name what uses the disk, and
// the disk to be as it was.
func (u *inUse) refused(says ...string) {
	u.t.Helper()
	before := readHead(u.t, u.disk)
	_, err := probe.Bind(soon(u.t), u.address, probe.DriverModule)
	if !errors.Is(err, base.ErrInUse) || boundTo(u.address) != probe.DriverKernel {
		u.t.Fatalf("%v, bound to %q", err, boundTo(u.address))
	}
	u.t.Log(err)
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			u.t.Errorf("%v does not name %s", err, s)
		}
	}
	if text, err := os.ReadFile(sysPCI + "devices/" + u.address + "/driver_override"); err != nil || strings.TrimSpace(string(text)) != "(null)" {
		u.t.Errorf("the override is %q: %v", text, err)
	}
	if !bytes.Equal(readHead(u.t, u.disk), before) {
		u.t.Error("the disk has changed")
	}
}

// readHead gives the first bytes of a disk.
func readHead(t testing.TB, disk string) []byte {
	t.Helper()
	f, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 64*base.KiB)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// mounted makes a file system on a disk and mounts it until the returned function is called.
func mounted(t testing.TB, disk string) (unmount func()) {
	t.Helper()
	sh(t, "mke2fs", disk)
	if err := os.MkdirAll(mountPoint, 0o755); err != nil {
		t.Fatal(err)
	}
	// For reading: a file system writes to its superblock whenever it likes.
	sh(t, "mount", "-t", "ext2", "-o", "ro", disk, mountPoint)
	return func() { sh(t, "umount", mountPoint) }
}

// TestBindInUse: whatever uses a disk is named, and the disk stays as it is; when
// nothing does any more, the controller is given to our driver.
func TestBindInUse(t *testing.T) {
	address, disk := kernelDisk(t, usedSSD)
	for _, c := range []struct {
		name string
		test func(*inUse)
	}{{"mounted", useMounted}, {"hidden mount", useHiddenMount}, {"swap", useSwap}, {"process", useProcess}, {"exclusive", useExclusive},
		{"partition", usePartition}, {"device mapper", useMapper}, {"RAID", useRAID}, {"commands", useCommands}} {
		t.Run(c.name, func(t *testing.T) { c.test(&inUse{t, address, disk}) })
	}
	if _, err := probe.Bind(soon(t), address, probe.DriverModule); err != nil {
		t.Errorf("free again: %v", err)
	}
	if _, err := probe.Bind(soon(t), address, probe.DriverKernel); err != nil {
		t.Error(err)
	}
}

func useMounted(u *inUse) {
	unmount := mounted(u.t, u.disk)
	u.refused(u.disk, mountPoint)
	unmount()
}

// useHiddenMount: only another process sees the mount, as with containers.
func useHiddenMount(u *inUse) {
	sh(u.t, "mke2fs", u.disk)
	c := exec.Command("sh", "-c", "mount -t ext2 -o ro "+u.disk+" "+mountPoint+" && echo mounted && exec sleep 60")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	u.holder(c, "mounted", func() { u.refused(u.disk, mountPoint, "process "+strconv.Itoa(c.Process.Pid)) })
}

func useSwap(u *inUse) {
	sh(u.t, "mkswap", u.disk)
	sh(u.t, "swapon", u.disk)
	u.refused(u.disk, "swap")
	sh(u.t, "swapoff", u.disk)
}

// holder runs a program, waits until it says that it is ready, and ends it after use.
func (u *inUse) holder(c *exec.Cmd, ready string, use func()) {
	u.t.Helper()
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		u.t.Fatal(err)
	}
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	waitFor(out, ready)
	use()
}

func useProcess(u *inUse) {
	c := exec.Command("sh", "-c", "exec <"+u.disk+" && echo open && exec sleep 60")
	u.holder(c, "open", func() { u.refused(u.disk, "process "+strconv.Itoa(c.Process.Pid)) })
}

// TestHolderChild claims a disk alone until it is killed. It is nothing by itself.
func TestHolderChild(t *testing.T) {
	f, err := unix.Open(os.Getenv(heldDisk), unix.ReadOnly|unix.Excl, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Println("held")
	time.Sleep(time.Minute)
}

// useExclusive: somebody claims the disk alone, as the store itself does.
func useExclusive(u *inUse) {
	c := exec.Command("/proc/self/exe", "-test.run=^TestHolderChild$")
	c.Env = append(os.Environ(), heldDisk+"="+u.disk)
	u.holder(c, "held", func() { u.refused(u.disk, "process "+strconv.Itoa(c.Process.Pid)) })
}

// useCommands: somebody may send commands to the namespace past the block layer.
func useCommands(u *inUse) {
	node := "/dev/ng" + strings.TrimPrefix(u.disk, "/dev/nvme")
	c := exec.Command("sh", "-c", "exec <"+node+" && echo open && exec sleep 60")
	u.holder(c, "open", func() { u.refused(node, "process "+strconv.Itoa(c.Process.Pid)) })
}

// usePartition: a partition of the disk is open, then mounted.
func usePartition(u *inUse) {
	reread := func(table []byte) {
		f, err := unix.Open(u.disk, unix.ReadWrite, 0)
		if err != nil {
			u.t.Fatal(err)
		}
		if _, err = unix.Pwrite(f, table, 0); err == nil {
			err = unix.Ioctl(f, 0x125f, (*byte)(nil)) // BLKRRPART
		}
		if err = errors.Join(err, f.Close()); err != nil {
			u.t.Fatal(err)
		}
	}
	table := make([]byte, 512) // of a PC: one partition of 8 MiB, at 1 MiB
	entry := table[446:]
	entry[4] = 0x83
	binary.LittleEndian.PutUint32(entry[8:], 2048)
	binary.LittleEndian.PutUint32(entry[12:], 16384)
	table[510], table[511] = 0x55, 0xaa
	reread(table)
	part := u.disk + "p1"
	eventually(u.t, "the partition appears", func() bool { _, err := os.Stat(part); return err == nil })
	c := exec.Command("sh", "-c", "exec <"+part+" && echo open && exec sleep 60")
	u.holder(c, "open", func() { u.refused(part, "process "+strconv.Itoa(c.Process.Pid)) })
	unmount := mounted(u.t, part)
	u.refused(part, mountPoint)
	unmount()
	reread(make([]byte, 512))
}

// mapper sends a command of the device mapper (linux/dm-ioctl.h) for the device of a name.
func mapper(t testing.TB, command uintptr, name string, targets uint32, data []byte) error {
	t.Helper()
	f, err := unix.Open("/dev/mapper/control", unix.ReadWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const head = 312 // bytes of struct dm_ioctl
	var arg [1024]byte
	for i, v := range []uint32{4, 0, 0, uint32(len(arg)), head, targets} {
		binary.LittleEndian.PutUint32(arg[4*i:], v)
	}
	copy(arg[48:], name)
	copy(arg[head:], data)
	return unix.Ioctl(f, 3<<30|head<<16|0xfd<<8|command, &arg)
}

// useMapper: a device of the device mapper is built on the disk, as LVM does it.
func useMapper(u *inUse) {
	const create, remove, suspend, load, name = 3, 4, 6, 9, "lab-volume"
	target := make([]byte, 128) // struct dm_target_spec: 16 MiB of the disk
	binary.LittleEndian.PutUint64(target[8:], 32768)
	copy(target[24:], "linear")
	copy(target[40:], u.disk+" 0")
	if err := mapper(u.t, create, name, 0, nil); err != nil {
		u.t.Fatal(err)
	}
	err := mapper(u.t, load, name, 1, target)
	if err == nil {
		err = mapper(u.t, suspend, name, 0, nil) // without its flag it starts the device
	}
	if err != nil {
		u.t.Fatal(err)
	}
	u.refused(u.disk, "dm-0", name)
	if err := mapper(u.t, remove, name, 0, nil); err != nil {
		u.t.Fatal(err)
	}
}

// useRAID: an array is built of the disk.
func useRAID(u *inUse) {
	const name = "md_lab"
	dir := "/sys/block/" + name + "/md/"
	writeSys(u.t, "/sys/module/md_mod/parameters/new_array", name)
	st, err := unix.StatPath(u.disk)
	if err != nil {
		u.t.Fatal(err)
	}
	member := "dev-" + filepath.Base(u.disk)
	for _, set := range [][2]string{{"metadata_version", "none"}, {"level", "raid1"}, {"raid_disks", "1"}, {"component_size", "16384"},
		{"new_dev", st.Rdev.String()}, {member + "/slot", "0"}, {"array_state", "active"}} {
		writeSys(u.t, dir+set[0], set[1])
	}
	u.refused(u.disk, name)
	writeSys(u.t, dir+"array_state", "clear")
	holders := "/sys/class/block/" + filepath.Base(u.disk) + "/holders"
	eventually(u.t, "the array is gone", func() bool { d, err := os.ReadDir(holders); return err == nil && len(d) == 0 })
}

// TestBindSecondNamespace: a controller goes to another driver with all of its
// namespaces, so that one in use keeps it where it is.
func TestBindSecondNamespace(t *testing.T) {
	address := nth(t, classNVMe, twoSpaces)
	var p probe.Binding
	eventually(t, "both disks appear", func() bool {
		var err error
		p, err = probe.PlanBind(probe.Sysfs, address, probe.DriverModule)
		return err == nil && len(p.Loses) == 2
	})
	for i, disk := range p.Loses {
		if _, err := os.Stat(disk); err != nil {
			t.Fatal(err)
		}
		unmount := mounted(t, disk)
		u := inUse{t, address, p.Loses[1-i]}
		u.refused(disk, mountPoint)
		unmount()
	}
	if _, err := probe.Bind(soon(t), address, probe.DriverModule); err != nil {
		t.Error(err)
	}
	if _, err := probe.Bind(soon(t), address, probe.DriverKernel); err != nil || boundTo(address) != probe.DriverKernel {
		t.Errorf("back: %v", err)
	}
	eventually(t, "both disks are back", func() bool {
		again, err := probe.PlanBind(probe.Sysfs, address, probe.DriverModule)
		return err == nil && slices.Equal(again.Loses, p.Loses)
	})
}

// TestBindOwned: a controller whose owner is at work is not taken away from it.
func TestBindOwned(t *testing.T) {
	address, _ := kernelDisk(t, usedSSD)
	if _, err := probe.Bind(soon(t), address, probe.DriverModule); err != nil {
		t.Fatal(err)
	}
	c := another("hold", "UGDS_LAB_ADDRESS="+address)
	(&inUse{t: t}).holder(c, "held", func() {
		if _, err := probe.Bind(soon(t), address, probe.DriverKernel); !errors.Is(err, base.ErrInUse) ||
			!strings.Contains(err.Error(), fmt.Sprintf("process %d", c.Process.Pid)) {
			t.Errorf("with an owner: %v", err)
		}
	})
	if _, err := probe.Bind(soon(t), address, probe.DriverKernel); err != nil || boundTo(address) != probe.DriverKernel {
		t.Errorf("without: %v", err)
	}
}
