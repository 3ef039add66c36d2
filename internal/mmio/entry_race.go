//go:build race

package mmio

import (
	"sync/atomic"
	"unsafe"
)

// The race detector does not look into assembly. With atomics on both sides it
// sees that the phase tag orders the rest of the completion.

func loadEntry(p unsafe.Pointer) uint32 { return atomic.LoadUint32((*uint32)(p)) }

func storeEntry(p unsafe.Pointer, v uint32) { atomic.StoreUint32((*uint32)(p), v) }
