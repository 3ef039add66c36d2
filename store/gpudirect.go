package store

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	gpuxfer "github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
)

// Whole blocks of registered GPU memory go between it and the devices without a stop
// in host memory. This file decides which, makes what arrived visible and checks it,
// and sends what failed the staged way.

// reasonNoSum is why values with checksums are staged where a GPU computes none.
const reasonNoSum = "the GPU computes no checksums"

// straight is how many of the n bytes at off may go without a copy by the processor,
// in whole blocks, as far as devices and kinds of memory are concerned.
func (r *runner) straight(it *item, off, n int64) int64 {
	n &^= base.StoreBlock - 1
	if n == 0 || !it.cur.inRegion() {
		return 0
	}
	if peer := it.cur.peer(); peer != nil {
		n, _ = r.s.reach(it, peer, off, n, r.op == driver.OpWrite)
	}
	return n
}

// reach is how many of the n bytes at off of a value lie on devices that move them to
// or from GPU memory directly, and why the next one does not.
func (s *Store) reach(it *item, peer *gpuxfer.Peer, off, n int64, write bool) (run int64, why string) {
	opt := &s.gpu.opt.Move
	sums := it.verify || write && !it.v.noCRC
	switch {
	case opt.Compat == gpuxfer.CompatOn:
		return 0, gpuxfer.ReasonCompat
	case it.v.length < opt.Threshold:
		return 0, gpuxfer.ReasonSmall
	case sums && !s.gpu.canSum(peer.Registration().Device()):
		return 0, reasonNoSum
	}
	at := int64(0) // where the extent begins in the value
	for _, e := range it.v.exts {
		end := at + e.Bytes()
		if off+run < end {
			if why = peer.Why(int(e.Dev), !write); why != "" {
				return run, why
			}
			if run = end - off; run >= n {
				return n, ""
			}
		}
		at = end
	}
	return run, ""
}

// gpuPath is how n bytes at off of a value go that begin at the cursor and are not
// moved directly.
func (it *item) gpuPath(s *Store, off, n int64, write bool) driver.PathKey {
	if n < base.StoreBlock && off+n == it.v.length {
		return driver.PathKey{Path: driver.PathTail, Write: write, Reason: reasonTail}
	}
	why := ""
	if it.cur.skipEmpty(); it.cur.i < len(it.gpu.ranges) {
		why = it.gpu.ranges[it.cur.i].why
		if peer := it.cur.peer(); peer != nil {
			if _, why = s.reach(it, peer, off, base.StoreBlock, write); why == "" {
				why = it.shape(off, n, write)
			}
		}
	}
	if why == "" { // host memory comes first, or all that is wanted was taken
		why = reasonPlain
		for _, r := range it.gpu.ranges {
			if r.why != "" {
				why = r.why
				break
			}
		}
	}
	return driver.PathKey{Path: driver.PathStaged, Write: write, Reason: why}
}

// plainRun cuts a staged transfer of n bytes where memory begins that devices may
// reach, in whole blocks.
func (it *item) plainRun(n int64) int64 {
	if it.gpu == nil || it.cur.inRegion() {
		return n
	}
	run, cur := int64(0), it.cur
	for run < n && cur.i < len(cur.bufs) && !cur.inRegion() { // which moves over empty ones
		run += cur.left()
		cur.advance(cur.left())
	}
	return min(n, max(run&^(base.StoreBlock-1), base.StoreBlock))
}

// shape is why bytes are staged that devices could move directly.
func (it *item) shape(off, n int64, write bool) string {
	switch {
	case write || off >= it.off && off+n <= it.off+it.n:
		return reasonMisaligned
	case it.verify:
		return reasonVerify
	}
	return reasonBlocks
}

// holdPeer keeps the memory registered until done, whatever the caller does (I3, I4).
func (x *xfer) holdPeer(peer *gpuxfer.Peer) {
	if x.err = peer.Registration().HoldNow(); x.err == nil {
		x.peer = peer
	}
}

// done counts a direct transfer and lets go of its memory.
func (g *gpuSide) done(x *xfer) {
	reg := x.peer.Registration()
	if x.path.Path == driver.PathDirect && x.moved > 0 {
		g.direct[reg.Device()].Add(x.path, x.moved)
	}
	if x.path.Path == driver.PathDirect && x.err != nil {
		g.direct[reg.Device()].Fail(x.path)
	}
	reg.Release()
}

// arrived is between the end of a flight's commands and the answers: what failed on
// its way to or from a GPU goes the staged way, what came is made visible to kernels
// that run already, and its checksums are computed.
func (f *flight) arrived() {
	direct := false
	for i := range f.xfers {
		direct = direct || f.xfers[i].peer != nil
	}
	if !direct {
		return
	}
	if f.op == driver.OpRead {
		f.flushGPUs()
	}
	for i := range f.xfers {
		if x := &f.xfers[i]; x.peer != nil && x.err != nil {
			f.bounce(x)
		}
	}
	if f.op == driver.OpRead {
		f.sumGPU(func(x *xfer) bool { return x.it.verify })
	}
}

