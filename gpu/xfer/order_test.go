package xfer_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

// newOrder gives an order that is closed, and must close, at the end.
func (r *rig) newOrder(o xfer.OrderOptions) *xfer.Order {
	r.t.Helper()
	ord, err := r.m.NewOrder(ctx(r.t), o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		c, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := ord.Close(c); err != nil {
			r.t.Error(err)
		}
	})
	return ord
}

func (r *rig) join(o *xfer.Order, s gpu.Stream) *xfer.Ordered {
	r.t.Helper()
	q, err := o.Join(s)
	if err != nil {
		r.t.Fatal(err)
	}
	return q
}

func (r *rig) stream() gpu.Stream {
	r.t.Helper()
	s, err := r.d.NewStream()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return s
}

// must gives the request of a Submit that may not fail.
func must(t *testing.T, r *xfer.Request, err error) *xfer.Request {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// gate is a source whose reads wait until it is opened.
type gate struct {
	io.ReaderAt
	open    chan struct{}
	waiting atomic.Int64
}

func newGate(r io.ReaderAt) *gate { return &gate{ReaderAt: r, open: make(chan struct{})} }

func (g *gate) ReadAt(b []byte, off int64) (int, error) {
	g.waiting.Add(1)
	<-g.open
	return g.ReaderAt.ReadAt(b, off)
}

// drain waits for a stream.
func drain(t *testing.T, s gpu.Stream) {
	t.Helper()
	n, err := s.Tick()
	if err == nil {
		err = s.WaitTick(ctx(t), n)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestStreamOrder: what the stream computed is written, what it clears
// afterwards is not, and what is read back is there for the work behind it; by
// cells and by waits in the call, on a stream of ours and on the default one.
func TestStreamOrder(t *testing.T) {
	for name, faults := range map[string]host.Faults{"cells": {}, "calls": {NoMemOps: true}, "no kernel": {NoMover: true}, "slow copies": {CopyDelay: 300 * time.Microsecond}} {
		for _, wrap := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, host.Options{Faults: faults}, xfer.Options{ChunkBytes: xfer.MinChunk, Lanes: 3})
				s := r.stream()
				if wrap {
					var err error
					if s, err = r.d.WrapStream(0); err != nil {
						t.Fatal(err)
					}
					defer s.Close()
				}
				q := r.join(r.newOrder(xfer.OrderOptions{}), s)
				f := xfer.File(tempFile(t, nil))
				rng := testenv.Seed(t)
				h, err := r.d.AllocHost(300 << 10)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { h.Close() })
				for i := range 20 {
					n := 1 + rng.Int64N(300<<10)
					want := noise(t, n)
					want[0] = byte(i)
					put := func(b []byte) { // a kernel that writes b to the GPU
						err := errors.Join(s.Call(func() { copy(h.Bytes(), b) }),
							s.Copy(gpu.Copy{Dev: r.mem.Ptr() + 3, Host: h.Bytes()[:n]}))
						if err != nil {
							t.Fatal(err)
						}
					}
					put(want)
					w, err := q.WriteAsync(ctx(t), f, 7, r.mem.Ptr()+3, n)
					must(t, w, err)
					put(make([]byte, n))
					rd, err := q.ReadAsync(ctx(t), f, 7, r.mem.Ptr()+3, n)
					must(t, rd, err)
					got := make([]byte, n)
					if err := s.Copy(gpu.Copy{Dev: r.mem.Ptr() + 3, Host: h.Bytes()[:n], ToHost: true}); err != nil {
						t.Fatal(err)
					}
					if err := s.Call(func() { copy(got, h.Bytes()) }); err != nil {
						t.Fatal(err)
					}
					drain(t, s)
					if !bytes.Equal(got, want) {
						t.Fatalf("round %d: other bytes", i)
					}
					for _, req := range []*xfer.Request{w, rd} {
						if err := req.Wait(ctx(t)); err != nil {
							t.Fatal(err)
						}
						if m, err := req.Result(0); m != n || err != nil {
							t.Fatalf("result %d, %v; want %d", m, err, n)
						}
					}
				}
				if err := q.Close(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// TestStreamLateCells: size and offsets are those at the time when the stream
// comes to the request, even if the stream itself computed them.
func TestStreamLateCells(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{})
	lateCells(t, r, r.newOrder(xfer.OrderOptions{}))
}

func lateCells(t *testing.T, r *rig, o *xfer.Order) {
	s, release := r.stream(), r.stream()
	q := r.join(o, s)
	data := noise(t, 1<<20)
	cells, err := r.d.AllocHost(4096)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cells.Close() })
	late := func() xfer.Span {
		c := cells.Bytes()
		return xfer.Span{Off: int64(binary.LittleEndian.Uint64(c)), N: int64(binary.LittleEndian.Uint64(c[8:])),
			At: int64(binary.LittleEndian.Uint64(c[16:]))}
	}
	hold, err := r.d.AllocHost(4096) // the stream waits here until the test lets it go
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hold.Close() })
	if err := s.AwaitCell(hold.Ptr(), 1); err != nil {
		t.Fatal(err)
	}
	for i, v := range []uint64{4097, 70000, 129} { // computed on the stream
		if err := s.WriteCell(cells.Ptr()+gpu.Ptr(8*i), v); err != nil {
			t.Fatal(err)
		}
	}
	req, err := q.Submit(ctx(t), xfer.Piece{End: xfer.Reader(bytes.NewReader(data)), Ptr: r.mem.Ptr(), Late: late, Room: 1 << 20, Span: xfer.Span{N: 100000}})
	must(t, req, err)
	binary.LittleEndian.PutUint64(cells.Bytes()[8:], 5) // overwritten by the stream
	if n := q.Queued(); n != 1 {
		t.Fatalf("%d queued while the stream waits", n)
	}
	if err := q.Close(); !errors.Is(err, base.ErrBusy) {
		t.Fatalf("closed with a request in the queue: %v", err)
	}
	if err := release.WriteCell(hold.Ptr(), 1); err != nil {
		t.Fatal(err)
	}
	if err := req.Wait(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if n, err := req.Result(0); n != 70000 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if !bytes.Equal(r.peek(r.mem.Ptr()+129, 70000), data[4097:4097+70000]) {
		t.Fatal("other bytes")
	}
}

