package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// shop is a store in a folder, whose values lie on the GPU.
type shop struct {
	*store.Store
	r   *rig
	n   *store.Namespace
	dev *file.Device
	dir string
	own int64 // bytes that the device wrote before the store counted
}

// shopBytes is the size of its device: the largest value is a quarter of it.
func (r *rig) shopBytes() int64 { return 2**size + 256*base.MiB }

// newShop makes and opens a store.
func (r *rig) newShop(o store.Options) (s *shop, err error) {
	s = &shop{r: r, dir: filepath.Join(*dir, "gpucheck.store")}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := errors.Join(os.RemoveAll(s.dir), os.MkdirAll(s.dir, 0o700)); err != nil {
		return s, err
	}
	path := filepath.Join(s.dir, "data")
	if err := file.Create(path, r.shopBytes(), false); err != nil {
		return s, err
	}
	if s.dev, err = file.Open(ctx, file.Options{Path: path}); err != nil {
		return s, err
	}
	o.Devices, o.Meta = []driver.Device{s.dev}, meta.Options{Dir: filepath.Join(s.dir, "meta")}
	o.GPU.Backend = r.b
	o.GPU.Table = gpu.NewTable(r.b, gpu.TableOptions{Export: true})
	if _, err := store.Format(ctx, store.FormatOptions{Devices: o.Devices, Meta: o.Meta}); err != nil {
		return s, err
	}
	before := s.dev.Stats()
	if s.Store, err = store.Open(ctx, o); err != nil {
		return s, err
	}
	s.own = before.WriteBytes
	s.n, err = s.Namespace(ctx, "gpucheck", store.NamespaceOptions{Create: true})
	return s, err
}

