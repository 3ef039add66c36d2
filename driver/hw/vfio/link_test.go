package vfio

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// put makes a file below dir, and the folders above it.
func put(t *testing.T, dir, file, text string) {
	t.Helper()
	file = filepath.Join(dir, file)
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = os.WriteFile(file, []byte(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tree is a made-up system with one IOMMU group, 7, of devices with drivers. Its
// kernel finds the group viable as the real one does.
func tree(t *testing.T, drivers map[string]string) system {
	dir := t.TempDir()
	in := system{sysfs: dir + "/sys", dev: dir + "/dev"}
	put(t, in.dev, "vfio/7", "")
	for address, driver := range drivers {
		class := "0x010802\n"
		if driver == "pcieport" {
			class = "0x060400\n"
		}
		put(t, in.device(address), "class", class)
		put(t, in.sysfs, "kernel/iommu_groups/7/devices/"+address, "")
		err := os.Symlink("../../../../kernel/iommu_groups/7", in.device(address)+"/iommu_group")
		if err == nil && driver != "" {
			err = os.Symlink("../../drivers/"+driver, in.device(address)+"/driver")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	in.viable = func(group *unix.FD) (bool, error) {
		if group == nil {
			t.Error("the group was not opened")
		}
		for _, driver := range drivers {
			if driver != "" && driver != driverName && driver != "pci-stub" && driver != "pcieport" {
				return false, nil
			}
		}
		return true, nil
	}
	return in
}

// TestA02GroupNotViable: a controller is not opened when another driver has a device
// of its group, and the error tells which device and which driver.
func TestA02GroupNotViable(t *testing.T) {
	const ours = "0000:01:00.0"
	in := tree(t, map[string]string{ours: driverName, "0000:01:00.1": "ahci", "0000:01:00.2": "", "0000:01:00.3": driverName,
		"0000:01:00.4": "nvme", "0000:00:01.0": "pcieport", "0000:01:00.5": "pci-stub"})
	d, err := open(in, ours)
	if d != nil || !errors.Is(err, base.ErrGroupNotViable) || !errors.Is(err, base.ErrInUse) {
		t.Fatalf("%v, %v", d, err)
	}
	for _, s := range []string{"pci:" + ours, "0000:01:00.1 (ahci)", "0000:01:00.4 (nvme)", "unbind 0000:01:00.1 and 0000:01:00.4 "} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%v does not say %q", err, s)
		}
	}
	for _, s := range []string{"0000:01:00.2", "0000:01:00.3", "0000:01:00.5", "0000:00:01.0"} {
		if strings.Contains(err.Error(), s) {
			t.Errorf("%v names %s, which is in nobody's way", err, s)
		}
	}
	// With the two gone the group is used: what fails next is the container.
	in = tree(t, map[string]string{ours: driverName, "0000:01:00.2": "", "0000:00:01.0": "pcieport"})
	if _, err := open(in, ours); errors.Is(err, base.ErrGroupNotViable) || !errors.Is(err, os.ErrNotExist) ||
		!strings.Contains(err.Error(), in.dev+"/vfio/vfio") {
		t.Errorf("a viable group: %v", err)
	}
}

// TestA02Neighbours: of the devices of a group those are named that keep it from VFIO.
func TestA02Neighbours(t *testing.T) {
	in := tree(t, map[string]string{"0000:01:00.0": driverName, "0000:01:00.1": "ahci", "0000:01:00.2": "", "0000:00:01.0": "pcieport"})
	if got, want := Neighbours(in.sysfs, "0000:01:00.0"), []Neighbour{{"0000:01:00.1", "ahci", "0x010802"}}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Neighbours(in.sysfs, "0000:09:00.0"); len(got) != 0 {
		t.Errorf("of a device that does not exist: %q", got)
	}
}

// TestOpenUnbound: what is not bound to VFIO, not behind an IOMMU or not there is
// refused before anything is opened.
func TestOpenUnbound(t *testing.T) {
	in := tree(t, map[string]string{"0000:01:00.0": "nvme", "0000:01:00.1": ""})
	put(t, in.device("0000:02:00.0"), "class", "0x010802")
	in.viable = func(*unix.FD) (bool, error) { t.Error("a group was opened"); return false, nil }
	for address, want := range map[string]error{"0000:01:00.0": base.ErrInvalid, "0000:01:00.1": base.ErrInvalid,
		"0000:02:00.0": base.ErrNotSupported, "0000:03:00.0": base.ErrNotFound, "../0000:01:00.0": base.ErrNotFound} {
		if _, err := open(in, address); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", address, err, want)
		}
	}
	in = tree(t, map[string]string{"0000:01:00.0": driverName})
	put(t, in.sysfs, "kernel/iommu_groups/7/name", "vfio-noiommu\n")
	if _, err := open(in, "0000:01:00.0"); !errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), "enable_unsafe_noiommu_mode") {
		t.Errorf("bound without an IOMMU: %v", err)
	}
}
