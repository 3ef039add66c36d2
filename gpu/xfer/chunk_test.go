package xfer_test

import (
	"bytes"
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
)

// TestChunksGrow: chunks grow with the root of the request, up to the bounce buffer.
func TestChunksGrow(t *testing.T) {
	for _, c := range []struct{ n, buffer, chunk int64 }{
		{256 << 10, 0, 256 << 10}, {1 << 20, 0, 256 << 10}, {4<<20 - 1, 0, 256 << 10}, {4 << 20, 0, 512 << 10},
		{16 << 20, 0, 1 << 20}, {16 << 20, 512 << 10, 512 << 10}, {1 << 20, xfer.MinChunk, xfer.MinChunk},
	} {
		var copies, largest atomic.Int64
		r := newRig(t, host.Options{Faults: host.Faults{Queue: func(c gpu.Copy) error {
			if !c.ToHost {
				copies.Add(1)
				largest.Store(max(largest.Load(), int64(len(c.Host))))
			}
			return nil
		}}}, xfer.Options{ChunkBytes: c.buffer, Lanes: 1})
		mem, err := r.d.Alloc(c.n)
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		data := bytes.Repeat(noise(t, 65521), int(c.n)/65521+1)[:c.n]
		if got, err := r.m.Read(ctx(t), xfer.Reader(bytes.NewReader(data)), 0, mem.Ptr(), c.n); got != c.n || err != nil {
			t.Fatal(got, err)
		}
		if want := (c.n + c.chunk - 1) / c.chunk; copies.Load() != want || largest.Load() != c.chunk {
			t.Errorf("%d bytes, buffers of %d: %d copies of at most %d, want %d of %d", c.n, c.buffer, copies.Load(), largest.Load(), want, c.chunk)
		}
		if !bytes.Equal(r.peek(mem.Ptr(), c.n), data) {
			t.Errorf("%d bytes: others", c.n)
		}
	}
}

// TestPinnedByDefault: the buffers of all lanes have 64 MiB, and each 2 to 4 MiB.
func TestPinnedByDefault(t *testing.T) {
	for _, c := range []struct {
		lanes, depth int
		chunk        int64
	}{{0, 0, 2 << 20}, {1, 0, 4 << 20}, {8, 0, 4 << 20}, {9, 0, 2 << 20}, {64, 0, 2 << 20}, {4, 5, 2 << 20}} {
		r := newRig(t, host.Options{}, xfer.Options{Lanes: c.lanes, Depth: c.depth})
		if got := r.m.Options().ChunkBytes; got != c.chunk {
			t.Errorf("%d lanes of %d buffers: they have %d bytes, want %d", c.lanes, c.depth, got, c.chunk)
		}
	}
}

// pairs is a source whose reads from some place on wait for each other, two by two.
type pairs struct {
	data  []byte
	from  int64
	reach func() // called once, before the first such read

	once    sync.Once
	meet    chan struct{}
	met     atomic.Bool
	waiting atomic.Int32
}

func (p *pairs) ReadAt(b []byte, off int64) (int, error) {
	if off >= p.from && !p.met.Load() {
		p.once.Do(p.reach)
		if p.waiting.Add(1) == 2 {
			p.met.Store(true)
			close(p.meet)
		}
		if p.waiting.Load() < 2 && off+int64(len(b)) < int64(len(p.data)) {
			select {
			case <-p.meet:
			case <-time.After(20 * time.Millisecond): // one worker: it goes on alone
				p.waiting.Add(-1)
			}
		}
	}
	n := copy(b, p.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// TestIdleLanesJoin: a request that began with one lane, since another request had the
// others, gets them when that one ends.
func TestIdleLanesJoin(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{ChunkBytes: xfer.MinChunk, Lanes: 2})
	gate, ended := make(chan struct{}), make(chan error, 1)
	began := make(chan struct{})
	slow := &pairs{data: make([]byte, xfer.MinChunk), reach: func() { close(began); <-gate }, meet: make(chan struct{})}
	go func() {
		_, err := r.m.Read(context.Background(), xfer.Reader(slow), 0, r.mem.Ptr(), xfer.MinChunk)
		ended <- err
	}()
	<-began
	p := &pairs{data: noise(t, 3<<20), from: base.MiB, meet: make(chan struct{}), reach: func() {
		close(gate)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}}
	if n, err := r.m.Read(ctx(t), xfer.Reader(p), 0, r.mem.Ptr()+base.MiB, 3<<20); n != 3<<20 || err != nil {
		t.Fatal(n, err)
	}
	if !p.met.Load() {
		t.Error("one lane read all of it")
	}
	if !bytes.Equal(r.peek(r.mem.Ptr()+base.MiB, 3<<20), p.data) {
		t.Error("other bytes")
	}
}