func (s *shop) close() error {
	c, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var errs []error
	if s.Store != nil {
		errs = append(errs, s.Store.Close(c))
	}
	if s.dev != nil {
		errs = append(errs, s.dev.Close(c))
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

func (s *shop) put(key string, p gpu.Ptr, n int64) error {
	return s.n.Put(ctx, []byte(key), store.OnGPU(p, n), store.PutOptions{Replace: true})
}

func (s *shop) get(key string, p gpu.Ptr, n int64) error {
	got, err := s.n.Get(ctx, []byte(key), store.OnGPU(p, n), store.GetOptions{})
	if err == nil && got != n {
		err = fmt.Errorf("%d of %d bytes", got, n)
	}
	return err
}

// store: values between the store and the GPU, the rules of registered memory, and
// how fast.
func (r *rig) store() (err error) {
	s, err := r.newShop(store.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, step := range []func(*shop) error{(*shop).roundTrips, (*shop).held, (*shop).replaced, (*shop).strict, (*shop).batches, (*shop).gather, (*shop).equal} {
		if err := step(s); err != nil {
			return err
		}
	}
	for _, g := range s.Stats().GPUs {
		for _, p := range g.Paths {
			fmt.Printf("  gpu %d: %d bytes %v, to the device %v: %s\n", g.Index, p.Bytes, p.Path, p.Write, p.Reason)
		}
	}
	return nil
}

// roundTrips puts and gets values of all sizes at odd places, with guards.
func (s *shop) roundTrips() error {
	r, rng := s.r, rand.New(rand.NewPCG(5, 6))
	sizes := []int64{1, 511, 512, 4095, 4096, 4097, 65535, 1<<20 - 1, 1 << 20, 1<<20 + 1, 7<<20 + 13, 64<<20 + 1, *size / 2}
	for i, n := range sizes {
		if n > *size/2 {
			continue
		}
		off := rng.Int64N(*size - n + 1)
		at := rng.Int64N(min(4096, *size-n+1)) + 64
		if _, err := r.upload(r.mem.Ptr()+gpu.Ptr(at), r.ref[off:off+n]); err != nil {
			return err
		}
		key := fmt.Sprint("v", i)
		if err := s.put(key, r.mem.Ptr()+gpu.Ptr(at), n); err != nil {
			return fmt.Errorf("put %d: %w", n, err)
		}
		guard := bytes.Repeat([]byte{0xee}, 64)
		for _, p := range []int64{at - 64, at + n} {
			if _, err := r.upload(r.mem.Ptr()+gpu.Ptr(p), guard); err != nil {
				return err
			}
		}
		if _, err := r.upload(r.mem.Ptr()+gpu.Ptr(at), make([]byte, min(n, 1<<20))); err != nil {
			return err
		}
		if err := s.get(key, r.mem.Ptr()+gpu.Ptr(at), n); err != nil {
			return fmt.Errorf("get %d: %w", n, err)
		}
		want := append(append(bytes.Clone(guard), r.ref[off:off+n]...), guard...)
		if err := r.check(r.mem.Ptr()+gpu.Ptr(at-64), want, fmt.Sprintf("value of %d bytes", n)); err != nil {
			return err
		}
		if n > 1<<24 {
			if err := s.n.Delete(ctx, []byte(key), store.DeleteOptions{}); err != nil {
				return err
			}
		}
	}
	fmt.Printf("  %d sizes from 1 byte to %s, put, read back and compared, guards included\n", len(sizes), base.FormatBytes(*size/2))
	return nil
}

// upload copies bytes to the GPU by a stream of its own.
func (r *rig) upload(p gpu.Ptr, b []byte) (int, error) {
	s, err := r.d.NewStream()
	if err != nil {
		return 0, err
	}
	defer s.Close()
	for at := 0; at < len(b); {
		n := copy(r.h.Bytes(), b[at:])
		if err := errors.Join(s.Copy(gpu.Copy{Dev: p + gpu.Ptr(at), Host: r.h.Bytes()[:n]}), finish(s)); err != nil {
			return at, err
		}
		at += n
	}
	return len(b), nil
}

// held: registered memory cannot be unregistered while a get uses it.
func (s *shop) held() error {
	n := min(256*base.MiB, *size/2)
	reg, err := s.RegisterGPU(s.r.mem.Ptr(), n)
	if err != nil {
		return err
	}
	if err := s.put("held", s.r.mem.Ptr(), n); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- s.get("held", s.r.mem.Ptr(), n) }()
	for end := time.Now().Add(10 * time.Second); reg.InFlight() == 0 && time.Now().Before(end); {
		time.Sleep(100 * time.Microsecond)
	}
	busy := reg.Close()
	if err := <-done; err != nil {
		return err
	}
	if !errors.Is(busy, store.ErrBusy) {
		return fmt.Errorf("unregistered while in flight: %v", busy)
	}
	_, why := reg.Direct()
	fmt.Printf("  unregistering while a get is under way: busy; export: %q\n", why)
	return reg.Close()
}

// replaced: registered memory that was freed and allocated again at the same place is
// noticed.
func (s *shop) replaced() error {
	if err := s.put("small", s.r.mem.Ptr(), 1<<20); err != nil {
		return err
	}
	same := 0
	for range 20 {
		m, err := s.r.d.Alloc(4 << 20)
		if err != nil {
			return err
		}
		p := m.Ptr()
		reg, err := s.RegisterGPU(p, 4<<20)
		if err != nil {
			return err
		}
		if err := m.Close(); err != nil {
			return err
		}
		if m, err = s.r.d.Alloc(4 << 20); err != nil {
			return err
		}
		err = s.get("small", p, 1<<20)
		if m.Ptr() == p {
			same++
		}
		if !errors.Is(err, store.ErrMismatch) {
			return fmt.Errorf("freed and allocated again (the same address: %v): %v", m.Ptr() == p, err)
		}
		if err := errors.Join(reg.Close(), m.Close()); err != nil {
			return err
		}
	}
	fmt.Printf("  freed and allocated again: noticed in 20 of 20, with the same address in %d\n", same)
	return nil
}

// strict: no direct path, and the reason is told.
func (s *shop) strict() error {
	m, err := xfer.New(s.r.b, s.r.d, nil, xfer.Options{Strict: true})
	if err != nil {
		return err
	}
	defer m.Close(ctx)
	e, err := xfer.Extent(s.dev, 0, 1<<20)
	if err != nil {
		return err
	}
	_, err = m.Read(ctx, e, 0, s.r.mem.Ptr(), 4096)
	if !errors.Is(err, base.ErrNotSupported) {
		return fmt.Errorf("strict: %v", err)
	}
	fmt.Println("  strict:", err)
	return nil
}

// batches: 1,024 values of 4 KiB to scattered places in one call, and one by one.
func (s *shop) batches() error {
	const n, each = 1024, 4096
	puts, gets := make([]store.PutItem, n), make([]store.GetItem, n)
	place := func(i int) gpu.Ptr { return s.r.mem.Ptr() + gpu.Ptr(i*7919%n*65536+i%4*16) }
	for i := range n {
		if _, err := s.r.upload(place(i), s.r.ref[i*each:(i+1)*each]); err != nil {
			return err
		}
		key := []byte(fmt.Sprint("b", i))
		puts[i] = store.PutItem{Key: key, Value: store.OnGPU(place(i), each), PutOptions: store.PutOptions{Durability: store.Relaxed, Replace: true}}
		gets[i] = store.GetItem{Key: key, Dst: store.OnGPU(place(i), each)}
	}
	put, err := median(3, func() error {
		s.n.PutBatch(ctx, puts)
		for i := range puts {
			if puts[i].Err != nil {
				return puts[i].Err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	get, err := median(9, func() error {
		s.n.GetBatch(ctx, gets)
		for i := range gets {
			if gets[i].Err != nil {
				return gets[i].Err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	one, err := median(3, func() error {
		for i := range gets {
			if err := s.get(string(gets[i].Key), place(i), each); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range n {
		if i%64 == 0 {
			if err := s.r.check(place(i), s.r.ref[i*each:(i+1)*each], "batch"); err != nil {
				return err
			}
		}
	}
	fmt.Printf("  1,024 values of 4 KiB: put relaxed %v, get in one call %v, one by one %v (%.1f times)\n", put, get, one, float64(one)/float64(get))
	return nil
}

// equal compares what the device and the mover counted (I10).
func (s *shop) equal() error {
	if err := s.Flush(ctx); err != nil {
		return err
	}
	var moved, counted [2]int64
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		st := s.Stats()
		moved, counted = [2]int64{}, [2]int64{st.Devices[0].WriteBytes - s.own, 0}
		for _, p := range st.Paths {
			if p.Write {
				moved[0] += p.Bytes
			}
		}
		if moved[0] == counted[0] {
			fmt.Printf("  device and mover counted the same: %d bytes written\n", moved[0])
			return nil
		}
	}
	return fmt.Errorf("the mover counted %d bytes written, the device %d", moved[0], counted[0])
}

// gather: 10,000 ranges of many objects into one GPU buffer, in one call and one by one.
func (s *shop) gather() error {
	const objects, each, n = 500, 64 << 10, 10_000
	rng := rand.New(rand.NewPCG(11, 12))
	puts := make([]store.PutItem, objects)
	for i := range puts {
		puts[i] = store.PutItem{Key: []byte(fmt.Sprint("g", i)), Value: store.Bytes(s.r.ref[i*each : (i+1)*each]),
			PutOptions: store.PutOptions{Durability: store.Relaxed, Replace: true}}
	}
	s.n.PutBatch(ctx, puts)
	gets := make([]store.GetItem, n)
	var at int64
	var want []byte
	for i := range gets {
		if i < objects && puts[i].Err != nil {
			return puts[i].Err
		}
		k, size := rng.IntN(objects), 512+rng.Int64N(3585)
		off := rng.Int64N(each - size)
		gets[i] = store.GetItem{Key: puts[k].Key, Dst: store.OnGPU(s.r.mem.Ptr()+gpu.Ptr(at), size),
			GetOptions: store.GetOptions{Off: off, Len: size, NoVerify: true}}
		want = append(want, s.r.ref[int64(k*each)+off:int64(k*each)+off+size]...)
		at += size
	}
	all, err := median(5, func() error {
		s.n.GetBatch(ctx, gets)
		for i := range gets {
			if gets[i].Err != nil {
				return gets[i].Err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.r.check(s.r.mem.Ptr(), want, "gather"); err != nil {
		return err
	}
	one, err := median(1, func() error {
		for i := range gets {
			if _, err := s.n.Get(ctx, gets[i].Key, gets[i].Dst, gets[i].GetOptions); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Printf("  10,000 ranges of 512 B to 4 KiB of %d objects: one call %v, one call a range %v (%.1f times)\n", objects, all, one, float64(one)/float64(all))
	s.r.atLeast(10, float64(one)/float64(all), "(g) 10,000 small ranges of 500 objects, one call, times a call a range")
	return nil
}
