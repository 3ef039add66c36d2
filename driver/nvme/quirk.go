package nvme

// Quirk is a set of ways in which a controller differs from the specification.
type Quirk uint32

// The known quirks.
const (
	// QuirkReadyDelay: registers must be left alone for some time after EN changes.
	QuirkReadyDelay Quirk = 1 << iota
	// QuirkAdminDelay: admin commands are ignored for some time after RDY is set.
	QuirkAdminDelay
	// QuirkStripe: commands across a multiple of a stripe are slow; its size
	// stands in byte 3 of the vendor's part of the identify data, as a power of
	// two of memory pages, where NOIOB is not reported.
	QuirkStripe
	// QuirkOneVector: interrupts work on vector 0 only.
	QuirkOneVector
	// QuirkBogusIDs: EUI64 and NGUID are not unique in the world.
	QuirkBogusIDs
	// QuirkWideSQE: I/O submission queue entries must be 128 bytes. Not supported.
	QuirkWideSQE
)

// QuirkEntry is one line of the table of quirks.
type QuirkEntry struct {
	Vendor, Device uint16 // PCI identifiers
	Flags          Quirk
	DelayMs        uint32 // of the delay quirks, milliseconds
	Why            string // the controllers meant
}

// readyDelayMs is the delay that is known to be enough for the controllers of
// the table, in milliseconds.
const readyDelayMs = 2300

// quirks is the table. New lines need a report from an owner of the hardware.
var quirks = []QuirkEntry{
	{0x1b36, 0x0010, QuirkBogusIDs, 0, "QEMU: identifiers depend on the command line"},
	{0x8086, 0x0953, QuirkStripe, 0, "Intel DC P3500, P3600, P3700"},
	{0x8086, 0x0a53, QuirkStripe, 0, "Intel DC P3520"},
	{0x8086, 0x0a54, QuirkStripe, 0, "Intel DC P4500, P4600"},
	{0x8086, 0x0a55, QuirkStripe, 0, "Dell Express Flash, Intel made"},
	{0x1c58, 0x0003, QuirkReadyDelay, readyDelayMs, "HGST SN100"},
	{0x1c58, 0x0023, QuirkReadyDelay, readyDelayMs, "WDC SN200"},
	{0x1c5f, 0x0540, QuirkReadyDelay, readyDelayMs, "Memblaze PBlaze4"},
	{0x144d, 0xa821, QuirkReadyDelay, readyDelayMs, "Samsung PM1725"},
	{0x144d, 0xa822, QuirkReadyDelay, readyDelayMs, "Samsung PM1725a"},
	{0x106b, 0x2005, QuirkOneVector | QuirkWideSQE, 0, "Apple T2"},
}

// Quirks looks a controller up by its PCI identifiers. A controller without a
// line has no quirks.
func Quirks(vendor, device uint16) QuirkEntry {
	for _, q := range quirks {
		if q.Vendor == vendor && q.Device == device {
			return q
		}
	}
	return QuirkEntry{Vendor: vendor, Device: device}
}

// quirkNames are the bits in order.
var quirkNames = [...]string{"ready delay", "admin delay", "stripe", "one vector", "bogus identifiers",
	"128-byte submission entries"}

// Names lists the quirks of a set, for people.
func (q Quirk) Names() []string {
	var out []string
	for i, s := range quirkNames {
		if q&(1<<i) != 0 {
			out = append(out, s)
		}
	}
	return out
}
