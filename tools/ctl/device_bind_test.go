package ctl

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
)

// TestDeviceBindPlan: what would be done is told, and nothing is; what cannot be is
// refused. That it is done is tested in the lab.
func TestDeviceBindPlan(t *testing.T) {
	root := t.TempDir()
	sys := filepath.Join(root, "sys")
	dev := filepath.Join(sys, "bus/pci/devices/0000:01:00.0")
	for name, text := range map[string]string{"class": "0x010802", "nvme/nvme7/x": "", "../../../../class/nvme/nvme7/model": "A model", "../../drivers/nvme/x": "",
		"../../drivers/vfio-pci/x": "", "../../../../class/nvme/nvme7/nvme7n1/x": ""} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dev, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dev, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(name, to string) {
		if err := os.Symlink(to, filepath.Join(dev, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("driver", "../../drivers/nvme")
	var out bytes.Buffer
	e := &Env{Stdout: &out}
	run := func(address, driver string) error {
		out.Reset()
		return DeviceBind(t.Context(), e, DeviceBindOptions{Address: address, Driver: driver}, sys)
	}
	if err := run("pci:0000:01:00.0", ""); !errors.Is(err, base.ErrNotFound) || !strings.Contains(err.Error(), "no driver ugds") {
		t.Errorf("without the module: %v", err)
	}
	link("iommu_group", "../../../kernel/iommu_groups/4")
	ext4 := make([]byte, 1<<20)
	copy(ext4[1080:], "\x53\xef")
	if err := errors.Join(os.Mkdir(filepath.Join(root, "dev"), 0o700), os.WriteFile(filepath.Join(root, "dev/nvme7n1"), ext4, 0o600)); err != nil {
		t.Fatal(err)
	}
	want := `device bind would
  take it from  nvme; /dev/nvme7n1 vanishes
  disk          /dev/nvme7n1, A model: holds an ext2/3/4 file system
  give it to    vfio-pci
Nothing was changed. Add --yes to do it.
`
	if err := run("0000:01:00.0", ""); ExitCode(err) != ExitUsage || out.String() != want {
		t.Errorf("%v, got\n%s", err, &out)
	}
	if err := run("0000:01:00.0", "e1000"); !errors.Is(err, base.ErrInvalid) {
		t.Errorf("another driver: %v", err)
	}
	out.Reset()
	o := DeviceBindOptions{Address: "0000:01:00.0"}
	if err := DeviceUnbind(t.Context(), e, o, sys); err != nil || out.String() != "0000:01:00.0 is bound to nvme already\n" {
		t.Errorf("%v, got\n%s", err, &out)
	}
	o.Yes = true // of a controller that this machine cannot have
	o.Address = "ffff:ff:1f.7"
	if err := DeviceBind(t.Context(), e, o, sys); !errors.Is(err, base.ErrNotFound) {
		t.Errorf("no such device: %v", err)
	}
	if to, err := os.Readlink(filepath.Join(dev, "driver")); err != nil || filepath.Base(to) != "nvme" {
		t.Errorf("something was changed: %s, %v", to, err)
	}
}
