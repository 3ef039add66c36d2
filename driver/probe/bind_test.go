package probe

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

const anSSD = "0000:01:00.0"

// bus is a folder that behaves as sysfs does when drivers are changed.
type bus struct {
	t       *testing.T
	dir     string
	refuses map[string]bool // drivers that do not take the device
	fail    string          // a file whose writes fail
	writes  []string
}

func (b *bus) path(file string) string { return filepath.Join(b.dir, file) }

func (b *bus) put(file, text string) {
	b.t.Helper()
	err := os.MkdirAll(filepath.Dir(b.path(file)), 0o755)
	if err == nil {
		err = os.WriteFile(b.path(file), []byte(text), 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bus) driver() string {
	to, _ := os.Readlink(b.path("bus/pci/devices/" + anSSD + "/driver"))
	return filepath.Base(to)
}

func (b *bus) setDriver(name string) {
	link := b.path("bus/pci/devices/" + anSSD + "/driver")
	_ = os.Remove(link)
	if name != "" {
		if err := os.Symlink("../../drivers/"+name, link); err != nil {
			b.t.Fatal(err)
		}
	}
}

// write does what the kernel does.
func (b *bus) write(file, text string) error {
	b.writes = append(b.writes, file+" "+strings.TrimSpace(text))
	if strings.HasSuffix(file, b.fail) && b.fail != "" {
		return os.ErrPermission
	}
	dev := "bus/pci/devices/" + anSSD
	override := strings.TrimSpace(kernel(b.dir).text(dev, "driver_override"))
	switch {
	case strings.HasSuffix(file, "driver_override"):
		b.put(file, text)
	case strings.HasSuffix(file, "unbind"):
		b.setDriver("")
	case strings.HasSuffix(file, "/bind"):
		name := filepath.Base(filepath.Dir(file))
		switch {
		case b.driver() != ".":
			return unix.EBUSY
		case override != name && (override != "" && override != "(null)" || name != DriverKernel), b.refuses[name]:
			return unix.ENODEV
		}
		b.setDriver(name)
	}
	return nil
}

func newBus(t *testing.T, driver string) *bus {
	b := &bus{t: t, dir: t.TempDir() + "/sys", refuses: map[string]bool{}}
	dev := "bus/pci/devices/" + anSSD
	b.put(dev+"/class", nvmeClass+"\n")
	b.put(dev+"/driver_override", "(null)\n")
	b.put("bus/pci/devices/0000:02:00.0/class", "0x030000\n")
	b.put("../proc/modules", "")
	for _, d := range []string{DriverKernel, DriverModule, DriverVFIO} {
		b.put("bus/pci/drivers/"+d+"/module", "")
	}
	if driver != "" {
		b.setDriver(driver)
	}
	return b
}

func (b *bus) binder(held ...string) binder {
	return binder{kernel(b.dir), b.write, func(kernel, string) ([]string, error) { return held, nil },
		func([]Disk) (func(), error) { return func() {}, nil }}
}

func TestBind(t *testing.T) {
	for _, c := range []struct{ from, to string }{{DriverKernel, DriverModule}, {DriverModule, DriverKernel}, {"", DriverModule},
		{"", DriverKernel}, {DriverModule, DriverModule}} {
		b := newBus(t, c.from)
		p, err := b.binder().bind(context.Background(), anSSD, c.to)
		if err != nil || b.driver() != c.to || p.Changed != (c.from != c.to) || p.From != c.from {
			t.Errorf("%q to %q: %+v, bound to %q, %v", c.from, c.to, p, b.driver(), err)
		}
		if !p.Changed && len(b.writes) > 0 {
			t.Errorf("%q to %q: wrote %q", c.from, c.to, b.writes)
		}
	}
}

// TestBindFails: whatever fails, the disk is as it was.
func TestBindFails(t *testing.T) {
	for name, change := range map[string]func(b *bus){
		"the driver refuses":  func(b *bus) { b.refuses[DriverModule] = true },
		"unbind fails":        func(b *bus) { b.fail = "unbind" },
		"probe fails":         func(b *bus) { b.fail = "/bind" },
		"no override allowed": func(b *bus) { b.fail = "driver_override" },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBus(t, DriverKernel)
			change(b)
			probes, open := 0, false
			d := b.binder()
			d.claim = func([]Disk) (func(), error) { open = true; return func() { open = false }, nil }
			d.write = func(file, text string) error {
				if open && strings.HasSuffix(file, DriverKernel+"/bind") {
					t.Error("the disk that went is still open, so that it comes back by another name")
				}
				if strings.HasSuffix(file, "/bind") {
					if probes++; probes > 1 {
						b.fail = "" // it recovers
					}
				}
				return b.write(file, text)
			}
			_, err := d.bind(context.Background(), anSSD, DriverModule)
			if err == nil || b.driver() != DriverKernel {
				t.Errorf("%v, bound to %q after %q", err, b.driver(), b.writes)
			}
			if o := kernel(b.dir).text("bus/pci/devices/"+anSSD, "driver_override"); o != "" && o != "(null)" {
				t.Errorf("the override is %q", o)
			}
		})
	}
}

