package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
)

func isNotFound(err error) bool { return errors.Is(err, ErrNotFound) }

// Label is what a device holds, as far as one can tell without its metadata.
type Label struct {
	Target  string `json:"target"`
	Blank   bool   `json:"blank"`
	Ours    bool   `json:"ours"`
	StoreID ID     `json:"store_id"`
	Index   int    `json:"index"`
	Devices int    `json:"devices"`
	Epoch   uint64 `json:"epoch"`
	// Text says it in words: "blank", "device 0 of 1 of store 3f…", or the
	// signature of something foreign.
	Text string `json:"text"`
}

// signatures of other owners that format must not overwrite without a word.
var signatures = []struct {
	off  int64
	text string
	sign []byte
}{
	{510, "a partition table (MBR or GPT)", []byte{0x55, 0xaa}},
	{512, "a GPT partition table", []byte("EFI PART")},
	{1024 + 56, "an ext2/3/4 file system", []byte{0x53, 0xef}},
	{0, "an XFS file system", []byte("XFSB")},
	{65536 + 64, "a btrfs file system", []byte("_BHRfS_M")},
	{4096 - 10, "swap space", []byte("SWAPSPACE2")},
	{512, "an LVM physical volume", []byte("LABELONE")},
	{0, "a LUKS volume", []byte("LUKS\xba\xbe")},
	{4096, "a Linux RAID member", []byte{0xfc, 0x4e, 0x2b, 0xa9}},
	{32768 + 1, "an ISO 9660 image", []byte("CD001")},
}

// blankBytes at the beginning of a device are looked at to call it blank.
const blankBytes = 128 * base.KiB

// Inspect tells what the device holds. It only reads.
func Inspect(ctx context.Context, d driver.Device) (Label, error) {
	l := Label{Target: d.Info().Target}
	io, err := newBlockIO(d)
	if err != nil {
		return l, err
	}
	defer io.close()
	q, err := io.readSupers(ctx)
	if q.super != nil {
		s := q.super
		l.Ours, l.StoreID, l.Index, l.Devices, l.Epoch = true, s.StoreID, int(s.Index), len(s.Devices), s.Epoch
		l.Text = "device " + strconv.Itoa(l.Index) + " of " + strconv.Itoa(l.Devices) + " of store " + s.StoreID.String()
		return l, nil
	}
	if errors.Is(err, ErrNotSupported) || errors.Is(err, ErrMismatch) {
		l.Ours, l.Text = true, err.Error()
		return l, nil
	}
	head := make([]byte, blankBytes) // a smaller device ends in zeros
	b, err := io.read(ctx, 0, min(blankBytes, d.Info().Capacity&^(base.StoreBlock-1)))
	if err != nil {
		return l, base.Wrap("inspect", l.Target, err)
	}
	copy(head, b)
	for _, s := range signatures {
		if bytes.Equal(head[s.off:s.off+int64(len(s.sign))], s.sign) {
			l.Text = s.text
			return l, nil
		}
	}
	l.Blank = len(bytes.Trim(head, "\x00")) == 0
	l.Text = "unknown data"
	if l.Blank {
		l.Text = "blank"
	}
	return l, nil
}

