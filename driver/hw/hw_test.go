package hw_test

import (
	"context"
	"errors"
	"flag"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

var measure = flag.Bool("measure", false, "measure how long an eventfd takes to wake its waiter")

func TestMain(m *testing.M) { testenv.Main(m) }

// kernel stands for the side that raises: it knows which descriptors it was given.
type kernel struct {
	mu    sync.Mutex
	armed map[int]int
	fail  error
}

func (k *kernel) arm(n, fd int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fail != nil {
		return k.fail
	}
	if fd < 0 {
		delete(k.armed, n)
	} else {
		k.armed[n] = fd
	}
	return nil
}

func TestEventVectors(t *testing.T) {
	k := &kernel{armed: map[int]int{}}
	e := hw.NewEventVectors("thing", 3, k.arm)
	if e.Vectors() != 3 {
		t.Fatal(e.Vectors())
	}
	for _, bad := range []int{-1, 3} {
		if _, err := e.Vector(bad); !errors.Is(err, base.ErrOutOfRange) {
			t.Errorf("%d: %v", bad, err)
		}
	}
	v, err := e.Vector(2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Vector(2); !errors.Is(err, base.ErrBusy) {
		t.Error(err)
	}
	if len(k.armed) != 1 || k.armed[2] <= 0 {
		t.Errorf("armed: %v", k.armed)
	}
	for range 3 {
		v.Wake()
	}
	if err := v.Wait(context.Background()); err != nil {
		t.Error(err)
	}
	for range 50 { // a wait that timed out leaves nothing behind
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		if err := v.Wait(ctx); !errors.Is(err, base.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		cancel()
		v.Wake()
		if err := v.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := v.Wait(context.Background()); !errors.Is(err, base.ErrClosed) {
			t.Error(err)
		}
	})
	time.Sleep(time.Millisecond)
	if err := errors.Join(v.Close(), v.Close()); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if err := v.Wait(context.Background()); !errors.Is(err, base.ErrClosed) {
		t.Error(err)
	}
	if len(k.armed) != 0 {
		t.Errorf("armed: %v", k.armed)
	}
	if v, err = e.Vector(2); err != nil { // it can be opened again
		t.Fatal(err)
	}
	if err := e.Close(); err != nil || len(k.armed) != 0 {
		t.Errorf("%v, armed %v", err, k.armed)
	}
	k.fail = errors.New("no")
	if _, err := e.Vector(0); !errors.Is(err, k.fail) {
		t.Error(err)
	}
	k.fail = nil
	if v, err = e.Vector(0); err != nil {
		t.Fatal(err)
	}
	_ = v.Close()
}

func TestWall(t *testing.T) {
	w := hw.NewWall()
	a := w.Now()
	w.Pause(hw.Forever)
	if b := w.Now(); b < a || a < 0 {
		t.Errorf("%v, then %v", a, b)
	}
}

// TestRow12Signals: while signals interrupt every thread all the time, a waiter wakes for
// each interrupt that comes after it looked, however close that is to its going to
// sleep, and not without one.
func TestRow12Signals(t *testing.T) {
	const rounds = 2000
	k := &kernel{armed: map[int]int{}}
	v, err := hw.NewEventVectors("thing", 1, k.arm).Vector(0)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	quit := make(chan struct{})
	var storm, device sync.WaitGroup
	storm.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
				_ = syscall.Kill(syscall.Getpid(), syscall.SIGURG) // to which the runtime is used
				time.Sleep(20 * time.Microsecond)
			}
		}
	})
	var raised, seen atomic.Int64
	device.Go(func() {
		for i := int64(1); i <= rounds; i++ {
			raised.Store(i)
			v.Wake()
			for seen.Load() < i { // the next one comes as soon as the waiter has looked
				runtime.Gosched()
			}
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := int64(1); i <= rounds; i++ {
		if err := v.Wait(ctx); err != nil {
			t.Errorf("interrupt %d of %d was lost: %v", i, rounds, err)
			seen.Store(rounds)
			break
		}
		if got := raised.Load(); got != i {
			t.Errorf("woken at interrupt %d, want %d", got, i)
		}
		seen.Store(i)
	}
	device.Wait()
	close(quit)
	storm.Wait()
	short, stop := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer stop()
	if err := v.Wait(short); !errors.Is(err, base.ErrTimeout) {
		t.Errorf("woken without an interrupt: %v", err)
	}
}

// TestMeasureVectors measures how long after an eventfd was raised its waiter runs, in
// a process that does nothing else. It judges nothing.
func TestMeasureVectors(t *testing.T) {
	if !*measure {
		return
	}
	k := &kernel{armed: map[int]int{}}
	v, err := hw.NewEventVectors("thing", 1, k.arm).Vector(0)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	var took []time.Duration
	for range 2000 {
		var raised time.Time
		var wg sync.WaitGroup
		wg.Go(func() {
			unix.Sleep(200 * time.Microsecond) // a thread that is elsewhere, as a device is
			raised = time.Now()
			v.Wake()
		})
		if err := v.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		wg.Wait()
		took = append(took, now.Sub(raised))
	}
	slices.Sort(took)
	t.Logf("woken after %v, 90th percentile %v", took[len(took)/2], took[len(took)*9/10])
}
