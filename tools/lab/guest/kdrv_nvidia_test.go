//go:build ugds_lab

package guest

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/kdrv"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// The module that plays NVIDIA's driver, as kmod/test/fakenv.h defines it.
const (
	nvAddress = 0x1000000000 // of the first byte of the GPU's memory
	nvPage    = unix.KdrvNVIDIAPage

	nvGPUNr  = 1<<30 | 8<<16 | 0xC9<<8
	nvFreeNr = 1<<30 | 8<<16 | 0xC9<<8 | 1
)

type nvGPU struct{ Address, BAR uint32 }

func nvDo[T any](t testing.TB, request uintptr, arg *T) {
	t.Helper()
	f, err := unix.Open("/dev/ugds_fakenv", unix.ReadWrite, 0)
	if err == nil {
		defer f.Close()
		err = unix.Ioctl(f, request, arg)
	}
	if err != nil {
		t.Fatalf("the module that plays NVIDIA's driver: %v", err)
	}
}

// nvMemory gives the address that n bytes at off of the GPU's memory have in CUDA, and
// the bytes themselves.
func nvMemory(t testing.TB, off, n int64) (addr uint64, view []byte) {
	t.Helper()
	nvDo(t, nvGPUNr, &nvGPU{pciNumber(t, nth(t, classFakeGPU, 0)), 2})
	_, view = gpuMemory(t, off, n, 0)
	return nvAddress + uint64(off), view
}

// nvFree frees the memory at an address, as a cudaFree does.
func nvFree(t testing.TB, addr uint64) { t.Helper(); nvDo(t, nvFreeNr, &addr) }

// withNVIDIA tells whether the module was built for NVIDIA's driver. If not, it says so.
func withNVIDIA(t testing.TB, d *kdrv.Device) bool {
	t.Helper()
	m, err := d.MapNVIDIA(nvAddress, nvPage)
	if strings.Contains(d.Describe(), "NVIDIA") {
		switch {
		case err == nil:
			if err := m.Unmap(); err != nil {
				t.Error(err)
			}
		case errors.Is(err, base.ErrNotSupported):
			t.Error(err)
		}
		return true
	}
	if !errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), "built without it") {
		t.Errorf("a module without it: %v", err)
	}
	return false
}

// TestKdrvNVIDIA: disk to GPU and back by the addresses that NVIDIA's driver gives, in
// the middle of its pages too; and what it refuses.
func TestKdrvNVIDIA(t *testing.T) {
	d := kdrvOpen(t, 0)
	if !withNVIDIA(t, d) {
		return
	}
	const n = 4 * nvPage
	addr, view := nvMemory(t, 40*base.MiB, n)
	r := newRaw(t, d)
	defer r.free()
	if err := errors.Join(d.Start(soon(t)), r.up()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ off, n int }{{0, n}, {4096, 8192}, {nvPage - 512, 1024}, {n - 512, 512}} {
		m, err := d.MapNVIDIA(addr+uint64(c.off), int64(c.n))
		if err != nil {
			t.Fatal(err)
		}
		for i := range view {
			view[i] = 0xa5
		}
		data, back, at := make([]byte, c.n), make([]byte, c.n), 0
		for i := range data {
			data[i] = byte(r.random.Uint32())
		}
		for _, s := range m.Segments() {
			if err := errors.Join(r.access(s.Addr, data[at:][:s.Len], true), r.access(s.Addr, back[at:][:s.Len], false)); err != nil {
				t.Fatal(err)
			}
			at += int(s.Len)
		}
		if at != c.n || !bytes.Equal(view[c.off:][:c.n], data) || !bytes.Equal(back, data) {
			t.Errorf("%d bytes at %d, %d of them listed: others came out", c.n, c.off, at)
		}
		if bytes.Count(view, []byte{0xa5}) < n-c.n {
			t.Errorf("%d bytes at %d: something around them changed", c.n, c.off)
		}
		if err := m.Unmap(); err != nil {
			t.Error(err)
		}
	}
	for what, c := range map[string]struct {
		addr  uint64
		n     int64
		class error
	}{
		"nothing":        {addr, 0, base.ErrInvalid},
		"no GPU's":       {4096, nvPage, base.ErrInvalid},
		"beyond its end": {nvAddress + gpuBytes, nvPage, base.ErrInvalid},
		"too much":       {addr, 1 << 37, syscall.E2BIG},
		"at the end":     {1 << 63, 1<<63 - 1, base.ErrInvalid},
	} {
		if m, err := d.MapNVIDIA(c.addr, c.n); !errors.Is(err, c.class) {
			t.Errorf("%s: %v, want %v", what, err, c.class)
			if err == nil {
				_ = m.Unmap()
			}
		}
	}
}

