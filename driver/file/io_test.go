package file_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

// each runs a test with both engines over a device whose kernel answers pass
// through f.
func each(t *testing.T, o file.Options, fn func(t *testing.T, d *file.Device, f *faults)) {
	for _, e := range engines {
		t.Run(e, func(t *testing.T) {
			f := new(faults)
			o := o
			deadline := o.Hooks.Deadline
			zero := o.Hooks.NoZeroRange
			o.Hooks = f.hooks()
			o.Hooks.Deadline, o.Hooks.NoZeroRange = deadline, zero
			o.Path, o.Engine = create(t, t.TempDir(), 64*base.MiB), e
			fn(t, open(t, o), f)
		})
	}
}

func mem(t *testing.T, n int64) *driver.Region {
	t.Helper()
	r, err := driver.AllocRegion(n, "file test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func rw(op driver.Op, off int64, segs ...driver.Seg) driver.Request {
	q := driver.Request{Op: op, Off: off, Segs: segs}
	for _, s := range segs {
		q.Len += s.Len
	}
	return q
}

func do(d driver.Device, reqs ...driver.Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return driver.Do(ctx, d, reqs...)
}

// TestC15ShortIO: the kernel moves less than asked, a partial block included,
// or nothing for a while; the request still ends whole and right.
func TestC15ShortIO(t *testing.T) {
	for name, give := range map[string]int64{"a byte short": -1, "a block": 512, "odd": 5000, "half": 0} {
		t.Run(name, func(t *testing.T) {
			each(t, file.Options{}, func(t *testing.T, d *file.Device, f *faults) {
				f.script = func(op driver.Op, off, n, res int64) int64 {
					switch {
					case res != n || n <= 4096:
						return res
					case give < 0:
						return n + give
					case give == 0:
						return n / 2
					}
					return min(give, n)
				}
				r := mem(t, 2*base.MiB)
				for i := range r.CPU()[:base.MiB] {
					r.CPU()[i] = byte(i * 7 >> 3)
				}
				from := []driver.Seg{r.Seg(0, 512), r.Seg(512, 100*512), r.Seg(101*512, base.MiB-101*512)}
				to := []driver.Seg{r.Seg(base.MiB, 512*1024), r.Seg(base.MiB+512*1024, 512*1024)}
				w := []driver.Request{rw(driver.OpWrite, 512, from...)}
				if err := errors.Join(do(d, w...), do(d, rw(driver.OpRead, 512, to...))); err != nil {
					t.Fatal(err)
				}
				if w[0].Done != base.MiB || !bytes.Equal(r.CPU()[:base.MiB], r.CPU()[base.MiB:]) {
					t.Errorf("done %d, or wrong bytes", w[0].Done)
				}
				if s := d.Stats(); s.WriteBytes != base.MiB || s.ReadBytes != base.MiB {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// Interruptions are retried, a bounded number of times.
func TestTransientErrors(t *testing.T) {
	for _, e := range []unix.Errno{unix.EINTR, unix.EAGAIN, unix.ECANCELED} {
		t.Run(e.Error(), func(t *testing.T) {
			each(t, file.Options{}, func(t *testing.T, d *file.Device, f *faults) {
				count := 0
				f.script = func(op driver.Op, off, n, res int64) int64 {
					if count++; count <= 10 {
						return -int64(e)
					}
					return res
				}
				r := mem(t, base.StoreBlock)
				if err := do(d, rw(driver.OpRead, 0, r.Seg(0, base.StoreBlock))); err != nil {
					t.Error(err)
				}
				f.script = func(op driver.Op, off, n, res int64) int64 { return -int64(e) }
				err := do(d, rw(driver.OpRead, 0, r.Seg(0, base.StoreBlock)))
				if !errors.Is(err, e) {
					t.Errorf("for ever: %v", err)
				}
				f.script = nil
			})
		})
	}
}

// TestC15NoProgress: writes that move nothing end with an error, not never.
func TestC15NoProgress(t *testing.T) {
	each(t, file.Options{}, func(t *testing.T, d *file.Device, f *faults) {
		f.script = func(op driver.Op, off, n, res int64) int64 { return 0 }
		r := mem(t, base.StoreBlock)
		w := rw(driver.OpWrite, 0, r.Seg(0, base.StoreBlock))
		if err := do(d, w); !errors.Is(err, unix.EIO) {
			t.Errorf("write: %v", err)
		}
		f.script = nil
	})
}

// TestC21ErrorsPerRequest: each error number gets its class, for that request
// only.
func TestC21ErrorsPerRequest(t *testing.T) {
	for e, class := range map[unix.Errno]error{
		unix.EIO: unix.EIO, unix.ENOSPC: base.ErrNoSpace, unix.EDQUOT: base.ErrNoSpace,
		unix.EOPNOTSUPP: base.ErrNotSupported, unix.EFAULT: unix.EFAULT,
	} {
		t.Run(e.Error(), func(t *testing.T) {
			each(t, file.Options{}, func(t *testing.T, d *file.Device, f *faults) {
				f.script = func(op driver.Op, off, n, res int64) int64 {
					if off == base.MiB {
						return -int64(e)
					}
					return res
				}
				r := mem(t, base.MiB)
				reqs := []driver.Request{rw(driver.OpWrite, 0, r.Seg(0, base.MiB)),
					rw(driver.OpWrite, base.MiB, r.Seg(0, base.MiB)), rw(driver.OpWrite, 2*base.MiB, r.Seg(0, base.MiB))}
				err := do(d, reqs...)
				if !errors.Is(err, class) || !errors.Is(err, e) || reqs[0].Err != nil || reqs[2].Err != nil {
					t.Errorf("%v, neighbours %v, %v", err, reqs[0].Err, reqs[2].Err)
				}
				if d.State() != driver.StateReady {
					t.Errorf("state %v", d.State())
				}
			})
		})
	}
}

// A request that is cut and fails in the middle tells what moved before that, and the
// counters tell the same, although pieces behind it moved (I10).
func TestPartlyFailedRequest(t *testing.T) {
	each(t, file.Options{MaxTransfer: 64 * base.KiB}, func(t *testing.T, d *file.Device, f *faults) {
		f.script = func(op driver.Op, off, n, res int64) int64 {
			if off == 128*base.KiB {
				return -int64(unix.EIO)
			}
			return res
		}
		r := mem(t, base.MiB)
		reqs := []driver.Request{rw(driver.OpRead, 0, r.Seg(0, base.MiB))}
		if err := do(d, reqs...); !errors.Is(err, unix.EIO) || reqs[0].Done != 128*base.KiB {
			t.Errorf("%v, done %d", err, reqs[0].Done)
		}
		if s := d.Stats(); s.ReadBytes != reqs[0].Done || s.Reads != 0 || s.Errors != 1 || s.Commands != 16 {
			t.Errorf("%+v", s)
		}
	})
}

// TestI04DeviceDeadline: a device that does not answer is isolated after the
// device deadline, not before; the memory stays held; Reset waits.
func TestI04DeviceDeadline(t *testing.T) {
	const limit = 80 * time.Millisecond
	o := file.Options{Hooks: file.Hooks{Deadline: func(driver.Op) time.Duration { return limit }}}
	each(t, o, func(t *testing.T, d *file.Device, f *faults) {
		f.hold = true
		r := mem(t, base.StoreBlock)
		b := driver.Batch{Reqs: []driver.Request{rw(driver.OpRead, 0, r.Seg(0, base.StoreBlock))}}
		start := time.Now()
		if err := d.Submit(context.Background(), &b); err != nil {
			t.Fatal(err)
		}
		for d.State() == driver.StateReady && time.Since(start) < 20*time.Second {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(start); d.State() != driver.StateIsolated || took < limit || d.Incarnation() != 1 {
			t.Errorf("%v after %v, incarnation %d", d.State(), took, d.Incarnation())
		}
		if b.Ended() || r.InFlight() != 1 {
			t.Errorf("ended %v, %d holds: the request has not landed", b.Ended(), r.InFlight())
		}
		f.mu.Lock()
		f.hold = false
		f.mu.Unlock()
		if err := d.Reset(context.Background()); err != nil {
			t.Fatal(err)
		}
		err := errors.Join(b.Wait(context.Background()), b.Err())
		if !errors.Is(err, base.ErrIsolated) || !errors.Is(err, base.ErrTimeout) {
			t.Errorf("%v", err)
		}
		if err := do(d, rw(driver.OpRead, 0, r.Seg(0, base.StoreBlock))); err != nil {
			t.Error(err)
		}
	})
}

// TestFlushHere: a flush in the calling thread counts, stops the device when it
// fails, waits for the kernel's answer, and is refused where a request is.
func TestFlushHere(t *testing.T) {
	each(t, file.Options{}, func(t *testing.T, d *file.Device, f *faults) {
		ctx := context.Background()
		if err := driver.Flush(ctx, d); err != nil || d.Stats().Flushes != 1 || d.Stats().Commands != 1 {
			t.Fatalf("%v, %+v", err, d.Stats())
		}
		f.mu.Lock()
		f.hold = true
		f.mu.Unlock()
		ended := make(chan error, 1)
		go func() { ended <- driver.Flush(ctx, d) }()
		for end := time.Now().Add(20 * time.Second); d.Stats().InFlight == 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if in := d.Stats().InFlight; in != 1 || len(ended) != 0 {
			t.Errorf("%d in flight, %d ended", in, len(ended))
		}
		f.mu.Lock()
		f.hold = false
		f.mu.Unlock()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		f.failNext(driver.OpFlush)
		if err := driver.Flush(ctx, d); !errors.Is(err, base.ErrIsolated) || d.State() != driver.StateIsolated {
			t.Errorf("%v, %v", err, d.State())
		}
		if err := driver.Flush(ctx, d); !errors.Is(err, base.ErrIsolated) {
			t.Errorf("a flush of an isolated device: %v", err)
		}
		if err := d.Reset(ctx); err != nil {
			t.Fatal(err)
		}
		if err := driver.Flush(ctx, d); err != nil {
			t.Error(err)
		}
		if err := d.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if err := driver.Flush(ctx, d); !errors.Is(err, base.ErrClosed) {
			t.Errorf("a flush of a closed device: %v", err)
		}
	})
}

// TestWakesLeaveRoom: what io_uring cannot do is done beside it, and wakes the leader
// by an entry of the ring. However much of that ends while nobody reaps, it takes no
// room from commands, which count on it.
func TestWakesLeaveRoom(t *testing.T) {
	d := open(t, file.Options{Path: create(t, t.TempDir(), 4*base.MiB), Engine: file.EngineURing, Depth: 16,
		Hooks: file.Hooks{NoZeroRange: true}})
	led, waiting := file.Unled(d)
	for range 20 {
		var reqs []driver.Request
		for i := range int64(10) {
			reqs = append(reqs, driver.Request{Op: driver.OpWriteZeroes, Off: i * 4096, Len: 4096})
		}
		if err := do(d, reqs...); err != nil {
			t.Fatal(err)
		}
	}
	if n := waiting(); n > 1 {
		t.Errorf("%d entries for one leader", n)
	}
	led()
	r := mem(t, base.MiB)
	if err := do(d, rw(driver.OpRead, 0, r.Seg(0, base.MiB))); err != nil {
		t.Error(err)
	}
}

// Where the file system cannot zero a range, zeros are written.
func TestZeroesAreWritten(t *testing.T) {
	o := file.Options{Hooks: file.Hooks{NoZeroRange: true}}
	each(t, o, func(t *testing.T, d *file.Device, f *faults) {
		if d.Info().WriteZeroes {
			t.Error("claims to zero without a transfer")
		}
		r := mem(t, 3*base.MiB)
		for i := range r.CPU() {
			r.CPU()[i] = 1
		}
		z := driver.Request{Op: driver.OpWriteZeroes, Off: 512, Len: 2*base.MiB + 512}
		err := errors.Join(do(d, rw(driver.OpWrite, 0, r.Seg(0, 3*base.MiB))), do(d, z),
			do(d, rw(driver.OpRead, 0, r.Seg(0, 3*base.MiB))))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(r.CPU(), []byte{0}); int64(n) != z.Len || r.CPU()[511] != 1 || r.CPU()[512] != 0 {
			t.Errorf("%d bytes are zero, want %d", n, z.Len)
		}
		if s := d.Stats(); s.ZeroBytes != z.Len || s.Zeroes != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestC14BeyondFourGiB: offsets are 64-bit all the way down.
func TestC14BeyondFourGiB(t *testing.T) {
	for _, e := range engines {
		t.Run(e, func(t *testing.T) {
			d := open(t, file.Options{Path: create(t, t.TempDir(), 9*base.GiB), Engine: e})
			r := mem(t, 2*base.StoreBlock)
			for i, off := range []int64{0, 4*base.GiB - base.StoreBlock, 4 * base.GiB, 8*base.GiB + 512, 9*base.GiB - base.StoreBlock} {
				r.CPU()[0] = byte(i + 1)
				if err := do(d, rw(driver.OpWrite, off, r.Seg(0, base.StoreBlock))); err != nil {
					t.Fatal(err)
				}
			}
			for i, off := range []int64{0, 4*base.GiB - base.StoreBlock, 4 * base.GiB, 8*base.GiB + 512, 9*base.GiB - base.StoreBlock} {
				if err := do(d, rw(driver.OpRead, off, r.Seg(base.StoreBlock, base.StoreBlock))); err != nil || r.CPU()[base.StoreBlock] != byte(i+1) {
					t.Errorf("offset %d: %d, %v", off, r.CPU()[base.StoreBlock], err)
				}
			}
		})
	}
}

// Regions come and go while others do I/O through the same table.
func TestAttachDuringIO(t *testing.T) {
	for _, e := range engines {
		t.Run(e, func(t *testing.T) {
			d := open(t, file.Options{Path: create(t, t.TempDir(), 64*base.MiB), Engine: e, Depth: 32})
			var wg sync.WaitGroup
			for w := range int64(4) {
				wg.Go(func() {
					for i := range 60 {
						r, err := driver.AllocRegion(64*base.KiB, "file test")
						if err != nil {
							t.Error(err)
							return
						}
						r.CPU()[0], r.CPU()[64*base.KiB-1] = byte(i), byte(w)
						at := w * base.MiB
						if i%3 != 0 {
							err = d.Attach(r)
						}
						err = errors.Join(err, do(d, rw(driver.OpWrite, at, r.Seg(0, 64*base.KiB))))
						clear(r.CPU())
						err = errors.Join(err, do(d, rw(driver.OpRead, at, r.Seg(0, 64*base.KiB))))
						if i%2 == 0 {
							err = errors.Join(err, d.Detach(r))
						}
						if r.CPU()[0] != byte(i) || r.CPU()[64*base.KiB-1] != byte(w) {
							t.Error("wrong bytes")
						}
						if err = errors.Join(err, r.Close()); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestCloseDuringAttach: a region that closes while it is attached keeps no place in
// the table.
func TestCloseDuringAttach(t *testing.T) {
	d := open(t, file.Options{Path: create(t, t.TempDir(), 4*base.MiB), Engine: file.EngineURing})
	m := mem(t, 64*base.KiB)
	all := file.Places(d)
	for i := range 1000 {
		r := driver.NewRegion(m.CPU())
		var wg sync.WaitGroup
		begun := make(chan struct{})
		wg.Go(func() {
			close(begun)
			if err := d.Attach(r); err != nil && !errors.Is(err, base.ErrClosed) {
				t.Error(err)
			}
		})
		<-begun
		for range i {
			_ = r.Closed() // somewhat later each time
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
	if n := file.Places(d); n != all {
		t.Errorf("%d of %d places are left", n, all)
	}
}

// A file that shrinks under an open device gives an error, not zeros.
func TestTruncatedWhileOpen(t *testing.T) {
	each(t, file.Options{}, func(t *testing.T, d *file.Device, f *faults) {
		path := d.Info().Target[len("file:"):]
		fd, err := unix.Open(path, unix.ReadWrite, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(unix.Truncate(fd, base.MiB), fd.Close()); err != nil {
			t.Fatal(err)
		}
		r := mem(t, 2*base.MiB)
		if err := do(d, rw(driver.OpRead, 0, r.Seg(0, 2*base.MiB))); !errors.Is(err, base.ErrCorrupt) {
			t.Errorf("%v", err)
		}
	})
}

// The steady path of a wait allocates nothing worth mentioning.
func TestAllocationsPerRequest(t *testing.T) {
	d := open(t, file.Options{Path: create(t, t.TempDir(), 64*base.MiB)})
	r := mem(t, base.StoreBlock)
	if err := d.Attach(r); err != nil {
		t.Fatal(err)
	}
	b := driver.Batch{Reqs: []driver.Request{rw(driver.OpRead, 0, r.Seg(0, base.StoreBlock))}}
	ctx := context.Background()
	n := testing.AllocsPerRun(200, func() {
		if err := errors.Join(d.Submit(ctx, &b), b.Wait(ctx)); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%s: %v allocations a request", d.Info().Engine, n)
	if n > 0 && !testenv.Race {
		t.Errorf("%v allocations a request", n)
	}
}

func BenchmarkRead4K(b *testing.B) {
	for _, e := range engines {
		b.Run(e, func(b *testing.B) {
			p := b.TempDir() + "/data"
			if err := file.Create(p, 64*base.MiB, true); err != nil {
				b.Fatal(err)
			}
			d, err := file.Open(context.Background(), file.Options{Path: p, Engine: e})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = d.Close(context.Background()) }()
			r, _ := driver.AllocRegion(64*base.StoreBlock, "bench")
			defer func() { _ = r.Close() }()
			_ = d.Attach(r)
			var batch driver.Batch
			for i := range int64(64) {
				batch.Reqs = append(batch.Reqs, rw(driver.OpRead, i*base.StoreBlock, r.Seg(i*base.StoreBlock, base.StoreBlock)))
			}
			b.ReportAllocs()
			b.SetBytes(64 * base.StoreBlock)
			for b.Loop() {
				if err := errors.Join(d.Submit(context.Background(), &batch), batch.Wait(context.Background())); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
