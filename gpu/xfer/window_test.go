package xfer_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
)

// seen is a file that counts what is asked of it, and that others change.
type seen struct {
	*file.File
	reads, maps int
	open        atomic.Int32
	most        int32 // mappings at a time
	onStamp     func(i int)
	onUnmap     func(mapping int) error
	stamps      int
	mapErr      error
}

func (s *seen) ReadAt(p []byte, off int64) (int, error) { s.reads++; return s.File.ReadAt(p, off) }

func (s *seen) MapRead(off, n int64) ([]byte, func() error, error) {
	if s.mapErr != nil && s.maps > 0 { // the first look is only at what is cached
		return nil, nil, s.mapErr
	}
	s.maps++
	b, unmap, err := s.File.MapRead(off, n)
	if err != nil {
		return nil, nil, err
	}
	s.most = max(s.most, s.open.Add(1))
	i := s.maps
	return b, func() error {
		defer s.open.Add(-1)
		if s.onUnmap != nil {
			return errors.Join(s.onUnmap(i), unmap())
		}
		return unmap()
	}, nil
}

func (s *seen) Stamp() (driver.Stamp, error) {
	if s.stamps++; s.onStamp != nil {
		s.onStamp(s.stamps)
	}
	return s.File.Stamp()
}

// newSeen makes a cached file. Its rig has one lane, so that nothing is concurrent.
func newSeen(t *testing.T, data []byte) *seen {
	t.Helper()
	f, err := file.OpenFile(tempFile(t, data).Name(), file.FileOptions{Access: file.ForBoth, Buffered: true})
	if err != nil {
		t.Fatal(err)
	}
	s := &seen{File: f}
	t.Cleanup(func() {
		for end := time.Now().Add(10 * time.Second); s.open.Load() != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) { // a window may end a moment after its call
				t.Fatalf("%d mappings are left", s.open.Load())
			}
		}
		f.Close()
	})
	return s
}

// pathOf gives the bytes of the only path that was used.
func pathOf(t *testing.T, m *xfer.Mover) driver.PathCount {
	t.Helper()
	all := m.Paths()
	if len(all) != 1 {
		t.Fatalf("paths %+v", all)
	}
	return all[0]
}

func windowRig(t *testing.T, h host.Options) *rig {
	return newRig(t, h, xfer.Options{ChunkBytes: xfer.MinChunk, Lanes: 1, WindowBytes: xfer.MinWindow})
}

// TestWindowOfOneCall: a large read of a cached file is one copy a window, at any
// offset and to the end of the file, and no byte is read by the processor.
func TestWindowOfOneCall(t *testing.T) {
	data := noise(t, 6<<20+123)
	for _, c := range [][3]int64{{0, 0, 4 << 20}, {4097, 3, 2<<20 + 5}, {4095, 0, 1 << 20}, {3 << 20, 1, 8 << 20}} {
		off, at, n := c[0], c[1], c[2]
		r, s := windowRig(t, host.Options{}), newSeen(t, data)
		want := min(n, int64(len(data))-off)
		r.poke(r.mem.Ptr(), bytes.Repeat([]byte{0xee}, int(at+want+64)))
		got, err := r.m.Read(ctx(t), xfer.File(s), off, r.mem.Ptr()+gpu.Ptr(at), min(n, rigBytes-at))
		if got != want || (err == io.EOF) != (want < n) || err != nil && err != io.EOF {
			t.Fatalf("%v: %d, %v", c, got, err)
		}
		all := r.peek(r.mem.Ptr(), at+want+64)
		if !bytes.Equal(all[at:at+want], data[off:off+want]) || bytes.Count(all[at+want:], []byte{0xee}) != 64 {
			t.Errorf("%v: other bytes, or beside them", c)
		}
		if p := pathOf(t, r.m); p.Path != driver.PathWindow || p.Reason != xfer.ReasonWindow || p.Bytes != want || s.reads != 0 {
			t.Errorf("%v: %+v, %d reads", c, p, s.reads)
		}
	}
}

