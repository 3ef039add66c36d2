//go:build !race && !amd64

package mmio

import (
	"sync/atomic"
	"unsafe"
)

// An atomic load has no barrier that counts for devices.
func loadEntry(p unsafe.Pointer) uint32 { return load32(p) }

// storeEntry uses an atomic store: the memory is ordinary, and the model of a
// device is in no hurry.
func storeEntry(p unsafe.Pointer, v uint32) { atomic.StoreUint32((*uint32)(p), v) }
