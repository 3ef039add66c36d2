package mmio

import (
	"sync/atomic"
	"unsafe"
)

// ExchangeEntry32 stores v in the word at the start of b, in ordinary memory that a
// device reads, and gives what was there. It is after all earlier stores and before
// all later loads by LoadShared32, as the device sees them. b has at least four bytes
// and begins at a multiple of four.
func ExchangeEntry32(b []byte, v uint32) (old uint32) {
	_ = b[:4]
	return atomic.SwapUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(b))), v)
}

// LoadShared32 reads the word at the start of b, in ordinary memory that a device
// writes, after every earlier ExchangeEntry32. b is as for that.
func LoadShared32(b []byte) uint32 {
	_ = b[:4]
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(b))))
}
