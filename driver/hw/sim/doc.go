// Package sim is a model of an NVMe controller that checks the specification: the
// first hardware of the driver, and the one that its tests run on. It is a
// controller and not a mock: it has a register file and a state machine, reads
// queues and data through bus addresses that have nothing to do with addresses of
// the process, walks PRP lists and SGLs by the book, keeps a volatile write cache,
// and refuses and reports what a driver may not do (Violations).
//
// Sources are cited as in package nvme.
//
// # Time and order
//
// The model does nothing by itself. It works inside Pause and Vector.Wait, in the
// goroutine of the driver that polls or waits, so that a run with one goroutine
// and one seed is the same every time. Its clock is virtual unless the Config says
// otherwise: it stands still while the model has something to do now, and
// otherwise moves to the next thing that it or the driver waits for. With
// Config.Dedicated it works in Serve instead, beside the driver.
//
// # Service time
//
// ServiceZero ends every command at the time at which it was fetched: for counts
// of instructions and system calls, and for tests. ServiceFixed is a fast SSD: 8
// channels of 16 dies, 60 microseconds for each page of 4 KiB that a die reads, one
// link of 6 GB/s that all data shares; writes end when their data has passed the
// link, a flush takes a millisecond. Both fetch commands round robin over the
// queues.
//
// # Faults
//
// Rules say which command fails in which way, by opcode, block, count and chance
// from a seed; Power cuts the power. In flight, late and lost commands still move
// their data, or part of it, up to the instant at which the controller is
// confirmed stopped.
package sim
