package drivertest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

func testBatchLimits(t *testing.T, h Harness) {
	d, in := h.Dev, h.Dev.Info()
	r := attached(t, d, base.StoreBlock)
	var b driver.Batch
	wantErr(t, "empty batch", d.Submit(soon(t), &b), base.ErrInvalid)
	wantErr(t, "wait without submit", b.Wait(soon(t)), base.ErrInvalid)
	for range driver.MaxBatch + 1 {
		b.Reqs = append(b.Reqs, read(0, r.Seg(0, in.BlockSize)))
	}
	wantErr(t, "too large batch", d.Submit(soon(t), &b), base.ErrInvalid)
	if s := d.Stats(); s.Commands != 0 || s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
	b.Reqs = b.Reqs[1:]
	if err := d.Submit(soon(t), &b); err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := b.Err(); err != nil || d.Stats().Reads != driver.MaxBatch {
		t.Errorf("%v, %+v", err, d.Stats())
	}
}

func testBatchReuse(t *testing.T, h Harness) {
	d, in := h.Dev, h.Dev.Info()
	r := attached(t, d, base.MiB)
	b := driver.Batch{Reqs: []driver.Request{write(0, r.Seg(0, in.BlockSize))}}
	for round := range 200 { // a stale wake-up must not end a later round early
		b.Reqs = b.Reqs[:1]
		for i := range round % 5 {
			b.Reqs = append(b.Reqs, read(int64(i+1)*base.StoreBlock, r.Seg(int64(i+1)*base.StoreBlock, in.BlockSize)))
		}
		if err := d.Submit(soon(t), &b); err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			wantErr(t, "submitted twice", d.Submit(soon(t), &b), base.ErrBusy)
		}
		if err := errors.Join(b.Wait(soon(t)), b.Err()); err != nil {
			t.Fatal(err)
		}
		for i := range b.Reqs {
			if b.Reqs[i].Done != in.BlockSize {
				t.Fatalf("round %d entry %d: %d bytes", round, i, b.Reqs[i].Done)
			}
		}
	}
	wantErr(t, "wait twice", b.Wait(soon(t)), base.ErrInvalid)
}

// testConcurrent: submitters with extents of their own; each reads what it wrote.
func testConcurrent(t *testing.T, h Harness) {
	d := h.Dev
	const workers, rounds, span = 8, 20, 512 * base.KiB
	var wg sync.WaitGroup
	for w := range int64(workers) {
		rnd := testenv.Seed(t)
		for range w {
			rnd.Uint64()
		}
		r := region(t, 2*span)
		if w%2 == 0 {
			if err := d.Attach(r); err != nil {
				t.Fatal(err)
			}
		}
		wg.Go(func() {
			var b driver.Batch
			for round := range rounds {
				b.Reqs = b.Reqs[:0]
				testenv.Fill(r.CPU()[:span], uint64(w)<<32|uint64(round))
				for at := int64(0); at < span; {
					n := min((rnd.Int64N(64)+1)*base.StoreBlock, span-at)
					b.Reqs = append(b.Reqs, write(w*span+at, r.Seg(at, n)))
					at += n
				}
				ok := runBatch(t, d, &b)
				for i := range b.Reqs {
					q := &b.Reqs[i]
					*q = read(q.Off, r.Seg(q.Off-w*span+span, q.Len))
				}
				if !ok || !runBatch(t, d, &b) || !bytes.Equal(r.CPU()[:span], r.CPU()[span:]) {
					t.Errorf("worker %d round %d: wrong", w, round)
					return
				}
			}
		})
	}
	wg.Wait()
}

func runBatch(t *testing.T, d driver.Device, b *driver.Batch) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := d.Submit(ctx, b)
	if err == nil {
		err = errors.Join(b.Wait(ctx), b.Err())
	}
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

// testWaiters: many small batches whose waiters come and go while others wait; a
// lost wake-up would time out.
func testWaiters(t *testing.T, h Harness) {
	d, in := h.Dev, h.Dev.Info()
	r := attached(t, d, 64*base.StoreBlock)
	var wg sync.WaitGroup
	for w := range int64(16) {
		wg.Go(func() {
			for i := range 150 {
				b := driver.Batch{Reqs: []driver.Request{read(w*base.StoreBlock, r.Seg(w*base.StoreBlock, in.BlockSize))}}
				if err := d.Submit(context.Background(), &b); err != nil {
					t.Error(err)
					return
				}
				if i%3 == 0 { // a waiter that gives up and comes back
					ctx, cancel := context.WithTimeout(context.Background(), time.Microsecond)
					_ = b.Wait(ctx)
					cancel()
					if b.Ended() {
						continue
					}
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				err := b.Wait(ctx)
				cancel()
				if err != nil && !errors.Is(err, base.ErrInvalid) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	eventually(t, "all answered", func() bool { return d.Stats().InFlight == 0 })
}

// testInFlightBound: far more than may be in flight, from several submitters.
func testInFlightBound(t *testing.T, h Harness) {
	d := h.Dev
	r := attached(t, d, base.MiB)
	stop := make(chan struct{})
	var most int64
	var watch, wg sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				most = max(most, d.Stats().InFlightBytes)
				time.Sleep(50 * time.Microsecond)
			}
		}
	})
	for range 3 {
		wg.Go(func() {
			b := driver.Batch{}
			for i := range int64(150) {
				b.Reqs = append(b.Reqs, read(i*base.MiB, r.Seg(0, base.MiB)))
			}
			runBatch(t, d, &b)
		})
	}
	wg.Wait()
	close(stop)
	watch.Wait()
	if most > driver.MaxBytesInFlight {
		t.Errorf("%d bytes were in flight, the limit is %d", most, driver.MaxBytesInFlight)
	}
	if s := d.Stats(); s.ReadBytes != 450*base.MiB || s.InFlightBytes != 0 {
		t.Errorf("%+v", s)
	}
}
