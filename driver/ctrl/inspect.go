package ctrl

import (
	"context"
	"slices"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
)

// Description is what a controller says of itself, and how the driver uses it.
// Numbers of bytes are 0 where the controller names no limit.
type Description struct {
	Vendor     uint16   `json:"vendor"` // PCI identifiers
	Device     uint16   `json:"device"`
	Model      string   `json:"model"`
	Serial     string   `json:"serial"`
	Firmware   string   `json:"firmware"`
	Version    string   `json:"version"`       // of the specification
	ID         uint16   `json:"controller_id"` // CNTLID
	NUMANode   int      `json:"numa_node"`     // -1 unknown
	Translated bool     `json:"translated"`    // an IOMMU translates its addresses
	Quirks     []string `json:"quirks"`

	Namespaces []uint32 `json:"namespaces"` // active ones
	NSID       uint32   `json:"nsid"`       // the one that is used
	Blocks     uint64   `json:"blocks"`
	Formats    []Format `json:"formats"`
	Protected  bool     `json:"write_protected"`
	Shared     bool     `json:"shared"` // another controller may use the namespace

	QueueEntries   uint32 `json:"queue_entries"`        // CAP.MQES
	TransferBytes  uint64 `json:"transfer_bytes"`       // IDENTIFY.MDTS
	BoundaryBytes  int64  `json:"boundary_bytes"`       // NOIOB
	ZeroBytes      int64  `json:"write_zeroes_bytes"`   // of one command
	DiscardBytes   int64  `json:"discard_bytes"`        // of one range
	DoorbellStride int    `json:"doorbell_stride"`      // bytes
	MinPage        int64  `json:"smallest_page_bytes"`  // CAP.MPSMIN
	MaxPage        int64  `json:"largest_page_bytes"`   // CAP.MPSMAX
	ReadyMs        uint32 `json:"ready_timeout_ms"`     // CAP.TO
	VolatileCache  bool   `json:"volatile_cache"`       // VWC
	SGL            bool   `json:"sgl"`                  // SGLS
	Compare        bool   `json:"compare"`              // ONCS
	DSM            bool   `json:"dataset_management"`   // ONCS
	WriteZeroes    bool   `json:"write_zeroes"`         // ONCS
	Abort          int    `json:"abort_limit"`          // ACL plus one
	Events         int    `json:"event_requests_limit"` // AERL plus one

	CommandBytes int64   `json:"command_bytes"` // the largest read or write that the driver sends
	Queues       []Queue `json:"queues"`
}

// Format is a block format of the namespace.
type Format struct {
	BlockBytes    int64 `json:"block_bytes"`
	MetadataBytes int   `json:"metadata_bytes"`
	InUse         bool  `json:"in_use"`
}

// Queue is one I/O queue pair.
type Queue struct {
	ID        int    `json:"id"`
	For       string `json:"for"` // "single requests", "batches" or both
	Entries   uint32 `json:"entries"`
	Interrupt bool   `json:"interrupt"` // it has a vector; else it is polled
}

// Now is the clock of the hardware: that of the machine, or a model's own.
func (d *Device) Now() time.Duration { return d.hw.Now() }

