package drivertest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// testSubmitTimesOut: a full queue is waited for until the context ends; the
// entries that found no room end with ErrTimeout, the others complete.
func testSubmitTimesOut(t *testing.T, h Harness) {
	need(t, h.Hold != nil, "hold completions back")
	d := h.Dev
	r := attached(t, d, base.MiB)
	h.Hold(true)
	var b driver.Batch
	for i := range int64(150) {
		b.Reqs = append(b.Reqs, read(i*base.MiB, r.Seg(0, base.MiB)))
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	go func() { // 50 ms after the first entry was sent
		for d.Stats().InFlightBytes == 0 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(50 * time.Millisecond)
		cancel()
	}()
	if err := d.Submit(ctx, &b); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("submit took %v", took)
	}
	if d.Stats().RoomWait <= 0 {
		t.Error("the wait for room is not counted")
	}
	if b.Ended() {
		t.Error("the batch ended although completions are held back")
	}
	h.Hold(false)
	if err := b.Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
	var ok, late int
	for i := range b.Reqs {
		switch err := b.Reqs[i].Err; {
		case err == nil:
			ok++
		case errors.Is(err, base.ErrTimeout):
			late++
		default:
			t.Errorf("entry %d: %v", i, err)
		}
	}
	if ok == 0 || late == 0 {
		t.Errorf("%d entries completed, %d timed out", ok, late)
	}
	do(t, d, read(0, r.Seg(0, base.MiB)))
}

// stuffed is a batch of more than may be in flight, being submitted.
func stuffed(t *testing.T, d driver.Device, r *driver.Region, wg *sync.WaitGroup) *driver.Batch {
	b := new(driver.Batch)
	for i := range int64(120) {
		b.Reqs = append(b.Reqs, write(i*base.MiB, r.Seg(0, base.MiB)))
	}
	b.Reqs = append(b.Reqs, driver.Request{Op: driver.OpFlush})
	wg.Go(func() {
		if err := d.Submit(soon(t), b); err != nil {
			t.Error(err)
		}
	})
	return b
}

// testCancel: a cancel ends what waits for room, of several submitters, and takes
// nothing back that was sent: that memory stays in flight until it has ended (I4).
func testCancel(t *testing.T, h Harness) {
	need(t, h.Hold != nil, "hold completions back")
	d := h.Dev
	r := attached(t, d, base.MiB)
	h.Hold(true)
	var wg sync.WaitGroup
	first := stuffed(t, d, r, &wg)
	eventually(t, "something in flight", func() bool { return d.Stats().InFlightBytes > 0 })
	second := stuffed(t, d, r, &wg)
	ended := make(chan struct{})
	go func() {
		wg.Wait() // both submissions end although nothing else does
		close(ended)
	}()
	time.Sleep(20 * time.Millisecond)
	eventually(t, "an end of the submissions", func() bool { // one may begin only now
		first.Cancel()
		second.Cancel()
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	wantErr(t, "wait", first.Wait(within(t, 20*time.Millisecond)), base.ErrTimeout)
	wantErr(t, "region", r.Close(), base.ErrBusy)
	if d.State() != driver.StateReady {
		t.Errorf("%v", d.State())
	}
	h.Hold(false)
	for i, b := range []*driver.Batch{first, second} {
		if err := b.Wait(soon(t)); err != nil {
			t.Fatal(err)
		}
		sent, unsent := countSent(t, b)
		if i == 0 && sent == 0 || unsent == 0 {
			t.Errorf("batch %d: %d entries were sent, %d not", i, sent, unsent)
		}
		b.Reqs = b.Reqs[:1] // the batch is as new
		if err := errors.Join(d.Submit(soon(t), b), b.Wait(soon(t)), b.Err()); err != nil {
			t.Errorf("batch %d again: %v", i, err)
		}
	}
	if n := r.InFlight(); n != 0 {
		t.Errorf("%d holds left", n)
	}
}

// countSent checks the answers of a canceled batch.
func countSent(t *testing.T, b *driver.Batch) (sent, unsent int) {
	t.Helper()
	for i := range b.Reqs {
		q := &b.Reqs[i]
		switch {
		case q.Err == nil && q.Done == q.Len:
			sent++
		case q.Err != nil && errors.Is(q.Err, context.Canceled) && q.Done < max(q.Len, 1):
			unsent++
		default:
			t.Errorf("entry %d: %d of %d bytes, %v", i, q.Done, q.Len, q.Err)
		}
	}
	return sent, unsent
}

// testCancelEnded: a cancel that comes when nothing waits changes nothing, neither
// then nor for the next use of the batch.
func testCancelEnded(t *testing.T, h Harness) {
	d := h.Dev
	r := attached(t, d, base.StoreBlock)
	var b driver.Batch
	b.Cancel()
	for range 20 {
		b.Reqs = append(b.Reqs[:0], write(0, r.Seg(0, base.StoreBlock)), read(base.MiB, r.Seg(0, base.StoreBlock)))
		if err := d.Submit(soon(t), &b); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(b.Cancel)
		if err := errors.Join(b.Wait(soon(t)), b.Err()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		b.Cancel()
	}
}
