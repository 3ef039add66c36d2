//go:build !nogpu

package xfer_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/cuda"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/testenv"
)

// realRig is a rig on the first GPU, with an order; nil, with a printed line,
// when the tests were not asked to use one.
func realRig(t *testing.T, o xfer.Options) (*rig, *xfer.Order) {
	t.Helper()
	if !*realGPU {
		fmt.Printf("%s: not run, it needs a GPU and the flag -gpu\n", t.Name())
		return nil, nil
	}
	b, err := cuda.Open(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, d: b.Devices()[0], tab: gpu.NewTable(b, gpu.TableOptions{})}
	if r.mem, err = r.d.Alloc(realBytes); err != nil {
		t.Fatal(err)
	}
	if r.m, err = xfer.New(b, r.d, r.tab, o); err != nil {
		t.Fatal(err)
	}
	ord, err := r.m.NewOrder(ctx(t), xfer.OrderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(ord.Close(c), r.m.Close(c), r.mem.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	return r, ord
}

const realBytes = 512 << 20

// realStreams makes streams before any waits, and joins them.
func realStreams(t *testing.T, r *rig, o *xfer.Order, n int) ([]gpu.Stream, []*xfer.Ordered) {
	t.Helper()
	var all []gpu.Stream
	var joined []*xfer.Ordered
	for range n {
		all = append(all, r.stream())
		joined = append(joined, r.join(o, all[len(all)-1]))
	}
	return all, joined
}

// TestRealStreamOrder: kernel, write, clear, read, kernel on one stream, with no
// wait by the processor between; on a stream of ours and on the default one.
func TestRealStreamOrder(t *testing.T) {
	r, o := realRig(t, xfer.Options{ChunkBytes: 256 << 10, Lanes: 8})
	if r == nil {
		return
	}
	f := xfer.File(tempFile(t, nil))
	rng := testenv.Seed(t)
	const part = 8 << 20
	want := noise(t, part)
	src, work, zero, back := r.mem.Ptr(), r.mem.Ptr()+part, r.mem.Ptr()+2*part, r.mem.Ptr()+3*part
	r.poke(src, want)
	r.poke(zero, make([]byte, part))
	tables, err := r.d.AllocHost(4096)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tables.Close() })
	def, err := r.d.WrapStream(0)
	if err != nil {
		t.Fatal(err)
	}
	defer def.Close()
	for _, s := range []gpu.Stream{r.stream(), def} {
		q := r.join(o, s)
		for i := range 100 {
			n, at := 1+rng.Int64N(part/2), gpu.Ptr(rng.Int64N(4096))
			moves := []gpu.Move{{Src: src, Dst: work + at, N: n}, {Src: zero, Dst: work + at, N: n}, {Src: work + at, Dst: back, N: n}}
			for k, m := range moves {
				gpu.PutMove(tables.Bytes()[k*32:], 0, m)
			}
			kernel := func(k int) {
				if err := s.Move(tables.Ptr()+gpu.Ptr(k*32), 1); err != nil {
					t.Fatal(err)
				}
			}
			kernel(0)
			w, err := q.WriteAsync(ctx(t), f, 13, work+at, n)
			must(t, w, err)
			kernel(1)
			rd, err := q.ReadAsync(ctx(t), f, 13, work+at, n)
			must(t, rd, err)
			kernel(2)
			drain(t, s)
			if err := errors.Join(w.Wait(ctx(t)), rd.Wait(ctx(t))); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(r.peek(back, n), want[:n]) {
				t.Fatalf("round %d: other bytes", i)
			}
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRealLateCells: sizes and offsets that the stream itself computes.
func TestRealLateCells(t *testing.T) {
	if r, o := realRig(t, xfer.Options{}); r != nil {
		lateCells(t, r, o)
	}
}

// TestRealManyStreams: 512 streams wait at once, each with a group of pieces,
// while other threads register, unregister, allocate, free, and use the checksum
// for the first time; all end.
func TestRealManyStreams(t *testing.T) {
	r, o := realRig(t, xfer.Options{ChunkBytes: 256 << 10, Lanes: 8})
	if r == nil {
		return
	}
	const streams, pieces, size = 512, 16, 16 << 10
	data := noise(t, streams*pieces*size)
	f := tempFile(t, data)
	const sumBytes = 1 << 20
	other := r.mem.Ptr() + realBytes - sumBytes
	r.poke(other, data[:sumBytes])
	all, joined := realStreams(t, r, o, streams)
	g := newGate(f)
	var reqs []*xfer.Request
	for i, q := range joined {
		var list []xfer.Piece
		for k := range pieces {
			off := int64((i*pieces + k) * size)
			p := xfer.Piece{End: xfer.Reader(g), Ptr: r.mem.Ptr(), Span: xfer.Span{Off: off, N: size, At: off}}
			list = append(list, p)
		}
		req, err := q.Submit(ctx(t), list...)
		reqs = append(reqs, must(t, req, err))
	}
	var stop atomic.Bool
	var rounds atomic.Int64
	var wg sync.WaitGroup
	for range 4 { // these may hang until the streams went on, and must end then
		wg.Go(func() {
			for !stop.Load() {
				m, err := r.d.Alloc(1 << 20)
				if err != nil {
					t.Error(err)
					return
				}
				reg, err := r.tab.Register(m.Ptr(), m.Size())
				if err == nil {
					err = reg.Close()
				}
				if err = errors.Join(err, m.Close()); err != nil {
					t.Error(err)
					return
				}
				rounds.Add(1)
			}
		})
	}
	sums := make([]gpu.SumItem, 4)
	for k := range sums { // each the first time for its thread; these may hang as well
		wg.Go(func() {
			s, err := gpu.NewSummer(r.d)
			if err != nil {
				t.Error(err)
				return
			}
			sums[k] = gpu.SumItem{Ptr: other + gpu.Ptr(k), N: sumBytes - int64(k)}
			if err := errors.Join(s.Sum(ctx(t), sums[k:k+1]), s.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(300 * time.Millisecond) // the others are at it while every stream waits
	began := time.Now()
	close(g.open)
	for i, req := range reqs {
		if err := req.Wait(ctx(t)); err != nil {
			t.Fatal(i, err)
		}
	}
	for _, s := range all {
		drain(t, s)
	}
	took := time.Since(began)
	stop.Store(true)
	wg.Wait()
	if !bytes.Equal(r.peek(r.mem.Ptr(), int64(len(data))), data) {
		t.Error("other bytes")
	}
	for k, it := range sums {
		if want := crc32.Checksum(data[k:sumBytes], crc32.MakeTable(crc32.Castagnoli)); it.CRC != want {
			t.Errorf("checksum %d: %08x, want %08x", k, it.CRC, want)
		}
	}
	fmt.Printf("%d streams waited with %d pieces each; all ended in %v, %d rounds of allocate, register, unregister, free meanwhile\n",
		streams, pieces, took, rounds.Load())
}

// TestRealGroupDepth measures 64 pieces in one stream against 64 streams with
// one piece each (field figure d): medians of alternating rounds.
func TestRealGroupDepth(t *testing.T) {
	r, o := realRig(t, xfer.Options{})
	if r == nil {
		return
	}
	const streams, size = 64, 4 << 20
	data := noise(t, streams*size)
	f := tempFile(t, data) // in the page cache
	all, joined := realStreams(t, r, o, streams)
	piece := func(i int) xfer.Piece {
		return xfer.Piece{End: xfer.File(f), Ptr: r.mem.Ptr(), Span: xfer.Span{Off: int64(i) * size, N: size, At: int64(i) * size}}
	}
	one := func() {
		var list []xfer.Piece
		for i := range streams {
			list = append(list, piece(i))
		}
		req, err := joined[0].Submit(ctx(t), list...)
		must(t, req, err)
		drain(t, all[0])
	}
	many := func() {
		for i, q := range joined {
			req, err := q.Submit(ctx(t), piece(i))
			must(t, req, err)
		}
		for _, s := range all {
			drain(t, s)
		}
	}
	var rates [2][]float64
	for range 9 {
		for k, fn := range []func(){one, many} {
			began := time.Now()
			fn()
			rates[k] = append(rates[k], float64(streams*size)/time.Since(began).Seconds()/(1<<30))
		}
	}
	if !bytes.Equal(r.peek(r.mem.Ptr(), int64(len(data))), data) {
		t.Error("other bytes")
	}
	for k := range rates {
		slices.Sort(rates[k])
	}
	a, b := rates[0][4], rates[1][4]
	fmt.Printf("64 pieces of 4 MiB from the page cache: one stream %.1f GiB/s, 64 streams %.1f GiB/s, ratio %.2f\n", a, b, a/b)
}

const realRole = "UGDS_XFER_TEST_ROLE"

// TestRealOrderChild is the process that TestRealOrderKill kills.
func TestRealOrderChild(t *testing.T) {
	if os.Getenv(realRole) == "" {
		return
	}
	r, o := realRig(t, xfer.Options{})
	_, joined := realStreams(t, r, o, 512)
	g := newGate(bytes.NewReader(make([]byte, 4096)))
	for _, q := range joined {
		req, err := q.ReadAsync(ctx(t), xfer.Reader(g), 0, r.mem.Ptr(), 4096)
		must(t, req, err)
	}
	fmt.Println("waiting")
	time.Sleep(time.Minute)
}

// TestRealOrderKill: a process that is killed while 512 of its streams wait for
// requests leaves the GPU usable within 10 s.
func TestRealOrderKill(t *testing.T) {
	if !*realGPU {
		fmt.Printf("%s: not run, it needs a GPU and the flag -gpu\n", t.Name())
		return
	}
	c := exec.Command(os.Args[0], "-gpu", "-test.run", "^TestRealOrderChild$")
	c.Env = append(os.Environ(), realRole+"=wait")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "waiting"; {
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	c.Wait()
	r, o := realRig(t, xfer.Options{})
	s := r.stream()
	q := r.join(o, s)
	want := noise(t, 1<<20)
	req, err := q.ReadAsync(ctx(t), xfer.Reader(bytes.NewReader(want)), 0, r.mem.Ptr(), int64(len(want)))
	if err := errors.Join(err, must(t, req, err).Wait(ctx(t))); err != nil {
		t.Fatal(err)
	}
	drain(t, s)
	if took := time.Since(killed); took > 10*time.Second {
		t.Errorf("usable after %v", took)
	} else {
		fmt.Printf("killed with 512 waiting streams: usable by another process after %v\n", took)
	}
	if !bytes.Equal(r.peek(r.mem.Ptr(), int64(len(want))), want) {
		t.Error("other bytes")
	}
}
