// Package vfio reaches a controller through VFIO, the kernel's way to give a device
// to a process behind an IOMMU: no module of ours, no privilege once the device is
// bound and its group is the user's. Sources: Documentation/driver-api/vfio.rst and
// include/uapi/linux/vfio.h of Linux.
//
// It uses groups and type 1 containers, which nearly every kernel with VFIO has, and
// the device's own node and iommufd where the kernel has no groups (NodeOf). Each
// device has an address space of its own.
//
// The device reaches exactly what is mapped. When the process ends in any way, the
// kernel resets the device and takes the mappings away before it unpins the memory:
// so Close is safe even when a Stop has failed.
package vfio

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/mmio"
	"github.com/ugds-store/ugds/internal/unix"
)

const (
	// maxVectors is how many interrupt vectors are asked for: one for the admin
	// queue and one for each of the 64 queue pairs that there are at most.
	maxVectors = 65
	// closeLimit bounds the orderly stop that comes before a close.
	closeLimit = 5 * time.Second
	// pendingEvery is how often a stop looks whether transactions are pending.
	pendingEvery = time.Millisecond
	// notices is how many notices wait for a reader.
	notices = 4
)

// Device is a controller that is open through VFIO. It implements hw.Device and
// hw.Notifier.
type Device struct {
	hw.Wall
	*hw.EventVectors
	*mmio.BAR

	id      hw.ID
	link    *link
	config  config
	express int64 // offset of the PCI Express capability, 0 if there is none

	mu     sync.Mutex
	closed bool
	space  *space

	stopMu sync.Mutex
	reset  chan struct{} // closed when the reset that is under way has ended
	result error         // its outcome

	events  []*unix.Event
	notices chan hw.Notice
	failed  atomic.Bool // the bus has reported an error since the last start
	work    sync.WaitGroup
	stop    context.CancelFunc
}

// Open opens the controller at a PCI address such as "0000:01:00.0", which is bound
// to vfio-pci. It can not reach memory until Start. ErrNotFound and ErrInvalid for
// the address and its binding, ErrLocked when a process has it,
// ErrGroupNotViable when other drivers have devices of its IOMMU group,
// ErrNotSupported without an IOMMU.
func Open(address string) (*Device, error) { return open(linux, address) }

func open(in system, address string) (d *Device, err error) {
	d = &Device{Wall: hw.NewWall(), notices: make(chan hw.Notice, notices)}
	if d.link, err = openLink(in, address); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.stop = cancel
	for _, part := range []func() error{d.openConfig, d.openBAR, d.openVectors, func() error { return d.openNotices(ctx) }} {
		if err := part(); err != nil {
			return nil, errors.Join(base.Wrap("open", d.link.name, err), d.release())
		}
	}
	d.space = newSpace(d.link.ranges)
	d.id = hw.ID{Target: d.link.name, Transport: "vfio", Vendor: uint16(d.link.attribute("vendor", 0)),
		Device: uint16(d.link.attribute("device", 0)), NUMANode: int(max(d.link.attribute("numa_node", -1), -1)), IOMMU: true, Window: d.BAR.Size()}
	return d, nil
}

func (d *Device) openConfig() error {
	region, err := unix.VFIORegionOf(d.link.dev, unix.VFIOPCIConfig)
	if err != nil {
		return err
	}
	d.config = config{d.link.dev, d.link.name, region}
	if d.express, err = d.config.find(capExpress); err != nil {
		return err
	}
	return d.config.setMaster(false)
}

// openBAR maps the registers: what the kernel lets us map of BAR 0 from its
// beginning, up to the pages of the MSI-X table, which are the kernel's business.
func (d *Device) openBAR() error {
	r, err := unix.VFIORegionOf(d.link.dev, unix.VFIOPCIBAR0)
	if err != nil {
		return err
	}
	size := mappable(r)
	msix, err := d.config.find(capMSIX)
	if err != nil {
		return err
	}
	for _, reg := range []int64{msixTable, msixPending} {
		if msix == 0 {
			break
		}
		v, err := d.config.read(msix+reg, 4)
		if err != nil {
			return err
		}
		if at := uint64(v &^ 7); v&7 == 0 && at < size {
			size = at &^ (hw.PageSize - 1)
		}
	}
	if size < 2*hw.PageSize {
		return base.Errorf("map", "BAR 0", base.ErrNotSupported, "%d bytes can be mapped, of %d; registers and doorbells need %d",
			size, r.Size, 2*hw.PageSize)
	}
	d.BAR, err = mmio.Map(d.link.dev, r.Offset, int64(size), d.link.name)
	return err
}

