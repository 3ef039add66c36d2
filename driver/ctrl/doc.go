// Package ctrl is the NVMe controller logic: it makes a driver.Device out of a
// hw.Device. It brings the controller up, cuts requests into commands, submits
// them to queue pairs, polls for completions, and isolates and resets a controller
// that fails. Sources are cited as in package nvme.
//
// # Who works
//
// The goroutine that submits issues the commands; the one that waits for a batch
// polls the queues of its group, of which there are two: one for a few small
// requests, one for everything else. A watcher looks every few milliseconds, for
// requests that nobody waits for and for a controller that fails while idle.
// docs/driver.md has the states, the memory and the order of accesses.
//
// # Locks
//
// A queue belongs to its mutex, which is held for one burst of commands or
// completions and under which nothing blocks. The admin queue's may be taken under
// another's. Device.mu guards changes of state and is taken after a queue's. Device.ctl
// is held by Reset and Close.
//
// # Who owns memory
//
// Memory and command identifiers of a command in flight are the queue's until its
// completion was reaped, or until the controller was confirmed stopped: CSTS.RDY
// is 0 after CC.EN was cleared, or the hardware says so. Nothing else frees them,
// no deadline and no context (I3, I4). A completion must name a command that is in
// flight, by a generation, its own queue, and a head that can be; any other
// isolates the controller.
package ctrl