// flushGPUs makes the bytes of direct reads visible, once a GPU.
func (f *flight) flushGPUs() {
	flushed := map[int]error{}
	for i := range f.xfers {
		x := &f.xfers[i]
		if x.peer == nil || x.err != nil || !x.peer.NeedsFlush() {
			continue
		}
		dev := x.peer.Registration().Device()
		err, known := flushed[dev]
		if !known {
			err = x.peer.Flush()
			flushed[dev] = err
		}
		x.err = err
	}
}

// bounce repeats a direct transfer that failed by way of the GPU's bounce buffers. It
// stays failed in a strict store, and on a device that is not ready: that is for the
// caller to know.
func (f *flight) bounce(x *xfer) {
	cause := x.err
	for _, class := range []error{ErrIsolated, ErrDeviceGone, ErrTimeout, ErrMismatch, context.Canceled} {
		if errors.Is(cause, class) {
			return
		}
	}
	dev := x.it.v.exts[0].Dev
	segs := f.segs[x.segAt : x.segAt+x.nseg]
	at := int64(0)
	var moved int64
	for _, e := range x.it.v.exts {
		from, to := max(x.off, at), min(x.off+x.n, at+e.Bytes())
		if from < to && !f.s.opts.Strict {
			var part []driver.Seg
			part, segs = cutSegs(segs, to-from)
			n, err := f.bounceSegs(x, int(e.Dev), e.Off()+from-at, part)
			if moved += n; err != nil {
				x.err = errors.Join(cause, err)
				return
			}
			dev = e.Dev
		}
		at += e.Bytes()
	}
	if x.peer.Broke(int(dev), cause); f.s.opts.Strict {
		x.err = base.Errorf(f.op.String(), "GPU memory", ErrNotSupported, "strict, and %s: %w", gpuxfer.ReasonRetried, cause)
		return
	}
	for _, to := range []*driver.PathStats{&f.s.paths, &f.s.gpu.direct[x.peer.Registration().Device()]} {
		if x.moved > 0 { // what the commands carried before one failed
			to.Add(x.path, x.moved)
		}
		to.Fail(x.path)
	}
	x.err, x.moved = nil, moved
	x.path.Path, x.path.Reason = driver.PathStaged, gpuxfer.ReasonRetried
}

// bounceSegs moves the bytes of segments between a device and the GPU by bounce
// buffers, and tells how many.
func (f *flight) bounceSegs(x *xfer, dev int, off int64, segs []driver.Seg) (moved int64, err error) {
	m, err := f.s.gpu.mover(x.peer.Registration().Device())
	for _, sg := range segs {
		if err != nil {
			break
		}
		var end gpuxfer.Endpoint
		if end, err = gpuxfer.Bounce(f.s.devs[dev], off, sg.Len, gpuxfer.ReasonRetried); err != nil {
			break
		}
		var n int64
		if f.op == driver.OpWrite {
			n, err = m.Write(context.Background(), end, 0, x.peer.Ptr(sg.Off), sg.Len)
		} else {
			n, err = m.Read(context.Background(), end, 0, x.peer.Ptr(sg.Off), sg.Len)
		}
		moved, off = moved+n, off+sg.Len
	}
	return moved, err
}

// readLost reads values once more, through host memory, whose direct bytes had the wrong
// checksum: it may be the way that lost them, and not the device. Then the memory is
// staged from then on.
func (r *runner) readLost(gets []*getItem) {
	if r.s.gpu == nil || r.s.opts.Strict {
		return
	}
	r.landAll()
	var again []*getItem
	for _, g := range gets {
		it := &g.it
		if !it.lost || r.err != nil {
			continue
		}
		again = append(again, g)
		for i := range it.gpu.ranges {
			if rg := &it.gpu.ranges[i]; rg.peer != nil {
				rg.lost, rg.peer, rg.why = rg.peer, nil, gpuxfer.ReasonRetried
			}
		}
		it.cause, it.err, it.crc, it.cur = it.err, nil, 0, cursor{bufs: g.gi.Dst, gpu: it.gpu.ranges}
		r.read(it)
	}
	if len(again) == 0 {
		return
	}
	r.landAll()
	for _, g := range again {
		for i := range g.it.gpu.ranges {
			if p := g.it.gpu.ranges[i].lost; p != nil && g.it.err == nil && r.err == nil {
				p.Broke(int(g.it.v.exts[0].Dev), base.Errorf("read", "object", ErrCorrupt, "bytes were lost between device and GPU: %w", g.it.cause))
			}
		}
	}
}

