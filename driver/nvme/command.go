package nvme

// Command is a submission queue entry in the common command format (Base 4.1).
type Command struct {
	OPC   Opcode // opcode
	Flags uint8  // FUSE in bits 1:0, PSDT in bits 7:6
	CID   Le16   // command identifier, unique among the commands of one queue
	NSID  Le32   // namespace identifier
	CDW2  Le32
	CDW3  Le32
	MPTR  Le64 // metadata pointer
	PRP1  Le64 // data pointer: PRP entry 1, or the first half of SGL1
	PRP2  Le64 // data pointer: PRP entry 2, or the second half of SGL1
	CDW10 Le32
	CDW11 Le32
	CDW12 Le32
	CDW13 Le32
	CDW14 Le32
	CDW15 Le32
}

// Sizes of the queue entries and of the identify data, in bytes.
const (
	CommandSize    = 64
	CompletionSize = 16
	IdentifySize   = 4096
)

// PSDT says what the data pointer holds (Base 4.1.1).
type PSDT uint8

// The values of PSDT.
const (
	PSDTPRP        PSDT = 0 // PRP entries
	PSDTSGL        PSDT = 1 // an SGL; the metadata pointer, if used, is one buffer
	PSDTSGLSegment PSDT = 2 // an SGL; the metadata pointer is an SGL segment
)

// PSDT is what the data pointer holds.
func (c *Command) PSDT() PSDT { return PSDT(c.Flags >> 6) }

// SetPSDT says what the data pointer holds.
func (c *Command) SetPSDT(p PSDT) { c.Flags = c.Flags&0x3f | uint8(p)<<6 }

// FUSE is the fused-operation field; this driver never sets it.
func (c *Command) FUSE() uint8 { return c.Flags & 3 }

// MaxBlocks is the largest number of logical blocks of one read, write or
// similar command: the field is 16 bits wide and zero-based.
const MaxBlocks = 1 << 16

// MaxDSMRanges is the largest number of ranges of one Dataset Management
// command: the field is 8 bits wide and zero-based (NVM 3.3.3).
const MaxDSMRanges = 256

// zeroBased encodes a count of 1 to limit. Nothing may ever turn 0 into the
// largest value (C-17), so a count outside is a mistake of the caller.
func zeroBased(n, limit uint32, what string) uint32 {
	if n == 0 || n > limit {
		panic("nvme: " + what + " out of range")
	}
	return n - 1
}

// Bits of CDW12 of the I/O commands (NVM 3.3.4, 3.3.6, 3.3.8).
const (
	RWFUA  = 1 << 30 // force unit access
	rwLR   = 1 << 31 // limited retry
	wzDEAC = 1 << 25 // deallocate
)

// SetIO makes c a command that names a range of 1 to MaxBlocks blocks, with bits in
// CDW12. SetRead and its like say more clearly what is meant; this is for code that
// counts instructions.
func (c *Command) SetIO(op Opcode, nsid uint32, slba uint64, blocks, bits uint32) {
	*c = Command{OPC: op}
	c.NSID.Set(nsid)
	c.CDW10.Set(uint32(slba))
	c.CDW11.Set(uint32(slba >> 32))
	c.CDW12.Set(zeroBased(blocks, MaxBlocks, "number of blocks") | bits)
}

// SetRead makes c a read of blocks (1 to MaxBlocks) at slba (NVM 3.3.4).
func (c *Command) SetRead(nsid uint32, slba uint64, blocks uint32) {
	c.SetIO(OpRead, nsid, slba, blocks, 0)
}

// SetWrite makes c a write (NVM 3.3.6). With fua it is durable when it ends.
func (c *Command) SetWrite(nsid uint32, slba uint64, blocks uint32, fua bool) {
	c.SetIO(OpWrite, nsid, slba, blocks, bit(fua, RWFUA))
}

// SetCompare makes c a comparison of memory with blocks (NVM 3.3.1).
func (c *Command) SetCompare(nsid uint32, slba uint64, blocks uint32) {
	c.SetIO(OpCompare, nsid, slba, blocks, 0)
}

// SetWriteZeroes makes blocks read as zeros (NVM 3.3.8). With deallocate the
// controller may drop them, if they then read as zeros.
func (c *Command) SetWriteZeroes(nsid uint32, slba uint64, blocks uint32, deallocate, fua bool) {
	c.SetIO(OpWriteZeroes, nsid, slba, blocks, bit(deallocate, wzDEAC)|bit(fua, RWFUA))
}

// SetFlush makes every write that ended before durable (Base 7.2).
func (c *Command) SetFlush(nsid uint32) {
	*c = Command{OPC: OpFlush}
	c.NSID.Set(nsid)
}

// SetDSM makes c a Dataset Management command that deallocates the 1 to
// MaxDSMRanges ranges in its data buffer (NVM 3.3.3).
func (c *Command) SetDSM(nsid, ranges uint32) {
	*c = Command{OPC: OpDSM}
	c.NSID.Set(nsid)
	c.CDW10.Set(zeroBased(ranges, MaxDSMRanges, "number of ranges"))
	c.CDW11.Set(dsmDeallocate)
}

const dsmDeallocate = 1 << 2 // attribute AD of CDW11

// SLBA is the first block of an I/O command.
func (c *Command) SLBA() uint64 { return uint64(c.CDW11.Get())<<32 | uint64(c.CDW10.Get()) }

// Blocks is the number of blocks of an I/O command, 1 to MaxBlocks.
func (c *Command) Blocks() uint32 { return c.CDW12.Get()&0xffff + 1 }

// FUA tells whether an I/O command forces unit access.
func (c *Command) FUA() bool { return c.CDW12.Get()&RWFUA != 0 }

// Deallocate tells whether a Write Zeroes command may deallocate.
func (c *Command) Deallocate() bool { return c.CDW12.Get()&wzDEAC != 0 }

// DSMRanges is the number of ranges of a Dataset Management command, and whether
// it asks to deallocate them.
func (c *Command) DSMRanges() (n uint32, deallocate bool) {
	return c.CDW10.Get()&0xff + 1, c.CDW11.Get()&dsmDeallocate != 0
}

// DSMRange is one range of a Dataset Management command (NVM 3.3.3).
type DSMRange struct {
	Attributes Le32 // hints; zero
	Blocks     Le32 // number of blocks, not zero-based
	SLBA       Le64
}

func bit(on bool, mask uint32) uint32 {
	if on {
		return mask
	}
	return 0
}
