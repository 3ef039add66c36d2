package drivertest

import (
	"math"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

// testZeroLength: nothing moves and no command is issued (C-17).
func testZeroLength(t *testing.T, h Harness) {
	d, in := h.Dev, h.Dev.Info()
	r := region(t, base.StoreBlock)
	before := d.Stats().Commands
	for _, op := range []driver.Op{driver.OpRead, driver.OpWrite, driver.OpWriteZeroes} {
		for _, off := range []int64{0, in.Capacity / 2 / in.BlockSize * in.BlockSize, in.Capacity} {
			reqs := []driver.Request{{Op: op, Off: off}}
			if op != driver.OpWriteZeroes {
				reqs = append(reqs, driver.Request{Op: op, Off: off, Segs: []driver.Seg{r.Seg(0, 0), r.Seg(base.StoreBlock, 0)}})
			}
			do(t, d, reqs...)
		}
		err := driver.Do(soon(t), d, driver.Request{Op: op, Off: in.Capacity + in.BlockSize})
		wantErr(t, op.String()+" past the end", err, base.ErrOutOfRange)
	}
	if s := d.Stats(); s.Commands != before || s.ReadBytes+s.WriteBytes+s.ZeroBytes != 0 {
		t.Errorf("commands were issued: %+v", s)
	}
}

// testEndOfDevice: the last block works, everything past it is refused without a
// command (C-23).
func testEndOfDevice(t *testing.T, h Harness) {
	d, in := h.Dev, h.Dev.Info()
	r := attached(t, d, base.StoreBlock)
	do(t, d, write(in.Capacity-in.BlockSize, r.Seg(0, in.BlockSize)))
	do(t, d, read(in.Capacity-in.BlockSize, r.Seg(0, in.BlockSize)))
	before := d.Stats().Commands
	high := int64(math.MaxInt64) / in.BlockSize * in.BlockSize
	for _, off := range []int64{in.Capacity, in.Capacity + in.BlockSize, high, high - in.BlockSize} {
		wantErr(t, "read", driver.Do(soon(t), d, read(off, r.Seg(0, in.BlockSize))), base.ErrOutOfRange)
		wantErr(t, "write", driver.Do(soon(t), d, write(off, r.Seg(0, in.BlockSize))), base.ErrOutOfRange)
		for _, n := range []int64{in.BlockSize, high} {
			err := driver.Do(soon(t), d, driver.Request{Op: driver.OpWriteZeroes, Off: off, Len: n})
			wantErr(t, "zeroes", err, base.ErrOutOfRange)
		}
	}
	wantErr(t, "across the end", driver.Do(soon(t), d,
		driver.Request{Op: driver.OpWriteZeroes, Off: in.Capacity - in.BlockSize, Len: 2 * in.BlockSize}), base.ErrOutOfRange)
	if s := d.Stats(); s.Commands != before {
		t.Errorf("%d commands were issued", s.Commands-before)
	}
}

// testPrimeScan reads a prime number of blocks in chunks that do not divide it.
func testPrimeScan(t *testing.T, h Harness) {
	d, in := h.Dev, h.Dev.Info()
	const blocks = 10007
	r := attached(t, d, 4096*in.BlockSize)
	for _, chunk := range []int64{97, 128, 1000, 4096} {
		var total int64
		for at := int64(0); at < blocks; at += chunk {
			n := min(chunk, blocks-at)
			reqs := []driver.Request{read(at*in.BlockSize, r.Seg(0, n*in.BlockSize))}
			do(t, d, reqs...)
			total += reqs[0].Done
		}
		if total != blocks*in.BlockSize {
			t.Errorf("chunks of %d: %d bytes", chunk, total)
		}
	}
}

// badRequests are requests that are wrong by themselves.
func badRequests(in driver.Info, r *driver.Region) map[string]struct {
	req   driver.Request
	class error
} {
	type bad = struct {
		req   driver.Request
		class error
	}
	n := in.BlockSize
	many := make([]driver.Seg, driver.MaxSegs+1)
	for i := range many {
		many[i] = r.Seg(0, 0)
	}
	many[0] = r.Seg(0, n)
	m := map[string]bad{
		"negative offset":    {driver.Request{Op: driver.OpRead, Off: -n, Len: n, Segs: []driver.Seg{r.Seg(0, n)}}, base.ErrInvalid},
		"negative length":    {driver.Request{Op: driver.OpRead, Len: -n}, base.ErrInvalid},
		"lowest offset":      {driver.Request{Op: driver.OpRead, Off: math.MinInt64, Len: n, Segs: []driver.Seg{r.Seg(0, n)}}, base.ErrInvalid},
		"segment too far":    {read(0, driver.Seg{Region: r, Gen: r.Generation(), Off: r.Size(), Len: n}), base.ErrOutOfRange},
		"segment negative":   {driver.Request{Op: driver.OpRead, Len: n, Segs: []driver.Seg{{Region: r, Gen: r.Generation(), Off: -n, Len: n}}}, base.ErrOutOfRange},
		"segment overflow":   {driver.Request{Op: driver.OpRead, Len: n, Segs: []driver.Seg{{Region: r, Gen: r.Generation(), Off: n, Len: math.MaxInt64}}}, base.ErrOutOfRange},
		"no region":          {driver.Request{Op: driver.OpRead, Len: n, Segs: []driver.Seg{{Len: n}}}, base.ErrOutOfRange},
		"segments too short": {driver.Request{Op: driver.OpWrite, Len: 2 * n, Segs: []driver.Seg{r.Seg(0, n)}}, base.ErrInvalid},
		"segments too long":  {driver.Request{Op: driver.OpWrite, Len: n, Segs: []driver.Seg{r.Seg(0, n), r.Seg(0, n)}}, base.ErrInvalid},
		"no segments":        {driver.Request{Op: driver.OpWrite, Len: n}, base.ErrInvalid},
		"too many segments":  {driver.Request{Op: driver.OpWrite, Len: n, Segs: many}, base.ErrInvalid},
		"zeroes with memory": {driver.Request{Op: driver.OpWriteZeroes, Len: n, Segs: []driver.Seg{r.Seg(0, n)}}, base.ErrInvalid},
		"unknown operation":  {driver.Request{Op: driver.OpWriteZeroes + 1, Len: n}, base.ErrInvalid},
	}
	if n > 1 {
		m["misaligned offset"] = bad{read(1, r.Seg(0, n)), base.ErrMisaligned}
		m["misaligned length"] = bad{driver.Request{Op: driver.OpRead, Len: n - 1, Segs: []driver.Seg{r.Seg(0, n)}}, base.ErrMisaligned}
	}
	return m
}

func testFields(t *testing.T, h Harness) {
	d := h.Dev
	r := attached(t, d, base.MiB)
	before := d.Stats()
	for name, b := range badRequests(d.Info(), r) {
		reqs := []driver.Request{b.req}
		wantErr(t, name, driver.Do(soon(t), d, reqs...), b.class)
		if reqs[0].Done != 0 {
			t.Errorf("%s: %d bytes done", name, reqs[0].Done)
		}
	}
	if s := d.Stats(); s.Commands != before.Commands || s.InFlight != 0 || s.Errors == before.Errors {
		t.Errorf("%+v", s)
	}
	if r.InFlight() != 0 {
		t.Errorf("%d holds left", r.InFlight())
	}
}

// testMixedBatch: bad entries end with their own errors and do not disturb the
// good ones between them.
func testMixedBatch(t *testing.T, h Harness) {
	d, in := h.Dev, h.Dev.Info()
	r, back := attached(t, d, base.MiB), region(t, base.MiB)
	testenv.Fill(r.CPU(), 5)
	var b driver.Batch
	var want []error
	for _, bad := range badRequests(in, r) {
		i := int64(len(b.Reqs))
		b.Reqs = append(b.Reqs, write(i*base.StoreBlock, r.Seg(i*base.StoreBlock, base.StoreBlock)), bad.req)
		want = append(want, nil, bad.class)
	}
	if err := d.Submit(soon(t), &b); err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
	for i, w := range want {
		q := &b.Reqs[i]
		if w != nil {
			wantErr(t, "entry", q.Err, w)
			continue
		}
		if q.Err != nil || q.Done != q.Len {
			t.Errorf("entry %d: done %d, %v", i, q.Done, q.Err)
		}
		do(t, d, read(q.Off, back.Seg(0, q.Len)))
		if string(back.CPU()[:q.Len]) != string(r.Bytes(q.Off, q.Len)) {
			t.Errorf("entry %d: wrong bytes", i)
		}
	}
}
