package file

import (
	"fmt"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// smallestBlock is the LBA size of files that have no constraint, in bytes.
const smallestBlock = 512

// handle is an open and locked file and what is known about it.
type handle struct {
	fd       *unix.FD
	stat     unix.Stat
	fs       unix.FS
	direct   bool
	readOnly bool
	info     driver.Info
	owner    *record // what a second opener reads; nil when read-only
	side     *unix.FD
}

func (h *handle) reason(format string, args ...any) {
	h.info.Reasons = append(h.info.Reasons, fmt.Sprintf(format, args...))
}

// refuseKind tells whether the kind of file can be a device.
func refuseKind(path string, k unix.Kind) error {
	switch k {
	case unix.KindRegular, unix.KindBlock:
		return nil
	}
	return base.WithHint(base.Errorf("open", path, base.ErrInvalid, "it is a %s", k),
		"name a regular file or a block device")
}

// describe fills in the geometry.
func (h *handle) describe(o *Options) error {
	in := &h.info
	in.MaxTransfer = o.MaxTransfer
	in.VolatileCache = true
	var size int64
	var err error
	if h.stat.Kind == unix.KindBlock {
		in.Target, in.Transport = o.Path, "block"
		size, err = h.describeBlock()
	} else {
		in.Target, in.Transport = "file:"+o.Path, "file"
		size = h.stat.Size
		h.describeFile(o)
	}
	if err != nil {
		return base.Wrap("open", o.Path, err)
	}
	in.MemAlign = max(in.MemAlign, in.BlockSize)
	in.Capacity = size &^ (in.BlockSize - 1)
	if in.Capacity < base.StoreBlock {
		return base.CutOff(o.Path, base.ErrInvalid, &base.TooSmall{Bytes: size})
	}
	if o.ReadOnly {
		h.reason("opened read-only with a shared lock")
	}
	return nil
}

func (h *handle) describeBlock() (int64, error) {
	in := &h.info
	size, err := unix.BlockSize64(h.fd)
	if err != nil {
		return 0, err
	}
	if in.BlockSize, err = unix.LogicalBlock(h.fd); err != nil {
		return 0, err
	}
	d := h.stat.Rdev
	in.Model, in.Serial = unix.BlockAttr(d, "device/model"), unix.BlockAttr(d, "device/serial")
	in.Discard = unix.BlockQueueInt(d, "discard_max_bytes") > 0
	in.WriteZeroes = unix.BlockQueueInt(d, "write_zeroes_max_bytes") > 0
	if !in.Discard {
		h.reason("no discard: the block device does not support it")
	}
	switch cache := unix.BlockQueue(d, "write_cache"); {
	case cache == "write through" && h.direct:
		in.VolatileCache = false
		h.reason("flush does nothing: the block device's write cache says \"write through\"")
	default:
		h.reason("flush is fdatasync: the block device's write cache says %q", cache)
	}
	return size, nil
}

func (h *handle) describeFile(o *Options) {
	in := &h.info
	in.BlockSize = smallestBlock
	switch {
	case !h.direct:
	case h.stat.DIOKnown:
		in.BlockSize, in.MemAlign = int64(h.stat.DIOOffset), int64(h.stat.DIOMem)
		h.reason("O_DIRECT: %s asks for offsets in units of %d bytes and memory in units of %d",
			h.fs.Type, in.BlockSize, in.MemAlign)
	default:
		in.BlockSize = base.StoreBlock
		h.reason("O_DIRECT: the kernel does not say which alignment %s needs: %d", h.fs.Type, in.BlockSize)
	}
	in.Discard = o.Discard && !o.ReadOnly
	switch {
	case !o.Discard:
		h.reason("no discard: the file's space stays reserved")
	case o.ReadOnly:
		h.reason("discard: a writer gives the space of emptied slabs back")
	}
	switch h.fs.Type {
	case "ext4", "xfs", "btrfs":
		in.WriteZeroes = !o.Hooks.NoZeroRange
	case "nfs", "fuse":
		h.reason("%s: the lock may be free before a killed owner's requests have landed", h.fs.Type)
	}
}

// wantDirect tells whether O_DIRECT can be used on what st describes.
func (h *handle) wantDirect(o *Options) bool {
	st := &h.stat
	switch {
	case o.Buffered:
		h.reason("buffered: asked for")
		return false
	case st.DIOKnown && st.DIOOffset == 0:
		h.reason("buffered: %s has no O_DIRECT for this file", h.fs.Type)
		return false
	case st.DIOKnown && st.DIOOffset > base.StoreBlock:
		h.reason("buffered: %s asks for O_DIRECT in units of %d bytes, the store's are %d",
			h.fs.Type, st.DIOOffset, base.StoreBlock)
		return false
	}
	return true
}
