package drivertest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// testFailedEntry: an error of the device ends one request; repeated ones show
// in the health.
func testFailedEntry(t *testing.T, h Harness) {
	need(t, h.Fail != nil, "make a command fail")
	d, in := h.Dev, h.Dev.Info()
	r := attached(t, d, base.StoreBlock)
	for i := range 5 {
		h.Fail(driver.OpRead)
		if err := driver.Do(soon(t), d, read(0, r.Seg(0, in.BlockSize))); err == nil {
			t.Fatal("no error")
		}
		hl, _ := d.Health(soon(t))
		if hl.ConsecutiveErrors != int64(i+1) {
			t.Errorf("%d errors in a row, counted %d", i+1, hl.ConsecutiveErrors)
		}
	}
	if hl, _ := d.Health(soon(t)); hl.OK || hl.Critical == "" || d.State() != driver.StateReady {
		t.Errorf("%+v, %v", hl, d.State())
	}
	do(t, d, read(0, r.Seg(0, in.BlockSize)))
	if hl, _ := d.Health(soon(t)); !hl.OK || hl.ConsecutiveErrors != 0 {
		t.Errorf("%+v", hl)
	}
	if s := d.Stats(); s.Errors != 5 || s.Reads != 1 || s.ReadBytes != in.BlockSize {
		t.Errorf("%+v", s)
	}
}

// testFailedPart: of a request one part of which fails, on a device that cuts it, the
// device counts the bytes that the answer tells, whatever the others have moved (I10).
func testFailedPart(t *testing.T, h Harness) {
	need(t, h.Fail != nil, "make a command fail")
	d, in := h.Dev, h.Dev.Info()
	n := 3*in.MaxTransfer + in.BlockSize
	r := attached(t, d, n)
	var done int64
	for range 3 {
		h.Fail(driver.OpRead)
		reqs := []driver.Request{read(0, r.Seg(0, n))}
		if err := driver.Do(soon(t), d, reqs...); err == nil || reqs[0].Done >= n {
			t.Fatalf("%d of %d bytes, %v", reqs[0].Done, n, err)
		}
		done += reqs[0].Done
	}
	if s := d.Stats(); s.ReadBytes != done || s.Reads != 0 || s.Errors != 3 {
		t.Errorf("%+v; the answers tell of %d bytes", s, done)
	}
}

