package probe

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

// TestHolders: whoever has a disk open is named, also by way of a partition or past the
// block layer.
func TestHolders(t *testing.T) {
	b := newBus(t, DriverKernel)
	dev := "bus/pci/devices/" + anSSD
	b.put(dev+"/nvme/nvme0/dev", "0:0\n")
	b.put("class/nvme/nvme0/nvme0n1/x", "")
	b.put("class/block/nvme0n1/dev", "0:0\n")
	for part, text := range map[string]string{"nvme0n1p1": "1\n", "nvme0n1p2": "2\n", "queue": ""} {
		b.put("class/block/nvme0n1/"+part+"/partition", text)
	}
	if got := kernel(b.dir).partitions("nvme0n1"); !slices.Equal(got, []string{"nvme0n1p1", "nvme0n1p2"}) {
		t.Errorf("partitions %q", got)
	}
	if who, err := holders(kernel(b.dir), anSSD); err != nil || len(who) > 0 {
		t.Errorf("%q, %v", who, err)
	}
	b.put("class/nvme-generic/ng0n1/dev", fullDev)
	it := fmt.Sprintf("process %d ", testenv.Hold(t, "/dev/full"))
	who, err := holders(kernel(b.dir), anSSD)
	if err != nil || !slices.ContainsFunc(who, func(w string) bool { return strings.HasPrefix(w, it) && strings.HasSuffix(w, " /dev/ng0n1 open") }) {
		t.Errorf("%q, %v", who, err)
	}
}

const fullDev = "1:7\n" // the device number of /dev/full

// TestA05GroupInUse: a controller whose VFIO group a process has open is not taken away,
// which would block until the process lets go of it: the process is named.
func TestA05GroupInUse(t *testing.T) {
	for name, group := range map[string]string{"translated": "12", "not translated": "noiommu-12"} {
		t.Run(name, func(t *testing.T) {
			b := newBus(t, DriverVFIO)
			b.put("kernel/iommu_groups/12/type", "")
			if err := os.Symlink("../../../../kernel/iommu_groups/12", b.path("bus/pci/devices/"+anSSD+"/iommu_group")); err != nil {
				t.Fatal(err)
			}
			b.put("class/vfio/"+group+"/dev", fullDev)
			d := b.binder()
			d.inUse = holders
			pid := testenv.Hold(t, "/dev/full")
			_, err := d.bind(t.Context(), anSSD, DriverKernel)
			want := fmt.Sprintf("process %d (sleep) has /dev/vfio/%s open", pid, group)
			if !errors.Is(err, base.ErrInUse) || !strings.Contains(err.Error(), want) || len(b.writes) > 0 || b.driver() != DriverVFIO {
				t.Errorf("%v, want %q; wrote %q", err, want, b.writes)
			}
			b.put("class/vfio/"+group+"/dev", "0:0\n") // nobody has that one
			if _, err := d.bind(t.Context(), anSSD, DriverKernel); err != nil || b.driver() != DriverKernel {
				t.Errorf("%v, bound to %q", err, b.driver())
			}
		})
	}
}

// TestBindFinished: another thread of the kernel has bound the device meanwhile, to the
// driver that is wanted or to another one.
func TestBindFinished(t *testing.T) {
	for _, got := range []string{DriverModule, DriverVFIO} {
		b := newBus(t, "")
		d := b.binder()
		d.write = func(file, text string) error {
			if strings.HasSuffix(file, "/bind") {
				b.setDriver(got)
			}
			return b.write(file, text)
		}
		err := d.change(t.Context(), anSSD, DriverModule, DriverModule)
		if got == DriverModule && err != nil || got != DriverModule && !errors.Is(err, base.ErrMismatch) {
			t.Errorf("bound to %s: %v", got, err)
		}
	}
}
