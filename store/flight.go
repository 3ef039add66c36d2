package store

import (
	"context"
	"hash/crc32"

	"github.com/ugds-store/ugds/driver"
	gpuxfer "github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/mutant"
)

// Bounds of one flight, and of what a caller has under way. Flights are small, so
// that the processor computes the checksums of one while the device works on the
// others; with more bytes under way than a device needs to be busy, they would
// all land at the end, and their checksums come after it.
const (
	flightXfers     = 128
	flightBytes     = base.MiB / 2
	flightsUnderWay = 64
	bytesUnderWay   = 8 * base.MiB // a device of the store
)

// stamp is the incarnation of a device when a write to it was submitted.
type stamp struct {
	dev int
	inc uint64
}

// item is one value under way: a put, or a get of a range.
type item struct {
	v   version
	cur cursor
	err error

	stamps []stamp  // puts
	gpu    *gpuItem // nil without GPU memory

	// gets
	off, n int64  // the wanted range of the value
	whole  bool   // check the whole value, keep nothing of it
	share  *share // what the bytes are read for, if there are several
	verify bool   // check whole pieces
	crc    uint32 // of the piece so far
	direct bool   // a part of the piece went directly to a GPU
	lost   bool   // the checksum of such a piece was wrong
	cause  error  // the error then
}

// xfer is a run of blocks of one value inside one piece: the unit of staging.
type xfer struct {
	it     *item
	off, n int64    // range of the value, off a multiple of a block
	buf    stageBuf // staged; none for direct
	nseg   int      // direct: segments in flight.segs from segAt
	segAt  int
	cur    cursor        // staged reads: where the bytes go
	peer   *gpuxfer.Peer // direct, GPU memory: it is held until the flight is done
	sum    uint32        // and its checksum, by the GPU
	path   driver.PathKey
	moved  int64 // bytes that the commands carried
	err    error
}

// flight is a set of transfers that is submitted as one batch a device.
type flight struct {
	s     *Store
	op    driver.Op
	xfers []xfer
	segs  []driver.Seg
	moves []gpuMove // to or from GPUs
	bytes int64
	parts []part // one a device of the store
}

type part struct {
	batch     driver.Batch
	owner     []int32 // transfer of each request
	submitted bool
}

func (s *Store) newFlight(op driver.Op) *flight {
	f, _ := s.flights.Get().(*flight)
	if f == nil {
		f = &flight{s: s, parts: make([]part, len(s.devs))}
	}
	f.op = op
	return f
}

func (f *flight) full() bool { return len(f.xfers) >= flightXfers || f.bytes >= flightBytes }

// addStaged adds a transfer through buf and returns the buffer's bytes, whole
// blocks.
func (f *flight) addStaged(it *item, off, n int64, buf stageBuf, path driver.PathKey) []byte {
	f.xfers = append(f.xfers, xfer{it: it, off: off, n: n, buf: buf, path: path})
	whole := base.AlignUp(n, base.StoreBlock)
	f.bytes += whole
	return f.s.stage.bytes(buf, whole)
}

// addDirect adds a transfer whose segments were appended to f.segs from segAt; peer
// is set if they are GPU memory.
func (f *flight) addDirect(it *item, off, n int64, segAt int, peer *gpuxfer.Peer) {
	f.xfers = append(f.xfers, xfer{it: it, off: off, n: n, segAt: segAt, nseg: len(f.segs) - segAt,
		path: driver.PathKey{Path: driver.PathDirect, Write: f.op == driver.OpWrite}})
	f.bytes += n
	if peer != nil {
		f.xfers[len(f.xfers)-1].holdPeer(peer)
	}
}

// submit starts every transfer. Errors go to the transfers.
func (f *flight) submit(ctx context.Context) {
	for i := range f.xfers {
		f.request(int32(i))
	}
	for d := range f.parts {
		p := &f.parts[d]
		if len(p.batch.Reqs) == 0 {
			continue
		}
		if err := f.s.devs[d].Submit(ctx, &p.batch); err != nil {
			for _, x := range p.owner {
				f.xfers[x].err = err
			}
			continue
		}
		p.submitted = true
	}
}

// request cuts transfer i at the borders of extents and appends its requests.
func (f *flight) request(i int32) {
	x := &f.xfers[i]
	if x.err != nil { // its bytes did not arrive from the GPU
		return
	}
	var segs []driver.Seg
	whole := base.AlignUp(x.n, base.StoreBlock)
	if x.buf.ok() {
		segs = []driver.Seg{f.s.stage.region.Seg(x.buf.off, whole)}
	} else {
		segs = f.segs[x.segAt : x.segAt+x.nseg]
	}
	at := int64(0) // where the extent begins in the value
	for _, e := range x.it.v.exts {
		from, to := max(x.off, at), min(x.off+whole, at+e.Bytes())
		if from < to {
			p := &f.parts[e.Dev]
			var s []driver.Seg
			s, segs = cutSegs(segs, to-from)
			p.batch.Reqs = append(p.batch.Reqs, driver.Request{Op: f.op,
				Off: e.Off() + from - at, Len: to - from, Segs: s})
			p.owner = append(p.owner, i)
		}
		if at += e.Bytes(); at >= x.off+whole {
			return
		}
	}
}

