//go:build !race

package mmio

import (
	"sync/atomic"
	"unsafe"
)

func loadEntry(p unsafe.Pointer) uint32 { return load32(p) }

// storeEntry uses an atomic store: the memory is ordinary, and the model of a
// device is in no hurry.
func storeEntry(p unsafe.Pointer, v uint32) { atomic.StoreUint32((*uint32)(p), v) }
