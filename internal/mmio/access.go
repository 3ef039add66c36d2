//go:build amd64 || arm64

package mmio

import "unsafe"

// load32 is one 32-bit load, before all later loads.
//
//go:noescape
func load32(p unsafe.Pointer) uint32

// store32 is one 32-bit store, after all earlier stores as a device sees them.
//
//go:noescape
func store32(p unsafe.Pointer, v uint32)