// TestA01BindRefused: what cannot work is refused before the kernel's driver loses the
// disk, with what is missing.
func TestA01BindRefused(t *testing.T) {
	for _, c := range []struct {
		address, to string
		class       error
		says        string
	}{
		{"0000:09:00.0", DriverModule, base.ErrNotFound, "no such PCI device"},
		{"../0000:01:00.0", DriverModule, base.ErrInvalid, "is like"},
		{"0000:02:00.0", DriverModule, base.ErrInvalid, "0x030000"},
		{anSSD, "e1000", base.ErrNotFound, "modprobe e1000"},
		{anSSD, DriverVFIO, base.ErrNotSupported, "no IOMMU translates for it"},
		{anSSD, DriverVFIO, base.ErrNotSupported, "on Intel boot with intel_iommu=on"},
		{"nvme0n1", DriverModule, base.ErrInvalid, "device list"},
		{"0000:09:00.0", DriverModule, base.ErrNotFound, "device list"},
	} {
		b := newBus(t, DriverKernel)
		_, err := b.binder().bind(context.Background(), c.address, c.to)
		if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.says) || len(b.writes) > 0 || b.driver() != DriverKernel {
			t.Errorf("%s to %s: %v, wrote %q", c.address, c.to, err, b.writes)
		}
	}
	b := newBus(t, DriverKernel)
	if err := os.RemoveAll(b.path("bus/pci/drivers/" + DriverVFIO)); err != nil {
		t.Fatal(err)
	}
	_, err := b.binder().bind(context.Background(), anSSD, DriverVFIO)
	if !errors.Is(err, base.ErrNotFound) || !strings.Contains(err.Error(), "modprobe vfio-pci") || len(b.writes) > 0 {
		t.Errorf("without the module: %v, wrote %q", err, b.writes)
	}
}

// TestBindWithoutModule: what loads our module depends on where it is, and a disk that
// is in use is told of first.
func TestBindWithoutModule(t *testing.T) {
	b := newBus(t, DriverKernel)
	if err := os.RemoveAll(b.path("bus/pci/drivers/" + DriverModule)); err != nil {
		t.Fatal(err)
	}
	says := func(held []string, class error, want string) {
		t.Helper()
		_, err := b.binder(held...).bind(context.Background(), anSSD, DriverModule)
		if !errors.Is(err, class) || !strings.Contains(err.Error(), want) || len(b.writes) > 0 {
			t.Errorf("%v, want %q", err, want)
		}
	}
	b.put("../proc/sys/kernel/osrelease", "6.12\n")
	says(nil, base.ErrNotFound, "install the headers of kernel 6.12")
	b.put("../lib/modules/6.12/build/Makefile", "")
	says(nil, base.ErrNotFound, "insmod bin/kmod/ugds.ko")
	b.put("../lib/modules/6.12/updates/ugds.ko.xz", "")
	says(nil, base.ErrNotFound, "(load it: modprobe ugds)")
	says([]string{"/dev/nvme0n1 is mounted on /data"}, base.ErrInUse, "unmount or release it")
	if err := os.Remove(b.path("../proc/modules")); err != nil {
		t.Fatal(err)
	}
	says(nil, base.ErrNotFound, "loads modules")
}

// TestBindNeedsRoot: who may not change drivers is told so before anything is tried.
func TestBindNeedsRoot(t *testing.T) {
	b := newBus(t, DriverKernel)
	override := b.path("bus/pci/devices/" + anSSD + "/driver_override")
	if err := errors.Join(os.Remove(override), os.Symlink(filepath.Base(override), override)); err != nil {
		t.Fatal(err) // a loop: what not even root can write
	}
	d := b.binder()
	d.claim = func([]Disk) (func(), error) { t.Error("it claimed the disk"); return func() {}, nil }
	if p, err := d.plan(anSSD, DriverModule); err != nil || p.Barred == nil {
		t.Errorf("the plan: %+v, %v", p, err)
	}
	if _, err := d.bind(context.Background(), anSSD, DriverModule); err == nil || !strings.Contains(err.Error(), "needs root") || len(b.writes) > 0 {
		t.Errorf("%v, wrote %q", err, b.writes)
	}
}

