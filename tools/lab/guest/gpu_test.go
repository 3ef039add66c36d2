//go:build ugds_lab

package guest

import (
	"fmt"
	"strings"
	"testing"

	"os"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// The module that plays a GPU, as kmod/test/fakegpu.h defines it.

type gpuExport struct {
	Address, BAR uint32
	Offset, Len  uint64
	Flags        uint32
	FD           int32
}

type gpuMove struct {
	FD   int32
	Lose uint32
}

const (
	gpuStatic = 1 << 0
	gpuNoPin  = 1 << 1
	gpuBytes  = 64 * base.MiB // of its memory

	gpuExportNr = 3<<30 | 32<<16 | 0xC8<<8
	gpuMoveNr   = 1<<30 | 8<<16 | 0xC8<<8 | 1
)

func gpuDo[T any](t testing.TB, request uintptr, arg *T) {
	t.Helper()
	f, err := unix.Open("/dev/ugds_fakegpu", unix.ReadWrite, 0)
	if err == nil {
		defer f.Close()
		err = unix.Ioctl(f, request, arg)
	}
	if err != nil {
		t.Fatalf("the module that plays a GPU: %v", err)
	}
}

// pciNumber is an address in one number, as the modules take it.
func pciNumber(t testing.TB, address string) uint32 {
	t.Helper()
	var domain, bus, slot, function uint32
	if _, err := fmt.Sscanf(address, "%x:%x:%x.%x", &domain, &bus, &slot, &function); err != nil {
		t.Fatal(err)
	}
	return domain<<16 | bus<<8 | slot<<3 | function
}

// gpuMemory exports n bytes at off of the GPU's memory as a dma-buf, and maps them.
func gpuMemory(t testing.TB, off, n int64, flags uint32) (buf *unix.FD, view []byte) {
	t.Helper()
	buf = unix.NewFD(gpuBuf(t, off, n, flags), "GPU memory")
	view, err := unix.MmapShared(buf, 0, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Munmap(view)
		_ = buf.Close()
	})
	return buf, view
}

// gpuBuf is a descriptor of a dma-buf of n bytes at off of the GPU's memory.
func gpuBuf(t testing.TB, off, n int64, flags uint32) int {
	t.Helper()
	a := gpuExport{Address: pciNumber(t, nth(t, classFakeGPU, 0)), BAR: 2, Offset: uint64(off), Len: uint64(n), Flags: flags}
	gpuDo(t, gpuExportNr, &a)
	return int(a.FD)
}

// gpuRevoke makes the exporter take its memory back, for good with lose.
func gpuRevoke(t testing.TB, buf *unix.FD, lose bool) {
	t.Helper()
	a := gpuMove{FD: int32(buf.Int())}
	if lose {
		a.Lose = 1
	}
	gpuDo(t, gpuMoveNr, &a)
}

// gpuRange is where the GPU's memory is on the bus.
func gpuRange(t testing.TB) (first, last uint64) {
	t.Helper()
	text, err := os.ReadFile(sysPCI + "devices/" + nth(t, classFakeGPU, 0) + "/resource")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(strings.Split(string(text), "\n")[2], "0x%x 0x%x", &first, &last); err != nil {
		t.Fatal(err)
	}
	return first, last
}