// TestStreamGroup: the pieces of a request run side by side, answer each, and
// the stream goes on after the last.
func TestStreamGroup(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{ChunkBytes: xfer.MinChunk, Lanes: 8})
	s := r.stream()
	q := r.join(r.newOrder(xfer.OrderOptions{}), s)
	data := noise(t, 2<<20)
	g := newGate(bytes.NewReader(data))
	var pieces []xfer.Piece
	for i := range int64(4) { // large ones, each of one chunk
		pieces = append(pieces, xfer.Piece{End: xfer.Reader(g), Ptr: r.mem.Ptr(), Span: xfer.Span{Off: i * 60000, N: 60000, At: i * 60000}})
	}
	for i := range int64(500) { // and small ones
		pieces = append(pieces, xfer.Piece{End: xfer.Reader(bytes.NewReader(data)), Ptr: r.mem.Ptr(),
			Span: xfer.Span{Off: 1<<20 + 1000*i, N: 1000 - i, At: 1<<20 + 1000*i}})
	}
	req, err := q.Submit(ctx(t), pieces...)
	must(t, req, err)
	var passed atomic.Bool
	if err := s.Call(func() { passed.Store(true) }); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); g.waiting.Load() < 4; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of 4 large pieces run at once", g.waiting.Load())
		}
	}
	if passed.Load() {
		t.Fatal("the stream went on before the pieces ended")
	}
	close(g.open)
	if err := req.Wait(ctx(t)); err != nil {
		t.Fatal(err)
	}
	drain(t, s)
	for i, p := range pieces {
		if n, err := req.Result(i); n != p.N || err != nil {
			t.Fatalf("piece %d: %d, %v", i, n, err)
		}
		if !bytes.Equal(r.peek(r.mem.Ptr()+gpu.Ptr(p.At), p.N), data[p.Off:p.Off+p.N]) {
			t.Fatalf("piece %d: other bytes", i)
		}
	}
}