// TestKdrvNVIDIAFreed: a cudaFree ends the mapping before the memory is somebody
// else's. Without an IOMMU the controller is cut off first.
func TestKdrvNVIDIAFreed(t *testing.T) {
	expectFaults(t)
	d := kdrvOpen(t, 0)
	if !withNVIDIA(t, d) {
		return
	}
	addr, view := nvMemory(t, 44*base.MiB, rawChunk)
	m, err := d.MapNVIDIA(addr, rawChunk)
	if err != nil {
		t.Fatal(err)
	}
	other, err := d.MapNVIDIA(addr+rawChunk, rawChunk) // stays, and goes with the file
	if err != nil {
		t.Fatal(err)
	}
	at := m.Segments()[0].Addr
	r := newRaw(t, d)
	defer r.free()
	if err := errors.Join(d.Start(soon(t)), r.up(), r.copyIn(at, rawChunk), r.access(at, scratch(rawChunk), true)); err != nil {
		t.Fatal(err)
	}
	nvFree(t, addr)
	if v, ok := m.(hw.Revocable); !ok || !v.Revoked() {
		t.Error("the mapping does not know")
	}
	if other.(hw.Revocable).Revoked() {
		t.Error("another one believes it")
	}
	for i := range view {
		view[i] = 0xee
	}
	err = r.copyIn(at, rawChunk)
	if bytes.Count(view, []byte{0xee}) != rawChunk {
		t.Error("bytes landed in memory that was freed")
	}
	if !d.ID().IOMMU {
		if n := notice(t, d); n != hw.NoticeStopped || !errors.Is(err, base.ErrIsolated) {
			t.Errorf("the device is not cut off: %v, %v", n, err)
		}
		if err := d.Start(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(r.disable(), r.up(), r.copyIn(other.Segments()[0].Addr, rawChunk), m.Unmap()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	nvFree(t, addr) // of nobody: nothing happens
	if other.(hw.Revocable).Revoked() {
		t.Error("the other one was freed too")
	}
	if err := other.Unmap(); err != nil {
		t.Error(err)
	}
}

// TestKdrvNVIDIARaces: memory is freed while it is being mapped and unmapped, and at last
// while its device goes away.
func TestKdrvNVIDIARaces(t *testing.T) {
	d := kdrvOpen(t, 0)
	if !withNVIDIA(t, d) {
		return
	}
	addr, _ := nvMemory(t, 0, 4*nvPage)
	var wg sync.WaitGroup
	over := make(chan struct{})
	mapped := make([]int, 3)
	for i := range mapped {
		wg.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				m, err := d.MapNVIDIA(addr, 4*nvPage)
				switch {
				case errors.Is(err, base.ErrDeviceGone):
				case errors.Is(err, unix.EFAULT), errors.Is(err, base.ErrClosed), errors.Is(err, base.ErrInvalid): // freed on the way
				case errors.Is(err, base.ErrBusy): // again and again, at addresses of dead regions
				case err != nil:
					t.Error(err)
				default:
					mapped[i]++
					if err := m.Unmap(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	for range 300 {
		nvFree(t, addr)
	}
	writeSys(t, sysPCI+"drivers/"+kdrv.Module+"/unbind", nth(t, classNVMe, 0))
	for range 20 {
		nvFree(t, addr)
	}
	close(over)
	wg.Wait()
	if t.Logf("mapped %d times", mapped); mapped[0]+mapped[1]+mapped[2] == 0 {
		t.Error("it was never mapped")
	}
}
