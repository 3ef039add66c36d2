package vfio

import (
	"encoding/binary"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Configuration space, PCI Local Bus 3.0 chapter 6 and PCI Express Base 7.5.
const (
	regCommand      = 0x04
	regClass        = 0x08 // and revision: the kernel reads them from the device
	regCapabilities = 0x34

	commandMemory   = 1 << 1
	commandMaster   = 1 << 2
	commandINTxOff  = 1 << 10
	capExpress      = 0x10
	capMSIX         = 0x11
	expressStatus   = 0x0a // in the capability
	statusPending   = 1 << 5
	msixTable       = 0x04 // in the capability: BAR and offset
	msixPending     = 0x08
	maxCapabilities = 48
)

// config is the configuration space of a device.
type config struct {
	dev    *unix.FD
	name   string
	region unix.VFIORegion
}

func (c *config) read(off, n int64) (uint32, error) {
	var b [4]byte
	got, err := unix.Pread(c.dev, b[:n], c.region.Offset+off)
	if err == nil && int64(got) != n {
		err = unix.EIO
	}
	return binary.LittleEndian.Uint32(b[:]), base.Wrap("read configuration of", c.name, err)
}

func (c *config) write16(off int64, v uint16) error {
	var b [2]byte
	binary.LittleEndian.PutUint16(b[:], v)
	got, err := unix.Pwrite(c.dev, b[:], c.region.Offset+off)
	if err == nil && got != len(b) {
		err = unix.EIO
	}
	return base.Wrap("write configuration of", c.name, err)
}

// gone tells whether the device does not answer any more: everything reads as ones.
func (c *config) gone() bool {
	v, err := c.read(regClass, 4)
	return err != nil || v == ^uint32(0)
}

// find gives the offset of a capability, 0 if there is none.
func (c *config) find(id uint32) (int64, error) {
	at, err := c.read(regCapabilities, 1)
	for n := 0; err == nil && at >= 0x40 && n < maxCapabilities; n++ {
		var head uint32
		if head, err = c.read(int64(at&^3), 2); err != nil {
			break
		}
		if head&0xff == id {
			return int64(at &^ 3), nil
		}
		at = head >> 8
	}
	return 0, err
}

// setMaster lets the device reach memory, or forbids it. Interrupts by wire stay
// off: nobody would end them.
func (c *config) setMaster(on bool) error {
	v, err := c.read(regCommand, 2)
	if err != nil {
		return err
	}
	want := v | commandMemory | commandINTxOff
	if on {
		want |= commandMaster
	} else {
		want &^= commandMaster
	}
	if err := c.write16(regCommand, uint16(want)); err != nil {
		return err
	}
	if v, err = c.read(regCommand, 2); err == nil && v&commandMaster != want&commandMaster {
		err = base.Errorf("set bus mastering of", c.name, base.ErrDeviceGone, "the command register reads %#x", v)
	}
	return err
}

// pending tells whether a transaction of the device is still under way. Devices
// without the capability have none that outlives bus mastering for long.
func (c *config) pending(express int64) (bool, error) {
	if express == 0 {
		return false, nil
	}
	v, err := c.read(express+expressStatus, 2)
	return v&statusPending != 0 && v != 0xffff, err
}
