package nvme

// OACSDoorbellBuffer is the bit of IDENTIFY.OACS for the Doorbell Buffer Config
// command.
const OACSDoorbellBuffer = 1 << 8

// SetDoorbellBuffer makes c a Doorbell Buffer Config command (Base 5.3): the
// controller looks for doorbells at bus address values, and keeps at events from
// which value on it wants its registers to be written. Both are a memory page, laid
// out as the doorbells are from RegDoorbells on.
func (c *Command) SetDoorbellBuffer(values, events uint64) {
	*c = Command{OPC: AdminDoorbellBuffer}
	c.PRP1.Set(values)
	c.PRP2.Set(events)
}

// DoorbellWanted tells whether the register must be written when a doorbell in memory
// goes from old to v and the controller keeps event for it: when the doorbell passes
// event (Base B.5).
func DoorbellWanted(event, old, v uint32) bool {
	return uint16(v-event-1) < uint16(v-old)
}
