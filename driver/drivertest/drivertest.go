// Package drivertest is the conformance suite of driver.Device: what the store
// relies on, whatever moves the bytes. Each implementation runs it in its tests.
package drivertest

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

// MinCapacity is what a device under test must offer, in bytes.
const MinCapacity = 160 * base.MiB

// Harness is one device under test, freshly opened and all zeros, and what can
// be done to it. It belongs to one subtest; the function that makes it closes
// the device with t.Cleanup, unless the subtest closed it.
type Harness struct {
	Dev driver.Device

	// Hold, if not nil, makes completions stay invisible until it is called with
	// false, as if the device had not finished.
	Hold func(on bool)
	// Fail, if not nil, makes the next command of the operation fail with an
	// error of the device, once.
	Fail func(op driver.Op)
	// Isolate, if not nil, makes the device stop by itself, for a reason that
	// Reset can mend.
	Isolate func()
}

// Run runs the whole suite; open makes a new device for each subtest.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	for _, c := range []struct {
		name string
		fn   func(t *testing.T, h Harness)
	}{
		{"Geometry", testGeometry},
		{"ReadBackShapes", testShapes},
		{"C12AroundMaxTransfer", testAroundMaxTransfer},
		{"C11LargerThanInFlightBound", testLargeRequest},
		{"C17ZeroLength", testZeroLength},
		{"C23EndOfDevice", testEndOfDevice},
		{"C23PrimeScan", testPrimeScan},
		{"C01MemoryAlignment", testMemoryAlignment},
		{"MixedBatch", testMixedBatch},
		{"BatchLimits", testBatchLimits},
		{"BatchBusyAndReuse", testBatchReuse},
		{"Fields", testFields},
		{"ConcurrentSubmitters", testConcurrent},
		{"ConcurrentWaiters", testWaiters},
		{"InFlightBound", testInFlightBound},
		{"StaleGeneration", testStaleGeneration},
		{"AttachDetach", testAttachDetach},
		{"FlushAndFUA", testFlushFUA},
		{"WriteZeroes", testWriteZeroes},
		{"Discard", testDiscard},
		{"I10Counters", testCounters},
		{"AfterClose", testAfterClose},
		{"I04ContextEndsWait", testContextEndsWait},
		{"SubmitTimesOut", testSubmitTimesOut},
		{"CancelUnsent", testCancel},
		{"CancelEnded", testCancelEnded},
		{"CloseInFlight", testCloseInFlight},
		{"FailedEntry", testFailedEntry},
		{"I10FailedPart", testFailedPart},
		{"IsolateAndReset", testIsolateReset},
		{"IsolateInFlight", testIsolateInFlight},
		{"ResetBounded", testResetBounded},
		{"FailedFlushIsolates", testFailedFlush},
	} {
		t.Run(c.name, func(t *testing.T) { c.fn(t, open(t)) })
	}
}

// within bounds one step of a test.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func soon(t *testing.T) context.Context { t.Helper(); return within(t, 30*time.Second) }

func region(t *testing.T, n int64) *driver.Region {
	t.Helper()
	r, err := driver.AllocRegion(n, "drivertest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("region: %v", err)
		}
	})
	return r
}

// attached is a region that the device knows.
func attached(t *testing.T, d driver.Device, n int64) *driver.Region {
	t.Helper()
	r := region(t, n)
	if err := d.Attach(r); err != nil {
		t.Fatal(err)
	}
	return r
}

func write(off int64, segs ...driver.Seg) driver.Request {
	return driver.Request{Op: driver.OpWrite, Off: off, Len: sum(segs), Segs: segs}
}

func read(off int64, segs ...driver.Seg) driver.Request {
	return driver.Request{Op: driver.OpRead, Off: off, Len: sum(segs), Segs: segs}
}

func sum(segs []driver.Seg) (n int64) {
	for _, s := range segs {
		n += s.Len
	}
	return n
}

func do(t *testing.T, d driver.Device, reqs ...driver.Request) {
	t.Helper()
	if err := driver.Do(soon(t), d, reqs...); err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, what string, err, class error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Errorf("%s: got %v, want %v", what, err, class)
	}
}

// need skips the subtest when the harness lacks a knob.
func need(t *testing.T, ok bool, what string) {
	t.Helper()
	if !ok {
		testenv.Skip(t, "this device's harness cannot "+what)
	}
}

// fill sets every byte of b to c, by doubling: the race detector makes a loop
// over bytes slow.
func fill(b []byte, c byte) {
	if len(b) == 0 {
		return
	}
	b[0] = c
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// all tells whether every byte of b is c.
func all(b []byte, c byte) bool { return bytes.Count(b, []byte{c}) == len(b) }

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
	}
}
