// Package dma owns memory that a device or the kernel may touch while Go code
// does not look: page-aligned, off the Go heap, never moved, freed only when its
// owner says so. It is one of the five places where unsafe is allowed.
//
// What the caller must keep true: a Mem is freed exactly once, and only when no
// command that names it is in flight. Nothing here uses finalizers, since a
// finalizer may run while a device still writes.
//
// Under the race detector the memory comes from the Go heap, because the
// detector does not see accesses to mapped memory.
package dma
