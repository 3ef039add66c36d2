package ctrl

import (
	"context"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/mmio"
)

// shadow is the memory in which an emulated controller looks for doorbells, and says
// from which value on it wants to be told by the real ones (Base 5.3, B.5): a write
// to a register costs such a controller as much as a whole command.
type shadow struct {
	values, events *hw.Buffer
	on             bool // the controller of this bring-up uses it
}

// shadowDoorbells gives the controller the memory, if it wants it.
func (d *Device) shadowDoorbells(ctx context.Context) error {
	d.shadow.on = false
	if d.opts.NoShadow || d.id.OACS.Get()&nvme.OACSDoorbellBuffer == 0 {
		return nil
	}
	page := int64(1) << d.cc.PageShift()
	if need := int64(nvme.CQDoorbell(uint16(d.granted), d.cap.DSTRD())) + 4 - nvme.RegDoorbells; need > page {
		d.reason("no doorbells in memory: they would need %d bytes, a page has %d", need, page)
		return nil
	}
	for _, b := range []**hw.Buffer{&d.shadow.values, &d.shadow.events} {
		if *b == nil {
			var err error
			if *b, err = d.hw.Alloc(page, "nvme shadow doorbells"); err != nil {
				return err
			}
		}
		clear((*b).Bytes)
	}
	var c nvme.Command
	c.SetDoorbellBuffer(d.shadow.values.Addr, d.shadow.events.Addr)
	if _, err := d.admin(ctx, &c); err != nil {
		if statusOf(err) == nil {
			return err
		}
		d.reason("no doorbells in memory: %v", err)
		return nil
	}
	d.shadow.on = true
	d.reason("the controller looks for doorbells in memory")
	return nil
}

// free gives the memory back. The controller is stopped.
func (s *shadow) free() {
	for _, b := range []**hw.Buffer{&s.values, &s.events} {
		if *b != nil {
			(*b).Free()
			*b = nil
		}
	}
}

// bell is the doorbell at an offset of the registers, for an I/O queue, in memory
// where the controller wants that. The admin queue keeps its registers, as in other
// drivers.
func (d *Device) bell(off uint64, admin bool) (hw.Doorbell, error) {
	b, err := d.hw.Doorbell(off)
	if err != nil || admin || !d.shadow.on {
		return b, err
	}
	at := off - nvme.RegDoorbells
	return &shadowBell{b, d.shadow.values.Bytes[at : at+4], d.shadow.events.Bytes[at : at+4]}, nil
}

// shadowBell is a doorbell in memory with the register behind it.
type shadowBell struct {
	register     hw.Doorbell
	value, event []byte
}

// Ring implements hw.Doorbell.
func (b *shadowBell) Ring(v uint32) error {
	old := mmio.ExchangeEntry32(b.value, v)
	if nvme.DoorbellWanted(mmio.LoadShared32(b.event), old, v) {
		return b.register.Ring(v)
	}
	return nil
}