// TestWindowsOfOneRequest: a request of several windows holds them until their copies
// ended, but not more than 32 at a time, and gives the same bytes.
func TestWindowsOfOneRequest(t *testing.T) {
	const most = 32
	for _, c := range [][2]int64{{4097, 3<<20 + 5}, {0, most << 20}, {100, (most + 1) << 20}} {
		off, n := c[0], c[1]
		data := bytes.Repeat(noise(t, 65521), int(off+n)/65521+2)
		data = data[:off+n+99]
		r, s := newRig(t, host.Options{}, xfer.Options{Lanes: 1, WindowBytes: xfer.MinWindow, WindowChunk: base.MiB}), newSeen(t, data)
		mem, err := r.d.Alloc(n + 64)
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		r.poke(mem.Ptr(), bytes.Repeat([]byte{0xee}, int(n+64)))
		if got, err := r.m.Read(ctx(t), xfer.File(s), off, mem.Ptr(), n); got != n || err != nil {
			t.Fatalf("%v: %d, %v", c, got, err)
		}
		all := r.peek(mem.Ptr(), n+64)
		if !bytes.Equal(all[:n], data[off:off+n]) || bytes.Count(all[n:], []byte{0xee}) != 64 {
			t.Errorf("%v: other bytes, or beside them", c)
		}
		pieces := (n + off%gpu.HostPage + base.MiB - 1) / base.MiB
		if p := pathOf(t, r.m); p.Path != driver.PathWindow || p.Bytes != n || s.reads != 0 ||
			s.maps != int(pieces)+1 || s.most != int32(min(pieces, most)) {
			t.Errorf("%v: %+v, %d reads, %d mappings, %d at a time", c, p, s.reads, s.maps, s.most)
		}
	}
}

// TestWindowEndsLate: the windows of a request end after its answer. Until they have, no
// other one begins, no order does, and the mover is not closed.
func TestWindowEndsLate(t *testing.T) {
	const n = 2 << 20
	data := bytes.Repeat(noise(t, 65521), n/65521+1)[:n]
	r, s := windowRig(t, host.Options{}), newSeen(t, data)
	gate := make(chan struct{})
	s.onUnmap = func(mapping int) error {
		switch mapping { // the first one of a request is the look at what is cached
		case 2:
			<-gate
		case 5:
			return errors.New("boom")
		}
		return nil
	}
	if got, err := r.m.Read(ctx(t), xfer.File(s), 0, r.mem.Ptr(), n); got != n || err != nil {
		t.Fatal(got, err)
	}
	if s.open.Load() == 0 {
		t.Error("the window ended before the answer")
	}
	soon := func() context.Context {
		c, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return c
	}
	if err := r.m.EndWindows(soon()); !errors.Is(err, base.ErrTimeout) {
		t.Error(err)
	}
	if _, err := r.m.NewOrder(soon(), xfer.OrderOptions{Streams: 1, Steps: 4}); !errors.Is(err, base.ErrTimeout) {
		t.Error(err)
	}
	if _, err := r.m.Read(soon(), xfer.File(s), 0, r.mem.Ptr(), n); !errors.Is(err, base.ErrTimeout) {
		t.Error(err)
	}
	close(gate)
	if err := r.m.EndWindows(ctx(t)); err != nil {
		t.Error(err)
	}
	if got, err := r.m.Read(ctx(t), xfer.File(s), 0, r.mem.Ptr(), n); got != n || err != nil {
		t.Fatal(got, err)
	}
	if err := r.m.EndWindows(ctx(t)); err != nil {
		t.Error(err)
	}
	if s.maps != 5 {
		t.Errorf("%d mappings: a window began while others ended", s.maps)
	}
	if p := pathOf(t, r.m); p.Path != driver.PathWindow || p.Bytes != 2*n || p.Errors != 1 {
		t.Errorf("%+v", p)
	}
}

