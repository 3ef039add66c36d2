package probe

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
)

// fakeSys makes a tree of files and links ("name -> target") as the kernel shows it.
func fakeSys(t *testing.T, entries ...string) string {
	t.Helper()
	root := t.TempDir() + "/sys" // proc is beside it
	for _, e := range entries {
		name, text, _ := strings.Cut(e, "=")
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(text, "-> "); ok {
			err = os.Symlink(to, path)
		} else {
			err = os.WriteFile(path, []byte(text+"\n"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestControllers reads a machine with a free disk, one with a mounted disk, one of
// VFIO, one without a driver, one behind a fabric, and a disk that is no NVMe one.
func TestControllers(t *testing.T) {
	const a, b, c, d = "bus/pci/devices/0000:01:00.0/", "bus/pci/devices/0000:02:00.0/",
		"bus/pci/devices/0000:03:00.0/", "bus/pci/devices/0000:04:00.0/"
	sys := fakeSys(t,
		a+"class=0x010802", a+"vendor=0x8086", a+"device=0x0a54", a+"numa_node=1", a+"driver=-> ../../drivers/nvme",
		a+"iommu_group=-> ../../../kernel/iommu_groups/17", a+"current_link_speed=8.0 GT/s PCIe", a+"current_link_width=2",
		a+"max_link_speed=8.0 GT/s PCIe", a+"max_link_width=4", a+"nvme/nvme0/x=", "class/nvme/nvme0/model=A disk   ",
		"class/nvme/nvme0/serial=S1", "class/nvme/nvme0/firmware_rev=F2", "class/nvme/nvme0/state=live",
		"class/nvme/nvme0/nvme0c0n1/x=", "class/nvme/nvme0/power/x=", "class/block/nvme0n1/size=2048", "class/block/nvme0n1/dev=511:77",
		b+"class=0x010802", b+"driver=-> ../nvme", b+"nvme/nvme1/x=", "class/nvme/nvme1/model=Other",
		"class/nvme/nvme1/nvme1n1/x=", "class/block/nvme1n1/dev=259:3",
		"../proc/self/mountinfo=36 25 259:3 / /data rw - xfs /dev/nvme1n1 rw",
		c+"class=0x010802", c+"driver=-> ../vfio-pci", d+"class=0x010802", d+"numa_node=-1",
		"bus/pci/devices/0000:05:00.0/class=0x010601",
		"class/nvme/nvme7/transport=tcp", "class/nvme/nvme7/address=traddr=10.0.0.1", "class/nvme/nvme7/model=Far")
	got, err := Controllers(sys)
	if err != nil || len(got) != 5 {
		t.Fatalf("%d controllers, %v: %+v", len(got), err, got)
	}
	want := Controller{Address: "0000:01:00.0", Vendor: "8086", Device: "0a54", Driver: "nvme", Name: "nvme0", Model: "A disk",
		Serial: "S1", Firmware: "F2", State: "live", NUMANode: 1, IOMMUGroup: "17",
		Link:   Link{"8.0 GT/s PCIe", "2", "8.0 GT/s PCIe", "4"},
		Disks:  []Disk{{Name: "nvme0n1", Path: "/dev/nvme0n1", Bytes: 1 << 20, Holders: []string{}}},
		Usable: true, Why: "through the kernel, as a block device"}
	if !reflect.DeepEqual(got[0], want) {
		t.Errorf("%+v\nwant %+v", got[0], want)
	}
	if s := got[0].Link.String(); s != "PCIe 8.0 GT/s x2 (of 8.0 GT/s x4)" || !got[0].Link.Narrow() {
		t.Errorf("link %q", s)
	}
	if g := got[1]; g.Usable || len(g.Disks) != 1 || !slices.Equal(g.Disks[0].Holders, []string{"/dev/nvme1n1 is mounted on /data"}) || g.NUMANode != -1 {
		t.Errorf("mounted: %+v", g)
	}
	for i, why := range map[int]string{2: "through VFIO, as pci:" + got[2].Address, 3: "no driver has it", 4: "no namespace"} {
		if g := got[i]; g.Usable != (i == 2) || !strings.Contains(g.Why, why) {
			t.Errorf("%d: %+v, want %q", i, g, why)
		}
	}
	if g := got[4]; g.Driver != "nvme-tcp" || g.Address != "traddr=10.0.0.1" || g.Link.String() != "" {
		t.Errorf("fabric: %+v", g)
	}
	if got, err := Controllers(t.TempDir()); err != nil || len(got) != 0 {
		t.Errorf("a machine without: %v, %v", got, err)
	}
	if _, err := Controllers(Sysfs); err != nil {
		t.Errorf("this machine: %v", err)
	}
}

// TestTaken: a controller of our module that a process has, or that the module refuses,
// is not free, and whoever takes it away is told.
func TestTaken(t *testing.T) {
	b := newBus(t, DriverModule)
	node := "bus/pci/devices/" + anSSD + "/ugds_drv/ugds_drv0/"
	b.put("../dev/ugds_drv0", "")
	for _, c := range []struct{ owner, refusal, says string }{
		{"0", "", ""}, {"", "", ""}, {"0", "memory encryption is active", "memory encryption"}, {strconv.Itoa(os.Getpid()), "", "process " + strconv.Itoa(os.Getpid())},
	} {
		b.put(node+"owner", c.owner+"\n")
		b.put(node+"refusal", c.refusal+"\n")
		found, err := Controllers(b.dir)
		if err != nil || found[0].Usable != (c.says == "") || !strings.Contains(found[0].Why, c.says) {
			t.Errorf("%+v: %+v, %v", c, found[0], err)
		}
		if choice, err := kernel(b.dir).choose(anSSD, 0); err != nil || (choice.Taken == nil) != (c.says == "") {
			t.Errorf("%+v: %+v, %v", c, choice, err)
		}
	}
	d := b.binder()
	d.inUse = holders
	if _, err := d.plan(anSSD, DriverKernel); !errors.Is(err, base.ErrInUse) {
		t.Errorf("the plan of unbind: %v", err)
	}
}

// TestTakenVFIO: a controller of VFIO is not free when a node that its owner needs is not
// here, or no IOMMU translates for it, and the list and check say what to do.
func TestTakenVFIO(t *testing.T) {
	b := newBus(t, DriverVFIO)
	if err := os.Symlink("../../../../kernel/iommu_groups/12", b.path("bus/pci/devices/"+anSSD+"/iommu_group")); err != nil {
		t.Fatal(err)
	}
	b.put("bus/pci/devices/"+anSSD+"/vfio-dev/vfio3/dev", fullDev)
	for _, c := range []struct{ put, says, hint string }{
		{"kernel/iommu_groups/12/type", "open /dev/vfio/12: no such file", "show this container the node"},
		{"../dev/vfio/devices/vfio3", "open /dev/iommu: no such file", "modprobe iommufd"},
		{"../dev/iommu", "", ""},
		{"kernel/iommu_groups/12/name", "enable_unsafe_noiommu_mode", "use the kernel module"},
	} {
		b.put(c.put, "vfio-noiommu\n")
		found, err := Controllers(b.dir)
		if err != nil || found[0].Usable != (c.says == "") || !strings.Contains(found[0].Why, c.says) || !strings.Contains(found[0].Why, c.hint) {
			t.Errorf("with %s: %+v, %v", c.put, found, err)
			continue
		}
		if f := pictured(filepath.Dir(b.dir)).controller(&found[0], 1); !found[0].Usable && (f.Verdict != Refused || !strings.Contains(f.Mend, "step 5")) {
			t.Errorf("with %s: %+v", c.put, f)
		}
	}
}

// sysTrees are what machines show: lines of file=content, or of link=-> target.
var sysTrees = map[string]string{
	"empty":   "",
	"VM":      "bus/pci/devices/0000:00:04.0/class=0x010802\nbus/pci/devices/0000:00:04.0/numa_node=-1\nbus/pci/devices/0000:00:04.0/nvme/nvme0/x=\nclass/nvme/nvme0/nvme0n1/x=",
	"WSL":     "bus/vmbus/devices/x=\nclass/block/sda/size=2048",
	"masked":  "bus/pci/devices=\nclass/nvme=",
	"no node": "bus/pci/devices/0000:01:00.0/class=0x010802\nbus/pci/devices/0000:01:00.0/numa_node=x",
	"loops":   "bus/pci/devices/0000:01:00.0=-> ../devices/0000:01:00.0\nclass/nvme/nvme0=-> nvme0",
	"binary":  "bus/pci/devices/0000:01:00.0/class=0x010802\nclass/nvme/nvme0/transport=\x00\xff\nclass/nvme/nvme0/nvme0c1n2/x=\nclass/block/nvme0n2/size=99999999999999999999\nclass/block/nvme0n2/dev=1:2:3",
}

// FuzzSysfs: whatever the kernel shows, the list of controllers is a list or an
// error (E-08).
func FuzzSysfs(f *testing.F) {
	for _, tree := range sysTrees {
		f.Add(tree)
	}
	f.Fuzz(func(t *testing.T, tree string) {
		root := t.TempDir()
		for _, line := range strings.Split(tree, "\n")[:min(100, strings.Count(tree, "\n")+1)] {
			name, text, ok := strings.Cut(line, "=")
			if !ok || !filepath.IsLocal(name) || strings.ContainsRune(name, 0) || len(name) > 200 {
				continue
			}
			path := filepath.Join(root, name)
			if os.MkdirAll(filepath.Dir(path), 0o700) != nil {
				continue // below a file
			}
			if to, ok := strings.CutPrefix(text, "-> "); ok {
				if !filepath.IsAbs(to) && strings.HasPrefix(filepath.Join(filepath.Dir(path), to), root) { // not out of the tree
					_ = os.Symlink(to, path)
				}
			} else {
				_ = os.WriteFile(path, []byte(text), 0o600)
			}
		}
		found, err := Controllers(root)
		if err != nil && len(found) > 0 {
			t.Errorf("%d controllers and %v", len(found), err)
		}
		for _, c := range found {
			if c.Why == "" || c.Disks == nil || c.Usable && len(c.Disks) == 0 {
				t.Errorf("%+v", c)
			}
			_ = c.Link.String()
		}
	})
}