// TestStreamsIndependent: a stream whose request hangs holds up no other.
func TestStreamsIndependent(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{ChunkBytes: xfer.MinChunk, Lanes: 4, Threads: 1})
	o := r.newOrder(xfer.OrderOptions{})
	data := noise(t, 100<<10)
	g := newGate(bytes.NewReader(data))
	slow := r.join(o, r.stream())
	hung, err := slow.ReadAsync(ctx(t), xfer.Reader(g), 0, r.mem.Ptr(), 100)
	must(t, hung, err)
	var wg sync.WaitGroup
	for i := range int64(16) {
		s := r.stream()
		q := r.join(o, s)
		wg.Go(func() {
			at := r.mem.Ptr() + gpu.Ptr((i+1)*(100<<10))
			var last *xfer.Request
			for k := range int64(20) {
				req, err := q.ReadAsync(ctx(t), xfer.Reader(bytes.NewReader(data)), k*1000, at+gpu.Ptr(k*1000), 1000)
				if err != nil {
					t.Error(err)
					return
				}
				last = req
			}
			if err := last.Wait(ctx(t)); err != nil {
				t.Error(err)
			} else if !bytes.Equal(r.peek(at, 20000), data[:20000]) {
				t.Error("other bytes")
			}
		})
	}
	wg.Wait()
	select {
	case <-hung.Done():
		t.Error("the request that hangs ended")
	default:
	}
	close(g.open)
	if err := hung.Wait(ctx(t)); err != nil {
		t.Error(err)
	}
}

// TestI7StickyStream: a failure that nobody read refuses the next request,
// once; one that was read does not. The stream goes on after it.
func TestI7StickyStream(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{})
	s := r.stream()
	q := r.join(r.newOrder(xfer.OrderOptions{}), s)
	bad := xfer.Reader(failing{})
	good := xfer.Reader(bytes.NewReader(make([]byte, 100)))
	submit := func(e xfer.Endpoint) (*xfer.Request, error) { return q.ReadAsync(ctx(t), e, 0, r.mem.Ptr(), 100) }
	req, err := submit(bad)
	must(t, req, err)
	drain(t, s)
	if _, err := submit(good); !errors.Is(err, errBad) {
		t.Fatalf("after an unread failure: %v", err)
	}
	req, err = submit(bad)
	must(t, req, err)
	if err := req.Wait(ctx(t)); !errors.Is(err, errBad) {
		t.Fatalf("wait: %v", err)
	}
	if _, err := req.Result(0); !errors.Is(err, errBad) {
		t.Fatalf("result: %v", err)
	}
	req, err = submit(good)
	must(t, req, err)
	if err := req.Wait(ctx(t)); err != nil {
		t.Fatal(err)
	}
	req, err = q.ReadAsync(ctx(t), good, 60, r.mem.Ptr(), 100) // the end of the data is an answer
	must(t, req, err)
	drain(t, s)
	if n, err := req.Result(0); n != 40 || !errors.Is(err, io.EOF) {
		t.Fatalf("past the end: %d, %v", n, err)
	}
	if err := q.Err(); err != nil {
		t.Fatalf("sticky: %v", err)
	}
}

var errBad = errors.New("bad medium")

type failing struct{}

func (failing) ReadAt([]byte, int64) (int, error) { return 0, errBad }

// TestI3Queued: memory that a queued request names cannot be unregistered until
// the request ended.
func TestI3Queued(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{})
	s := r.stream()
	q := r.join(r.newOrder(xfer.OrderOptions{}), s)
	reg, err := r.tab.Register(r.mem.Ptr(), rigBytes)
	if err != nil {
		t.Fatal(err)
	}
	g := newGate(bytes.NewReader(make([]byte, 100)))
	first, err := q.ReadAsync(ctx(t), xfer.Reader(g), 0, r.mem.Ptr(), 100)
	must(t, first, err)
	second, err := q.ReadAsync(ctx(t), xfer.Reader(g), 0, r.mem.Ptr()+4096, 10)
	must(t, second, err)
	if err := reg.Close(); !errors.Is(err, base.ErrBusy) {
		t.Fatalf("unregistered with two requests: %v", err)
	}
	close(g.open)
	if err := errors.Join(first.Wait(ctx(t)), second.Wait(ctx(t))); err != nil {
		t.Fatal(err)
	}
	if n := reg.InFlight(); n != 0 {
		t.Fatalf("%d holds are left", n)
	}
	if err := reg.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestStreamClose: Close answers what the streams did not come to, waits for
