package driver_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func panics(t *testing.T, what string, fn func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	fn()
}

// TestI07OneAnswer: a batch ends with its last entry; a second answer is a bug
// of the driver and panics.
func TestI07OneAnswer(t *testing.T) {
	b := driver.Batch{Reqs: make([]driver.Request, 2)}
	if err := b.Start(driver.WaitDone{}); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(driver.WaitDone{}); !errors.Is(err, base.ErrBusy) {
		t.Errorf("%v", err)
	}
	b.End(1, 5, nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := b.Wait(ctx); !errors.Is(err, base.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	go b.End(0, 0, base.ErrIsolated)
	if err := b.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	if b.Reqs[1].Done != 5 || !errors.Is(b.Err(), base.ErrIsolated) {
		t.Errorf("%+v", b.Reqs)
	}
	panics(t, "third answer", func() { b.End(0, 0, nil) })
}

func TestAbandonedBatchIsFree(t *testing.T) {
	b := driver.Batch{Reqs: make([]driver.Request, 1)}
	for range 2 {
		if err := b.Start(driver.WaitDone{}); err != nil {
			t.Fatal(err)
		}
		b.Abandon()
	}
	if err := b.Wait(context.Background()); !errors.Is(err, base.ErrInvalid) {
		t.Errorf("%v", err)
	}
}

// idle is a device's part of a batch that does nothing.
type idle struct{}

func (idle) PollBatch(ctx context.Context, b *driver.Batch) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestCancel: only a batch that is in flight can be canceled, once, and its next
// use knows nothing of it.
func TestCancel(t *testing.T) {
	b := driver.Batch{Reqs: make([]driver.Request, 2)}
	for range 3 {
		b.Cancel()
		if err := b.Start(idle{}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-b.CancelC():
			t.Error("canceled from the start")
		default:
		}
		b.End(0, 0, nil)
		b.Cancel()
		b.Cancel()
		if !b.Canceled() {
			t.Error("not canceled")
		}
		<-b.CancelC()
		b.End(1, 0, b.NotSent(driver.OpRead, "file:x"))
		if err := b.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(b.Err(), context.Canceled) || b.Err().Error() != "read file:x: not sent to the device: context canceled" {
			t.Errorf("%v", b.Err())
		}
		b.Cancel()
	}
}

// TestI03RegionLife: holds keep a region open; generations refuse what is old.
func TestI03RegionLife(t *testing.T) {
	r, err := driver.AllocRegion(8192, "driver test")
	if err != nil {
		t.Fatal(err)
	}
	g := r.Generation()
	if err := errors.Join(r.Hold(g), r.Hold(g)); err != nil || r.InFlight() != 2 {
		t.Fatalf("%v, %d", err, r.InFlight())
	}
	for _, err := range []error{r.Close(), r.Renew()} {
		if !errors.Is(err, base.ErrBusy) {
			t.Errorf("%v", err)
		}
	}
	r.Release()
	r.Release()
	if err := r.Renew(); err != nil || r.Generation() == g {
		t.Errorf("%v, generation %d", err, r.Generation())
	}
	if err := r.Hold(g); !errors.Is(err, base.ErrClosed) {
		t.Errorf("%v", err)
	}
	if r.Bytes(4096, 4097) != nil || r.Bytes(-1, 1) != nil || len(r.Bytes(8192, 0)) != 0 {
		t.Error("ranges")
	}
	if err := errors.Join(r.Close(), r.Close()); err != nil || !r.Closed() {
		t.Error(err)
	}
	for _, err := range []error{r.Hold(r.Generation()), r.Hold(g), r.Renew()} {
		if !errors.Is(err, base.ErrClosed) {
			t.Errorf("after close: %v", err)
		}
	}
	panics(t, "released too often", r.Release)
}

// TestI03HoldMany: several holds in one step count one by one, and cannot be given
// back more often.
func TestI03HoldMany(t *testing.T) {
	r, err := driver.AllocRegion(4096, "driver test")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.HoldN(r.Generation(), 5); err != nil || r.InFlight() != 5 {
		t.Fatalf("%v, %d in flight", err, r.InFlight())
	}
	if err := r.HoldN(r.Generation()+1, 3); !errors.Is(err, base.ErrClosed) || r.InFlight() != 5 {
		t.Errorf("%v, %d in flight", err, r.InFlight())
	}
	r.ReleaseN(3)
	if err := r.Close(); !errors.Is(err, base.ErrBusy) {
		t.Errorf("%v with two held", err)
	}
	r.ReleaseN(2)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	panics(t, "three of none released", func() { r.ReleaseN(3) })
}

// TestHandles: each device finds its own handle, without a lock, and the region's
// end takes all of them.
func TestHandles(t *testing.T) {
	r := driver.NewRegion(make([]byte, 4096))
	type fake struct {
		driver.Device
		n int
	}
	devices := []*fake{{n: 0}, {n: 1}, {n: 2}}
	closed := 0
	for i, d := range devices {
		err := errors.Join(r.SetHandle(d, i), r.SetHandle(d, func() { closed++ }))
		if i == 1 {
			err = errors.Join(err, r.SetHandle(d, nil))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, d := range devices {
		if _, ok := r.Handle(d).(func()); ok != (i != 1) {
			t.Errorf("device %d: %v", i, r.Handle(d))
		}
	}
	if err := r.Close(); err != nil || closed != 2 {
		t.Errorf("%v, %d handles were told", err, closed)
	}
	if h := r.Handle(devices[0]); h != nil {
		t.Errorf("%v after the close", h)
	}
	if err := r.SetHandle(devices[0], 1); !errors.Is(err, base.ErrClosed) || r.Handle(devices[0]) != nil {
		t.Errorf("a handle after the close: %v, %v", err, r.Handle(devices[0]))
	}
	if err := r.SetHandle(devices[0], nil); err != nil {
		t.Error(err)
	}
}

// One closer wins, the memory is freed once, and no hold slips in.
func TestI03ConcurrentClose(t *testing.T) {
	for range 200 {
		r, err := driver.AllocRegion(4096, "driver test")
		if err != nil {
			t.Fatal(err)
		}
		g := r.Generation()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { _ = r.Close() })
		}
		wg.Go(func() {
			if r.Hold(g) == nil {
				r.CPU()[0] = 1
				r.Release()
			}
		})
		wg.Wait()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPathStats(t *testing.T) {
	var s driver.PathStats
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				s.Add(driver.PathKey{Path: driver.PathStaged, Write: true, Reason: "why"}, 3)
				s.Add(driver.PathKey{Path: driver.PathDirect}, 1)
			}
		})
	}
	wg.Wait()
	got := s.Counts()
	if len(got) != 2 || got[0].Bytes != 400 || got[1].Bytes != 1200 || got[1].Ops != 400 || got[1].Reason != "why" {
		t.Errorf("%+v", got)
	}
}

