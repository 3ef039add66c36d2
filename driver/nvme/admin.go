package nvme

// CNS values of Identify (Base 5.1.13).
const (
	CNSNamespace      = 0x00 // IdentifyNamespace of NSID
	CNSController     = 0x01 // IdentifyController
	CNSActiveList     = 0x02 // NamespaceList above NSID
	CNSDescriptors    = 0x03 // namespace identification descriptors of NSID
	CNSControllerCSI  = 0x06 // the command set's part, here IdentifyControllerNVM
	CNSControllerList = 0x12 // controllers attached to NSID
)

// SetIdentify makes c an Identify command (Base 5.1.13); its data buffer has
// IdentifySize bytes. nsid is 0 where cns does not use it.
func (c *Command) SetIdentify(cns uint8, nsid uint32) {
	*c = Command{OPC: AdminIdentify}
	c.NSID.Set(nsid)
	c.CDW10.Set(uint32(cns))
}

// Limits of the queues (Base 3.3.3.1 and 3.1.4.8).
const (
	// MinQueueEntries is the smallest queue: one entry always stays empty.
	MinQueueEntries = 2
	// MaxQueueEntries is the largest I/O queue.
	MaxQueueEntries = 1 << 16
	// MaxAdminEntries is the largest admin queue.
	MaxAdminEntries = 1 << 12
	// MaxQueues is the largest number of I/O queues of a kind that may be asked
	// for: the field is zero-based and 65,535 is not allowed in it (Base 5.1.25.2.1).
	MaxQueues = 65535
)

// SetCreateIOCQ makes c a Create I/O Completion Queue command for a physically
// contiguous queue of MinQueueEntries to MaxQueueEntries entries at bus address
// base (Base 5.2.1). With interrupts the controller raises the given vector.
func (c *Command) SetCreateIOCQ(qid uint16, base uint64, entries uint32, vector uint16, interrupts bool) {
	*c = Command{OPC: AdminCreateIOCQ}
	c.PRP1.Set(base)
	c.CDW10.Set(uint32(qid) | zeroBased(entries, MaxQueueEntries, "queue entries")<<16)
	c.CDW11.Set(queuePC | bit(interrupts, cqIEN) | uint32(vector)<<16)
}

const (
	queuePC = 1 << 0 // physically contiguous
	cqIEN   = 1 << 1 // interrupts enabled
)

// Priorities of a submission queue under weighted round robin (Base 5.2.2).
const (
	PriorityUrgent = 0
	PriorityHigh   = 1
	PriorityMedium = 2
	PriorityLow    = 3
)

// SetCreateIOSQ makes c a Create I/O Submission Queue command for a physically
// contiguous queue at bus address base, bound to completion queue cqid (Base 5.2.2).
func (c *Command) SetCreateIOSQ(qid uint16, base uint64, entries uint32, cqid uint16, priority uint8) {
	*c = Command{OPC: AdminCreateIOSQ}
	c.PRP1.Set(base)
	c.CDW10.Set(uint32(qid) | zeroBased(entries, MaxQueueEntries, "queue entries")<<16)
	c.CDW11.Set(queuePC | uint32(priority&3)<<1 | uint32(cqid)<<16)
}

// SetDeleteIOSQ makes c a Delete I/O Submission Queue command (Base 5.2.4).
func (c *Command) SetDeleteIOSQ(qid uint16) { c.admin(AdminDeleteIOSQ, uint32(qid)) }

// SetDeleteIOCQ makes c a Delete I/O Completion Queue command (Base 5.2.3). Its
// submission queues go first.
func (c *Command) SetDeleteIOCQ(qid uint16) { c.admin(AdminDeleteIOCQ, uint32(qid)) }

func (c *Command) admin(op Opcode, cdw10 uint32) {
	*c = Command{OPC: op}
	c.CDW10.Set(cdw10)
}

// Queue decodes the queue identifier and size of a queue command.
func (c *Command) Queue() (qid uint16, entries uint32) {
	v := c.CDW10.Get()
	return uint16(v), v>>16 + 1
}

// CQAttributes decodes CDW11 of Create I/O Completion Queue.
func (c *Command) CQAttributes() (contiguous, interrupts bool, vector uint16) {
	v := c.CDW11.Get()
	return v&queuePC != 0, v&cqIEN != 0, uint16(v >> 16)
}

// SQAttributes decodes CDW11 of Create I/O Submission Queue.
func (c *Command) SQAttributes() (contiguous bool, priority uint8, cqid uint16) {
	v := c.CDW11.Get()
	return v&queuePC != 0, uint8(v>>1) & 3, uint16(v >> 16)
}

// SetAbort asks the controller to abort command cid of queue sqid (Base 5.1.1).
// Bit 0 of DW0 of a successful completion set means that it was NOT aborted.
func (c *Command) SetAbort(sqid, cid uint16) {
	c.admin(AdminAbort, uint32(sqid)|uint32(cid)<<16)
}

// AbortTarget decodes the queue and command of an Abort.
func (c *Command) AbortTarget() (sqid, cid uint16) {
	v := c.CDW10.Get()
	return uint16(v), uint16(v >> 16)
}

// Aborted tells whether the completion of an Abort says that its target was
// aborted (H-03).
func Aborted(dw0 uint32) bool { return dw0&1 == 0 }

// SetAsyncEventRequest makes c an Asynchronous Event Request (Base 5.1.2), which
// ends when an event happens.
func (c *Command) SetAsyncEventRequest() { *c = Command{OPC: AdminAsyncEvent} }

// SetGetLogPage makes c a Get Log Page command for size bytes, a positive
// multiple of four, at byte offset of the page (Base 5.1.12). With retain an
// asynchronous event stays pending.
func (c *Command) SetGetLogPage(lid uint8, nsid uint32, size, offset uint32, retain bool) {
	if size == 0 || size%4 != 0 || offset%4 != 0 {
		panic("nvme: log page range is not made of dwords")
	}
	*c = Command{OPC: AdminGetLogPage}
	c.NSID.Set(nsid)
	numd := size/4 - 1
	c.CDW10.Set(uint32(lid) | bit(retain, 1<<15) | numd<<16)
	c.CDW11.Set(numd >> 16)
	c.CDW12.Set(offset)
}

// LogPage decodes a Get Log Page command: page, bytes, offset in bytes, and
// whether the event is retained.
func (c *Command) LogPage() (lid uint8, size, offset uint64, retain bool) {
	d := c.CDW10.Get()
	numd := uint64(c.CDW11.Get()&0xffff)<<16 | uint64(d>>16)
	return uint8(d), (numd + 1) * 4, uint64(c.CDW13.Get())<<32 | uint64(c.CDW12.Get()), d&(1<<15) != 0
}

// SetGetFeatures asks for the current value of a feature (Base 5.1.11).
func (c *Command) SetGetFeatures(fid uint8, nsid uint32) {
	c.admin(AdminGetFeatures, uint32(fid))
	c.NSID.Set(nsid)
}

// SetSetFeatures sets a feature to cdw11 (Base 5.1.25), not saved across resets.
func (c *Command) SetSetFeatures(fid uint8, nsid, cdw11 uint32) {
	c.admin(AdminSetFeatures, uint32(fid))
	c.NSID.Set(nsid)
	c.CDW11.Set(cdw11)
}

// Feature is the feature identifier of a Get Features or Set Features command.
func (c *Command) Feature() uint8 { return uint8(c.CDW10.Get()) }

// CNS is the CNS field of an Identify command.
func (c *Command) CNS() uint8 { return uint8(c.CDW10.Get()) }
