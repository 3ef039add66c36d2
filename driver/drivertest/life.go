package drivertest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

func testStaleGeneration(t *testing.T, h Harness) {
	d, in := h.Dev, h.Dev.Info()
	r, err := driver.AllocRegion(base.MiB, "drivertest")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Attach(r); err != nil {
		t.Fatal(err)
	}
	old := r.Seg(0, in.BlockSize)
	if err := r.Renew(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "renewed region", driver.Do(soon(t), d, read(0, old)), base.ErrClosed)
	fresh := r.Seg(0, in.BlockSize)
	do(t, d, read(0, fresh))
	// The second segment is stale: the hold on the first must be undone.
	two := driver.Request{Op: driver.OpRead, Len: 2 * in.BlockSize, Segs: []driver.Seg{fresh, old}}
	wantErr(t, "one stale segment", driver.Do(soon(t), d, two), base.ErrClosed)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "closed region", driver.Do(soon(t), d, read(0, fresh)), base.ErrClosed)
	wantErr(t, "segment of a closed region", driver.Do(soon(t), d, read(0, r.Seg(0, in.BlockSize))), base.ErrClosed)
	wantErr(t, "attach a closed region", d.Attach(r), base.ErrClosed)
	if err := r.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

func testAttachDetach(t *testing.T, h Harness) {
	d, in := h.Dev, h.Dev.Info()
	r := region(t, base.MiB)
	for range 3 {
		if err := errors.Join(d.Attach(r), d.Attach(r)); err != nil {
			t.Fatal(err)
		}
		testenv.Fill(r.CPU(), 3)
		do(t, d, write(0, r.Seg(0, in.BlockSize)))
		if err := errors.Join(d.Detach(r), d.Detach(r)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2000 { // more than any table has places
		x, err := driver.AllocRegion(base.StoreBlock, "drivertest")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(d.Attach(x), x.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if h.Hold == nil {
		return
	}
	if err := d.Attach(r); err != nil {
		t.Fatal(err)
	}
	h.Hold(true)
	b := driver.Batch{Reqs: []driver.Request{read(0, r.Seg(0, in.BlockSize))}}
	if err := d.Submit(soon(t), &b); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "detach in flight", d.Detach(r), base.ErrBusy)
	h.Hold(false)
	if err := errors.Join(b.Wait(soon(t)), b.Err(), d.Detach(r)); err != nil {
		t.Error(err)
	}
}

func testFlushFUA(t *testing.T, h Harness) {
	d := h.Dev
	r, back := attached(t, d, 2*base.MiB), region(t, 2*base.MiB)
	testenv.Fill(r.CPU(), 9)
	w := write(base.MiB, r.Seg(0, 2*base.MiB))
	w.FUA = true
	do(t, d, w)
	do(t, d, driver.Request{Op: driver.OpFlush}, driver.Request{Op: driver.OpFlush, Off: -1, Len: 7})
	do(t, d, read(base.MiB, back.Seg(0, 2*base.MiB)))
	if !bytes.Equal(r.CPU(), back.CPU()) {
		t.Error("wrong bytes")
	}
	if s := d.Stats(); s.Flushes != 2 || s.Writes != 1 {
		t.Errorf("%+v", s)
	}
}

func testWriteZeroes(t *testing.T, h Harness) {
	d, in := h.Dev, h.Dev.Info()
	r, back := attached(t, d, 4*base.MiB), region(t, 4*base.MiB)
	for _, c := range [][2]int64{{0, in.BlockSize}, {in.BlockSize, 3 * in.BlockSize}, {base.StoreBlock, 2 * base.MiB}, {0, 4 * base.MiB}} {
		testenv.Fill(r.CPU(), 11)
		do(t, d, write(0, r.Seg(0, r.Size())))
		reqs := []driver.Request{{Op: driver.OpWriteZeroes, Off: c[0], Len: c[1]}}
		do(t, d, reqs...)
		if reqs[0].Done != c[1] {
			t.Errorf("%v: done %d", c, reqs[0].Done)
		}
		clear(r.CPU()[c[0] : c[0]+c[1]])
		do(t, d, read(0, back.Seg(0, back.Size())))
		if !bytes.Equal(r.CPU(), back.CPU()) {
			t.Errorf("%v: wrong bytes", c)
		}
	}
}

func testDiscard(t *testing.T, h Harness) {
	d, in := h.Dev, h.Dev.Info()
	r, back := attached(t, d, base.MiB), region(t, base.MiB)
	testenv.Fill(r.CPU(), 12)
	do(t, d, write(0, r.Seg(0, base.MiB)))
	err := driver.Do(soon(t), d, driver.Request{Op: driver.OpDiscard, Off: base.MiB / 2, Len: base.MiB / 4})
	if !in.Discard {
		wantErr(t, "discard", err, base.ErrNotSupported)
	} else if err != nil {
		t.Fatal(err)
	}
	do(t, d, read(0, back.Seg(0, base.MiB)))
	for _, part := range [][2]int{{0, base.MiB / 2}, {base.MiB * 3 / 4, base.MiB}} {
		if !bytes.Equal(r.CPU()[part[0]:part[1]], back.CPU()[part[0]:part[1]]) {
			t.Errorf("the discard changed bytes around it in %v", part)
		}
	}
	do(t, d, write(base.MiB/2, r.Seg(base.MiB/2, base.MiB/4))) // and it can be used again
	do(t, d, read(0, back.Seg(0, base.MiB)))
	if !bytes.Equal(r.CPU(), back.CPU()) {
		t.Error("wrong bytes after writing again")
	}
}

// testCounters: bytes are counted once and are exact when idle (I10).
func testCounters(t *testing.T, h Harness) {
	d, in := h.Dev, h.Dev.Info()
	r := attached(t, d, 4*base.MiB)
	var wrote, got int64
	for i := range int64(20) {
		n := (i + 1) * in.BlockSize
		do(t, d, write(i*base.MiB, r.Seg(0, n)), read(i*base.MiB, r.Seg(base.MiB, 2*n)))
		wrote += n
		got += 2 * n
	}
	_ = driver.Do(soon(t), d, read(in.Capacity, r.Seg(0, in.BlockSize)))
	s := d.Stats()
	if s.WriteBytes != wrote || s.ReadBytes != got || s.Writes != 20 || s.Reads != 20 || s.Errors != 1 ||
		s.InFlight != 0 || s.InFlightBytes != 0 || s.Commands < 40 {
		t.Errorf("%+v; wrote %d, read %d", s, wrote, got)
	}
}

func testAfterClose(t *testing.T, h Harness) {
	d, in := h.Dev, h.Dev.Info()
	r := attached(t, d, base.StoreBlock)
	var l eventLog
	d.Subscribe(l.add)
	do(t, d, write(0, r.Seg(0, in.BlockSize)))
	if err := d.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	if d.State() != driver.StateClosed || d.Incarnation() != 0 {
		t.Errorf("%v, incarnation %d", d.State(), d.Incarnation())
	}
	wantErr(t, "read", driver.Do(soon(t), d, read(0, r.Seg(0, in.BlockSize))), base.ErrClosed)
	wantErr(t, "flush", driver.Flush(soon(t), d), base.ErrClosed)
	wantErr(t, "reset", d.Reset(soon(t)), base.ErrClosed)
	wantErr(t, "attach", d.Attach(r), base.ErrClosed)
	if err := errors.Join(d.Close(soon(t)), d.Detach(r)); err != nil {
		t.Errorf("close or detach after close: %v", err)
	}
	eventually(t, "event", func() bool { return slices.Equal(l.states(), []driver.State{driver.StateClosed}) })
	if s := d.Stats(); s.Writes != 1 {
		t.Errorf("%+v", s)
	}
}

type eventLog struct {
	mu  sync.Mutex
	evs []driver.Event
}

func (l *eventLog) add(e driver.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evs = append(l.evs, e)
}

func (l *eventLog) states() []driver.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []driver.State
	for _, e := range l.evs {
		out = append(out, e.State)
	}
	return out
}

// testContextEndsWait: a caller's context ends only its wait (I4); the memory
// stays in flight (I3).
func testContextEndsWait(t *testing.T, h Harness) {
	need(t, h.Hold != nil, "hold completions back")
	d, in := h.Dev, h.Dev.Info()
	r := attached(t, d, base.StoreBlock)
	h.Hold(true)
	b := driver.Batch{Reqs: []driver.Request{read(0, r.Seg(0, in.BlockSize))}}
	if err := d.Submit(soon(t), &b); err != nil {
		t.Fatal(err)
	}
	err := b.Wait(within(t, 20*time.Millisecond))
	wantErr(t, "wait", err, base.ErrTimeout)
	wantErr(t, "wait", err, context.DeadlineExceeded)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	start := time.Now()
	wantErr(t, "cancelled wait", b.Wait(ctx), context.Canceled)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("a cancelled wait took %v", took)
	}
	wantErr(t, "region", r.Close(), base.ErrBusy)
	wantErr(t, "region", r.Renew(), base.ErrBusy)
	wantErr(t, "batch", d.Submit(soon(t), &b), base.ErrBusy)
	if r.InFlight() == 0 || d.Stats().InFlight != 1 || d.State() != driver.StateReady {
		t.Errorf("%d holds, %+v, %v", r.InFlight(), d.Stats(), d.State())
	}
	h.Hold(false)
	if err := errors.Join(b.Wait(soon(t)), b.Err()); err != nil {
		t.Fatal(err)
	}
	if r.InFlight() != 0 {
		t.Errorf("%d holds left", r.InFlight())
	}
}

func testCloseInFlight(t *testing.T, h Harness) {
	need(t, h.Hold != nil, "hold completions back")
	d, in := h.Dev, h.Dev.Info()
	r := attached(t, d, base.StoreBlock)
	h.Hold(true)
	b := driver.Batch{Reqs: []driver.Request{write(0, r.Seg(0, in.BlockSize))}}
	if err := d.Submit(soon(t), &b); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "close in flight", d.Close(within(t, 20*time.Millisecond)), base.ErrBusy)
	if d.State() != driver.StateReady {
		t.Errorf("state %v", d.State())
	}
	time.AfterFunc(30*time.Millisecond, func() { h.Hold(false) })
	if err := d.Close(soon(t)); err != nil { // nobody waits for the batch
		t.Fatal(err)
	}
	if !b.Ended() {
		t.Error("closed with a request in flight")
	}
	if err := errors.Join(b.Wait(soon(t)), b.Err()); err != nil {
		t.Error(err)
	}
}
