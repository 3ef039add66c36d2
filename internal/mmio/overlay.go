package mmio

import "unsafe"

// Overlay views the first bytes of b as a T, without a copy. T is a structure of
// bytes and byte arrays: its alignment must be one byte, so it can stand at any
// address and holds no pointers. Any other T, and a b that is shorter than T,
// panic: both are mistakes of the caller. The view lives as long as b.
func Overlay[T any](b []byte) *T {
	var zero T
	if unsafe.Alignof(zero) != 1 {
		panic("mmio: overlay of a type that is not made of bytes")
	}
	if uintptr(len(b)) < unsafe.Sizeof(zero) {
		panic("mmio: overlay is larger than its bytes")
	}
	return (*T)(unsafe.Pointer(unsafe.SliceData(b)))
}

// OverlaySlice views as many whole T as fit into b, under the rules of Overlay.
func OverlaySlice[T any](b []byte) []T {
	var zero T
	n := len(b) / int(unsafe.Sizeof(zero))
	if n == 0 {
		return nil
	}
	return unsafe.Slice(Overlay[T](b), n)
}