// Describe asks the controller for what it says of itself. It fails as Health
// does for a device that takes no commands.
func (d *Device) Describe(ctx context.Context) (*Description, error) {
	if err := d.refusal("describe"); err != nil {
		return nil, err
	}
	block := int64(1) << d.geo.BlockShift
	id, oncs := d.hw.ID(), d.id.ONCS.Get()
	out := &Description{Vendor: id.Vendor, Device: id.Device, Model: d.id.Model(), Serial: d.id.Serial(),
		Firmware: d.id.Firmware(), Version: d.version.String(), ID: d.id.CNTLID.Get(), NUMANode: id.NUMANode,
		Translated: id.IOMMU, Quirks: append([]string{}, nvme.Quirks(id.Vendor, id.Device).Flags.Names()...),
		NSID: d.nsid, Blocks: d.geo.Blocks, Protected: d.protected, Formats: []Format{}, Queues: []Queue{},
		QueueEntries: d.cap.QueueEntries(), TransferBytes: d.id.MaxTransfer(d.cap.MinPageShift()),
		BoundaryBytes: int64(d.geo.Boundary) * block, DoorbellStride: 4 << d.cap.DSTRD(),
		MinPage: 1 << d.cap.MinPageShift(), MaxPage: 1 << d.cap.MaxPageShift(), ReadyMs: d.cap.TimeoutMs(),
		VolatileCache: d.id.VolatileCache(), SGL: d.id.SGL().Supported, Compare: oncs&nvme.ONCSCompare != 0,
		DSM: oncs&nvme.ONCSDSM != 0, WriteZeroes: oncs&nvme.ONCSWriteZeroes != 0,
		Abort: int(d.id.ACL) + 1, Events: int(d.id.AERL) + 1, CommandBytes: int64(d.limit) * block}
	if d.nvm.WZSL != 0 {
		out.ZeroBytes = int64(d.zeroLimit) * block
	}
	if d.nvm.DMRSL.Get() != 0 || d.nvm.DMSL.Get() != 0 {
		out.DiscardBytes = int64(d.discardLimit) * block
	}
	out.Queues = d.describeQueues()
	var err error
	if out.Namespaces, err = d.activeNamespaces(ctx); err != nil {
		return nil, err
	}
	var c nvme.Command
	c.SetIdentify(nvme.CNSNamespace, d.nsid)
	return out, d.fetch(ctx, &c, nvme.IdentifySize, func(b []byte) error {
		ns := nvme.Overlay[nvme.IdentifyNamespace](b)
		_, used := ns.Format()
		out.Shared = ns.Shared()
		for i := range min(int(ns.NLBAF)+1, len(ns.LBAF)) {
			if f := ns.LBAF[i]; f.LBADS != 0 {
				out.Formats = append(out.Formats, Format{1 << min(f.LBADS, 62), int(f.MS.Get()), i == int(used)})
			}
		}
		return nil
	})
}

func (d *Device) describeQueues() (out []Queue) {
	few, deep := *d.latency.queues.Load(), *d.deep.queues.Load()
	shared := few[0] == deep[0]
	for i, q := range *d.queues.Load() {
		use := "batches"
		switch {
		case shared:
			use = "single requests and batches"
		case i < len(few):
			use = "single requests"
		}
		out = append(out, Queue{int(q.id), use, q.size, q.vec != nil})
	}
	return out
}

// SMART reads the SMART / Health Information page (Base 5.1.12.1.3).
func (d *Device) SMART(ctx context.Context) (l nvme.SMARTLog, err error) {
	var c nvme.Command
	c.SetGetLogPage(nvme.LogSMART, nvme.NSIDAll, 512, 0, true)
	err = d.fetch(ctx, &c, 512, func(b []byte) error {
		l = *nvme.Overlay[nvme.SMARTLog](b)
		return nil
	})
	return l, err
}

// ErrorLog reads the Error Information page (Base 5.1.12.1.2): the newest errors
// first, as many as a page of memory takes.
func (d *Device) ErrorLog(ctx context.Context) ([]nvme.ErrorLogEntry, error) {
	const entry = 64
	size := int64(min(int(d.id.ELPE)+1, hw.PageSize/entry)) * entry
	var out []nvme.ErrorLogEntry
	var c nvme.Command
	c.SetGetLogPage(nvme.LogError, nvme.NSIDAll, uint32(size), 0, true)
	err := d.fetch(ctx, &c, size, func(b []byte) error {
		out = slices.Clone(nvme.OverlaySlice[nvme.ErrorLogEntry](b[:size]))
		return nil
	})
	end := slices.IndexFunc(out, func(e nvme.ErrorLogEntry) bool { return e.Count.Get() == 0 })
	if end >= 0 {
		out = out[:end]
	}
	return out, err
}
