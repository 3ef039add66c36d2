//go:build ugds_lab

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// barGPU is a simulated GPU whose memory is that of the module that plays one: other
// devices reach it through dma-bufs of the kernel.
type barGPU struct {
	*host.Backend
	first []byte // the memory of the first allocation, as the GPU sees it
	lent  int    // the descriptor of its last export
}

func newBarGPU(t testing.TB) *barGPU {
	t.Helper()
	g := &barGPU{}
	next := int64(0)
	var err error
	g.Backend, err = host.Open(host.Options{Bytes: 16 * base.MiB, Memory: func(n int64) (host.Lent, error) {
		at := next
		next += base.AlignUp(n, gpu.PinPage)
		buf, view := gpuMemory(t, at, n, 0)
		_ = buf.Close() // the view stays
		if at == 0 {
			g.first = view
		}
		return host.Lent{Bytes: view, Free: func() {}, Export: func(off, n int64) (int, error) {
			fd := gpuBuf(t, at+off, n, 0)
			if at == 0 {
				g.lent = fd
			}
			return fd, nil
		}}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestKdrvStoreGPU: a store on a real controller driver, whose GPU exports its memory
// through the kernel. The pair passes its self-test; values of all sizes go between the
// two without a byte in host memory, but for partial last blocks; and when the exporter
// takes the memory back, gets have the right bytes or say that the device stopped.
func TestKdrvStoreGPU(t *testing.T) {
	expectFaults(t)
	const room = 4 * base.MiB
	d, _ := openCtrl(t, 0, ctrl.Options{Watch: 2 * time.Millisecond})
	g := newBarGPU(t)
	mem, err := g.Devices()[0].Alloc(room)
	if err != nil {
		t.Fatal(err)
	}
	o := store.Options{Devices: []driver.Device{d}, Meta: meta.Options{Dir: filepath.Join(t.TempDir(), "meta")}, StagingBytes: 8 * base.MiB,
		GPU: store.GPUOptions{Backend: g}}
	if _, err := store.Format(soon(t), store.FormatOptions{Devices: o.Devices, Meta: o.Meta, Overwrite: true}); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(soon(t), o)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := s.Namespace(soon(t), "lab", store.NamespaceOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	reg, err := s.RegisterGPU(mem.Ptr(), room)
	if err != nil {
		t.Fatal(err)
	}
	if p := s.Stats().Pairs; len(p) != 1 || !p[0].Direct {
		t.Fatalf("%+v", p)
	}
	view := g.first
	want := make([]byte, room/2)
	get := func(i int, n int64) error {
		clear(view[room/2:])
		k, err := ns.Get(soon(t), keyOf(i), store.OnGPU(mem.Ptr()+room/2, n), store.GetOptions{})
		if err == nil && (k != n || !bytes.Equal(view[room/2:room/2+n], want[:n])) {
			t.Fatalf("key %d: %d bytes of %d, or others", i, k, n)
		}
		return err
	}
	sizes := []int64{4096, 100, 8192 + 512, 70_000, base.MiB, base.MiB + 4096}
	for i, n := range sizes {
		pattern(want, byte(i+1))
		copy(view, want[:n])
		err := ns.Put(soon(t), keyOf(i), store.OnGPU(mem.Ptr(), n), store.PutOptions{})
		if err == nil {
			err = get(i, n)
		}
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	for _, p := range s.Stats().GPUs[0].Paths {
		if p.Path != driver.PathDirect && p.Path != driver.PathTail {
			t.Errorf("%d bytes %v, %s", p.Bytes, p.Path, p.Reason)
		}
	}
	gpuRevoke(t, unix.NewFD(g.lent, "the registration's"), true)
	stopped := 0
	for end := time.Now().Add(time.Minute); ; {
		err := get(len(sizes)-1, sizes[len(sizes)-1])
		if err == nil {
			break
		}
		if stopped++; !errors.Is(err, store.ErrIsolated) || time.Now().After(end) {
			t.Fatalf("after the memory was taken back: %v", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	reasons := map[string]bool{}
	for _, p := range s.Stats().Paths {
		reasons[fmt.Sprint(p.Path, " ", p.Reason)] = true
	}
	t.Logf("%d calls found the device stopped; %v", stopped, reasons)
	if err := errors.Join(reg.Close(), s.Close(soon(t)), mem.Close(), g.Close()); err != nil {
		t.Error(err)
	}
}