// TestLargeWindowsEndFirst: the windows of more than 64 MiB end before the answer.
func TestLargeWindowsEndFirst(t *testing.T) {
	for _, c := range []struct {
		n    int64
		late bool
		wait time.Duration // of the end for the answer
	}{{64 << 20, true, 10 * time.Second}, {64<<20 + 1, false, 20 * time.Millisecond}} {
		r := newRig(t, host.Options{}, xfer.Options{Lanes: 1, WindowBytes: xfer.MinWindow})
		s := newSeen(t, bytes.Repeat([]byte("window"), int(c.n)/6+1))
		mem, err := r.d.Alloc(c.n)
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		answered := make(chan struct{})
		early := atomic.Bool{}
		s.onUnmap = func(mapping int) error {
			if mapping > 1 { // not the look at what is cached
				select {
				case <-answered:
				case <-time.After(c.wait):
					early.Store(true)
				}
			}
			return nil
		}
		if got, err := r.m.Read(ctx(t), xfer.File(s), 0, mem.Ptr(), c.n); got != c.n || err != nil {
			t.Fatal(got, err)
		}
		close(answered)
		if err := r.m.EndWindows(ctx(t)); err != nil {
			t.Error(err)
		}
		if early.Load() == c.late {
			t.Errorf("%d bytes: ended before the answer: %v", c.n, early.Load())
		}
	}
}

// TestWindowSeesTheFile: between and after windows the file is written through and
// past the page cache, cut and replaced: each read gives what the file has.
func TestWindowSeesTheFile(t *testing.T) {
	data := noise(t, 2<<20)
	r, s := windowRig(t, host.Options{}), newSeen(t, data)
	other, err := file.OpenFile(s.Path(), file.FileOptions{Access: file.ForBoth})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	read := func(what string, want []byte) {
		t.Helper()
		n, err := r.m.Read(ctx(t), xfer.File(s), 0, r.mem.Ptr(), 2<<20)
		if n != int64(len(want)) || err != nil && err != io.EOF || !bytes.Equal(r.peek(r.mem.Ptr(), n), want) {
			t.Errorf("%s: %d bytes, %v, or others", what, n, err)
		}
	}
	read("as it was made", data)
	for k, w := range map[string]*file.File{"through the page cache": s.File, "past the page cache": other} {
		copy(data[1<<20:], noise(t, 64<<10))
		data[1<<20]++
		if _, err := w.WriteAt(data[1<<20:1<<20+64<<10], 1<<20); err != nil {
			t.Fatal(err)
		}
		read("written "+k, data)
	}
	if err := os.Truncate(s.Path(), 1<<20+77); err != nil {
		t.Fatal(err)
	}
	read("cut", data[:1<<20+77])
	if err := os.WriteFile(s.Path()+".new", []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.Path()+".new", s.Path()); err != nil {
		t.Fatal(err)
	}
	read("another file has the name", data[:1<<20+77])
}

