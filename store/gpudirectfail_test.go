package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	gpuxfer "github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/store"
)

// TestT41DirectFails: a direct transfer that fails on a device that works is repeated
// through host memory, with the same bytes; the memory is staged from then on, and
// there is one event.
func TestT41DirectFails(t *testing.T) {
	const n = 1 << 20
	want := fill(6, n)
	status := sim.Rule{Kind: sim.FaultStatus, Ops: []nvme.Opcode{nvme.OpRead, nvme.OpWrite}, Count: 1, Status: nvme.StatusTransferError | nvme.StatusDNR}
	fail := map[string]func(b *gpuBox){
		"status": func(b *gpuBox) {
			for _, s := range b.sims {
				s.Script(status)
			}
		},
		"revoked": func(b *gpuBox) { b.g.Revoke(b.mem) },
	}
	for name, fail := range fail {
		for _, write := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/write=%v", name, write), func(t *testing.T) {
				b, _ := newDirectBox(t, host.Options{}, sims, nil)
				sub := b.s.Subscribe(100)
				defer sub.Close()
				b.poke(b.at(0), want)
				if !write {
					if err := b.put("a", b.at(0), n); err != nil {
						t.Fatal(err)
					}
				}
				before := b.ways()
				fail(b)
				dir := "read"
				if write {
					dir = "write"
					if err := b.put("a", b.at(0), n); err != nil {
						t.Fatal(err)
					}
				} else if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(2<<20), n), store.GetOptions{}); err != nil {
					t.Fatal(err)
				} else if !bytes.Equal(b.peek(b.at(2<<20), n), want) {
					t.Error("other bytes")
				}
				if got, err := b.ns.GetBytes(bg, []byte("a"), store.GetOptions{}); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%v, or other bytes", err)
				}
				w := b.ways()
				if w[dir+" staged "+gpuxfer.ReasonRetried] == before[dir+" staged "+gpuxfer.ReasonRetried] {
					t.Errorf("%v", w)
				}
				st := b.s.Stats()
				if n := failures(st.Paths, driver.PathDirect); n == 0 || failures(st.GPUs[0].Paths, driver.PathDirect) != n {
					t.Errorf("T36: the failure is not an error of its path: %+v, %+v", st.Paths, st.GPUs[0].Paths)
				}
				if ev := next(t, sub, store.EventPair); ev.Err == nil {
					t.Errorf("%+v", ev)
				}
				if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(4<<20), n), store.GetOptions{}); err != nil || !bytes.Equal(b.peek(b.at(4<<20), n), want) {
					t.Errorf("afterwards: %v, or other bytes", err)
				}
				if w := b.ways(); w["read staged "+gpuxfer.ReasonBroken] != n {
					t.Errorf("afterwards: %v", w)
				}
				if name == "revoked" { // else other commands of the request have moved bytes
					b.equal()
				}
			})
		}
	}
}

