package ctrl_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

var silentRole = flag.String("silent", "", "what the child process of TestI09NoSystemCall does")

// silentRounds is how many batches the child does under the filter: few enough to
// end before the scheduler wants the thread back, which takes system calls.
const silentRounds = 200

// silentTries is how often that is tried: on a machine that is busy the scheduler
// may come first.
const silentTries = 10

// TestI09NoSystemCall: polled I/O makes no system call: the thread that submits and
// polls would be killed by its first. It runs in a process of its own, without
// collector and asynchronous preemption, on a thread that is thrown away.
func TestI09NoSystemCall(t *testing.T) {
	if *silentRole != "" {
		silent(t, *silentRole)
	}
	if testenv.Race {
		return // the race detector makes some
	}
	for _, role := range []string{"read", "write", "batch", "shared"} {
		out, err := "", errors.New("not run")
		for i := 0; err != nil && i < silentTries; i++ {
			out, err = runSilent(role)
		}
		if want := fmt.Sprintf("%s: %d rounds in silence", role, silentRounds); err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s", role, err, out)
		}
	}
	if out, err := runSilent("loud"); err == nil || !strings.Contains(err.Error(), "bad system call") {
		t.Errorf("a thread that makes a system call lives: %v\n%s", err, out)
	}
}

func runSilent(role string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestI09NoSystemCall$", "-silent="+role)
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// silent is the child process; it does not return.
func silent(t *testing.T, role string) {
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(4) // one processor is never given back
	s := model(t, sim.Default(16*base.MiB))
	o := ctrl.Options{Watch: -1, Queues: 2}
	if role == "shared" {
		o.Queues = 1
	}
	d := opened(t, s, o)
	n := 1
	if role == "batch" {
		n = 32
	}
	b := reads(t, d, n, 4096)
	if role == "write" {
		b.Reqs[0].Op, b.Reqs[0].FUA = driver.OpWrite, true
	}
	var done atomic.Int64
	var failed atomic.Bool
	go func() {
		runtime.LockOSThread()
		ctx := context.Background()
		round := func() {
			if d.Submit(ctx, b) != nil || b.Wait(ctx) != nil || b.Err() != nil {
				failed.Store(true)
			}
		}
		for range 70 { // pools and maps grow
			round()
		}
		time.Sleep(time.Millisecond) // the next time slice is a new one
		if unix.OnlySignals() != nil {
			failed.Store(true)
		}
		for range silentRounds {
			round()
			if role == "loud" {
				os.Getpid()
			}
			done.Add(1)
		}
		for done.Load() > 0 { // the thread must not come to an end: that would take a system call
		}
	}()
	for end := time.Now().Add(time.Minute); done.Load() < silentRounds && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	fmt.Printf("%s: %d rounds in silence\n", role, done.Load())
	if failed.Load() {
		os.Exit(1)
	}
	os.Exit(0)
}

// stuck is a model whose doorbells do not return while the gate is shut: whatever
// the driver holds then, it holds on.
type stuck struct {
	*sim.Sim
	gate chan struct{}
	in   chan struct{}
}

type stuckBell struct {
	hw.Doorbell
	s *stuck
}

func (s *stuck) Doorbell(off uint64) (hw.Doorbell, error) {
	b, err := s.Sim.Doorbell(off)
	return stuckBell{b, s}, err
}

func (b stuckBell) Ring(v uint32) error {
	if b.s.gate != nil {
		b.s.in <- struct{}{}
		<-b.s.gate
	}
	return b.Doorbell.Ring(v)
}

// TestI09NoProcessWideLock: while one device is stuck in the middle of a submission,
// with all the locks that it takes, another one opens, attaches memory, does I/O and
// closes.
func TestI09NoProcessWideLock(t *testing.T) {
	a := &stuck{Sim: model(t, sim.Default(16*base.MiB)), in: make(chan struct{}, 8)}
	one, err := ctrl.Open(bg(t), a, quiet)
	if err != nil {
		t.Fatal(err)
	}
	b := reads(t, one, 2, 4096)
	a.gate = make(chan struct{})
	ended := make(chan error)
	go func() {
		err := one.Submit(context.Background(), b)
		if err == nil {
			err = b.Wait(context.Background())
		}
		ended <- errors.Join(err, b.Err())
	}()
	<-a.in
	two := opened(t, model(t, sim.Default(16*base.MiB)), quiet)
	works(t, two)
	c := reads(t, two, 32, 4096)
	copy(c.Reqs[0].Segs[0].Region.CPU(), bytes.Repeat([]byte{1}, 4096))
	for range 10 {
		run(t, two, c)
	}
	if err := two.Detach(c.Reqs[0].Segs[0].Region); err != nil {
		t.Error(err)
	}
	close(a.gate)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	a.gate = nil
	if err := one.Close(bg(t)); err != nil {
		t.Error(err)
	}
}
