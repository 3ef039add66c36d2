package nvme

// Feature identifiers (Base 5.1.25.1 and, of those that only PCIe has, 5.1.25.2).
const (
	FeatArbitration     = 0x01
	FeatPowerManagement = 0x02
	FeatTemperature     = 0x04
	FeatErrorRecovery   = 0x05
	FeatVolatileCache   = 0x06
	FeatNumberOfQueues  = 0x07
	FeatCoalescing      = 0x08
	FeatVectorConfig    = 0x09
	FeatAsyncEvents     = 0x0b
	FeatAPST            = 0x0c
	FeatHostBehavior    = 0x16
)

// QueueCounts encodes CDW11 of the Number of Queues feature: n queues of each
// kind, 1 to MaxQueues (Base 5.1.25.2.1). Both halves are zero-based (B-05).
func QueueCounts(n uint32) uint32 {
	v := zeroBased(n, MaxQueues, "number of queues")
	return v | v<<16
}

// GrantedQueues decodes DW0 of the Number of Queues feature: how many submission
// and completion queues the controller has allocated, at least one of each. It
// may be fewer or more than were asked for.
func GrantedQueues(dw0 uint32) (sq, cq uint32) { return dw0&0xffff + 1, dw0>>16 + 1 }

// Arbitrate encodes CDW11 of the Arbitration feature (Base 5.1.25.1.1): the burst
// is 2^burst commands, 7 for no limit; the weights are zero-based.
func Arbitrate(burst, low, medium, high uint8) uint32 {
	return uint32(burst&7) | uint32(low)<<8 | uint32(medium)<<16 | uint32(high)<<24
}

// Coalesce encodes CDW11 of the Interrupt Coalescing feature: an interrupt waits
// for entries completions (1 to 256) or until time, in units of 100
// microseconds, has passed; 0 switches coalescing off (Base 5.1.25.2.2).
func Coalesce(entries uint32, time uint8) uint32 {
	return zeroBased(entries, 256, "coalesced completions") | uint32(time)<<8
}

// VectorConfig encodes CDW11 of the Interrupt Vector Configuration feature (Base
// 5.1.25.2.3).
func VectorConfig(vector uint16, coalescingDisabled bool) uint32 {
	return uint32(vector) | bit(coalescingDisabled, 1<<16)
}

// VolatileCacheEnabled decodes DW0 of the Volatile Write Cache feature (Base
// 5.1.25.1.4).
func VolatileCacheEnabled(dw0 uint32) bool { return dw0&1 != 0 }

// PowerStateIndex decodes DW0 of the Power Management feature (Base 5.1.25.1.2).
func PowerStateIndex(dw0 uint32) uint8 { return uint8(dw0) & 31 }

// APSTEntry encodes one of the 32 entries of the Autonomous Power State
// Transition table (Base 5.1.25.1.6): after idle milliseconds (24 bits) the
// controller goes to the given non-operational state. An idle time of 0 switches
// the transition off.
func APSTEntry(state uint8, idleMs uint32) uint64 {
	return uint64(state&31)<<3 | uint64(idleMs&0xffffff)<<8
}
