package mmio

import "unsafe"

// LoadEntry32 reads the 32-bit word at the start of b, in memory
// that a device writes, before any later load: when it holds the phase tag of a
// new completion, the rest of the completion is there to be read. b has at least
// four bytes and begins at a multiple of four. Both machines that have assembly
// here are little-endian, as the devices are.
func LoadEntry32(b []byte) uint32 {
	_ = b[:4]
	return loadEntry(unsafe.Pointer(unsafe.SliceData(b)))
}

// StoreEntry32 is the other side, for the model of a device: it writes the word
// after all earlier stores.
func StoreEntry32(b []byte, v uint32) {
	_ = b[:4]
	storeEntry(unsafe.Pointer(unsafe.SliceData(b)), v)
}