// what runs, and no stream hangs.
func TestStreamClose(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{})
	o, err := r.m.NewOrder(ctx(t), xfer.OrderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := r.stream()
	q := r.join(o, s)
	g := newGate(bytes.NewReader(make([]byte, 100)))
	var reqs []*xfer.Request
	for range 5 {
		req, err := q.ReadAsync(ctx(t), xfer.Reader(g), 0, r.mem.Ptr(), 100)
		reqs = append(reqs, must(t, req, err))
	}
	for end := time.Now().Add(time.Minute); g.waiting.Load() == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := o.Close(short); !errors.Is(err, base.ErrBusy) {
		t.Fatalf("closed over a request that runs: %v", err)
	}
	if _, err := q.ReadAsync(ctx(t), xfer.Reader(g), 0, r.mem.Ptr(), 100); !errors.Is(err, base.ErrClosed) {
		t.Fatalf("after close: %v", err)
	}
	close(g.open)
	if err := o.Close(ctx(t)); err != nil {
		t.Fatal(err)
	}
	drain(t, s)
	if err := reqs[0].Wait(ctx(t)); err != nil {
		t.Errorf("the one that ran: %v", err)
	}
	for _, req := range reqs[1:] {
		if err := req.Wait(ctx(t)); !errors.Is(err, base.ErrClosed) {
			t.Errorf("one that did not run: %v", err)
		}
	}
	if _, err := o.Join(s); !errors.Is(err, base.ErrClosed) {
		t.Errorf("join after close: %v", err)
	}
}

