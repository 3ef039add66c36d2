package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		driver, transport string
		class             error
		says              string
	}{
		{DriverModule, "kdrv", nil, "module"}, {DriverVFIO, "vfio", nil, "VFIO"},
		{"", "", base.ErrNotSupported, "ugdsctl device bind " + anSSD}, {"spdk", "", base.ErrNotSupported, "the driver spdk"},
		{DriverKernel, "", base.ErrNotFound, "no such namespace"},
	} {
		b := newBus(t, c.driver)
		got, err := kernel(b.dir).choose(anSSD, 0)
		text := strings.Join(got.Reasons, "\n")
		if err != nil {
			text = err.Error()
		}
		if got.Transport != c.transport || !errors.Is(err, c.class) || !strings.Contains(text, c.says) {
			t.Errorf("%q: %+v, %v", c.driver, got, err)
		}
	}
	b := newBus(t, DriverKernel)
	for address, class := range map[string]error{"0000:02:00.0": base.ErrNotFound, "0000:09:00.0": base.ErrNotFound,
		"": base.ErrInvalid, "*": base.ErrInvalid} {
		if _, err := kernel(b.dir).choose(address, 0); !errors.Is(err, class) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// TestChooseIOMMUFD: a controller of VFIO without a group's node is reached by iommufd,
// which is told, and the two nodes that its user needs are named to who may not open one.
func TestChooseIOMMUFD(t *testing.T) {
	b := newBus(t, DriverVFIO)
	if err := os.Symlink("../../../../kernel/iommu_groups/12", b.path("bus/pci/devices/"+anSSD+"/iommu_group")); err != nil {
		t.Fatal(err)
	}
	b.put("bus/pci/devices/"+anSSD+"/vfio-dev/vfio3/dev", fullDev)
	for _, node := range []string{"vfio/devices/vfio3", "iommu"} {
		b.put("../dev/"+node, "")
	}
	c, err := kernel(b.dir).choose(anSSD, 0)
	if text := strings.Join(c.Reasons, "\n"); err != nil || c.Transport != "vfio" || !strings.Contains(text, "by iommufd") {
		t.Errorf("%+v, %v", c, err)
	}
	now := kernel(b.dir).pci("bus/pci/devices/"+anSSD, anSSD)
	if got := kernel(b.dir).vfioNodes(&now); !slices.Equal(got, []string{"/dev/vfio/devices/vfio3", "/dev/iommu"}) {
		t.Errorf("%q", got)
	}
	pid := testenv.Hold(t, "/dev/full")
	who, err := holders(kernel(b.dir), anSSD)
	if want := fmt.Sprintf("process %d (sleep) has /dev/vfio/devices/vfio3 open", pid); err != nil || !slices.Contains(who, want) {
		t.Errorf("%q, %v, want %q", who, err, want)
	}
	b.put("../dev/vfio/vfio", "")
	b.put("../dev/vfio/12", "")
	c, err = kernel(b.dir).choose(anSSD, 0)
	if text := strings.Join(c.Reasons, "\n"); err != nil || strings.Contains(text, "iommufd") || !strings.Contains(text, "BARs of peers can be reached") {
		t.Errorf("with a group: %+v, %v", c, err)
	}
}

// TestChooseDisk: a controller of the kernel is its block device.
func TestChooseDisk(t *testing.T) {
	b := newBus(t, DriverKernel)
	b.put("bus/pci/devices/"+anSSD+"/nvme/nvme3/dev", "240:3")
	for ns, nsid := range map[string]string{"nvme3n1": "1", "nvme3n2": "12"} {
		b.put("class/nvme/nvme3/"+ns+"/x", "")
		b.put("class/block/"+ns+"/nsid", nsid)
	}
	for nsid, want := range map[uint32]string{1: "/dev/nvme3n1", 12: "/dev/nvme3n2"} {
		if c, err := kernel(b.dir).choose(anSSD, nsid); err != nil || c.Transport != "file" || c.Path != want {
			t.Errorf("%d: %+v, %v", nsid, c, err)
		}
	}
	if _, err := kernel(b.dir).choose(anSSD, 0); !errors.Is(err, base.ErrInvalid) {
		t.Error(err)
	}
	if _, err := kernel(b.dir).choose(anSSD, 2); !errors.Is(err, base.ErrNotFound) {
		t.Error(err)
	}
}

// TestReadOnlyController: what would change the medium is refused before it starts.
func TestReadOnlyController(t *testing.T) {
	ctx := context.Background()
	d, err := Open(ctx, "sim:size=8MiB", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(ctx)
	r, err := driver.AllocRegion(4096, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ro := readOnly{d}
	segs := []driver.Seg{r.Seg(0, 4096)}
	read := driver.Request{Op: driver.OpRead, Len: 4096, Segs: segs}
	for _, q := range []driver.Request{{Op: driver.OpWrite, Len: 4096, Segs: segs}, {Op: driver.OpWriteZeroes, Len: 4096},
		{Op: driver.OpDiscard, Len: 4096}} {
		if err := driver.Do(ctx, ro, read, q); !errors.Is(err, base.ErrReadOnly) {
			t.Errorf("%v: %v", q.Op, err)
		}
	}
	if err := driver.Do(ctx, ro, read, driver.Request{Op: driver.OpFlush}); err != nil {
		t.Error(err)
	}
	if n := d.Stats(); n.Writes+n.Zeroes+n.Discards != 0 {
		t.Errorf("%+v", n)
	}
}
