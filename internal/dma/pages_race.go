//go:build race

package dma

import "unsafe"

// OffHeap tells whether the memory is outside the Go heap in this build.
const OffHeap = false

func allocPages(n int64) (raw, b []byte, err error) {
	raw = make([]byte, n+PageSize)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(raw)))) & (PageSize - 1)
	return raw, raw[skip : int64(skip)+n], nil
}

func freePages([]byte) {}

func releasePages([]byte) {}