// TestA04DiskInUse: a disk that is in use in any way that can be seen is not taken from
// the kernel, and the error names the user. Nothing overrides that.
func TestA04DiskInUse(t *testing.T) {
	for name, c := range map[string]struct {
		file, text, says string
	}{
		"mounted partition": {"../proc/self/mountinfo", "36 25 259:7 / /mnt/my\\040data rw - ext4 /dev/nvme3n1p2 rw\n",
			"/dev/nvme3n1p2 is mounted on /mnt/my data"},
		"mounted disk":   {"../proc/self/mountinfo", "36 25 259:5 / /data rw - xfs /dev/nvme3n1 rw\n", "/dev/nvme3n1 is mounted on /data"},
		"swap":           {"../proc/swaps", "Filename Type\n/dev/nvme3n1p2 partition 8 0 -2\n", "/dev/nvme3n1p2 is in use as swap"},
		"mapped":         {"dev/block/259:7/holders/dm-3/x", "", "the device dm-3 is built on it"},
		"RAID":           {"dev/block/259:5/holders/md0/x", "", "the device md0 is built on it"},
		"another's disk": {"../proc/self/mountinfo", "36 25 259:6 / /data rw - xfs /dev/nvme4n1 rw\n", ""},
		// A file system that may have several devices has a number of its own.
		"mounted btrfs":   {"../proc/self/mountinfo", "36 25 0:52 /@ /data rw - btrfs /dev/nvme3n1p2 rw\n", "/dev/nvme3n1p2 is mounted on /data"},
		"part of a btrfs": {"fs/btrfs/8e1f-22/devices/nvme3n1p2/dev", "259:7\n", "it is a part of the mounted btrfs 8e1f-22"},
		"another's btrfs": {"../proc/self/mountinfo", "36 25 0:52 / /data rw - btrfs /dev/nvme4n1 rw\n37 25 0:53 / /x rw - tmpfs nvme3n1 rw\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBus(t, DriverKernel)
			b.put("bus/pci/devices/"+anSSD+"/nvme/nvme3/dev", "240:3")
			b.put("class/nvme/nvme3/nvme3n1/x", "")
			for disk, dev := range map[string]string{"nvme3n1": "259:5", "nvme3n1p2": "259:7", "nvme4n1": "259:6"} {
				b.put("class/block/"+disk+"/dev", dev)
			}
			b.put("dev/block/259:5/nvme3n1p2/partition", "2")
			b.put("dev/block/259:5/nvme3n1p2/dev", "259:7")
			b.put(c.file, c.text)
			d := b.binder()
			d.inUse = holders
			_, err := d.bind(context.Background(), anSSD, DriverModule)
			if c.says == "" {
				if err != nil || b.driver() != DriverModule {
					t.Errorf("%v, bound to %q", err, b.driver())
				}
				return
			}
			if !errors.Is(err, base.ErrInUse) || !strings.Contains(err.Error(), "/dev/nvme3n1: "+c.says) || !strings.Contains(err.Error(), "unmount") || len(b.writes) > 0 ||
				b.driver() != DriverKernel {
				t.Errorf("%v, wrote %q", err, b.writes)
			}
		})
	}
	// Processes, and what can only be found by claiming the disk.
	b := newBus(t, DriverKernel)
	_, err := b.binder("process 12 (fio) has /dev/nvme0n1 open").bind(context.Background(), anSSD, DriverModule)
	if !errors.Is(err, base.ErrInUse) || !strings.Contains(err.Error(), "fio") || len(b.writes) > 0 {
		t.Errorf("%v, wrote %q", err, b.writes)
	}
	d := b.binder()
	d.claim = func([]Disk) (func(), error) { return nil, base.ErrInUse }
	if _, err := d.bind(context.Background(), anSSD, DriverModule); !errors.Is(err, base.ErrInUse) || len(b.writes) > 0 {
		t.Errorf("%v, wrote %q", err, b.writes)
	}
}

// TestA02BindGroup: a controller is not given to VFIO, and not taken from the kernel,
// when another driver has a device of its IOMMU group. Other NVMe controllers there are
// no reason: they are bound next.
func TestA02BindGroup(t *testing.T) {
	for _, c := range []struct {
		class, driver, to string
		refused           bool
	}{
		{"0x010601", "ahci", DriverVFIO, true}, {"0x010601", "", DriverVFIO, false}, {nvmeClass, DriverKernel, DriverVFIO, false},
		{"0x060400", "pcieport", DriverVFIO, false}, {"0x010601", "ahci", DriverModule, false},
	} {
		b := newBus(t, DriverKernel)
		const other = "0000:01:00.1"
		b.put("bus/pci/devices/"+other+"/class", c.class+"\n")
		for _, address := range []string{anSSD, other} {
			b.put("kernel/iommu_groups/7/devices/"+address, "")
			if err := os.Symlink("../../../../kernel/iommu_groups/7", b.path("bus/pci/devices/"+address+"/iommu_group")); err != nil {
				t.Fatal(err)
			}
		}
		if c.driver != "" {
			if err := os.Symlink("../../drivers/"+c.driver, b.path("bus/pci/devices/"+other+"/driver")); err != nil {
				t.Fatal(err)
			}
		}
		_, err := b.binder().bind(context.Background(), anSSD, c.to)
		if !c.refused {
			if err != nil || b.driver() != c.to {
				t.Errorf("%+v: %v, bound to %q", c, err, b.driver())
			}
			continue
		}
		if !errors.Is(err, base.ErrGroupNotViable) || !strings.Contains(err.Error(), other+" (ahci)") || len(b.writes) > 0 ||
			b.driver() != DriverKernel {
			t.Errorf("%+v: %v, bound to %q, wrote %q", c, err, b.driver(), b.writes)
		}
	}
}
