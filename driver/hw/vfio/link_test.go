package vfio

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestA02Neighbours: of the devices of a group those are named that other drivers
// have, with the driver; not those of VFIO, nor those of none.
func TestA02Neighbours(t *testing.T) {
	devices := t.TempDir() + "/"
	group := devices + "0000:01:00.0/iommu_group/devices/"
	for name, driver := range map[string]string{"0000:01:00.0": driverName, "0000:01:00.1": "ahci", "0000:01:00.2": "",
		"0000:01:00.3": driverName, "0000:01:00.4": "nvme"} {
		if err := os.MkdirAll(group+name, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(devices+name, 0o700); err != nil {
			t.Fatal(err)
		}
		if driver == "" {
			continue
		}
		if err := os.Symlink(filepath.Join("../../drivers", driver), devices+name+"/driver"); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := neighbours(devices, "0000:01:00.0"), []string{"0000:01:00.1 (ahci)", "0000:01:00.4 (nvme)"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := neighbours(devices, "0000:09:00.0"); len(got) != 0 {
		t.Errorf("of a device that does not exist: %q", got)
	}
}