// cutSegs splits off the first n bytes of segs.
func cutSegs(segs []driver.Seg, n int64) (head, rest []driver.Seg) {
	for i := range segs {
		switch {
		case n == segs[i].Len:
			return segs[: i+1 : i+1], segs[i+1:]
		case n < segs[i].Len:
			head = append(append([]driver.Seg(nil), segs[:i]...), segs[i])
			head[i].Len = n
			rest = append([]driver.Seg(nil), segs[i:]...)
			rest[0].Off += n
			rest[0].Len -= n
			return head, rest
		}
		n -= segs[i].Len
	}
	return segs, nil
}

// wait returns nil once nothing of the flight is in flight any more. When ctx
// ends first the flight goes on, and wait must be called again.
func (f *flight) wait(ctx context.Context) error {
	for d := range f.parts {
		p := &f.parts[d]
		if !p.submitted {
			continue
		}
		if err := p.batch.Wait(ctx); err != nil {
			return err
		}
		p.submitted = false
		for i := range p.batch.Reqs {
			x, r := &f.xfers[p.owner[i]], &p.batch.Reqs[i]
			x.moved += r.Done
			if r.Err != nil && x.err == nil {
				x.err = r.Err
			}
		}
	}
	return nil
}

// done counts the paths, gives the buffers back and the flight too. Nothing may
// be in flight.
func (f *flight) done() {
	for i := range f.xfers {
		x := &f.xfers[i]
		if x.moved > 0 {
			f.s.paths.Add(x.path, x.moved)
		}
		if x.err != nil {
			f.s.paths.Fail(x.path)
		}
		if x.peer != nil {
			f.s.gpu.done(x)
		}
		f.s.stage.put(x.buf)
	}
	clear(f.xfers)
	clear(f.segs)
	clear(f.moves)
	f.xfers, f.segs, f.moves, f.bytes = f.xfers[:0], f.segs[:0], f.moves[:0], 0
	for d := range f.parts {
		p := &f.parts[d]
		clear(p.batch.Reqs)
		p.batch.Reqs, p.owner = p.batch.Reqs[:0], p.owner[:0]
	}
	f.s.flights.Put(f)
}

// runner keeps several flights of one caller under way: one is filled or
// digested by the processor while the device works on the others.
type runner struct {
	s      *Store
	ctx    context.Context
	op     driver.Op
	cur    *flight   // being filled
	under  []*flight // submitted, oldest first
	moving int64     // bytes of those
	digest func(f *flight, i int)
	err    error // the context ended; what is under way goes on without us
}

// room makes room for one more transfer in the flight being filled.
func (r *runner) room() *flight {
	if r.cur != nil && r.cur.full() {
		r.launch()
	}
	if r.cur == nil {
		r.cur = r.s.newFlight(r.op)
	}
	return r.cur
}

// stage takes a staging buffer for n bytes. It never blocks while this caller
// holds buffers that are not in flight.
func (r *runner) stage(n int64) (stageBuf, bool) {
	for r.err == nil {
		if b := r.s.stage.tryGet(n); b.ok() {
			return b, true
		}
		switch {
		case r.cur != nil && len(r.cur.xfers) > 0:
			r.launch()
		case len(r.under) > 0:
			r.land()
		default:
			b, err := r.s.stage.get(r.ctx, n)
			r.err = err
			return b, err == nil
		}
	}
	return stageBuf{}, false
}

// launch submits the flight being filled.
func (r *runner) launch() {
	if r.cur == nil {
		return
	}
	for r.err == nil && r.crowded() {
		r.land()
	}
	f := r.cur
	r.cur = nil
	if r.err != nil {
		f.done()
		return
	}
	if f.op == driver.OpWrite {
		f.move()
	}
	f.submit(r.ctx)
	if f.op == driver.OpWrite {
		f.sumUp() // while the devices write
	}
	r.under = append(r.under, f)
	r.moving += f.bytes
}

// crowded tells whether a flight has to land before the next is launched.
func (r *runner) crowded() bool {
	return len(r.under) == flightsUnderWay ||
		len(r.under) > 0 && r.moving+r.cur.bytes > bytesUnderWay*int64(len(r.s.devs))
}

// land waits for the oldest flight and digests its transfers.
func (r *runner) land() {
	if r.err != nil || len(r.under) == 0 {
		return
	}
	f := r.under[0]
	if err := f.wait(r.ctx); err != nil {
		r.err = err
		return
	}
	r.under = r.under[1:]
	r.moving -= f.bytes
	f.arrived()
	for i := range f.xfers {
		x := &f.xfers[i]
		if x.err != nil {
			if x.it.err == nil {
				x.it.err = x.err
			}
			continue
		}
		if r.digest != nil && x.it.err == nil {
			r.digest(f, i)
		}
	}
	f.move()
	f.done()
}

// landAll submits what is left and waits for all of it, unless the context ends.
func (r *runner) landAll() {
	r.launch()
	for r.err == nil && len(r.under) > 0 {
		r.land()
	}
}

// finish submits what is left and waits for all of it. If the context ends
// first, the flights still under way are left to a goroutine that calls
// abandoned once the last one landed; finish then returns the error at once.
func (r *runner) finish(abandoned func()) error {
	r.landAll()
	if r.err == nil {
		return nil
	}
	if r.cur != nil {
		r.cur.done()
		r.cur = nil
	}
	under := r.under
	r.under = nil
	early := mutant.On(mutant.DrainBeforeFree)
	if early {
		abandoned()
	}
	r.s.background(func() {
		for _, f := range under {
			// The device's own deadlines bound this wait.
			for f.wait(context.Background()) != nil {
			}
			f.done()
		}
		if !early {
			abandoned()
		}
	})
	return r.err
}

// crcOf continues a checksum.
func crcOf(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }
