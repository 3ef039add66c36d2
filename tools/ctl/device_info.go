package ctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

type deviceInfoDoc struct {
	header
	Devices []infoDoc `json:"devices"`
}

// infoDoc is a device as the store sees it, and a controller as it sees itself.
type infoDoc struct {
	deviceDoc
	State         string            `json:"state"`
	Model         string            `json:"model"`
	Serial        string            `json:"serial"`
	BlockBytes    int64             `json:"block_bytes"`
	AlignBytes    int64             `json:"memory_align_bytes"`
	TransferBytes int64             `json:"transfer_bytes"` // of one command; larger requests are cut
	VolatileCache bool              `json:"volatile_cache"`
	Discard       bool              `json:"discard"`
	WriteZeroes   bool              `json:"write_zeroes"`
	Holds         string            `json:"holds"` // "" if it is blank
	NUMANode      int               `json:"numa_node"`
	Link          string            `json:"link"`       // "" if it is not known
	Controller    *ctrl.Description `json:"controller"` // null for what the kernel drives
}

// DeviceInfo describes the targets that are named, or those of the store.
func DeviceInfo(ctx context.Context, e *Env, t *Target, args []string) error {
	return e.fail(verbDeviceInfo, deviceInfo(ctx, e, t, args))
}

func deviceInfo(ctx context.Context, e *Env, t *Target, args []string) error {
	targets, err := t.targets(verbDeviceInfo, args)
	if err == nil && len(targets) == 0 {
		err = usage(verbDeviceInfo, "which device? a target, or --store DIR for those of a store")
	}
	if err != nil {
		return err
	}
	doc := deviceInfoDoc{header: head(verbDeviceInfo, nil), Devices: []infoDoc{}}
	var failed []error
	for _, target := range targets { // one that fails says nothing of the others
		err := e.withDevice(ctx, t, target, func(d driver.Device) error {
			in, err := describe(ctx, d)
			if err == nil {
				doc.Devices = append(doc.Devices, in)
			}
			return err
		})
		if err != nil {
			failed = append(failed, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	if len(doc.Devices) > 0 {
		if err := e.showInfo(&doc); err != nil {
			return err
		}
	}
	return errors.Join(failed...)
}

func (e *Env) showInfo(doc *deviceInfoDoc) error {
	if e.JSON {
		return e.emit(doc)
	}
	for i, d := range doc.Devices {
		if i > 0 {
			if err := e.say(""); err != nil {
				return err
			}
		}
		if err := e.table(d.rows()...); err != nil {
			return err
		}
	}
	return nil
}

func describe(ctx context.Context, d driver.Device) (out infoDoc, err error) {
	in := d.Info()
	out = infoDoc{deviceDoc: docDevices([]driver.Device{d}, "")[0], State: d.State().String(), Model: in.Model, Serial: in.Serial,
		BlockBytes: in.BlockSize, AlignBytes: in.MemAlign, TransferBytes: in.MaxTransfer, VolatileCache: in.VolatileCache,
		Discard: in.Discard, WriteZeroes: in.WriteZeroes, NUMANode: -1}
	if out.Holds, err = holdsOf(ctx, d); err != nil {
		return out, err
	}
	if link, node, ok := linkOf(in.Target); ok {
		out.Link, out.NUMANode = link.String(), node
	}
	if c, ok := d.(*ctrl.Device); ok {
		out.Controller, err = c.Describe(ctx)
	}
	return out, err
}

// linkOf is the link of the disk or controller that a target is, if it is one.
func linkOf(target string) (probe.Link, int, bool) {
	if t, err := probe.Parse(target); err == nil && t.Scheme == "pci" {
		found, err := probe.Controllers(probe.Sysfs)
		i := slices.IndexFunc(found, func(c probe.Controller) bool { return c.Address == t.Rest })
		if err != nil || i < 0 {
			return probe.Link{}, -1, false
		}
		return found[i].Link, found[i].NUMANode, true
	}
	path, ok := filePath(target)
	if !ok {
		return probe.Link{}, -1, false
	}
	st, err := unix.StatPath(path)
	if err != nil || st.Kind != unix.KindBlock {
		return probe.Link{}, -1, false
	}
	link, node := probe.LinkOf(st.Rdev)
	return link, node, true
}

func (d *infoDoc) rows() [][2]string {
	holds := d.Holds
	if holds == "" {
		holds = "nothing: it is blank"
	}
	rows := [][2]string{
		row("device", "%s", Plain(d.Target)),
		row("size", "%s, %s through %s", base.FormatBytes(d.Capacity), d.Transport, d.Engine),
		row("state", "%s", d.State),
		row("holds", "%s", holds),
		row("blocks", "%d bytes; memory aligned to %d bytes; %s in one command", d.BlockBytes, d.AlignBytes, base.FormatBytes(d.TransferBytes)),
		row("can", "%s", joined(", ", "flush", word(d.Discard, "discard"), word(d.WriteZeroes, "write zeroes"))),
		row("cache", "%s", orElse(word(d.VolatileCache, "volatile: writes need a flush"), "none that loses writes")),
	}
	if d.Link != "" {
		rows = append(rows, row("link", "%s", d.Link))
	}
	if d.NUMANode >= 0 {
		rows = append(rows, row("NUMA node", "%d", d.NUMANode))
	}
	if d.Controller != nil {
		rows = append(rows, controllerRows(d.Controller)...)
	}
	for i, why := range d.Reasons {
		rows = append(rows, row(word(i == 0, "because"), "%s", why))
	}
	return rows
}

func controllerRows(c *ctrl.Description) [][2]string {
	var formats, ids []string
	for _, f := range c.Formats {
		text := fmt.Sprintf("%d bytes", f.BlockBytes)
		if f.MetadataBytes > 0 {
			text += fmt.Sprintf(" and %d of metadata", f.MetadataBytes)
		}
		formats = append(formats, text+word(f.InUse, " (in use)"))
	}
	for _, id := range c.Namespaces {
		ids = append(ids, strconv.FormatUint(uint64(id), 10))
	}
	return [][2]string{
		row("controller", "%s, serial %s, firmware %s, PCI %04x:%04x, NVMe %s", c.Model, c.Serial, c.Firmware, c.Vendor, c.Device, c.Version),
		row("quirks", "%s", orElse(strings.Join(c.Quirks, ", "), "none")),
		row("namespaces", "%s; %d is used: %d blocks%s%s", strings.Join(ids, ", "), c.NSID, c.Blocks,
			word(c.Protected, ", write protected"), word(c.Shared, ", shared")),
		row("formats", "%s", strings.Join(formats, ", ")),
		row("its limits", "%s in one command (MDTS), %s between boundaries (NOIOB), queues of %d entries (MQES)",
			limit(int64(c.TransferBytes)), limit(c.BoundaryBytes), c.QueueEntries),
		row("", "write zeroes: %s, discard: %s; %d aborts and %d event requests at a time", limit(c.ZeroBytes), limit(c.DiscardBytes), c.Abort, c.Events),
		row("", "memory pages of %s to %s, a doorbell each %d bytes, ready within %d ms",
			base.FormatBytes(c.MinPage), base.FormatBytes(c.MaxPage), c.DoorbellStride, c.ReadyMs),
		row("it knows", "%s", orElse(joined(", ", word(c.VolatileCache, "volatile cache"), word(c.SGL, "SGLs"), word(c.Compare, "compare"),
			word(c.DSM, "dataset management"), word(c.WriteZeroes, "write zeroes")), "nothing optional")),
		row("queues", "%s", queuesText(c.Queues)),
	}
}

// queuesText puts queues of one kind together.
func queuesText(queues []ctrl.Queue) string {
	var out []string
	for i := 0; i < len(queues); {
		n := i
		for n < len(queues) && queues[n].For == queues[i].For && queues[n].Entries == queues[i].Entries && queues[n].Interrupt == queues[i].Interrupt {
			n++
		}
		how := "polled"
		if queues[i].Interrupt {
			how = "with interrupts"
		}
		out = append(out, fmt.Sprintf("%d of %d entries for %s, %s", n-i, queues[i].Entries, queues[i].For, how))
		i = n
	}
	return strings.Join(out, "; ")
}

// limit is a number of bytes of which 0 means none.
func limit(n int64) string {
	if n == 0 {
		return "no limit"
	}
	return base.FormatBytes(n)
}

// word is text if it holds, else nothing.
func word(holds bool, text string) string {
	if holds {
		return text
	}
	return ""
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}
