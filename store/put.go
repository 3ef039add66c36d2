package store

import (
	"context"
	"slices"
	"strings"

	"github.com/ugds-store/ugds/alloc"
	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
)

// keyText shows a key in messages, cut to a length that leaves a line readable.
func keyText(key []byte) string {
	const limit = 128
	if text := base.KeyText(key); len(text) > limit {
		return strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return base.KeyText(key)
}

// Bounds of one chunk of a batch: what is written before the first of it enters
// the commit order.
const (
	chunkItems = 1024
	chunkBytes = 32 * base.MiB
)

// putItem is a put under way.
type putItem struct {
	op *op
	it item
	pi *PutItem

	// One allocation instead of many for a value with one extent and one piece.
	own op // op, unless a Writer made it
	ext [1]alloc.Extent
	sum [1]uint32
}

// Put stores the value under key. When it returns nil the value is visible, and
// with Sync durable. Errors: ErrExists without Replace; ErrNoSpace; ErrInvalid
// for a bad key or buffers, or a value of more than 4 TiB with checksums; ErrReadOnly; ErrIsolated when a device stopped under
// it (nothing happened); ErrUnknown when the commit failed; ErrTimeout when ctx
// ended first (a put that was finished may still happen).
func (n *Namespace) Put(ctx context.Context, key []byte, v Buffers, o PutOptions) error {
	one := &struct { // one allocation
		items [1]PutItem
		put   putItem
	}{items: [1]PutItem{{Key: key, Value: v, PutOptions: o}}}
	n.putItems(ctx, one.items[:], func() *putItem { return &one.put })
	return one.items[0].Err
}

// PutBatch stores many values with deep submission and shared commit rounds;
// each item holds its own answer. Items of one key enter the commit order as they
// stand, each after every earlier operation on the key; between keys the order
// is not defined, and a batch is not one transaction.
func (n *Namespace) PutBatch(ctx context.Context, items []PutItem) {
	n.putItems(ctx, items, func() *putItem { return new(putItem) })
}

func (n *Namespace) putItems(ctx context.Context, items []PutItem, alloc func() *putItem) {
	if err := n.enter("put", len(items)); err != nil {
		for i := range items {
			items[i].Err = err
		}
		return
	}
	defer n.s.gate.leave()
	var first [1]*putItem
	queued := first[:0] // sync puts to wait for
	var chunk []*putItem
	var bytes int64
	var one [1]*putItem
	held := one[:0] // their memory
	flush := func() {
		if len(chunk) > 0 {
			queued = append(queued, n.s.writeChunk(ctx, chunk)...)
			chunk, bytes = nil, 0
		}
	}
	for i := range items {
		p := n.newPut(&items[i], alloc)
		if p == nil {
			continue
		}
		held = append(held, p)
		// Never block on a key, or on space, with claimed operations in hand.
		holder, err := n.s.claim(p.op, p.pi.Replace)
		if holder != nil {
			flush()
			err = n.s.claimWait(ctx, p.op, p.pi.Replace)
		}
		if err != nil {
			p.pi.Err = err
			continue
		}
		if n.s.deferWrite(ctx, p) {
			// Queued at once: we may not hold its buffer while we wait for more.
			if n.s.finishPut(p) {
				queued = append(queued, p)
			}
			continue
		}
		chunk = append(chunk, p)
		if bytes += p.it.v.length; bytes >= chunkBytes || len(chunk) >= chunkItems {
			flush()
		}
	}
	flush()
	for _, p := range held { // every value has left its memory
		p.it.gpu.release()
		p.pi.Value.release()
	}
	for _, p := range queued {
		if p.pi.Err = p.op.wait(ctx); p.pi.Err != nil {
			p.pi.Generation = 0
		}
	}
}

// newPut checks an item and holds its memory; nil when it has its answer already.
func (n *Namespace) newPut(pi *PutItem, alloc func() *putItem) *putItem {
	pi.Generation = 0
	pi.Err = checkKey("put", pi.Key)
	if pi.Err == nil {
		pi.Err = pi.Value.check("put")
	}
	if pi.Err == nil {
		pi.Err = n.s.ReadOnly()
	}
	if pi.Err != nil {
		return nil
	}
	p := alloc()
	p.pi = pi
	p.op = n.initOp(&p.own, opPut, pi.Key, pi.Durability)
	p.it = item{v: version{length: pi.Value.Size(), noCRC: pi.NoChecksum, sums: p.sum[:0]}, cur: cursor{bufs: pi.Value}}
	if pi.Err = pi.Value.hold(); pi.Err == nil {
		if pi.Err = n.s.holdGPU("put", &p.it); pi.Err != nil {
			pi.Value.release()
		}
	}
	if pi.Err != nil {
		return nil
	}
	return p
}

func (n *Namespace) newOp(kind opKind, key []byte, d Durability) *op {
	return n.initOp(new(op), kind, key, d)
}

func (n *Namespace) initOp(o *op, kind opKind, key []byte, d Durability) *op {
	*o = op{kind: kind, relaxed: d == Relaxed, ns: n.ns, fp: n.s.hash.of(n.ns.id, key), done: make(chan struct{})}
	o.key = append(o.short[:0], key...)
	o.sh = n.s.idx.shard(o.fp)
	return o
}

// writeChunk writes the values of claimed puts and queues those that succeeded.
// It gives the sync ones, which the caller waits for.
func (s *Store) writeChunk(ctx context.Context, chunk []*putItem) (queued []*putItem) {
	r := &runner{s: s, ctx: ctx, op: driver.OpWrite}
	written := make([]*putItem, 0, len(chunk))
	for _, p := range chunk {
		if p.op.relaxed {
			p.it.err = s.waitVolatile(ctx, p.it.v.length)
		}
		if p.it.err == nil && p.it.v.exts == nil {
			p.it.v.exts, p.it.err = s.allocate(ctx, p.ext[:0], p.it.v.length)
		}
		if written = append(written, p); p.it.err == nil {
			p.it.stamps = s.stampsOf(p.op.stamp[:0], &p.it.v)
			r.writeFrom(&p.it, 0, p.it.v.length)
		}
	}
	// When ctx ends with commands in flight, the extents stay owned until the
	// last of them landed.
	abandoned := func() {
		for _, p := range written {
			s.giveBack(&p.it.v)
		}
	}
	if err := r.finish(abandoned); err != nil {
		for _, p := range written {
			p.pi.Err = base.Wrap("put", keyText(p.op.key), firstErr(p.it.err, err))
			s.decide(p.op, p.pi.Err)
		}
		return queued
	}
	for _, p := range written {
		if s.finishPut(p) && !p.op.relaxed {
			queued = append(queued, p)
		}
	}
	return queued
}

func firstErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// finishPut queues a put whose commands all ended; false when it failed.
func (s *Store) finishPut(p *putItem) bool {
	err := firstErr(p.it.err, p.it.v.describable())
	if err == nil {
		err = s.enqueue(p.op, p.it.v, p.it.stamps)
	}
	if err == nil {
		p.pi.Generation = p.op.gen
		return true
	}
	s.giveBack(&p.it.v)
	p.pi.Err = base.Wrap("put", keyText(p.op.key), err)
	s.decide(p.op, p.pi.Err)
	return false
}

// describable refuses what a record has no room for: it would fail the commit of a
// whole round.
func (v *version) describable() error {
	if len(v.exts) > meta.MaxExtents || !v.noCRC && v.pieces() > meta.MaxPieces {
		return base.Errorf("describe", "value", ErrInvalid, "%d extents, %d checksums of pieces: the limits are %d and %d",
			len(v.exts), v.pieces(), meta.MaxExtents, meta.MaxPieces)
	}
	return nil
}

// writeFrom adds the transfers for [from, from+n) of the value, which has its
// extents already, and computes the checksums on the way. from is a multiple of
// a piece.
func (r *runner) writeFrom(it *item, from, n int64) {
	end := from + n
	for off := from; off < end && r.err == nil && it.err == nil; {
		pieceEnd := min(off-off%PieceBytes+PieceBytes, end)
		got := r.writeDirect(it, off, pieceEnd-off)
		if got == 0 {
			got = r.writeStaged(it, off, pieceEnd-off)
		}
		if off += got; off == pieceEnd && it.gpu == nil {
			it.endPiece(off)
		}
	}
}

// endPiece takes the checksum of the piece that ends at off into the value's.
func (it *item) endPiece(off int64) {
	if it.v.noCRC {
		return
	}
	if len(it.v.sums) == 0 {
		it.v.crc = it.crc
	} else {
		it.v.crc = base.CombineCRC32C(it.v.crc, it.crc, off-(off-1)/PieceBytes*PieceBytes)
	}
	it.v.sums = append(it.v.sums, it.crc)
	it.crc = 0
}

// writeDirect sends whole blocks from the caller's region.
func (r *runner) writeDirect(it *item, off, n int64) int64 {
	if whole := r.straight(it, off, n); whole > 0 {
		f := r.room()
		at, peer := len(f.segs), it.cur.peer()
		segs, got := it.cur.direct(whole, r.s.memAlign, f.segs)
		f.segs = segs
		if got == 0 {
			return 0
		}
		for _, sg := range segs[at:] {
			// The processor cannot read some memory.
			it.v.noCRC = it.v.noCRC || peer == nil && sg.Region.Bytes(sg.Off, sg.Len) == nil
		}
		f.addDirect(it, off, got, at, peer)
		if f.full() {
			r.launch() // the device writes while the processor computes the checksum
		}
		for i := at; r.err == nil && !it.v.noCRC && it.gpu == nil && i < len(segs); i++ {
			it.crc = crcOf(it.crc, segs[i].Region.Bytes(segs[i].Off, segs[i].Len))
		}
		return got
	}
	return 0
}

// writeStaged copies up to n bytes into a bounce buffer. The rest of the last
// block is zeroed.
func (r *runner) writeStaged(it *item, off, n int64) int64 {
	n = it.plainRun(n)
	path := driver.PathKey{Path: driver.PathStaged, Write: true, Reason: reasonPlain}
	if it.cur.inRegion() {
		if n = min(n, it.cur.left()); n < base.StoreBlock {
			path = driver.PathKey{Path: driver.PathTail, Write: true, Reason: reasonTail}
		} else {
			path.Reason = reasonMisaligned
		}
		// A run that does not end the value must end on a block.
		if off+n < it.v.length {
			n = max(n&^(base.StoreBlock-1), min(base.StoreBlock, it.v.length-off))
		}
	}
	if it.gpu != nil {
		path = it.gpuPath(r.s, off, n, true)
	}
	if it.refuse(r.s, path) {
		return 0
	}
	buf, ok := r.stage(n)
	if !ok {
		return 0
	}
	f := r.room()
	b := f.addStaged(it, off, n, buf, path)
	if it.gpu != nil {
		ok = f.split(len(f.xfers)-1, it, &it.cur, 0, n)
	} else {
		ok = it.cur.copyOut(b[:n])
	}
	if !ok {
		it.err = errUnreachable("put", r.s)
	}
	clear(b[n:])
	if !it.v.noCRC && it.gpu == nil {
		it.crc = crcOf(it.crc, b[:n])
	}
	return n
}

// Reasons of the path statistics.
const (
	reasonPlain      = "plain memory"
	reasonTail       = "partial last block"
	reasonMisaligned = "misaligned range"
	reasonVerify     = "whole pieces are read to verify a range"
	reasonBlocks     = "whole blocks are read around a range"
)

// Delete removes the object. When it returns nil the key is absent, and with
// Sync stays absent after any crash. Errors: ErrNotFound, ErrReadOnly,
// ErrUnknown, ErrTimeout.
func (n *Namespace) Delete(ctx context.Context, key []byte, o DeleteOptions) error {
	return n.DeleteBatch(ctx, [][]byte{key}, o)[0]
}

// DeleteBatch removes many objects, at most MaxBatchKeys, in shared commit rounds,
// with an answer for each key.
func (n *Namespace) DeleteBatch(ctx context.Context, keys [][]byte, o DeleteOptions) []error {
	errs := make([]error, len(keys))
	if err := n.enter("delete", len(keys)); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	defer n.s.gate.leave()
	ops := make([]*op, len(keys))
	for i, k := range keys {
		ops[i], errs[i] = n.deleteOne(ctx, k, o)
	}
	for i, op := range ops {
		if op != nil && !op.relaxed {
			errs[i] = op.wait(ctx)
		}
	}
	return errs
}

func (n *Namespace) deleteOne(ctx context.Context, key []byte, o DeleteOptions) (*op, error) {
	if err := checkKey("delete", key); err != nil {
		return nil, err
	}
	if err := n.s.ReadOnly(); err != nil {
		return nil, base.Wrap("delete", keyText(key), err)
	}
	d := n.newOp(opDelete, key, o.Durability)
	if err := n.s.claimWait(ctx, d, false); err != nil {
		return nil, err
	}
	if err := n.s.enqueue(d, version{}, nil); err != nil {
		err = base.Wrap("delete", keyText(key), err)
		n.s.decide(d, err)
		return nil, err
	}
	return d, nil
}

// devicesOf lists the devices of extents, each once, in order.
func devicesOf(exts []alloc.Extent) (devs []int) {
	for _, e := range exts {
		if !slices.Contains(devs, int(e.Dev)) {
			devs = append(devs, int(e.Dev))
		}
	}
	return devs
}