// mappable is how many bytes of a region can be mapped from its beginning.
func mappable(r unix.VFIORegion) uint64 {
	if r.Flags&unix.VFIORegionMmap == 0 {
		return 0
	}
	if len(r.Mmap) == 0 {
		return r.Size
	}
	for _, a := range r.Mmap {
		if a.Offset == 0 {
			return a.Size
		}
	}
	return 0
}

// openVectors asks for the MSI-X vectors at once: some kernels cannot add any later.
func (d *Device) openVectors() error {
	n, err := unix.VFIOIRQs(d.link.dev, unix.VFIOPCIMSIX)
	if err != nil {
		return err
	}
	n = min(n, maxVectors)
	if n > 0 {
		none := make([]int32, n)
		for i := range none {
			none[i] = -1
		}
		if err := unix.VFIOSetIRQs(d.link.dev, unix.VFIOPCIMSIX, 0, none); err != nil {
			return base.Wrap("enable", "MSI-X", err)
		}
	}
	d.EventVectors = hw.NewEventVectors(d.link.name, n, func(n, fd int) error {
		return unix.VFIOSetIRQs(d.link.dev, unix.VFIOPCIMSIX, n, []int32{int32(fd)})
	})
	return nil
}

// openNotices listens to what the kernel says of the device.
func (d *Device) openNotices(ctx context.Context) error {
	for kind, notice := range map[uint32]hw.Notice{unix.VFIOPCIRequest: hw.NoticeRelease, unix.VFIOPCIError: hw.NoticeStopped} {
		n, err := unix.VFIOIRQs(d.link.dev, kind)
		if err != nil || n == 0 {
			continue // an old kernel, or a device without error reporting
		}
		ev, err := unix.NewEvent("notices of " + d.link.name)
		if err != nil {
			return err
		}
		d.events = append(d.events, ev)
		if err := unix.VFIOSetIRQs(d.link.dev, kind, 0, []int32{int32(ev.FD())}); err != nil {
			return err
		}
		d.work.Go(func() {
			for ev.Wait(ctx) == nil {
				if notice == hw.NoticeStopped {
					d.failed.Store(true)
				}
				select {
				case d.notices <- notice:
				default:
				}
			}
		})
	}
	return nil
}

// Notices implements hw.Notifier.
func (d *Device) Notices() <-chan hw.Notice { return d.notices }

// Stopped implements hw.Notifier.
func (d *Device) Stopped() bool { return d.failed.Load() }

// ID implements hw.Device.
func (d *Device) ID() hw.ID { return d.id }

// Doorbell implements hw.Registers.
func (d *Device) Doorbell(off uint64) (hw.Doorbell, error) {
	b, err := d.BAR.Doorbell(off)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Window is the size of the register window in bytes.
func (d *Device) Window() uint64 { return d.BAR.Size() }

// Raise makes the kernel act as if the device had sent an interrupt, for tests of
// the seam.
func (d *Device) Raise(n int) error {
	return base.Wrap("raise interrupt of", d.id.Target, unix.VFIORaise(d.link.dev, unix.VFIOPCIMSIX, n))
}

// Close implements hw.Device. Memory that is still mapped is unmapped by the kernel.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	_ = d.Stop(ctx) // orderly, if it works; the kernel stops it in any case
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	return d.release()
}

// release gives back what was opened.
func (d *Device) release() (err error) {
	d.stop()
	d.work.Wait()
	close(d.notices)
	if d.EventVectors != nil {
		err = d.EventVectors.Close()
	}
	if d.BAR != nil {
		err = errors.Join(err, d.BAR.Close()) // the mapping would keep the device open
	}
	for _, ev := range d.events {
		err = errors.Join(err, ev.Close())
	}
	return errors.Join(err, d.link.close())
}
