package kdrv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/mmio"
	"github.com/ugds-store/ugds/internal/unix"
)

const (
	// Module is the name of the kernel module and of its driver.
	Module = "ugds"
	// class is the class of its nodes.
	class = "ugds_drv"
	// deadOwner is how long Open waits for the kernel to stop the controller of an
	// owner that has died.
	deadOwner = 30 * time.Second
	ownerPoll = 10 * time.Millisecond
)

// Node finds the node of the controller at a PCI address ("0000:01:00.0"): its path
// and its folder of attributes. ErrNotFound when it is not bound to the module.
func Node(address string) (path, attributes string, err error) {
	found, _ := filepath.Glob("/sys/bus/pci/devices/" + address + "/" + class + "/" + class + "*")
	if address == "" || strings.ContainsAny(address, "/*?[") || len(found) != 1 {
		return "", "", base.WithHint(base.Errorf("find", "pci:"+address, base.ErrNotFound,
			"the controller is not bound to the module %s", Module), "bind it: ugdsctl device bind %s", address)
	}
	return "/dev/" + filepath.Base(found[0]), found[0], nil
}

// Open opens the controller at a PCI address. Until Close no other process can.
// ErrNotFound when it is not bound to the module; ErrLocked, with the process, when
// it has an owner; ErrNotSupported when the module refuses it or is of another
// version; or the system's error. It waits for an owner that has died until ctx
// ends, but not longer than the kernel needs to stop a controller.
func Open(ctx context.Context, address string) (*Device, error) {
	path, attributes, err := Node(address)
	if err != nil {
		return nil, err
	}
	f, err := openNode(ctx, path, attributes)
	if err != nil {
		return nil, err
	}
	d, err := setUp(f, "pci:"+address)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return d, nil
}

// openNode opens the node; a busy one whose owner is dead becomes free soon.
func openNode(ctx context.Context, path, attributes string) (*unix.FD, error) {
	for end := time.Now().Add(deadOwner); ; {
		f, err := unix.Open(path, unix.ReadWrite, 0)
		if err == nil {
			return f, nil
		}
		pid, _ := strconv.Atoi(attribute(attributes, "owner"))
		again := errors.Is(err, unix.EBUSY) && (pid == 0 || !unix.Proc{PID: pid}.Alive())
		if !again || ctx.Err() != nil || time.Now().After(end) {
			return nil, refusal(path, attributes, pid, err)
		}
		time.Sleep(ownerPoll)
	}
}

// refusal says why the node cannot be opened.
func refusal(path, attributes string, pid int, err error) error {
	iommu := attribute(attributes, "iommu")
	switch unix.ErrnoOf(err) {
	case unix.EBUSY:
		return base.WithHint(base.Errorf("open", path, base.ErrLocked, "process %d (%s) has it: %w", pid, unix.ProcName(pid), err),
			"%s", base.OwnerHint(pid))
	case unix.EPERM:
		return base.WithHint(base.Errorf("open", path, base.ErrNotSupported,
			"the IOMMU does not translate for it (%s), so it could reach all memory: %w", iommu, err),
			"run it with CAP_SYS_RAWIO, or boot with a translating IOMMU")
	case unix.EACCES:
		if unix.MayWrite(path) == nil {
			return base.WithHint(base.Wrap("open", path, err),
				"the kernel's lockdown forbids it while no IOMMU translates for the controller (%s); see docs/hardware.md", iommu)
		}
		hint := "as root: chown $USER " + path
		if iommu == "none" || iommu == "identity" {
			hint += "; no IOMMU translates for it, so that CAP_SYS_RAWIO is needed too"
		}
		return base.WithHint(base.Wrap("open", path, err), "%s", hint)
	case unix.EOPNOTSUPP:
		return base.Errorf("open", path, base.ErrNotSupported, "the module refuses it: %s: %w",
			attribute(attributes, "refusal"), err)
	case unix.EIO:
		return base.WithHint(base.Errorf("open", path, base.ErrBusy, "a former owner's controller did not stop: %w", err),
			"power the machine off and on")
	case unix.ENODEV, unix.ENXIO:
		return base.Errorf("open", path, base.ErrDeviceGone, "%w", err)
	case unix.ENOENT:
		return base.WithHint(base.Errorf("open", path, base.ErrNotFound, "%w", err), "udev makes it; a container must be given it")
	}
	return base.Wrap("open", path, err)
}

func attribute(dir, name string) string {
	b, _ := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(b))
}

// setUp maps the registers and the status page of an open node.
func setUp(f *unix.FD, target string) (*Device, error) {
	info, err := unix.KdrvGetInfo(f)
	if err != nil {
		return nil, base.Wrap("ask the module about", target, err)
	}
	if info.ABIVersion != unix.KdrvABIVersion {
		return nil, base.WithHint(base.Errorf("open", target, base.ErrNotSupported,
			"the loaded module speaks version %d of its interface, this program %d", info.ABIVersion, unix.KdrvABIVersion),
			"install the module that belongs to this program")
	}
	window := info.BARSize
	if info.TableStart < info.TableEnd {
		window = info.TableStart
	}
	d := &Device{fd: f, info: info, Wall: hw.NewWall(), notices: make(chan hw.Notice, noticeRoom),
		id: hw.ID{Target: target, Transport: "kdrv", Vendor: info.Vendor, Device: info.Device,
			NUMANode: int(max(info.NUMANode, -1)), IOMMU: info.IOMMU >= unix.KdrvIOMMULazy, Window: window, Peers: true}}
	d.EventVectors = hw.NewEventVectors(target, int(info.Vectors), d.arm)
	if d.bar, err = mmio.Map(f, 0, int64(window), target); err != nil {
		return nil, err
	}
	if d.status, err = unix.MmapReadOnly(f, unix.KdrvMmapStatus, int64(info.PageSize)); err != nil {
		return nil, errors.Join(base.Wrap("map the status of", target, err), d.bar.Close())
	}
	if d.events, err = unix.NewEvent("changes of " + target); err == nil {
		err = unix.KdrvSetEvents(f, d.events.FD())
	}
	if err != nil {
		return nil, errors.Join(base.Wrap("watch", target, err), d.release())
	}
	d.watcher.Go(d.watch)
	return d, nil
}

// Describe says in a line how the module sees the controller.
func (d *Device) Describe() string {
	s := fmt.Sprintf("module %s, interface %d, IOMMU %s, %d interrupt vectors", Module, d.info.ABIVersion,
		d.info.IOMMU, d.info.Vectors)
	if d.info.Caps&unix.KdrvCapNVIDIA != 0 {
		s += ", built for NVIDIA's driver"
	}
	return s
}
