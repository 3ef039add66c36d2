// Package file has two faces over files.
//
// Device is a driver.Device over a preallocated regular file or a kernel block
// device that it owns.
//
// Its I/O goes through io_uring with O_DIRECT where the kernel and the file system
// allow it, else through a pool of threads with preadv and pwritev; what was
// chosen, and why, stands in Info.Reasons. The device owns the file by flock on
// the very open file description that does the I/O: the kernel keeps that lock
// until the last request of a killed owner has landed (rule I5).
//
// One lock, Device.mu, guards all bookkeeping. It is never held across a system
// call that can block, nor while foreign code runs, except test hooks. There is
// no thread that reaps completions: whoever waits for a batch takes the lead,
// blocks in the kernel and reaps for everybody; the others wait for their own
// batch or for the lead. A watcher looks a few times a second whether a device
// deadline has passed.
//
// File is any file as it is, with an end, growth, odd offsets and other users, and
// without a lock. It is what programs of others read into GPU memory.
package file
