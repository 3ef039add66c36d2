//go:build ugds_lab

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/mmio"
)

// raw is the smallest driver that moves bytes: one command at a time on one queue.
// It lets a test see memory as the controller does.
type raw struct {
	d     hw.Device
	admin pair
	io    pair
	list  *hw.Buffer // a page for PRP lists
	own   *hw.Buffer // memory that the controller certainly reaches
	cid   uint16

	random *rand.Rand
}

// pair is a submission and a completion queue.
type pair struct {
	id       uint16
	sq, cq   *hw.Buffer
	tail     uint32
	head     uint32
	phase    bool
	sqd, cqd hw.Doorbell
}

const (
	rawEntries = 8
	rawChunk   = 64 << 10 // bytes of a command
	rawBlock   = 512      // of namespace 1
	rawLimit   = 10 * time.Second
)

// newRaw allocates what a driver needs.
func newRaw(t testing.TB, d hw.Device) *raw {
	t.Helper()
	r := &raw{d: d, random: rand.New(rand.NewPCG(1, 2))}
	for _, b := range []struct {
		to   **hw.Buffer
		size int64
	}{{&r.list, hw.PageSize}, {&r.own, rawChunk}, {&r.admin.sq, rawEntries * nvme.CommandSize}, {&r.admin.cq, rawEntries * nvme.CompletionSize},
		{&r.io.sq, rawEntries * nvme.CommandSize}, {&r.io.cq, rawEntries * nvme.CompletionSize}} {
		var err error
		if *b.to, err = d.Alloc(b.size, "raw"); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// free gives the memory back.
func (r *raw) free() {
	for _, b := range []*hw.Buffer{r.admin.sq, r.admin.cq, r.io.sq, r.io.cq, r.list, r.own} {
		b.Free()
	}
}

// up takes the controller from any state to one with an I/O queue.
func (r *raw) up() error {
	v, err := r.d.Load64(nvme.RegCAP)
	if err != nil {
		return err
	}
	cap := nvme.CAP(v)
	if err := errors.Join(r.admin.reset(r.d, 0, cap.DSTRD()), r.io.reset(r.d, 1, cap.DSTRD()), r.disable()); err != nil {
		return err
	}
	cc, err := nvme.MakeCC(cap, 12, nvme.RoundRobin)
	if err == nil {
		err = errors.Join(r.d.Store32(nvme.RegAQA, uint32(nvme.MakeAQA(rawEntries, rawEntries))),
			r.d.Store64(nvme.RegASQ, r.admin.sq.Addr), r.d.Store64(nvme.RegACQ, r.admin.cq.Addr), r.d.Store32(nvme.RegCC, uint32(cc)))
	}
	if err == nil {
		err = r.ready(true)
	}
	if err != nil {
		return err
	}
	var c nvme.Command
	c.SetCreateIOCQ(1, r.io.cq.Addr, rawEntries, 0, false)
	if err := r.do(&r.admin, &c); err != nil {
		return err
	}
	c.SetCreateIOSQ(1, r.io.sq.Addr, rawEntries, 1, 0)
	return r.do(&r.admin, &c)
}

// reset prepares the queues for a controller that does not know them.
func (p *pair) reset(d hw.Device, id uint16, stride uint8) (err error) {
	p.id, p.tail, p.head, p.phase = id, 0, 0, true
	clear(p.cq.Bytes)
	if p.sqd, err = d.Doorbell(nvme.SQDoorbell(id, stride)); err != nil {
		return err
	}
	p.cqd, err = d.Doorbell(nvme.CQDoorbell(id, stride))
	return err
}

// disable takes the controller to RDY = 0.
func (r *raw) disable() error {
	v, err := r.d.Load32(nvme.RegCC)
	if err != nil {
		return err
	}
	if err := r.d.Store32(nvme.RegCC, v&^1); err != nil {
		return err
	}
	return r.ready(false)
}

func (r *raw) ready(on bool) error {
	for end := time.Now().Add(rawLimit); ; r.d.Pause(hw.Forever) {
		v, err := r.d.Load32(nvme.RegCSTS)
		if err != nil || nvme.CSTS(v).Ready() == on {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("CSTS %#x: %w", v, context.DeadlineExceeded)
		}
	}
}

// do sends one command and waits for its end.
func (r *raw) do(p *pair, c *nvme.Command) error {
	r.cid++
	c.CID.Set(r.cid)
	nvme.OverlaySlice[nvme.Command](p.sq.Bytes)[p.tail] = *c
	p.tail = (p.tail + 1) % rawEntries
	if err := p.sqd.Ring(p.tail); err != nil {
		return err
	}
	slot := p.cq.Bytes[p.head*nvme.CompletionSize:][:nvme.CompletionSize]
	for end := time.Now().Add(rawLimit); ; r.d.Pause(hw.Forever) {
		dw3 := nvme.CompletionDW3(mmio.LoadEntry32(slot[nvme.DW3Offset:]))
		if dw3.Phase() == p.phase {
			if p.head++; p.head == rawEntries {
				p.head, p.phase = 0, !p.phase
			}
			return errors.Join(p.cqd.Ring(p.head), dw3.Status().Err(c.OPC, p.id == 0, 0))
		}
		v, err := r.d.Load32(nvme.RegCSTS)
		if err == nil {
			err = nvme.CSTS(v).Check() // it fails when it cannot fetch the command
		}
		if err == nil && time.Now().After(end) {
			err = context.DeadlineExceeded
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.OPC.Name(p.id == 0), err)
		}
	}
}

// move reads or writes the first blocks of namespace 1 with n bytes of bus memory
// at addr.
func (r *raw) move(write bool, addr, n uint64) error {
	var c nvme.Command
	if write {
		c.SetWrite(1, 0, uint32(n/rawBlock), false)
	} else {
		c.SetRead(1, 0, uint32(n/rawBlock))
	}
	page := nvme.ListPage{Addr: r.list.Addr, Entries: nvme.OverlaySlice[nvme.Le64](r.list.Bytes)}
	if _, err := nvme.BuildPRP(&c, []nvme.Seg{{Addr: addr, Len: n}}, 12, []nvme.ListPage{page}); err != nil {
		return err
	}
	return r.do(&r.io, &c)
}

// errFault is what an access comes to that the IOMMU has refused.
var errFault = errors.New("the IOMMU refused")

// copyOut has the controller read n bytes at addr into own, copyIn the other way.
func (r *raw) copyOut(addr, n uint64) error {
	return errors.Join(r.move(true, addr, n), r.move(false, r.own.Addr, n))
}

func (r *raw) copyIn(addr, n uint64) error {
	return errors.Join(r.move(true, r.own.Addr, n), r.move(false, addr, n))
}

// fetch has n bytes at addr in own, and makes sure that they are what is there:
// QEMU's controller ends a command whose memory the IOMMU refused with success, so a
// random pattern goes there and must come back before the bytes are put back.
func (r *raw) fetch(addr, n uint64) error {
	if err := r.copyOut(addr, n); err != nil {
		return err
	}
	mem := r.own.Bytes[:n]
	was, pattern := bytes.Clone(mem), make([]byte, n)
	for i := range pattern {
		pattern[i] = byte(r.random.Uint32())
	}
	copy(mem, pattern)
	err := r.copyIn(addr, n)
	clear(mem)
	err = errors.Join(err, r.copyOut(addr, n))
	if err == nil && !bytes.Equal(mem, pattern) {
		return errFault
	}
	copy(mem, was)
	return errors.Join(err, r.copyIn(addr, n))
}

// access copies p to or from bus memory with the controller's own hands, by way of
// its blocks. Blocks around p are written as they were read.
func (r *raw) access(addr uint64, p []byte, write bool) error {
	for len(p) > 0 {
		lo := addr &^ (rawBlock - 1)
		skip := addr - lo
		n := min(rawChunk, (skip+uint64(len(p))+rawBlock-1)&^(rawBlock-1))
		k := min(uint64(len(p)), n-skip)
		if err := r.fetch(lo, n); err != nil {
			return err
		}
		if write {
			copy(r.own.Bytes[skip:], p[:k])
			if err := r.copyIn(lo, n); err != nil {
				return err
			}
		} else {
			copy(p, r.own.Bytes[skip:skip+k])
		}
		p, addr = p[k:], addr+k
	}
	return nil
}