// TestT36FailedOperation: an operation that failed adds an error and no bytes.
func TestT36FailedOperation(t *testing.T) {
	var s driver.PathStats
	k := driver.PathKey{Path: driver.PathStaged, Reason: "why"}
	s.Fail(k)
	s.Add(k, 513)
	got := s.Counts()
	if len(got) != 1 || got[0].Errors != 1 || got[0].Bytes != 513 || got[0].Ops != 1 || got[0].Sizes[1] != 1 {
		t.Errorf("%+v", got)
	}
}

func TestSizeClasses(t *testing.T) {
	for i := range driver.SizeClasses - 1 {
		n := driver.ClassBound(i)
		if driver.SizeClass(n) != i || driver.SizeClass(n+1) != i+1 {
			t.Errorf("class %d ends at %d: %d, %d", i, n, driver.SizeClass(n), driver.SizeClass(n+1))
		}
	}
	if driver.SizeClass(0) != 0 || driver.SizeClass(1<<62) != driver.SizeClasses-1 || driver.ClassBound(driver.SizeClasses-1) != 0 {
		t.Error("the ends")
	}
}

func TestNames(t *testing.T) {
	for op := driver.OpRead; op <= driver.OpWriteZeroes; op++ {
		if op.String() == "" {
			t.Errorf("operation %d", op)
		}
	}
	for s := driver.StateReady; s <= driver.StateClosed; s++ {
		if s.String() == "" {
			t.Errorf("state %d", s)
		}
	}
}
