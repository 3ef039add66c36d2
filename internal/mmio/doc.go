// Package mmio reads and writes device registers, doorbells and queue entries in
// the way a device sees them. It is one of the five places where unsafe and
// assembly are allowed.
//
// Why assembly: the Go compiler may merge, split, repeat or move plain stores,
// and an atomic store is a locked exchange on amd64, which on uncached memory
// stops the whole machine for thousands of cycles. Here each access is one
// instruction, in a routine that the compiler cannot look into, together with
// the barrier that it needs:
//
//   - A register store comes after all earlier stores to memory, as the device
//     sees them: SFENCE on amd64, which also covers write-combining memory, and
//     DMB OSHST on arm64. So a queue entry is in memory before its doorbell rings.
//   - A register load, and the load of a completion's phase tag, come before all
//     later loads: by the architecture on amd64, where the phase tag, in ordinary
//     memory, is an atomic load; by DMB OSHLD on arm64. The barriers of arm64 are
//     outer-shareable, because the device is outside the domain of the processors.
//
// Why unsafe: registers are addresses. No byte slice of a BAR ever leaves this
// package, so that nobody can copy from or to one.
//
// What the caller must keep true: a BAR is closed after its last use. A device
// that vanishes needs no care: its registers read as ones, or the access faults,
// which comes back as base.ErrDeviceGone instead of ending the process.
//
// BAR and Doorbell may be used concurrently; the order of two accesses from two
// goroutines is theirs to make.
package mmio
