package ctrl_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/mmio"
)

// seen is a model that remembers the memory of the queues: submission queue,
// completion queue and lists of the admin queue, then of the first I/O queue.
type seen struct {
	*sim.Sim
	queues []*hw.Buffer
}

func (s *seen) Alloc(n int64, owner string) (*hw.Buffer, error) {
	b, err := s.Sim.Alloc(n, owner)
	if err == nil && owner == "nvme queues" {
		s.queues = append(s.queues, b)
	}
	return b, err
}

// FuzzCompletionStream: whatever stands in a completion queue, the driver does not
// crash, each request ends once, and the device works, or does again after a reset.
func FuzzCompletionStream(f *testing.F) {
	entry := func(sqid, sqhd, cid uint16, st nvme.Status, phase bool) []byte {
		b := make([]byte, nvme.CompletionSize)
		e := nvme.Overlay[nvme.Completion](b)
		e.SQID.Set(sqid)
		e.SQHD.Set(sqhd)
		mmio.StoreEntry32(b[nvme.DW3Offset:], uint32(nvme.MakeDW3(cid, st, phase)))
		return b
	}
	f.Add([]byte{})
	f.Add(entry(1, 4, 0x10, 0, true)) // the first command
	f.Add(append(entry(1, 4, 0x11, nvme.StatusNSNotReady, true), entry(1, 4, 0x12, 0, true)...))
	f.Add(append(entry(1, 4, 0x10, 0, true), entry(1, 4, 0x10, 0, true)...)) // twice
	f.Add(entry(2, 4, 0x10, 0, true))
	f.Add(entry(1, 400, 0x10, 0, true))
	f.Add(entry(1, 0, 0xffff, nvme.StatusInternal|nvme.StatusDNR, true))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg := sim.Default(base.MiB)
		cfg.Real = true
		inner, err := sim.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s := &seen{Sim: inner}
		d, err := ctrl.Open(bg(t), s, ctrl.Options{Watch: -1, Queues: 1, Depth: 16, Deadline: ctrl.Deadlines{ReadWrite: 20 * time.Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		b := reads(t, d, 4, 4096)
		s.Hold(true)
		submit(t, d, b)
		past, cancel := context.WithCancel(context.Background())
		cancel()
		cq := s.queues[4].Bytes
		for at := 0; len(data) >= nvme.CompletionSize && d.State() == driver.StateReady; data = data[nvme.CompletionSize:] {
			copy(cq[at:], data[:nvme.DW3Offset])
			mmio.StoreEntry32(cq[at+nvme.DW3Offset:], mmio.LoadEntry32(data[nvme.DW3Offset:]))
			at = (at + nvme.CompletionSize) % len(cq)
			if b.Ended() {
				break
			}
			_ = b.Wait(past) // it polls until nothing comes
		}
		s.Hold(false)
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if !b.Ended() {
			if err := b.Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
		for tries := 0; tries < 3; tries++ { // what the queue holds may still isolate it
			if d.State() != driver.StateReady {
				if err := d.Reset(ctx); err != nil {
					t.Fatal(err)
				}
			}
			again := &driver.Batch{Reqs: b.Reqs}
			if d.Submit(ctx, again) == nil {
				if err := again.Wait(ctx); err != nil {
					t.Fatal(err)
				}
				if again.Err() == nil {
					break
				}
			}
			if tries == 2 {
				t.Fatalf("%v, %v", d.State(), again.Err())
			}
		}
		if r := b.Reqs[0].Segs[0].Region; r.InFlight() != 0 {
			t.Errorf("%d holds left", r.InFlight())
		}
		if err := d.Close(ctx); err != nil && !errors.Is(err, base.ErrTimeout) {
			t.Error(err)
		}
	})
}
