package main

import (
	"context"
	"errors"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/mmio"
	"github.com/ugds-store/ugds/internal/unix"
)

// Sizes of the device that both languages drive.
const (
	capacity  = 4 * base.GiB
	queueSize = 256 // entries; a queue carries one command less
	barBytes  = 2 * hw.PageSize
)

// busPage is the bus address of page i of the memory that carries data. No two
// pages are adjacent on the bus: every page needs a PRP entry of its own.
func busPage(i uint64) uint64 { return 1<<44 + 2*hw.PageSize*i }

// device is the hardware that the driver sees. Its bring-up, and everything else
// that is not I/O, is the controller model's of package sim; the I/O queue belongs
// to an instant controller, its doorbells are stores into a register window, and
// data memory has the bus addresses of busPage.
type device struct {
	*sim.Sim
	start   time.Time
	file    *unix.FD
	bar     *mmio.BAR
	shared  []byte // the register window as the controller sees it
	asq     *hw.Buffer
	seen    uint32 // admin commands that were looked at
	buffers []*hw.Buffer
	ctl     controller
	rings   int64
	quiet   bool // I/O runs: Pause is not for the model of the bring-up
}

// openDevice makes the hardware and opens the driver on it.
func openDevice() (dev *device, d *ctrl.Device, err error) {
	cfg := sim.Default(capacity)
	cfg.Real, cfg.Vectors = true, 0
	cfg.Identify.MDTS = 0
	model, err := sim.Open(cfg)
	if err != nil {
		return nil, nil, err
	}
	dev = &device{Sim: model, start: time.Now()}
	if dev.file, err = unix.OpenUnnamed("/dev/shm", 0o600); err == nil {
		err = unix.Truncate(dev.file, barBytes)
	}
	if err == nil {
		dev.bar, err = mmio.Map(dev.file, 0, barBytes, "the instant controller")
	}
	if err == nil {
		dev.shared, err = unix.MmapShared(dev.file, 0, barBytes)
	}
	if err != nil {
		return nil, nil, errors.Join(err, model.Close())
	}
	d, err = ctrl.Open(context.Background(), dev, ctrl.Options{Queues: 1, Depth: queueSize - 1, Watch: -1})
	if err == nil && dev.ctl.cq == nil {
		err = errors.New("the driver made no I/O queue")
	}
	return dev, d, err
}

// close ends the driver, which closes the hardware.
func (dev *device) close(d *ctrl.Device) error {
	dev.quiet = false
	return errors.Join(d.Close(context.Background()), dev.bar.Close(), unix.Munmap(dev.shared), dev.file.Close())
}

// Now is the real clock, as a transport to hardware has it.
func (dev *device) Now() time.Duration { return time.Since(dev.start) }

// Pause lets the model of the bring-up work. While I/O runs it does nothing.
func (dev *device) Pause(until time.Duration) {
	if !dev.quiet {
		dev.Sim.Pause(until)
	}
}

// Alloc remembers where queues and lists are.
func (dev *device) Alloc(size int64, owner string) (*hw.Buffer, error) {
	b, err := dev.Sim.Alloc(size, owner)
	if err == nil {
		dev.buffers = append(dev.buffers, b)
	}
	return b, err
}

// find is the processor's view of the buffer at a bus address, from there on.
func (dev *device) find(addr uint64) []byte {
	for _, b := range dev.buffers {
		if addr >= b.Addr && addr-b.Addr < uint64(len(b.Bytes)) {
			return b.Bytes[addr-b.Addr:]
		}
	}
	return nil
}

// Store64 notes which buffer is the admin submission queue.
func (dev *device) Store64(off, v uint64) error {
	if off == nvme.RegASQ {
		for _, b := range dev.buffers {
			if b.Addr == v {
				dev.asq = b
			}
		}
	}
	return dev.Sim.Store64(off, v)
}

// Doorbell gives the admin queue's to the model and the others to the window.
func (dev *device) Doorbell(off uint64) (hw.Doorbell, error) {
	if off < nvme.SQDoorbell(1, 0) {
		b, err := dev.Sim.Doorbell(off)
		return adminBell{dev, b, off == nvme.SQDoorbell(0, 0)}, err
	}
	b, err := dev.bar.Doorbell(off)
	return &ioBell{b, &dev.rings}, err
}

type ioBell struct {
	mmio.Doorbell
	rings *int64
}

// Ring implements hw.Doorbell and counts.
func (b *ioBell) Ring(v uint32) error {
	*b.rings++
	return b.Doorbell.Ring(v)
}

type adminBell struct {
	dev *device
	hw.Doorbell
	sq bool
}

// Ring looks for the commands that make the I/O queues before the model does.
func (b adminBell) Ring(v uint32) error {
	if b.sq {
		b.dev.learn(v)
	}
	return b.Doorbell.Ring(v)
}

// learn tells the instant controller where its queues are.
func (dev *device) learn(tail uint32) {
	cmds := nvme.OverlaySlice[nvme.Command](dev.asq.Bytes)
	for ; dev.seen != tail; dev.seen = (dev.seen + 1) % uint32(len(cmds)) {
		c := &cmds[dev.seen]
		addr, size := c.PRP1.Get(), c.CDW10.Get()>>16+1
		switch c.OPC {
		case nvme.AdminCreateIOCQ:
			dev.ctl.cq = dev.find(addr)[:size*nvme.CompletionSize]
		case nvme.AdminCreateIOSQ:
			dev.ctl.sq = nvme.OverlaySlice[nvme.Command](dev.find(addr)[:size*nvme.CommandSize])
			dev.ctl.bell = dev.shared[nvme.SQDoorbell(1, 0):]
			dev.ctl.size, dev.ctl.phase = size, true
		}
	}
}

// Map gives data memory its bus addresses: page i of the memory is busPage(i).
func (dev *device) Map(mem []byte) (hw.Mapping, error) {
	if unix.Addr(mem)%hw.PageSize != 0 || len(mem)%hw.PageSize != 0 {
		return nil, base.Errorf("map", "data memory", base.ErrMisaligned, "%d bytes", len(mem))
	}
	m := make(mapping, len(mem)/hw.PageSize)
	for i := range m {
		m[i] = hw.Seg{Addr: busPage(uint64(i)), Len: hw.PageSize}
	}
	return m, nil
}

type mapping []hw.Seg

// Segments implements hw.Mapping.
func (m mapping) Segments() []hw.Seg { return m }

// Unmap implements hw.Mapping.
func (m mapping) Unmap() error { return nil }

var _ hw.Device = (*device)(nil)
var _ driver.Device = (*ctrl.Device)(nil)