// sumUp computes the checksums of what GPUs gave for a put: of staged bytes here, of
// direct ones on the GPU.
func (f *flight) sumUp() {
	f.sumGPU(func(x *xfer) bool { return !x.it.v.noCRC })
	for i := range f.xfers {
		x := &f.xfers[i]
		if x.it.gpu == nil || x.it.v.noCRC {
			continue
		}
		if x.err != nil { // whatever becomes of the transfer, its checksum is missing
			x.it.err = firstErr(x.it.err, x.err)
			continue
		}
		switch {
		case x.buf.ok():
			x.it.crc = crcOf(x.it.crc, f.s.stage.bytes(x.buf, x.n))
		case x.peer != nil:
			x.it.crc = base.CombineCRC32C(x.it.crc, x.sum, x.n)
		default:
			for _, sg := range f.segs[x.segAt : x.segAt+x.nseg] {
				x.it.crc = crcOf(x.it.crc, sg.Region.Bytes(sg.Off, sg.Len))
			}
		}
		if end := x.off + x.n; end%PieceBytes == 0 || end == x.it.v.length {
			x.it.endPiece(end)
		}
	}
}

// sumGPU has the GPUs compute the checksums of those direct transfers that need one.
func (f *flight) sumGPU(needs func(x *xfer) bool) {
	for dev := range f.s.gpu.count() {
		var of []*xfer
		var items []gpu.SumItem
		for i := range f.xfers {
			x := &f.xfers[i]
			if x.peer == nil || x.err != nil || x.peer.Registration().Device() != dev || !needs(x) {
				continue
			}
			for _, sg := range f.segs[x.segAt : x.segAt+x.nseg] {
				of, items = append(of, x), append(items, gpu.SumItem{Ptr: x.peer.Ptr(sg.Off), N: sg.Len})
			}
			x.sum = 0
		}
		if len(items) == 0 {
			continue
		}
		err := f.s.gpu.sum(dev, items)
		for i, x := range of {
			if err != nil {
				x.err = err
				if errors.Is(err, ErrTimeout) { // the kernel may still read the memory: it stays registered
					_ = x.peer.Registration().HoldNow()
				}
				continue
			}
			x.sum = base.CombineCRC32C(x.sum, items[i].CRC, items[i].N)
		}
	}
}

// sumTimeout is how long a GPU may take for the checksums of a flight.
const sumTimeout = 30 * time.Second

// gpuSums is what computes checksums on one GPU. Without s it cannot.
type gpuSums struct {
	made sync.Once
	mu   sync.Mutex // one caller at a time
	s    *gpu.Summer
}

func (g *gpuSide) count() int {
	if g == nil {
		return 0
	}
	return len(g.sums)
}

// canSum tells whether a GPU computes checksums, and makes what it needs for that.
func (g *gpuSide) canSum(dev int) bool {
	s := &g.sums[dev]
	s.made.Do(func() {
		if sum, err := gpu.NewSummer(g.opt.Backend.Devices()[dev]); err == nil {
			s.s = sum
		}
	})
	return s.s != nil
}

// sum computes checksums on a GPU that can. ErrTimeout when the kernel does not end.
func (g *gpuSide) sum(dev int, items []gpu.SumItem) error {
	s := &g.sums[dev]
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), sumTimeout)
	defer cancel()
	return base.Wrap("compute", "checksums of gpu "+strconv.Itoa(dev), s.s.Sum(ctx, items))
}

// closePairs ends what devices and GPUs have in common; nothing is in flight.
func (g *gpuSide) closePairs() error {
	if g == nil {
		return nil
	}
	err := g.pairs.Close()
	for i := range g.sums {
		if s := g.sums[i].s; s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	return err
}

// known lists the pairs of devices and GPUs that were tested.
func (g *gpuSide) known() []gpuxfer.Pair {
	if g == nil {
		return nil
	}
	return g.pairs.Known()
}

// TestGPU tests every device of the store with a GPU, as far as that was not done, and
// gives the verdicts by device. ErrNotFound for a GPU that is none.
func (s *Store) TestGPU(index int) ([]gpuxfer.Pair, error) {
	if s.gpu == nil {
		return nil, errNoGPU("test")
	}
	if err := s.gate.enter("test", "gpu"); err != nil {
		return nil, err
	}
	defer s.gate.leave()
	if n := len(s.gpu.opt.Backend.Devices()); index < 0 || index >= n {
		return nil, base.Errorf("test", "gpu", ErrNotFound, "number %d of %d", index, n)
	}
	var out []gpuxfer.Pair
	for d := range s.devs {
		out = append(out, s.gpu.pairs.Test(d, index))
	}
	return out, nil
}

func (g *gpuSide) pairFailed(p gpuxfer.Pair) {
	g.s.events.emit(Event{Kind: EventPair, Device: p.Device,
		Err: base.Errorf("reach", "gpu "+strconv.Itoa(p.GPU)+" from "+p.Target, ErrNotSupported, "%s, so bytes are staged: %w", p.Reason, p.Err)})
}

// testSpace is where self-tests write: between the marks and the slot table, where
// nothing of the store lies. A store that is opened for reading has them read a
// superblock, and what follows it.
func (s *Store) testSpace(int) (int64, error) {
	if s.opts.ReadOnly {
		return superFirstOff, nil
	}
	return testOff, nil
}
