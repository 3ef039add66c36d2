//go:build !nogpu

package cuda

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"testing"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
	"github.com/ugds-store/ugds/internal/testenv"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// filled gives GPU memory of n bytes that hold the same as the pinned memory.
func filled(t *testing.T, d gpu.Device, n int64) (gpu.Memory, gpu.HostMemory, *gpu.Summer) {
	t.Helper()
	m, h, s := use(t, d, n)
	rng := testenv.Seed(t)
	b := h.Bytes()
	for i := range b[:min(n, base.MiB)] {
		b[i] = byte(rng.Uint32())
	}
	for at := base.MiB; int64(at) < n; at += base.MiB - 1 { // no two pages are alike
		copy(b[at:], b[:base.MiB-1])
	}
	sum, err := gpu.NewSummer(d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sum.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: b}), finish(t, s)); err != nil {
		t.Fatal(err)
	}
	return m, h, sum
}

// TestRealChecksums compares checksums by the GPU with the processor's: every
// remainder of address and length by 16, all small lengths, and large ones.
func TestRealChecksums(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	const size = 64 << 20
	m, h, sum := filled(t, d, size)
	rng := testenv.Seed(t)
	var items []gpu.SumItem
	add := func(p gpu.Ptr, at, n int64) { items = append(items, gpu.SumItem{Ptr: p + gpu.Ptr(at), N: n}) }
	for at := range int64(17) {
		for n := range int64(80) {
			add(m.Ptr(), at, n)
		}
		for _, n := range []int64{4080, 4096, 4112, 8192, 128 << 10} {
			for k := range int64(17) {
				add(m.Ptr(), at, n+k-8)
			}
		}
	}
	for range 3000 {
		n := rng.Int64N(1 << rng.IntN(18))
		add(m.Ptr(), rng.Int64N(size-n), n)
		add(h.Ptr(), rng.Int64N(size-n), n) // pinned memory, too
	}
	add(m.Ptr(), 0, size)
	add(m.Ptr(), 1, size-1)
	add(m.Ptr(), 5, size-12)
	if err := sum.Sum(t.Context(), items); err != nil {
		t.Fatal(err)
	}
	for _, it := range items {
		at := int64(it.Ptr - m.Ptr())
		if it.Ptr >= h.Ptr() && it.Ptr < h.Ptr()+size {
			at = int64(it.Ptr - h.Ptr())
		}
		if want := crc32.Checksum(h.Bytes()[at:at+it.N], castagnoli); it.CRC != want {
			t.Fatalf("%d bytes at %d: %08x, want %08x", it.N, at, it.CRC, want)
		}
	}
	fmt.Printf("%d checksums by the GPU are the processor's\n", len(items))
}

// TestRealChecksumRates prints how fast checksums are, and compares one of 4 GiB.
func TestRealChecksumRates(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	const size = 4 << 30
	m, h, sum := filled(t, d, size)
	fmt.Println("checksums by the GPU: size, microseconds, GB/s (10^9 bytes)")
	var big float64
	for _, n := range []int64{4 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30, size} {
		items := []gpu.SumItem{{Ptr: m.Ptr(), N: n}}
		took := median(t, 11, func() error { return sum.Sum(context.Background(), items) })
		big = float64(n) / took.Seconds() / 1e9
		fmt.Printf("  %9s %10.1f %7.0f\n", base.FormatBytes(n), float64(took)/1e3, big)
		if want := crc32.Checksum(h.Bytes()[:n], castagnoli); items[0].CRC != want {
			t.Errorf("%d bytes: %08x, want %08x", n, items[0].CRC, want)
		}
	}
	many := make([]gpu.SumItem, 1024)
	for i := range many {
		many[i] = gpu.SumItem{Ptr: m.Ptr() + gpu.Ptr(i*7919%1024*65536), N: 4096}
	}
	took := median(t, 11, func() error { return sum.Sum(context.Background(), many) })
	fmt.Printf("  1,024 ranges of 4 KiB: %v\n", took)
	if big < 500 {
		t.Errorf("%.0f GB/s", big)
	}
}

// TestRealChecksumWhileStreamsWait: streams wait for a cell, and checksums are made
// for the first time. They must be right and end when the streams went on; whether
// they end before is printed, because kernels of all streams share a few queues of
// the GPU.
func TestRealChecksumWhileStreamsWait(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	const size, streams = 16 << 20, 512
	m, h, _ := filled(t, d, size)
	_, cell, _ := use(t, d, 4096)
	word := dl.Cell(cell.Bytes(), 0)
	var waiting []gpu.Stream
	for range streams {
		w, err := d.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, w)
	}
	want := crc32.Checksum(h.Bytes()[3:], castagnoli)
	for round, count := range []int{1, 4, 16, streams} {
		sum, err := gpu.NewSummer(d)
		if err != nil {
			t.Fatal(err)
		}
		var ticks []uint64
		for _, w := range waiting[:count] {
			err := w.AwaitCell(cell.Ptr(), uint64(round+1))
			n, err2 := w.Tick()
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			ticks = append(ticks, n)
		}
		items := []gpu.SumItem{{Ptr: m.Ptr() + 3, N: size - 3}}
		began, done := time.Now(), make(chan error, 1)
		go func() { done <- sum.Sum(t.Context(), items) }()
		when := "while they waited"
		select {
		case err = <-done:
			done <- err
		case <-time.After(500 * time.Millisecond):
			when = "when they had gone on"
		}
		for i, w := range waiting[:count] {
			if w.Ticked() >= ticks[i] {
				t.Errorf("stream %d did not wait", i)
			}
		}
		word.Store(uint64(round + 1))
		if err := errors.Join(<-done, sum.Close()); err != nil || items[0].CRC != want {
			t.Fatalf("%v, %08x, want %08x", err, items[0].CRC, want)
		}
		fmt.Printf("%d streams wait: the checksum ended %s, after %v\n", count, when, time.Since(began))
	}
	for _, w := range waiting {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}
