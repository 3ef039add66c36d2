package xfer_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/testenv"
)

// realGPU makes the tests on a GPU run; they need one and its driver.
var realGPU = flag.Bool("gpu", false, "run the tests that need an NVIDIA GPU")

func TestMain(m *testing.M) {
	flag.Parse()
	if *realGPU {
		os.Exit(m.Run()) // the driver keeps descriptors and threads for ever
	}
	testenv.Main(m)
}

// rig is a mover over a host device with some memory.
type rig struct {
	t   *testing.T
	b   *host.Backend
	d   gpu.Device
	tab *gpu.Table
	m   *xfer.Mover
	mem gpu.Memory
}

const rigBytes = 8 << 20

func ctx(t *testing.T) context.Context {
	t.Helper()
	c, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return c
}

func newRig(t *testing.T, h host.Options, o xfer.Options) *rig {
	t.Helper()
	b, err := host.Open(h)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, b: b, d: b.Devices()[0], tab: gpu.NewTable(b, gpu.TableOptions{})}
	if r.mem, err = r.d.Alloc(rigBytes); err != nil {
		t.Fatal(err)
	}
	if r.m, err = xfer.New(b, r.d, r.tab, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(r.m.Close(c), r.mem.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// peek reads GPU memory by a stream of its own.
func (r *rig) peek(p gpu.Ptr, n int64) []byte { return r.direct(p, make([]byte, n), true) }

// poke writes GPU memory.
func (r *rig) poke(p gpu.Ptr, b []byte) { r.direct(p, b, false) }

func (r *rig) direct(p gpu.Ptr, b []byte, toHost bool) []byte {
	r.t.Helper()
	if len(b) == 0 {
		return b
	}
	h, err := r.d.AllocHost(int64(len(b)))
	if err != nil {
		r.t.Fatal(err)
	}
	defer h.Close()
	s, err := r.d.NewStream()
	if err != nil {
		r.t.Fatal(err)
	}
	defer s.Close()
	copy(h.Bytes(), b)
	if err := s.Copy(gpu.Copy{Dev: p, Host: h.Bytes(), ToHost: toHost}); err != nil {
		r.t.Fatal(err)
	}
	n, err := s.Tick()
	if err == nil {
		err = s.WaitTick(ctx(r.t), n)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	copy(b, h.Bytes())
	return b
}

func noise(t *testing.T, n int64) []byte {
	rng := testenv.Seed(t)
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func tempFile(t *testing.T, data []byte) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "data")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	return f
}

func newDevice(t *testing.T, data []byte) *file.Device {
	t.Helper()
	path := filepath.Join(t.TempDir(), "device")
	if err := file.Create(path, 64<<20, true); err != nil {
		t.Fatal(err)
	}
	d, err := file.Open(ctx(t), file.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close(ctx(t)) })
	reg, err := driver.AllocRegion(int64(len(data)), "xfer test")
	if err != nil {
		t.Fatal(err)
	}
	defer reg.Close()
	copy(reg.CPU(), data)
	if err := driver.Do(ctx(t), d, driver.Request{Op: driver.OpWrite, Len: reg.Size(), Segs: []driver.Seg{reg.Seg(0, reg.Size())}}); err != nil {
		t.Fatal(err)
	}
	return d
}

// endpoints gives the three kinds over the same bytes, and how to read them.
func endpoints(t *testing.T, r *rig, data []byte) map[string]xfer.Endpoint {
	t.Helper()
	e, err := xfer.Extent(newDevice(t, data), 0, int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	h, err := r.d.AllocHost(int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	copy(h.Bytes(), data)
	whole, err := file.OpenFile(tempFile(t, data).Name(), file.FileOptions{Access: file.ForBoth})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { whole.Close() })
	return map[string]xfer.Endpoint{"file": xfer.File(tempFile(t, data)), "device": e, "pinned": xfer.Pinned(h),
		"any file": xfer.File(whole)}
}
