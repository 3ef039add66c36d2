//go:build race || amd64

package mmio

import (
	"sync/atomic"
	"unsafe"
)

// On amd64 an atomic load is one plain load, which the processor does not reorder
// with later ones, and the compiler puts it where it is called: a call would cost
// more than a look at a queue does otherwise. An atomic store is a locked exchange;
// but this memory is ordinary, and the model of a device is in no hurry.
//
// The race detector does not look into assembly. With atomics on both sides it sees
// that the phase tag orders the rest of the completion.

func loadEntry(p unsafe.Pointer) uint32 { return atomic.LoadUint32((*uint32)(p)) }

func storeEntry(p unsafe.Pointer, v uint32) { atomic.StoreUint32((*uint32)(p), v) }
