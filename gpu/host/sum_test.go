package host_test

import (
	"context"
	"errors"
	"hash/crc32"
	"testing"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

// sumRig is memory of the simulated GPU with random bytes, and a Summer.
func sumRig(t testing.TB, n int64, o host.Options) (gpu.Memory, []byte, *gpu.Summer) {
	t.Helper()
	b, err := host.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	d := b.Devices()[0]
	m, err := d.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	h, err := d.AllocHost(n)
	if err != nil {
		t.Fatal(err)
	}
	s, err := gpu.NewSummer(d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), h.Close(), m.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	rng := testenv.Seed(t)
	for i := range h.Bytes() {
		h.Bytes()[i] = byte(rng.Uint32())
	}
	st, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(st.Copy(gpu.Copy{Dev: m.Ptr(), Host: h.Bytes()}), st.Close()); err != nil {
		t.Fatal(err)
	}
	return m, h.Bytes(), s
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// TestSummer: any place and length, many at once and large ones in pieces, the
// same value as the processor's.
func TestSummer(t *testing.T) {
	const size = 3<<20 + 77
	m, data, s := sumRig(t, size, host.Options{})
	rng := testenv.Seed(t)
	var items []gpu.SumItem
	for _, n := range []int64{0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 4095, 4096, 4097, 128<<10 - 1, 128 << 10, 128<<10 + 1, 256 << 10, 1<<20 + 5, size} {
		for range 17 {
			items = append(items, gpu.SumItem{Ptr: m.Ptr() + gpu.Ptr(rng.Int64N(size-n+1)), N: n})
		}
	}
	for range 5000 { // more than a table has room for
		n := rng.Int64N(100)
		items = append(items, gpu.SumItem{Ptr: m.Ptr() + gpu.Ptr(rng.Int64N(size-n)), N: n})
	}
	for _, list := range [][]gpu.SumItem{nil, items[:1], items} {
		if err := s.Sum(context.Background(), list); err != nil {
			t.Fatal(err)
		}
	}
	for _, it := range items {
		at := int64(it.Ptr - m.Ptr())
		if want := crc32.Checksum(data[at:at+it.N], castagnoli); it.CRC != want {
			t.Fatalf("%d bytes at %d: %08x, want %08x", it.N, at, it.CRC, want)
		}
	}
}

// TestSummerFails: a range that leaves its memory breaks the stream, and a GPU
// without kernels has no Summer.
func TestSummerFails(t *testing.T) {
	m, _, s := sumRig(t, 4096, host.Options{})
	err := s.Sum(context.Background(), []gpu.SumItem{{Ptr: m.Ptr() + 1, N: 4096}})
	if !errors.Is(err, base.ErrOutOfRange) {
		t.Error(err)
	}
	b, err := host.Open(host.Options{Faults: host.Faults{NoMover: true}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gpu.NewSummer(b.Devices()[0]); !errors.Is(err, base.ErrNotSupported) {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// FuzzSummer: pieces of one range, in one call, and their combination.
func FuzzSummer(f *testing.F) {
	const size = 1 << 20
	m, data, s := sumRig(f, size, host.Options{})
	f.Add(uint32(0), uint32(0), uint32(0))
	f.Add(uint32(13), uint32(128<<10), uint32(128<<10+3))
	f.Fuzz(func(t *testing.T, at, a, b uint32) {
		at %= size
		a %= size - at + 1
		b %= size - at - a + 1
		p := m.Ptr() + gpu.Ptr(at)
		items := []gpu.SumItem{{Ptr: p, N: int64(a)}, {Ptr: p + gpu.Ptr(a), N: int64(b)}, {Ptr: p, N: int64(a + b)}}
		if err := s.Sum(context.Background(), items); err != nil {
			t.Fatal(err)
		}
		if want := crc32.Checksum(data[at:at+a+b], castagnoli); items[2].CRC != want ||
			base.CombineCRC32C(items[0].CRC, items[1].CRC, int64(b)) != want {
			t.Fatalf("%+v, want %08x", items, want)
		}
	})
}
