//go:build !race

package dma

import "github.com/ugds-store/ugds/internal/unix"

// OffHeap tells whether the memory is outside the Go heap in this build.
const OffHeap = true

func allocPages(n int64) (raw, b []byte, err error) {
	if raw, err = unix.MmapAnon(n); err != nil {
		return nil, nil, err
	}
	if err = unix.DontFork(raw); err != nil {
		_ = unix.Munmap(raw)
		return nil, nil, err
	}
	if n >= hugeSize {
		unix.HugePages(raw)
	}
	return raw, raw, nil
}

func freePages(raw []byte) { _ = unix.Munmap(raw) }

func releasePages(b []byte) { unix.DontNeed(b) }
