package sim

import (
	"sync"
	"time"

	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// Service is how long commands take.
type Service uint8

// The service models; the package comment describes them.
const (
	ServiceZero Service = iota
	ServiceFixed
)

// Limits of the model.
const (
	// MaxNamespaces is the largest number of namespaces.
	MaxNamespaces = 128
	// MaxVectors is the largest number of interrupt vectors.
	MaxVectors = 2048
	// maxBytes of a namespace keep offsets inside an int64.
	maxBytes = 1 << 50
)

// Namespace is one namespace of a model.
type Namespace struct {
	ID         uint32
	Blocks     uint64
	BlockShift uint8  // block size as a power of two
	Metadata   uint16 // bytes a block; such formats are only described, I/O is refused
	Extended   bool   // metadata follows each block in the buffer
	Protection uint8  // type of end-to-end protection, only described
	NOIOB      uint16 // optimal I/O boundary, blocks
	// Allocatable is NCAP, if not 0: how many of the blocks can be written at once.
	// It is only described.
	Allocatable uint64
	Shared      bool  // other controllers may use it
	ReadOnly    bool  // write protected
	Inactive    bool  // not attached: not in the active list
	CommandSet  uint8 // other than the NVM command set; only told, in the descriptors
}

// holds tells whether the namespace has blocks first to first + n - 1.
func (ns *Namespace) holds(first, n uint64) bool { return first <= ns.Blocks && n <= ns.Blocks-first }

// Config describes a controller. Start from Default and change what the case is
// about. Fields named in capitals are fields of the specification.
type Config struct {
	Target string // "" makes one up
	// Path is the file that holds the first namespace, "" for memory. It must be there,
	// with all its bytes, since to open it may be only to look; it is locked, and if
	// Blocks is 0 it gives the size. A namespace that is ReadOnly shares the lock.
	Path string
	Seed uint64 // of every random choice
	// Lock, if not nil, is the lock of the model: shared by several models and by
	// whatever else changes, it lets one instant of all of them be kept.
	Lock    *sync.Mutex
	Real    bool // the clock is the real one
	Service Service
	// Patience is how many pauses in a row must find nothing to do before the
	// virtual clock moves. With several goroutines that poll on one processor it
	// lets each of them have its turn first.
	Patience int
	// Dedicated: the model works in Serve, on another processor than the driver.
	Dedicated bool

	CAP        nvme.CAPFields
	RawCAP     uint64 // if not 0, what CAP reads as instead
	VS         nvme.VS
	Identify   nvme.IdentifyController // MDTS, VWC, ONCS, SGLS, AERL, …; SN, MN and the like may be changed
	NVM        nvme.IdentifyControllerNVM
	Namespaces []Namespace

	Vendor, Device uint16
	Vectors        int    // MSI-X vectors
	MaxQueues      uint32 // I/O queues of each kind that the controller has
	Grant          uint32 // what Number of Queues answers, if not 0
	Eager          bool   // commands are fetched in the instant of the doorbell
	FetchBurst     int    // at most that many commands are fetched in a step; 0 is all
	FixedPages     int    // pages of 4 KiB in a row on the bus within mapped memory; 0 is 1

	ReadyDelay    time.Duration // from EN = 1 to RDY = 1
	UnreadyDelay  time.Duration // from EN = 0 to RDY = 0
	ShutdownDelay time.Duration // from SHN to SHST = 10b
	NeverReady    bool          // RDY never becomes 1
	NeverUnready  bool          // RDY never becomes 0
	OnesUntil     time.Duration // registers read as ones until then
	DeafFor       time.Duration // admin doorbells are ignored for this long after RDY (B-03)
	DiscardDelay  time.Duration // deallocated blocks change within this time, if at all
	RemovalFaults bool          // registers of a removed device fault instead of reading as ones
	StopFails     bool          // Stop cannot confirm
	NoAborts      bool          // Abort aborts nothing, and says so
}

// Default is a usual SSD with one namespace of size bytes in blocks of 4 KiB,
// rounded down, with a volatile cache.
func Default(size int64) Config {
	c := Config{
		CAP: nvme.CAPFields{MQES: 1023, CQR: true, TO: 20, CSS: nvme.CSSNVM, MPSMAX: 4, NSSRS: true},
		VS:  nvme.MakeVS(1, 4, 0), Vendor: 0x1d1d, Device: 0x5151, Vectors: 16, MaxQueues: 32,
		Namespaces: []Namespace{{ID: 1, Blocks: uint64(size) >> 12, BlockShift: 12}},
	}
	id := &c.Identify
	nvme.SetText(id.SN[:], "SIM0001")
	nvme.SetText(id.MN[:], "Controller model")
	nvme.SetText(id.FR[:], "1")
	id.MDTS, id.SQES, id.CQES, id.CNTRLTYPE = 5, 0x66, 0x44, 1
	id.CNTLID.Set(1)
	id.ONCS.Set(nvme.ONCSCompare | nvme.ONCSDSM | nvme.ONCSWriteZeroes)
	id.OAES.Set(nvme.EventNamespace | nvme.EventFirmware)
	id.VWC, id.AERL, id.ACL, id.ELPE, id.LPA = 7, 3, 3, 63, 4
	id.WCTEMP.Set(343)
	id.CCTEMP.Set(353)
	return c
}

// check refuses a config that the model cannot be.
func (c *Config) check() error {
	bad := func(format string, args ...any) error {
		return base.Errorf("open", "sim", base.ErrInvalid, format, args...)
	}
	switch {
	case len(c.Namespaces) > MaxNamespaces:
		return bad("%d namespaces, the limit is %d", len(c.Namespaces), MaxNamespaces)
	case c.Vectors < 0 || c.Vectors > MaxVectors:
		return bad("%d vectors, the limit is %d", c.Vectors, MaxVectors)
	case c.MaxQueues < 1 || c.MaxQueues > nvme.MaxQueues:
		return bad("%d queues, the limit is 1 to %d", c.MaxQueues, nvme.MaxQueues)
	case c.FixedPages < 0 || c.FixedPages > 1<<20 || c.FixedPages&(c.FixedPages-1) != 0:
		return bad("%d pages in a row: not a power of two", c.FixedPages)
	}
	var last uint32
	for _, n := range c.Namespaces {
		if n.ID <= last || n.ID == nvme.NSIDAll {
			return bad("namespace %d after %d: identifiers rise", n.ID, last)
		}
		sized := n.Blocks != 0 || last == 0 && c.Path != ""
		if n.BlockShift < 9 || n.BlockShift > 16 || !sized || n.Blocks > maxBytes>>n.BlockShift {
			return bad("namespace %d: %d blocks of 2^%d bytes", n.ID, n.Blocks, n.BlockShift)
		}
		last = n.ID
	}
	return nil
}