// TestStreamRefusals: captures, limits and bad pieces are refused and leave
// nothing behind.
func TestStreamRefusals(t *testing.T) {
	var capture atomic.Bool
	r := newRig(t, host.Options{Faults: host.Faults{Capturing: func(uintptr) bool { return capture.Load() }}}, xfer.Options{})
	o := r.newOrder(xfer.OrderOptions{Streams: 1, Queue: 2})
	s := r.stream()
	q := r.join(o, s)
	if _, err := o.Join(s); !errors.Is(err, base.ErrNoSpace) {
		t.Errorf("a stream too many: %v", err)
	}
	e := xfer.Reader(bytes.NewReader(make([]byte, 100)))
	capture.Store(true)
	if _, err := q.ReadAsync(ctx(t), e, 0, r.mem.Ptr(), 1); !errors.Is(err, base.ErrNotSupported) {
		t.Errorf("while captured: %v", err)
	}
	capture.Store(false)
	for name, c := range map[string]struct {
		p    []xfer.Piece
		want error
	}{
		"no pieces":     {nil, base.ErrInvalid},
		"too many":      {make([]xfer.Piece, xfer.MaxPieces+1), base.ErrInvalid},
		"empty piece":   {make([]xfer.Piece, 1), base.ErrInvalid},
		"host memory":   {[]xfer.Piece{{End: e, Ptr: 4096, Span: xfer.Span{N: 1}}}, base.ErrInvalid},
		"past the end":  {[]xfer.Piece{{End: e, Ptr: r.mem.Ptr(), Span: xfer.Span{N: 1}}, {End: e, Ptr: r.mem.Ptr(), Span: xfer.Span{N: 2, At: rigBytes - 1}}}, base.ErrOutOfRange},
		"negative size": {[]xfer.Piece{{End: e, Ptr: r.mem.Ptr(), Span: xfer.Span{N: -1}}}, base.ErrInvalid},
	} {
		if _, err := q.Submit(ctx(t), c.p...); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	g := newGate(bytes.NewReader(make([]byte, 100)))
	var reqs []*xfer.Request
	for range 4 { // one runs, two wait
		req, err := q.ReadAsync(ctx(t), xfer.Reader(g), 0, r.mem.Ptr(), 1)
		if err != nil {
			if !errors.Is(err, base.ErrBusy) || len(reqs) < 2 {
				t.Fatalf("request %d: %v", len(reqs), err)
			}
			break
		}
		reqs = append(reqs, req)
		for end := time.Now().Add(time.Minute); g.waiting.Load() == 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}
	if len(reqs) != 3 {
		t.Errorf("%d requests were taken; one runs and two may wait", len(reqs))
	}
	if err := reqs[2].Wait(stopped()); !errors.Is(err, base.ErrTimeout) {
		t.Errorf("wait with an ended context: %v", err)
	}
	if _, err := reqs[2].Result(0); !errors.Is(err, base.ErrBusy) {
		t.Errorf("result too early: %v", err)
	}
	close(g.open)
	for _, req := range reqs {
		if err := req.Wait(ctx(t)); err != nil {
			t.Error(err)
		}
	}
	drain(t, s)
	if err := errors.Join(q.Close(), q.Close()); err != nil {
		t.Error(err)
	}
	for _, bad := range []xfer.OrderOptions{{Streams: xfer.MaxStreams + 1}, {Queue: xfer.MaxQueue + 1}, {Spin: -1}, {Streams: -1}} {
		if _, err := r.m.NewOrder(ctx(t), bad); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func stopped() context.Context {
	c, cancel := context.WithCancel(context.Background())
	cancel()
	return c
}

// TestStreamBroken: a stream that fails before its request answers nothing by
// itself; Close answers for it, and frees the memory that the GPU cannot use again.
func TestStreamBroken(t *testing.T) {
	bad := errors.New("illegal address")
	var fail atomic.Bool
	b, err := host.Open(host.Options{Faults: host.Faults{Run: func(gpu.Copy) error {
		if fail.Load() {
			return bad
		}
		return nil
	}}})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, b: b, d: b.Devices()[0], tab: gpu.NewTable(b, gpu.TableOptions{})}
	if r.mem, err = r.d.Alloc(4096); err != nil {
		t.Fatal(err)
	}
	if r.m, err = xfer.New(b, r.d, nil, xfer.Options{Lanes: 2}); err != nil {
		t.Fatal(err)
	}
	o, err := r.m.NewOrder(ctx(t), xfer.OrderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := r.stream()
	q := r.join(o, s)
	h, err := r.d.AllocHost(4096)
	if err != nil {
		t.Fatal(err)
	}
	fail.Store(true)
	open := make(chan struct{})
	if err := s.Call(func() { <-open }); err != nil {
		t.Fatal(err)
	}
	if err := s.Copy(gpu.Copy{Dev: r.mem.Ptr(), Host: h.Bytes()}); err != nil {
		t.Fatal(err)
	}
	req, err := q.ReadAsync(ctx(t), xfer.Reader(bytes.NewReader(make([]byte, 100))), 0, r.mem.Ptr(), 100)
	must(t, req, err)
	close(open)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err := s.Tick(); err != nil {
			break
		}
	}
	if err := o.Close(ctx(t)); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := req.Wait(ctx(t)); !errors.Is(err, base.ErrClosed) {
		t.Errorf("wait: %v", err)
	}
	if err := errors.Join(r.m.Close(ctx(t)), r.mem.Close(), h.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}

// TestStreamFileTruncated: the file of a queued request changes before the
// stream comes to it: the answer is what is there then.
func TestStreamFileTruncated(t *testing.T) {
	r := newRig(t, host.Options{}, xfer.Options{})
	s := r.stream()
	q := r.join(r.newOrder(xfer.OrderOptions{}), s)
	f := tempFile(t, noise(t, 1000))
	open := make(chan struct{})
	if err := s.Call(func() { <-open }); err != nil {
		t.Fatal(err)
	}
	req, err := q.ReadAsync(ctx(t), xfer.File(f), 0, r.mem.Ptr(), 1000)
	must(t, req, err)
	if err := os.Truncate(f.Name(), 300); err != nil {
		t.Fatal(err)
	}
	close(open)
	if err := req.Wait(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if n, err := req.Result(0); n != 300 || !errors.Is(err, io.EOF) {
		t.Fatalf("%d, %v", n, err)
	}
}
