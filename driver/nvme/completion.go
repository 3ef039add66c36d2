package nvme

// Completion is a completion queue entry (Base 4.2.1).
type Completion struct {
	DW0  Le32
	DW1  Le32
	SQHD Le16 // submission queue head pointer
	SQID Le16 // submission queue identifier
	Last Le32 // command identifier, phase tag and status: CompletionDW3
}

// CompletionDW3 is the last doubleword of a completion: command identifier, phase
// tag and status. A driver loads it in one piece, because the phase tag tells
// whether the rest of the entry is there.
type CompletionDW3 uint32

// CID is the command identifier.
func (d CompletionDW3) CID() uint16 { return uint16(d) }

// Phase is the phase tag (Base 4.2.4).
func (d CompletionDW3) Phase() bool { return d&(1<<16) != 0 }

// Status is the status field.
func (d CompletionDW3) Status() Status { return Status(d >> 17) }

// DW3 is the last doubleword.
func (c *Completion) DW3() CompletionDW3 { return CompletionDW3(c.Last.Get()) }

// MakeDW3 encodes the last doubleword.
func MakeDW3(cid uint16, s Status, phase bool) CompletionDW3 {
	return CompletionDW3(uint32(cid) | bit(phase, 1<<16) | uint32(s&0x7fff)<<17)
}

// SetDW3 stores the last doubleword.
func (c *Completion) SetDW3(d CompletionDW3) { c.Last.Set(uint32(d)) }

// DW3Offset is where the last doubleword stands in an entry, in bytes.
const DW3Offset = 12
