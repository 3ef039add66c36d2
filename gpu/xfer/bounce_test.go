package xfer_test

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/gpu/xfer"
)

// TestT27T29BounceCopies: memory that is not registered, and here every other, is
// reached through bounce buffers: a copy for each of their sizes, and none is larger.
// Buffers that are large beside the request are filled in part unless a task size says
// otherwise.
// The twin without a direct path: registered memory takes as many.
func TestT27T29BounceCopies(t *testing.T) {
	const n = 6 << 20
	data := noise(t, n)
	for _, c := range []struct {
		chunk, task, copies int64
	}{{2 << 20, 2 << 20, 3}, {1 << 20, 1 << 20, 6}, {512 << 10, 0, 12}, {xfer.MinChunk, 0, n / xfer.MinChunk}} {
		for _, registered := range []bool{false, true} {
			var copies, largest atomic.Int64
			r := newRig(t, host.Options{Faults: host.Faults{Queue: func(c gpu.Copy) error {
				copies.Add(1)
				largest.Store(max(largest.Load(), int64(len(c.Host))))
				return nil
			}}}, xfer.Options{ChunkBytes: c.chunk, TaskBytes: c.task, Lanes: 1})
			if registered {
				reg, err := r.tab.Register(r.mem.Ptr(), n)
				if err != nil {
					t.Fatal(err)
				}
				defer reg.Close()
			}
			if got, err := r.m.Read(ctx(t), xfer.File(tempFile(t, data)), 0, r.mem.Ptr(), n); got != n || err != nil {
				t.Fatal(got, err)
			}
			if copies.Load() != c.copies || largest.Load() != c.chunk {
				t.Errorf("bounce buffers of %d: %d copies of at most %d, want %d", c.chunk, copies.Load(), largest.Load(), c.copies)
			}
			if p := pathOf(t, r.m); p.Reason != xfer.ReasonFile {
				t.Errorf("%+v", p)
			}
			if !bytes.Equal(r.peek(r.mem.Ptr(), n), data) {
				t.Error("other bytes")
			}
		}
	}
}
