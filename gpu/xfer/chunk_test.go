package xfer_test

import (
	"bytes"
	"context"
	"errors"
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
		{256 << 10, 0, 256 << 10}, {1<<20 - 1, 0, 256 << 10}, {1 << 20, 0, 512 << 10}, {2<<20 - 1, 0, 512 << 10}, {2 << 20, 0, 1 << 20}, {4 << 20, 0, 1 << 20},
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

// TestChunksBesideOthers: while another request is under way, one of less than 2 MiB is
// cut into buffers only, while two are, one of less than 4 MiB, and a larger one into
// chunks of 1 MiB.
func TestChunksBesideOthers(t *testing.T) {
	for _, c := range []struct{ others, n, copies, largest int64 }{
		{1, 1 << 20, 1, 1 << 20}, {1, 2 << 20, 2, 1 << 20}, {1, 4 << 20, 4, 1 << 20},
		{2, 2 << 20, 1, 2 << 20}, {2, 4<<20 - 1, 2, 2 << 20}, {2, 4 << 20, 4, 1 << 20},
	} {
		var copies, largest atomic.Int64
		r := newRig(t, host.Options{Faults: host.Faults{Queue: func(c gpu.Copy) error {
			if !c.ToHost && len(c.Host) > xfer.MinChunk {
				copies.Add(1)
				largest.Store(max(largest.Load(), int64(len(c.Host))))
			}
			return nil
		}}}, xfer.Options{Lanes: 3})
		var others []func() error
		for range c.others {
			others = append(others, newStuck(r))
		}
		data := bytes.Repeat(noise(t, 65521), int(c.n)/65521+1)[:c.n]
		got, err := r.m.Read(ctx(t), xfer.Reader(bytes.NewReader(data)), 0, r.mem.Ptr()+base.MiB, c.n)
		for _, end := range others {
			err = errors.Join(err, end())
		}
		if got != c.n || err != nil {
			t.Fatal(got, err)
		}
		if copies.Load() != c.copies || largest.Load() != c.largest {
			t.Errorf("%d bytes beside %d: %d copies of at most %d, want %d of %d", c.n, c.others, copies.Load(), largest.Load(), c.copies, c.largest)
		}
		if !bytes.Equal(r.peek(r.mem.Ptr()+base.MiB, c.n), data) {
			t.Errorf("%d bytes: others", c.n)
		}
	}
}

// newStuck begins a request that keeps one lane until the function is called, which gives
// its error.
func newStuck(r *rig) func() error {
	gate, began, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	stuck := &pairs{data: make([]byte, xfer.MinChunk), reach: func() { close(began); <-gate }, meet: make(chan struct{})}
	go func() {
		_, err := r.m.Read(context.Background(), xfer.Reader(stuck), 0, r.mem.Ptr(), xfer.MinChunk)
		ended <- err
	}()
	<-began
	return func() error { close(gate); return <-ended }
}

// meeting is a source of which so many reads wait for each other, once, after slow ones.
type meeting struct {
	io.ReaderAt
	slow int32 // so many reads first take 20 ms
	want int32

	calls, here atomic.Int32
	all         chan struct{}
	alone       atomic.Bool // somebody waited in vain
}

func (m *meeting) ReadAt(b []byte, off int64) (int, error) {
	if m.calls.Add(1) <= m.slow {
		time.Sleep(20 * time.Millisecond)
		return m.ReaderAt.ReadAt(b, off)
	}
	if m.here.Add(1) == m.want {
		close(m.all)
	}
	select {
	case <-m.all:
	case <-time.After(10 * time.Second):
		m.alone.Store(true)
	}
	return m.ReaderAt.ReadAt(b, off)
}

// TestFewWorkers: a small request begins with a worker for each half megabyte of it,
// before any of it was read, and gets the other lanes if its source turns out to be slow.
func TestFewWorkers(t *testing.T) {
	data := bytes.Repeat(noise(t, 65521), 1<<20/65521+1)[:1<<20]
	for _, c := range []struct{ slow, want int32 }{{0, 2}, {2, 3}} {
		r := newRig(t, host.Options{}, xfer.Options{ChunkBytes: xfer.MinChunk, Lanes: 4})
		m := &meeting{ReaderAt: bytes.NewReader(data), slow: c.slow, want: c.want, all: make(chan struct{})}
		if n, err := r.m.Read(ctx(t), xfer.Reader(m), 0, r.mem.Ptr(), 1<<20); n != 1<<20 || err != nil {
			t.Fatal(n, err)
		}
		if m.alone.Load() {
			t.Errorf("%d slow reads first: fewer than %d workers", c.slow, c.want)
		}
		if !bytes.Equal(r.peek(r.mem.Ptr(), 1<<20), data) {
			t.Error("other bytes")
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
	other := newStuck(r)
	p := &pairs{data: noise(t, 3<<20), from: base.MiB, meet: make(chan struct{}), reach: func() {
		if err := other(); err != nil {
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
