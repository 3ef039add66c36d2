package vfio

import (
	"os"
	"path/filepath"
	"strings"
)

// Node is the file by which a device that is bound to vfio-pci is opened.
type Node struct {
	Path    string
	IOMMUFD bool // it is the device's own, and memory is mapped by iommufd
}

// NodeOf chooses the node of the device at a PCI address: that of its group, or its own
// where the kernel has no groups or no container for them, but iommufd. Groups come
// first: a type 1 IOMMU maps BARs of peers, and iommufd does not. Where something of
// either is missing it is the node that is there, so that who opens it is told what is
// not. sysfs and dev are usually /sys and /dev.
func NodeOf(sysfs, dev, address string) Node {
	byGroup := Node{Path: groupNode(sysfs, dev, address)}
	if exist(byGroup.Path, containerOf(dev)) {
		return byGroup
	}
	own, _ := os.ReadDir(deviceDir(sysfs, address) + "/vfio-dev")
	for _, d := range own {
		n := Node{dev + "/vfio/devices/" + d.Name(), true}
		if strings.HasPrefix(d.Name(), "vfio") && exist(n.Path) && (exist(iommuOf(dev)) || !exist(byGroup.Path)) {
			return n
		}
	}
	return byGroup // the error says what is missing
}

// Why says in words which way a node is, and what follows from it.
func (n Node) Why() string {
	if n.IOMMUFD {
		return "by iommufd, since this kernel has no groups of VFIO: the IOMMU confines it; GPU memory is copied, BARs of peers too"
	}
	return "the IOMMU confines it; BARs of peers can be reached, other GPU memory is copied"
}

// groupNode is the node of a device's group.
func groupNode(sysfs, dev, address string) string {
	group, _ := os.Readlink(deviceDir(sysfs, address) + "/iommu_group")
	return dev + "/vfio/" + filepath.Base(group)
}

func containerOf(dev string) string { return dev + "/vfio/vfio" }

func iommuOf(dev string) string { return dev + "/iommu" }

func exist(paths ...string) bool {
	for _, p := range paths {
		if _, err := os.Stat(p); err != nil {
			return false
		}
	}
	return true
}