func testIsolateReset(t *testing.T, h Harness) {
	need(t, h.Isolate != nil, "isolate the device")
	d, in := h.Dev, h.Dev.Info()
	r := attached(t, d, base.StoreBlock)
	var l eventLog
	cancel := d.Subscribe(l.add)
	inc := d.Incarnation()
	for round := range uint64(3) {
		h.Isolate()
		eventually(t, "isolated", func() bool { return d.State() == driver.StateIsolated })
		if d.Incarnation() != inc+round+1 {
			t.Errorf("incarnation %d", d.Incarnation())
		}
		b := driver.Batch{Reqs: []driver.Request{read(0, r.Seg(0, in.BlockSize))}}
		wantErr(t, "submit", d.Submit(soon(t), &b), base.ErrIsolated)
		if hl, _ := d.Health(soon(t)); hl.OK {
			t.Error("healthy although isolated")
		}
		if err := d.Reset(soon(t)); err != nil {
			t.Fatal(err)
		}
		if err := d.Submit(soon(t), &b); err != nil { // the refused batch is free again
			t.Fatal(err)
		}
		if err := errors.Join(b.Wait(soon(t)), b.Err()); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Reset(soon(t)); err != nil || d.Incarnation() != inc+3 {
		t.Errorf("reset of a ready device: %v, incarnation %d", err, d.Incarnation())
	}
	cycle := []driver.State{driver.StateIsolated, driver.StateResetting, driver.StateReady}
	want := slices.Concat(cycle, cycle, cycle)
	eventually(t, "events", func() bool { return slices.Equal(l.states(), want) })
	if l.evs[0].Cause == nil || l.evs[2].Cause != nil {
		t.Errorf("causes: %v, %v", l.evs[0].Cause, l.evs[2].Cause)
	}
	cancel()
}

// testIsolateInFlight: requests that were in flight end with ErrIsolated, once,
// when the device gave them back; their memory is held until then (I4).
func testIsolateInFlight(t *testing.T, h Harness) {
	need(t, h.Isolate != nil && h.Hold != nil, "isolate the device with requests in flight")
	d, in := h.Dev, h.Dev.Info()
	r := attached(t, d, base.MiB)
	h.Hold(true)
	var b driver.Batch
	for i := range int64(8) {
		b.Reqs = append(b.Reqs, write(i*base.StoreBlock, r.Seg(i*base.StoreBlock, in.BlockSize)))
	}
	if err := d.Submit(soon(t), &b); err != nil {
		t.Fatal(err)
	}
	h.Isolate()
	eventually(t, "isolated", func() bool { return d.State() == driver.StateIsolated })
	wantErr(t, "wait", b.Wait(within(t, 20*time.Millisecond)), base.ErrTimeout)
	wantErr(t, "region", r.Close(), base.ErrBusy)
	h.Hold(false)
	if err := b.Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
	for i := range b.Reqs {
		wantErr(t, "entry", b.Reqs[i].Err, base.ErrIsolated)
	}
	if r.InFlight() != 0 {
		t.Errorf("%d holds left", r.InFlight())
	}
	if err := d.Reset(soon(t)); err != nil {
		t.Fatal(err)
	}
	do(t, d, read(0, r.Seg(0, in.BlockSize)))
}

// testResetBounded: Reset waits for what is in flight, but not longer than its
// context.
func testResetBounded(t *testing.T, h Harness) {
	need(t, h.Isolate != nil && h.Hold != nil, "isolate the device with requests in flight")
	d, in := h.Dev, h.Dev.Info()
	r := attached(t, d, base.MiB)
	h.Hold(true)
	b := driver.Batch{Reqs: []driver.Request{write(0, r.Seg(0, in.BlockSize))}}
	if err := d.Submit(soon(t), &b); err != nil {
		t.Fatal(err)
	}
	h.Isolate()
	eventually(t, "isolated", func() bool { return d.State() == driver.StateIsolated })
	wantErr(t, "reset", d.Reset(within(t, 20*time.Millisecond)), base.ErrTimeout)
	if d.State() != driver.StateIsolated {
		t.Errorf("state %v", d.State())
	}
	time.AfterFunc(30*time.Millisecond, func() { h.Hold(false) })
	if err := d.Reset(soon(t)); err != nil {
		t.Fatal(err)
	}
	if !b.Ended() {
		t.Error("reset returned with a write in flight")
	}
	wantErr(t, "entry", errors.Join(b.Wait(soon(t)), b.Err()), base.ErrIsolated)
	do(t, d, read(0, r.Seg(0, in.BlockSize)))
}

// testFailedFlush: a failed flush isolates the device and is never retried.
func testFailedFlush(t *testing.T, h Harness) {
	need(t, h.Fail != nil, "make a command fail")
	d := h.Dev
	if !d.Info().VolatileCache {
		return
	}
	h.Fail(driver.OpFlush)
	before := d.Stats().Commands
	wantErr(t, "flush", driver.Flush(soon(t), d), base.ErrIsolated)
	if s := d.Stats(); d.State() != driver.StateIsolated || d.Incarnation() != 1 || s.Flushes != 0 || s.Commands != before+1 {
		t.Errorf("%v, incarnation %d, %+v", d.State(), d.Incarnation(), s)
	}
	wantErr(t, "second flush", driver.Flush(soon(t), d), base.ErrIsolated)
	if err := d.Reset(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := driver.Flush(soon(t), d); err != nil {
		t.Error(err)
	}
}