// TestT41WindowNot: what keeps a request from windows, also in its middle, and that
// it then goes the plain way with the same bytes and that reason.
func TestT41WindowNot(t *testing.T) {
	const n = 2 << 20
	data := noise(t, n)
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		prepare func(t *testing.T, r *rig, s *seen) xfer.Endpoint
		faults  host.Faults
		n       int64
		reason  string
	}{
		"small":  {n: xfer.MinWindow - 1, reason: xfer.ReasonFile},
		"reader": {prepare: func(t *testing.T, _ *rig, s *seen) xfer.Endpoint { return xfer.Reader(bytes.NewReader(data)) }, reason: xfer.ReasonNoMapping},
		"changed": {prepare: func(t *testing.T, _ *rig, s *seen) xfer.Endpoint {
			s.onStamp = func(i int) {
				if i == 2 { // the windows are done: what they gave may be of both
					data[0]++
					if _, err := s.WriteAt(data[:1], 0); err != nil {
						t.Error(err)
					}
				}
			}
			return xfer.File(s)
		}, reason: xfer.ReasonChanged},
		"refused": {prepare: func(t *testing.T, _ *rig, s *seen) xfer.Endpoint { s.mapErr = boom; return xfer.File(s) }, reason: xfer.ReasonRefused},
		"queue": {faults: host.Faults{Queue: func(c gpu.Copy) error {
			if int64(len(c.Host)) > xfer.MinChunk && !c.ToHost {
				return boom
			}
			return nil
		}}, reason: xfer.ReasonRefused},
		"order": {prepare: func(t *testing.T, r *rig, s *seen) xfer.Endpoint {
			o, err := r.m.NewOrder(ctx(t), xfer.OrderOptions{Streams: 1, Steps: 4})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { o.Close(ctx(t)) })
			return xfer.File(s)
		}, reason: xfer.ReasonOrdered},
	} {
		t.Run(name, func(t *testing.T) {
			r, s := windowRig(t, host.Options{Faults: c.faults}), newSeen(t, data)
			if c.n == 0 {
				c.n = n
			}
			e := xfer.File(s)
			if c.prepare != nil {
				e = c.prepare(t, r, s)
			}
			if got, err := r.m.Read(ctx(t), e, 0, r.mem.Ptr(), c.n); got != c.n || err != nil {
				t.Fatal(got, err)
			}
			if p := pathOf(t, r.m); p.Path != driver.PathStaged || p.Reason != c.reason || p.Bytes != c.n {
				t.Errorf("%+v, want staged since %q", p, c.reason)
			}
			if !bytes.Equal(r.peek(r.mem.Ptr(), c.n), data[:c.n]) {
				t.Error("other bytes")
			}
		})
	}
}

// TestWindowAfterOrder: a closed order is forgotten.
func TestWindowAfterOrder(t *testing.T) {
	data := noise(t, 1<<20)
	r, s := windowRig(t, host.Options{}), newSeen(t, data)
	o, err := r.m.NewOrder(ctx(t), xfer.OrderOptions{Streams: 1, Steps: 4})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Close(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.m.Read(ctx(t), xfer.File(s), 0, r.mem.Ptr(), 1<<20); err != nil {
		t.Fatal(err)
	}
	if p := pathOf(t, r.m); p.Path != driver.PathWindow {
		t.Errorf("%+v", p)
	}
}

// TestWindowOfOwner: a window that is kept, over a device that its owner has locked.
func TestWindowOfOwner(t *testing.T) {
	data := noise(t, 256<<10)
	r, d := newRig(t, host.Options{}, xfer.Options{Lanes: 1}), newDevice(t, data)
	w, err := xfer.OpenWindow(r.d, d, 4096, 128<<10)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if n, err := r.m.Read(ctx(t), w.Endpoint(), 5, r.mem.Ptr(), 100_000); n != 100_000 || err != nil {
			t.Fatal(n, err)
		}
	}
	if !bytes.Equal(r.peek(r.mem.Ptr(), 100_000), data[4096+5:4096+5+100_000]) {
		t.Error("other bytes")
	}
	if p := pathOf(t, r.m); p.Path != driver.PathWindow || p.Bytes != 200_000 {
		t.Errorf("%+v", p)
	}
	if _, err := r.m.Read(ctx(t), w.Endpoint(), 1, r.mem.Ptr(), 128<<10); !errors.Is(err, base.ErrOutOfRange) {
		t.Error(err)
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	if _, err := xfer.OpenWindow(r.d, d, 0, 1<<40); !errors.Is(err, base.ErrOutOfRange) {
		t.Error(err)
	}
	if _, err := xfer.OpenWindow(r.d, d, 1, 4096); !errors.Is(err, base.ErrMisaligned) {
		t.Error(err)
	}
}
