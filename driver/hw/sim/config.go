package sim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
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
	// maxBlocks keeps offsets inside an int64 with every block size.
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

// Config describes a controller. Start from Default and change what the case is
// about. Fields named in capitals are fields of the specification.
type Config struct {
	Target string // "" makes one up
	// Path is the file that holds the first namespace, "" for memory. It is made if
	// it does not exist, and locked; if Blocks is 0 it gives the size. A namespace
	// that is ReadOnly shares the lock with others and makes nothing.
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

// ParseTarget reads "sim:size=1GiB,lba=4096,…". The settings: size (bytes, with a
// unit; 1 GiB, or that of the file behind it), lba (512 or 4096), seed, path (file
// behind it; a comma is written twice), mqes (entries), mdts, dstrd, noiob (blocks),
// vwc (0 or 1), sgl (0 or 1), nsid, queues, vectors, service (zero or fixed), clock
// (virtual or real). ErrInvalid for anything else.
func ParseTarget(target string) (Config, error) {
	text, ok := strings.CutPrefix(target, targetScheme)
	if !ok {
		return Config{}, base.Errorf("open", target, base.ErrInvalid, "a model's target begins with %s", targetScheme)
	}
	values := map[string]string{}
	for _, part := range splitTarget(text) {
		key, value, ok := strings.Cut(part, "=")
		if _, twice := values[key]; !ok || twice {
			return Config{}, base.Errorf("open", target, base.ErrInvalid, "%q is not one setting=value", part)
		}
		values[key] = value
	}
	size := int64(base.GiB)
	if v := values["size"]; v != "" {
		n, err := base.ParseBytes(v)
		if err != nil {
			return Config{}, base.Wrap("open", target, err)
		}
		size = n
	} else if values["path"] != "" {
		size = 0 // Open looks at the file
	}
	c := Default(size)
	c.Target, c.Real = target, true
	for key, value := range values {
		if err := c.set(key, value); err != nil {
			return Config{}, base.Errorf("open", target, base.ErrInvalid, "%s=%s: %w", key, value, err)
		}
	}
	ns := &c.Namespaces[0]
	ns.Blocks = uint64(size) >> ns.BlockShift
	if err := c.check(); err != nil {
		return Config{}, err
	}
	return c, nil
}

const targetScheme = "sim:"

// splitTarget separates the settings of a target.
func splitTarget(text string) []string {
	if text == "" {
		return nil
	}
	const comma = "\x00" // no path holds it
	parts := strings.Split(strings.ReplaceAll(text, ",,", comma), ",")
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], comma, ",")
	}
	return parts
}

// TargetWithPath is target with another path behind it, for a target that has one.
func TargetWithPath(target, path string) string {
	text, _ := strings.CutPrefix(target, targetScheme)
	parts := splitTarget(text)
	for i := range parts {
		if strings.HasPrefix(parts[i], "path=") {
			parts[i] = "path=" + path
		}
		parts[i] = strings.ReplaceAll(parts[i], ",", ",,")
	}
	return targetScheme + strings.Join(parts, ",")
}

// set applies one setting of a target.
func (c *Config) set(key, value string) error {
	ns := &c.Namespaces[0]
	switch key {
	case "size":
		return nil
	case "lba":
		return choose(value, map[string]func(){"512": func() { ns.BlockShift = 9 }, "4096": func() { ns.BlockShift = 12 }})
	case "path":
		if value == "" {
			return fmt.Errorf("no name of a file")
		}
		c.Path = value
		return nil
	case "service":
		return choose(value, map[string]func(){"zero": func() { c.Service = ServiceZero },
			"fixed": func() { c.Service = ServiceFixed }})
	case "clock":
		return choose(value, map[string]func(){"virtual": func() { c.Real = false }, "real": func() { c.Real = true }})
	}
	numbers := map[string]struct {
		lo, hi uint64
		set    func(v uint64)
	}{
		"seed":    {0, 1<<64 - 1, func(v uint64) { c.Seed = v }},
		"mqes":    {2, 65536, func(v uint64) { c.CAP.MQES = uint16(v - 1) }},
		"mdts":    {0, 20, func(v uint64) { c.Identify.MDTS = uint8(v) }},
		"dstrd":   {0, nvme.MaxDSTRD, func(v uint64) { c.CAP.DSTRD = uint8(v) }},
		"noiob":   {0, 65535, func(v uint64) { ns.NOIOB = uint16(v) }},
		"vwc":     {0, 1, func(v uint64) { c.Identify.VWC = uint8(v) * 7 }},
		"sgl":     {0, 1, func(v uint64) { c.Identify.SGLS.Set(uint32(v)) }},
		"nsid":    {1, 1 << 31, func(v uint64) { ns.ID = uint32(v) }},
		"queues":  {1, nvme.MaxQueues, func(v uint64) { c.MaxQueues = uint32(v) }},
		"vectors": {0, MaxVectors, func(v uint64) { c.Vectors = int(v) }},
	}
	n, ok := numbers[key]
	if !ok {
		return fmt.Errorf("unknown setting")
	}
	v, err := strconv.ParseUint(value, 10, 64)
	if err != nil || v < n.lo || v > n.hi {
		return fmt.Errorf("not a number from %d to %d", n.lo, n.hi)
	}
	n.set(v)
	return nil
}

func choose(value string, among map[string]func()) error {
	f, ok := among[value]
	if !ok {
		return fmt.Errorf("it is none of %s", strings.Join(slices.Sorted(maps.Keys(among)), ", "))
	}
	f()
	return nil
}
