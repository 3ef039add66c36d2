package main

import (
	"fmt"
	"hash/fnv"

	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/mmio"
)

// controller is the instant controller: it completes each command of its one queue
// in order and moves no data. model.c does the same.
type controller struct {
	sq    []nvme.Command
	cq    []byte
	bell  []byte // the submission doorbell, as memory
	size  uint32
	head  uint32
	tail  uint32
	phase bool
}

// step completes everything that the doorbell shows, and tells how much that was.
func (c *controller) step() (n int) {
	for tail := mmio.LoadEntry32(c.bell); c.head != tail; n++ {
		cid := c.sq[c.head].CID.Get()
		if c.head++; c.head == c.size {
			c.head = 0
		}
		slot := c.cq[c.tail*nvme.CompletionSize:][:nvme.CompletionSize]
		e := nvme.Overlay[nvme.Completion](slot)
		e.DW0.Set(0)
		e.DW1.Set(0)
		e.SQHD.Set(uint16(c.head))
		e.SQID.Set(1)
		mmio.StoreEntry32(slot[nvme.DW3Offset:], uint32(nvme.MakeDW3(cid, 0, c.phase)))
		if c.tail++; c.tail == c.size {
			c.tail, c.phase = 0, !c.phase
		}
	}
	return n
}

// digest is what the commands between the controller's head and the doorbell say,
// in a number: opcode, identifier, blocks, and the memory page by page. Where lists
// stand is left out.
func (dev *device) digest() uint64 {
	h := fnv.New64a()
	c := &dev.ctl
	for i, tail := c.head, mmio.LoadEntry32(c.bell); i != tail; i = (i + 1) % c.size {
		cmd := &c.sq[i]
		fmt.Fprintf(h, "%d %d %d %d %d %x %d", cmd.OPC, cmd.Flags, cmd.CID.Get(), cmd.NSID.Get(), cmd.SLBA(), cmd.CDW12.Get(), cmd.PRP1.Get())
		switch pages := cmd.Blocks(); {
		case pages == 2:
			fmt.Fprintf(h, " %d", cmd.PRP2.Get())
		case pages > 2:
			for _, e := range nvme.OverlaySlice[nvme.Le64](dev.find(cmd.PRP2.Get())[:8*(pages-1)]) {
				fmt.Fprintf(h, " %d", e.Get())
			}
		}
		fmt.Fprintln(h)
	}
	return h.Sum64()
}
