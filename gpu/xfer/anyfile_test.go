package xfer_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/testenv"
)

// TestT31AnyFileBothWays: GPU memory to any file and back, at any offset, one by
// one and many at a time; the bytes beside them stay. Whole blocks go by O_DIRECT
// although neither offset nor place is aligned.
func TestT31AnyFileBothWays(t *testing.T) {
	const size = 4 << 20
	r := newRig(t, host.Options{}, xfer.Options{ChunkBytes: xfer.MinChunk, Depth: 3, Lanes: 3})
	model := noise(t, size)
	f, err := file.OpenFile(tempFile(t, model).Name(), file.FileOptions{Access: file.ForBoth})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e := xfer.File(f)
	rng := testenv.Seed(t)
	source := noise(t, 1<<20)
	r.poke(r.mem.Ptr(), source)
	write := func(at, off, n int64) {
		t.Helper()
		if got, err := r.m.Write(ctx(t), e, off, r.mem.Ptr()+gpu.Ptr(at), n); got != n || err != nil {
			t.Fatalf("write %d at %d: %d, %v", n, off, got, err)
		}
		copy(model[off:], source[at:at+n])
	}
	write(3, 777, 1<<20-3)
	write(0, 1<<20+4095, 300_001)
	write(17, 2<<20+1, 1)
	var items []xfer.Item
	for off := int64(3 << 20); off+9000 < size; off += 9000 {
		n := rng.Int64N(9000)
		items = append(items, xfer.Item{End: e, Off: off + 1, Ptr: r.mem.Ptr() + gpu.Ptr(rng.Int64N(1<<20-n)), Len: n})
	}
	if err := r.m.WriteMany(ctx(t), items); err != nil {
		t.Fatal(err)
	}
	for _, it := range items {
		at := int64(it.Ptr - r.mem.Ptr())
		copy(model[it.Off:], source[at:at+it.Len])
		if it.N != it.Len || it.Err != nil {
			t.Fatalf("%+v", it)
		}
	}
	if back, err := os.ReadFile(f.Path()); err != nil || !bytes.Equal(back, model) {
		t.Fatalf("the file is not what was written: %v", err)
	}
	before := f.Stats()
	to := r.mem.Ptr() + 2<<20
	if n, err := r.m.Read(ctx(t), e, 4097, to+5, 1<<20); n != 1<<20 || err != nil {
		t.Fatal(n, err)
	}
	if !bytes.Equal(r.peek(to+5, 1<<20), model[4097:4097+1<<20]) {
		t.Error("other bytes")
	}
	st := f.Stats()
	if odd := st.ReadPlain - before.ReadPlain; f.Direct() && odd > 8192 {
		t.Errorf("%d bytes went through the page cache; only the two ends need to", odd)
	}
	// Each counts for itself, and both agree (I10).
	var read, wrote int64
	for _, c := range r.m.Paths() {
		if c.Path != driver.PathStaged || c.Reason != xfer.ReasonFile {
			t.Errorf("%+v", c)
		}
		if c.Write {
			wrote += c.Bytes
		} else {
			read += c.Bytes
		}
	}
	if read != st.ReadDirect+st.ReadPlain || wrote != st.WroteDirect+st.WrotePlain {
		t.Errorf("the mover counts %d read and %d written, the file %+v", read, wrote, st)
	}
}