// TestI3DirectHeld: memory that a device reads or writes cannot be unregistered, also
// after the caller has given up, until the command has ended (I4).
func TestI3DirectHeld(t *testing.T) {
	const n = 256 << 10
	b, r := newDirectBox(t, host.Options{}, sims, nil)
	want := fill(4, n)
	b.poke(b.at(0), want)
	if err := b.put("a", b.at(0), n); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(ctx context.Context) error{
		"put": func(ctx context.Context) error {
			return b.ns.Put(ctx, []byte("b"), store.OnGPU(b.at(0), n), store.PutOptions{Replace: true})
		},
		"get": func(ctx context.Context) error {
			_, err := b.ns.Get(ctx, []byte("a"), store.OnGPU(b.at(1<<20), n), store.GetOptions{})
			return err
		},
	} {
		for _, s := range b.sims {
			s.Hold(true)
		}
		ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
		err := call(ctx)
		cancel()
		if !errors.Is(err, store.ErrTimeout) {
			t.Errorf("%s: %v", name, err)
		}
		if err := r.Close(); !errors.Is(err, store.ErrBusy) {
			t.Fatalf("%s: unregistered while the device uses it: %v", name, err)
		}
		for _, s := range b.sims {
			s.Hold(false)
		}
		for end := time.Now().Add(20 * time.Second); r.InFlight() != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: held for ever", name)
			}
		}
	}
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(2<<20), n), store.GetOptions{}); err != nil || !bytes.Equal(b.peek(b.at(2<<20), n), want) {
		t.Errorf("%v, or other bytes", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestI4DirectIsolated: a command that never ends isolates its device; the memory it
// names stays registered until the reset is complete, and nothing lands afterwards.
func TestI4DirectIsolated(t *testing.T) {
	const n = 64 << 10
	o := ctrl.Options{Watch: time.Millisecond, Deadline: ctrl.Deadlines{ReadWrite: 300 * time.Millisecond}}
	b, r := newDirectBox(t, host.Options{}, kind{"sim", []model{{"sim:lba=4096", o}}}, nil)
	want := fill(4, n)
	b.poke(b.at(0), want)
	if err := b.put("a", b.at(0), n); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var early []string
	var held atomic.Bool
	var told atomic.Int32
	held.Store(true)
	for i, d := range b.devs {
		defer d.Subscribe(func(e driver.Event) {
			defer told.Add(1)
			if e.State == driver.StateIsolated && held.Load() { // not stopped yet
				if err := r.Close(); !errors.Is(err, store.ErrBusy) {
					mu.Lock()
					early = append(early, fmt.Sprintf("device %d: %v", i, err))
					mu.Unlock()
				}
			}
		})()
		b.sims[i].Hold(true) // the stop cannot confirm either
		b.sims[i].Script(sim.Rule{Kind: sim.FaultLose, Ops: []nvme.Opcode{nvme.OpRead}, Count: 1})
	}
	done := make(chan error, 1)
	go func() {
		_, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(1<<20), n), store.GetOptions{})
		done <- err
	}()
	isolated := func() bool {
		for _, d := range b.devs {
			if d.State() != driver.StateReady {
				return true
			}
		}
		return false
	}
	for end := time.Now().Add(20 * time.Second); told.Load() == 0 || !isolated(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no device was isolated")
		}
	}
	if err := r.Close(); !errors.Is(err, store.ErrBusy) {
		t.Fatalf("unregistered before the device has stopped: %v", err)
	}
	held.Store(false)
	for _, s := range b.sims {
		s.Hold(false)
	}
	if err := <-done; !errors.Is(err, store.ErrIsolated) {
		t.Errorf("get: %v", err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		err := r.Close()
		if err == nil {
			break
		}
		if !errors.Is(err, store.ErrBusy) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(early) > 0 {
		t.Errorf("%v", early)
	}
	seen := b.peek(b.at(1<<20), n)
	b.register()
	for end := time.Now().Add(20 * time.Second); isolated() && time.Now().Before(end); time.Sleep(time.Millisecond) {
		continue
	}
	if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(2<<20), n), store.GetOptions{}); err != nil || !bytes.Equal(b.peek(b.at(2<<20), n), want) {
		t.Errorf("after the reset: %v, or other bytes", err)
	}
	if !bytes.Equal(b.peek(b.at(1<<20), n), seen) {
		t.Error("bytes landed after the memory was unregistered")
	}
}

// TestDirectBudget: registrations over the budget make idle ones staged, the least
// recently used first, and are staged themselves when none is idle.
func TestDirectBudget(t *testing.T) {
	const n = 64 << 10
	b := newGPUBoxOn(t, sims, host.Options{}, func(o *store.Options) { o.GPU.DirectBytes = 2 * n })
	if err := b.put("a", b.at(0), n); err != nil {
		t.Fatal(err)
	}
	get := func(i int) string {
		t.Helper()
		before := b.ways()
		if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(i*n), n), store.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		for k, v := range b.ways() {
			if v != before[k] {
				return k
			}
		}
		return ""
	}
	reg := func(i int) *gpu.Registration {
		r, err := b.s.RegisterGPU(b.at(i*n), n)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	var regs []*gpu.Registration
	for i := range 2 {
		regs = append(regs, reg(i))
	}
	for _, i := range []int{1, 0} { // 1 is the older one then
		if got := get(i); got != "read direct" {
			t.Errorf("%d: %s", i, got)
		}
	}
	regs = append(regs, reg(2))
	for i, want := range []string{"read direct", "read staged " + gpu.ReasonEvicted, "read direct"} {
		if got := get(i); got != want {
			t.Errorf("%d: %s, want %s", i, got, want)
		}
	}
	for _, s := range b.sims {
		s.Hold(true)
	}
	done := make(chan error, 2)
	for _, i := range []int{0, 2} {
		go func() {
			_, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(i*n), n), store.GetOptions{})
			done <- err
		}()
		for end := time.Now().Add(20 * time.Second); regs[i].InFlight() < 2; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("nothing is in flight")
			}
		}
	}
	regs = append(regs, reg(3))
	for _, s := range b.sims {
		s.Hold(false)
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := get(3); got != "read staged "+gpu.ReasonBudget {
		t.Errorf("with all in use: %s", got)
	}
	for _, r := range regs {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
