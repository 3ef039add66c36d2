package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/store"
)

// soakSizes are the sizes of the part soak, in bytes.
var soakSizes = []int{1, 700, 4096, 5001, 65536, 1<<20 - 1, 1 << 20, 3<<20 + 5}

// soak puts, gets, replaces, registers and unregisters from 8 goroutines for the time
// of the flag: every byte is compared, and pinned memory must not grow.
func (r *rig) soak() (err error) {
	if *soak == 0 {
		fmt.Println("  not run: -soak says how long")
		return nil
	}
	s, err := r.newShop(store.Options{GPU: store.GPUOptions{WindowBytes: 64 << 20}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	var ops, moved atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, 8)
	end := time.Now().Add(*soak)
	before := pinnedNow()
	for g := range errs {
		wg.Go(func() { errs[g] = s.soakOne(g, end, &ops, &moved) })
	}
	wg.Wait()
	fmt.Printf("  8 goroutines x 8 sizes for %v: %d rounds, %s moved and compared, off-heap bytes %d at the start and %d at the end\n",
		*soak, ops.Load(), base.FormatBytes(moved.Load()), before, pinnedNow())
	return errors.Join(append(errs, s.equal())...)
}

func pinnedNow() (n int64) {
	for _, u := range dma.Usage() {
		n += u.Bytes
	}
	return n
}

func (s *shop) soakOne(g int, end time.Time, ops, moved *atomic.Int64) error {
	r := s.r
	mem, err := r.d.Alloc(8 << 20)
	if err != nil {
		return err
	}
	defer mem.Close()
	h, err := r.d.AllocHost(4 << 20)
	if err != nil {
		return err
	}
	defer h.Close()
	m, err := xfer.New(r.b, r.d, nil, xfer.Options{ChunkBytes: xfer.MinChunk, Lanes: 1})
	if err != nil {
		return err
	}
	defer m.Close(ctx)
	rng := rand.New(rand.NewPCG(9, uint64(g)))
	for i := 0; time.Now().Before(end); i++ {
		n := int64(soakSizes[rng.IntN(len(soakSizes))])
		off, at, to := rng.Int64N(*size-n), rng.Int64N(4096), int64(4<<20)+rng.Int64N(4096)
		copy(h.Bytes(), r.ref[off:off+n])
		if _, err := m.Read(ctx, xfer.Pinned(h), 0, mem.Ptr()+gpu.Ptr(at), n); err != nil {
			return err
		}
		var reg *gpu.Registration
		if i%3 == 0 {
			if reg, err = s.RegisterGPU(mem.Ptr(), 8<<20); err != nil {
				return err
			}
		}
		key := fmt.Sprint(g, " ", rng.IntN(20))
		o := store.PutOptions{Replace: true, Durability: store.Durability(i % 2)}
		if err := s.n.Put(ctx, []byte(key), store.OnGPU(mem.Ptr()+gpu.Ptr(at), n), o); err != nil {
			return err
		}
		for range 3 {
			if err := s.get(key, mem.Ptr()+gpu.Ptr(to), n); err != nil {
				return err
			}
			clear(h.Bytes()[:n])
			if _, err := m.Write(ctx, xfer.Pinned(h), 0, mem.Ptr()+gpu.Ptr(to), n); err != nil {
				return err
			}
			if !bytes.Equal(h.Bytes()[:n], r.ref[off:off+n]) {
				return fmt.Errorf("goroutine %d, round %d: other bytes", g, i)
			}
		}
		if reg != nil {
			if err := reg.Close(); err != nil {
				return err
			}
		}
		ops.Add(1)
		moved.Add(4 * n)
	}
	return nil
}