// Format makes a store on the devices and in the metadata directory. Without
// Overwrite it refuses devices that are not blank (ErrExists) and a metadata
// directory that is not empty. The order makes a crash harmless: first the old
// superblocks go, then the metadata is made, then the new superblocks.
func Format(ctx context.Context, o FormatOptions) (*Layout, error) {
	l, err := planLayout(o.Devices, o.SlabBytes)
	if err != nil {
		return nil, err
	}
	if !o.Overwrite {
		for _, d := range o.Devices {
			label, err := Inspect(ctx, d)
			if err != nil {
				return nil, err
			}
			if !label.Blank {
				return nil, base.WithHint(base.Errorf("format", label.Target, ErrExists, "it holds %s", label.Text),
					"everything on it would be lost; overwrite only on purpose")
			}
		}
	}
	supers, err := newSupers(l)
	if err != nil {
		return nil, err
	}
	id := meta.Identity{Version: superVersion, Store: l.StoreID, Epoch: 1}
	for _, d := range l.Devices {
		id.Devices = append(id.Devices, d.ID)
	}
	for i, d := range o.Devices {
		if err := wipe(ctx, d, &l.Devices[i]); err != nil {
			return nil, base.Wrap("format", d.Info().Target, err)
		}
	}
	if o.Overwrite {
		if err := meta.Destroy(o.Meta); err != nil && !isNotFound(err) {
			return nil, base.Wrap("format", o.Meta.Dir, err)
		}
	}
	if err := meta.Create(o.Meta, id); err != nil {
		return nil, base.Wrap("format", o.Meta.Dir, err)
	}
	for i, d := range o.Devices {
		if err := writeNew(ctx, d, supers[i]); err != nil {
			return nil, base.Wrap("format", d.Info().Target, err)
		}
	}
	return l, nil
}

// newSupers gives the store and its devices their identities.
func newSupers(l *Layout) ([]*superblock, error) {
	var key [16]byte
	for _, b := range [][]byte{l.StoreID[:], key[:]} {
		_, _ = rand.Read(b) // never fails on Linux: the runtime ends the program instead
	}
	var ids []ID
	for i := range l.Devices {
		_, _ = rand.Read(l.Devices[i].ID[:])
		ids = append(ids, l.Devices[i].ID)
	}
	l.Epoch = 1
	var supers []*superblock
	for i, dl := range l.Devices {
		supers = append(supers, &superblock{Version: superVersion, Seq: 1, Epoch: 1, StoreID: l.StoreID,
			DeviceID: dl.ID, Index: uint32(i), Created: time.Now().Unix(), FPKey: key,
			SlabSize: l.SlabBytes, Layout: dl, Devices: ids})
	}
	return supers, nil
}

// wipe makes the device belong to nobody: superblocks and marks are zeroed, and
// so is what a former owner would be recognised by.
func wipe(ctx context.Context, d driver.Device, l *DeviceLayout) error {
	io, err := newBlockIO(d)
	if err != nil {
		return err
	}
	defer io.close()
	clear(io.mem.CPU())
	var reqs []driver.Request
	zero := func(off, n int64) {
		reqs = append(reqs, driver.Request{Op: driver.OpWrite, Off: off, Len: n, Segs: []driver.Seg{io.mem.Seg(0, n)}})
	}
	zero(0, superFirstOff)
	for i := range superCopies {
		zero(superOff(i, l.Capacity), base.StoreBlock)
	}
	zero(marksOff, marksCount*base.StoreBlock)
	if err := driver.Do(ctx, d, reqs...); err != nil {
		return err
	}
	return flushIfVolatile(ctx, d)
}

// writeNew writes the label and the superblocks of a new device.
func writeNew(ctx context.Context, d driver.Device, s *superblock) error {
	io, err := newBlockIO(d)
	if err != nil {
		return err
	}
	defer io.close()
	if err := io.writeLabel(ctx, s.Layout.Capacity); err != nil {
		return err
	}
	return io.writeSupers(ctx, s, [superCopies]int{0, 1, 2, 3})
}

// labelName is what reports call block 0.
const labelName = "label"

func (io *blockIO) writeLabel(ctx context.Context, capacity int64) error {
	encodeLabel(io.scratch(0), capacity)
	return driver.Do(ctx, io.dev, io.writeReq(0, labelOff))
}

// labelType is the MBR partition type "non-file-system data".
const labelType = 0xda

// encodeLabel makes block 0 an MBR with one partition of the type "non-file-system
// data" over the whole device, so that installers do not take it for blank.
func encodeLabel(b []byte, capacity int64) {
	const sector = 512
	p := b[446:]
	p[4] = labelType
	le.PutUint32(p[8:], 1)
	le.PutUint32(p[12:], uint32(min(capacity/sector-1, 1<<32-1)))
	copy(b[3:], "uGDS Store")
	b[510], b[511] = 0x55, 0xaa
}
