//go:build !nogpu

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
	"github.com/ugds-store/ugds/internal/testenv"
)

// TestRealD04: managed memory is called that wherever its page is just now, is never
// exported, and is staged with the right bytes.
func TestRealD04(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	const n = 1 << 20
	x := newExtra(t, b)
	m, h, s := use(t, d, n)
	f := dl.NewFrame()
	defer f.Done()
	at := f.Word(0)
	x.must(xAllocManaged, at.Addr, n, 1)
	p := gpu.Ptr(at.Uint64())
	defer b.do("free", "managed", cuMemFree, uintptr(p))
	view := dl.Memory(uintptr(p), n)
	tab := gpu.NewTable(b, gpu.TableOptions{Export: true})
	for i, touch := range []func() error{
		func() error { return nil },
		func() error { view[0], view[n-1] = 1, 2; return nil }, // the processor has the pages
		func() error { // the GPU has them
			gpu.PutMove(h.Bytes(), 0, gpu.Move{Src: m.Ptr(), Dst: p, N: n})
			return errors.Join(s.Move(h.Ptr(), 1), finish(t, s))
		},
		func() error { view[7] = 3; return nil },
	} {
		if err := touch(); err != nil {
			t.Fatal(err)
		}
		a, err := b.Attributes(p + 5)
		again, _ := b.Attributes(p + 5)
		if err != nil || a.Kind != gpu.KindManaged || a.Exportable || a != again {
			t.Errorf("touch %d: %+v, then %+v, %v", i, a, again, err)
		}
		r, err := tab.Register(p, n)
		if err != nil {
			t.Fatal(err)
		}
		if fd, why := r.Direct(); fd >= 0 || why != gpu.ReasonManaged {
			t.Errorf("touch %d: %d, %q", i, fd, why)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := d.Export(p, 4096); !errors.Is(err, base.ErrNotSupported) {
		t.Errorf("export: %v", err)
	}
	roundTrip(t, s, h, p, n)
}

// roundTrip copies to memory and back.
func roundTrip(t *testing.T, s gpu.Stream, h gpu.HostMemory, p gpu.Ptr, n int) {
	t.Helper()
	rng := testenv.Seed(t)
	want := make([]byte, n)
	for i := range want {
		want[i] = byte(rng.Uint32())
	}
	b := h.Bytes()[:n]
	copy(b, want)
	if err := errors.Join(s.Copy(gpu.Copy{Dev: p, Host: b}), finish(t, s)); err != nil {
		t.Fatal(err)
	}
	clear(b)
	if err := errors.Join(s.Copy(gpu.Copy{Dev: p, Host: b, ToHost: true}), finish(t, s)); err != nil || !bytes.Equal(b, want) {
		t.Fatalf("%v, or other bytes", err)
	}
}

// TestRealD03: virtual mappings with and without the RDMA property, and over seams,
// give the bytes that were put there, whatever registering them says.
func TestRealD03(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	x := newExtra(t, b)
	_, h, s := use(t, d, 3*vmmPiece)
	for _, c := range []struct {
		pieces int
		rdma   byte
	}{{1, 1}, {1, 0}, {3, 1}, {3, 0}} {
		p, free := x.span(c.pieces, c.rdma)
		roundTrip(t, s, h, p, c.pieces*vmmPiece)
		free()
	}
}

// TestRealD07: a program that is started gets neither the descriptors of exports nor
// the pinned memory, and the parent goes on.
func TestRealD07(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	m, h, s := use(t, d, 1<<20)
	r, err := gpu.NewTable(b, gpu.TableOptions{Export: true}).Register(m.Ptr(), m.Size())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if fd, why := r.Direct(); fd < 0 {
		t.Fatal(why)
	}
	out, err := child(t, "descriptors").Output()
	if err != nil || !strings.Contains(string(out), "descriptors:") || strings.Contains(string(out), "dmabuf") || strings.Contains(string(out), "dma-buf") {
		t.Errorf("%v: %s", err, out)
	}
	roundTrip(t, s, h, m.Ptr(), 1<<20)
}

// descriptors lists where the descriptors of this process lead.
func descriptors() string {
	var all []string
	names, _ := os.ReadDir("/proc/self/fd")
	for _, n := range names {
		to, _ := os.Readlink("/proc/self/fd/" + n.Name())
		all = append(all, to)
	}
	return strings.Join(all, " ")
}

// TestRealD09: 64 goroutines register, move bytes and unregister in ranges of their own,
// and nothing fails or is staged unasked.
func TestRealD09(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	const each = 256 << 10
	m, h, _ := use(t, d, 64*each)
	tab := gpu.NewTable(b, gpu.TableOptions{Export: true})
	var rounds atomic.Int64
	var wg sync.WaitGroup
	seed := testenv.Seed(t).Uint64()
	end := time.Now().Add(3 * time.Second)
	for g := range 64 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(g)))
			s, err := d.NewStream()
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			for time.Now().Before(end) && !t.Failed() {
				from := rng.Int64N(each/4096) * 4096
				n := 4096 * (1 + rng.Int64N((each-from)/4096))
				at := int64(g)*each + from
				r, err := tab.Register(m.Ptr()+gpu.Ptr(at), n)
				if err != nil {
					t.Error(err)
					return
				}
				if _, why := r.Direct(); why != "" {
					t.Errorf("not exported: %s", why)
				}
				host := h.Bytes()[at : at+n]
				v := byte(rng.Uint32())
				host[0], host[n-1] = v, v+1
				err = errors.Join(s.Copy(gpu.Copy{Dev: r.Ptr(), Host: host}), finish(t, s))
				host[0], host[n-1] = 0, 0
				err = errors.Join(err, s.Copy(gpu.Copy{Dev: r.Ptr(), Host: host, ToHost: true}), finish(t, s), r.Check(), r.Close())
				if err != nil || host[0] != v || host[n-1] != v+1 {
					t.Errorf("%v, or other bytes", err)
				}
				rounds.Add(1)
			}
		})
	}
	wg.Wait()
	fmt.Printf("64 goroutines: %d rounds of register, export, copy both ways, unregister\n", rounds.Load())
}

// TestRealF09: functions that streams call, far more than there are places for
// callbacks.
func TestRealF09(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	_, _, s := use(t, d, 4096)
	const calls = 100_000
	var ran atomic.Int64
	for i := range calls {
		if err := s.Call(func() { ran.Add(1) }); err != nil {
			t.Fatal(err)
		}
		if i%1000 == 999 {
			if err := finish(t, s); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := ran.Load(); n != calls {
		t.Errorf("%d of %d ran", n, calls)
	}
}
