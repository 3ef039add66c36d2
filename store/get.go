package store

import (
	"bytes"
	"context"
	"errors"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
)

// held is a version that a reader holds.
type held struct {
	sh *shard
	v  version
}

// hold finds the key and pins its version. With sums it also loads the piece
// checksums of a value of several pieces.
func (n *Namespace) hold(ctx context.Context, key []byte, sums bool) (held, error) {
	fp := n.s.hash.of(n.ns.id, key)
	h := held{sh: n.s.idx.shard(fp)}
	for quiet := uint64(0); ; { // the version that was behind though nothing was in flight
		var ok bool
		h.sh.mu.Lock()
		h.v, _, ok = h.sh.get(fp, nil)
		busy := h.sh.busy[fp]
		if ok {
			h.sh.pin(h.v.gen)
			if busy != nil && busy.next.gen == h.v.gen {
				h.v.sums = busy.next.sums // relaxed, its record is not committed yet
			}
		}
		h.sh.mu.Unlock()
		if !ok {
			return held{}, base.Wrap("get", keyText(key), ErrNotFound)
		}
		if !sums || h.v.noCRC || h.v.pieces() <= 1 || h.v.sums != nil {
			return h, nil
		}
		again, err := n.loadSums(ctx, key, &h.v, busy)
		if err == nil && !again {
			return h, nil
		}
		n.s.unpin(h.sh, h.v.gen)
		if err == nil && busy == nil {
			if quiet == h.v.gen { // and is so for good: its publication failed
				err = base.Errorf("read checksums of", "the object", ErrUnknown,
					"its metadata is of another version than the index, which had no memory for it; open the store again")
			}
			quiet = h.v.gen
		}
		if err != nil {
			return held{}, base.Wrap("get", keyText(key), err)
		}
	}
}

// loadSums reads the piece checksums of v from the metadata. Between the commit
// and the publication of a replace the metadata is ahead of the index; then the
// answer is "again", after the operation is decided.
func (n *Namespace) loadSums(ctx context.Context, key []byte, v *version, busy *op) (again bool, err error) {
	rec, err := n.s.db.Get(n.ns.id, key)
	switch {
	case err == nil && rec.Gen == v.gen:
		v.sums = rec.PieceCRCs
		return false, nil
	case err != nil && !errors.Is(err, ErrNotFound):
		return false, err
	}
	if busy != nil {
		select {
		case <-busy.done:
		case <-ctx.Done():
			return false, base.Errorf("wait for", "the operation in flight", ErrTimeout, "%w", ctx.Err())
		}
	}
	return true, ctx.Err()
}

// drop ends the hold. ErrIsolated when the version was withdrawn while held:
// what was read from it may be anything.
func (n *Namespace) drop(h held, err error) error {
	if n.s.unpin(h.sh, h.v.gen) {
		return base.Errorf("get", "object", ErrIsolated, "it was withdrawn while it was read, since its device stopped")
	}
	return err
}

// Get reads the object, or a range of it, into dst and gives the number of bytes.
// Whole pieces of 1 MiB are verified unless NoVerify is set; for the checksum of
// a range the whole pieces around it are read. On an error the content of dst is
// undefined. Errors: ErrNotFound; ErrOutOfRange when the range is outside the
// value or dst is too small; ErrCorrupt when a checksum does not match.
func (n *Namespace) Get(ctx context.Context, key []byte, dst Buffers, o GetOptions) (int64, error) {
	items := [1]GetItem{{Key: key, Dst: dst, GetOptions: o}}
	n.GetBatch(ctx, items[:])
	return items[0].N, items[0].Err
}

// GetBytes reads the object into new memory.
func (n *Namespace) GetBytes(ctx context.Context, key []byte, o GetOptions) ([]byte, error) {
	if err := n.s.gate.enter("get", n.ns.name); err != nil {
		return nil, err
	}
	defer n.s.gate.leave()
	if err := checkKey("get", key); err != nil {
		return nil, err
	}
	h, err := n.hold(ctx, key, !o.NoVerify)
	if err != nil {
		return nil, err
	}
	_, size, err := o.clip(h.v.length)
	if err != nil {
		return nil, n.drop(h, base.Wrap("get", keyText(key), err))
	}
	buf := make([]byte, size)
	g := &getItem{gi: &GetItem{Key: key, Dst: Bytes(buf), GetOptions: o}, h: h}
	n.readAll(ctx, []*getItem{g})
	if g.gi.Err != nil {
		return nil, g.gi.Err
	}
	return buf, nil
}

// clip gives the wanted range of a value of the given length.
func (o *GetOptions) clip(length int64) (off, n int64, err error) {
	off, n = o.Off, o.Len
	if n == 0 && !o.Exact {
		n = length - off
	}
	if !base.CheckRange(off, n, length) {
		return 0, 0, base.Errorf("read", "range", ErrOutOfRange, "offset %d, length %d of a value of %d bytes", o.Off, o.Len, length)
	}
	return off, n, nil
}

// getItem is a get under way.
type getItem struct {
	gi    *GetItem
	h     held
	it    item
	whole bool // verify only
	holds bool // the regions of gi.Dst
}

// enter passes the gate with a call of that many keys: at most MaxBatchKeys, else
// ErrInvalid. The caller leaves the gate if err is nil.
func (n *Namespace) enter(op string, keys int) error {
	if keys > MaxBatchKeys {
		return base.Errorf(op, n.ns.name, ErrInvalid, "%d keys in one call, the limit is %d", keys, MaxBatchKeys)
	}
	return n.s.gate.enter(op, n.ns.name)
}

// GetBatch reads many objects, at most MaxBatchKeys, as one deep submission; each
// item holds its own answer.
func (n *Namespace) GetBatch(ctx context.Context, items []GetItem) {
	err := n.enter("get", len(items))
	if err == nil {
		defer n.s.gate.leave()
	}
	gets := make([]*getItem, 0, len(items))
	for i := range items {
		gi := &items[i]
		gi.N, gi.Size, gi.Generation = 0, 0, 0
		if gi.Err = err; gi.Err == nil {
			gi.Err = firstErr(checkKey("get", gi.Key), gi.Dst.check("get"))
		}
		if gi.Err != nil {
			continue
		}
		h, err := n.hold(ctx, gi.Key, !gi.NoVerify)
		if gi.Err = err; err == nil {
			gets = append(gets, &getItem{gi: gi, h: h})
		}
	}
	n.readAll(ctx, gets)
}

// readAll reads held versions and ends the holds.
func (n *Namespace) readAll(ctx context.Context, gets []*getItem) {
	r := &runner{s: n.s, ctx: ctx, op: driver.OpRead, digest: digestRead}
	var mapped []windowGet
	var shared []*getItem
	var known gpu.Attributes
	for _, g := range gets {
		if g.it.err = g.prepare(); g.it.err == nil {
			g.it.err = g.gi.Dst.hold()
			g.holds = g.it.err == nil
		}
		if g.it.err == nil {
			g.it.err = n.s.holdGPUOf("get", &g.it, &known)
		}
		if g.it.err != nil {
			continue
		}
		if wg, ok := n.s.useWindow(g); ok {
			mapped = append(mapped, wg)
			continue
		}
		if len(gets) > 1 && r.mayShare(g) {
			shared = append(shared, g)
			continue
		}
		r.read(&g.it)
	}
	shares := r.readShared(shared)
	if len(mapped) > 0 {
		r.launch() // the devices work meanwhile
		n.s.copyWindows(mapped)
	}
	if len(shares) > 0 {
		r.landAll()
		r.readAlone(shares)
	}
	r.readLost(gets)
	err := r.finish(func() {
		for _, g := range gets {
			n.s.unpin(g.h.sh, g.h.v.gen)
		}
	})
	for _, g := range gets {
		g.it.gpu.release()
		if g.holds {
			g.gi.Dst.release()
		}
		if err != nil {
			g.gi.Err = base.Wrap("get", keyText(g.gi.Key), firstErr(g.it.err, err))
			continue
		}
		if g.gi.Err = n.drop(g.h, base.Wrap("get", keyText(g.gi.Key), g.it.err)); g.gi.Err == nil {
			g.gi.N, g.gi.Generation = g.it.n, g.h.v.gen
			n.s.events.accessed(n.ns.name, g.gi.Key, &g.h.v)
		}
	}
}

// prepare fills the item from the options.
func (g *getItem) prepare() error {
	g.gi.Size = g.h.v.length
	if g.whole {
		g.it = wholeItem(&g.h.v)
		return nil
	}
	off, size, err := g.gi.clip(g.h.v.length)
	if err != nil {
		return err
	}
	if have := g.gi.Dst.Size(); have < size {
		return base.Errorf("read", "object", ErrOutOfRange, "it needs %d bytes, the buffers hold %d", size, have)
	}
	g.it = item{v: g.h.v, cur: cursor{bufs: g.gi.Dst}, off: off, n: size,
		verify: !g.gi.NoVerify && !g.h.v.noCRC}
	return nil
}

// read adds the transfers that bring the wanted range, in whole pieces when it
// is verified.
func (r *runner) read(it *item) {
	at, end := it.off&^(base.StoreBlock-1), it.off+it.n
	switch {
	case it.whole:
		at, end = 0, it.v.length
	case it.n == 0:
		return
	case it.verify:
		at = it.off / PieceBytes * PieceBytes
		end = min(base.AlignUp(end, PieceBytes), it.v.length)
	}
	for at < end && r.err == nil && it.err == nil {
		pieceEnd := min(at-at%PieceBytes+PieceBytes, end)
		got := int64(0)
		if at >= it.off && pieceEnd <= it.off+it.n {
			got = r.readDirect(it, at, pieceEnd-at)
		}
		if got == 0 {
			got = r.readStaged(it, at, pieceEnd-at)
		}
		at += got
	}
}

func (r *runner) readDirect(it *item, off, n int64) int64 {
	whole := r.straight(it, off, n)
	if whole == 0 {
		return 0
	}
	f := r.room()
	at, peer := len(f.segs), it.cur.peer()
	segs, got := it.cur.direct(whole, r.s.memAlign, f.segs)
	f.segs = segs
	if got > 0 {
		f.addDirect(it, off, got, at, peer)
	}
	return got
}

// readPath is how n bytes at off of a value that do not go direct are counted.
func (r *runner) readPath(it *item, off, n int64) driver.PathKey {
	if it.share != nil {
		return it.share.path
	}
	if it.gpu != nil {
		return it.gpuPath(r.s, off, n, false)
	}
	path := driver.PathKey{Path: driver.PathStaged, Reason: reasonPlain}
	if it.cur.inRegion() {
		path.Reason = reasonMisaligned
		switch {
		case n < base.StoreBlock && off+n == it.v.length:
			path = driver.PathKey{Path: driver.PathTail, Reason: reasonTail}
		case off < it.off || off+n > it.off+it.n:
			path.Reason = reasonBlocks
			if it.verify {
				path.Reason = reasonVerify
			}
		}
	}
	return path
}

func (r *runner) readStaged(it *item, off, n int64) int64 {
	if off >= it.off && off+n <= it.off+it.n {
		n = it.plainRun(n)
	}
	path := r.readPath(it, off, n)
	if it.refuse(r.s, path) {
		return 0
	}
	buf, ok := r.stage(n)
	if !ok {
		return 0
	}
	f := r.room()
	f.addStaged(it, off, n, buf, path)
	f.xfers[len(f.xfers)-1].cur = it.cur
	if wanted := min(off+n, it.off+it.n) - max(off, it.off); wanted > 0 && it.share == nil {
		it.cur.advance(wanted)
	}
	return n
}

// digestRead verifies a transfer that landed and copies what was staged.
// Transfers of a value come in order.
func digestRead(f *flight, i int) {
	x := &f.xfers[i]
	it := x.it
	if it.verify && !it.checkXfer(x, f) {
		return
	}
	switch {
	case !x.buf.ok():
	case it.share != nil:
		it.share.deliver(f, i)
	default:
		f.hand(i, it, &x.cur)
	}
}

// hand copies what the value wants of the bytes that transfer i brought to the cursor:
// at once, or by a move of the flight.
func (f *flight) hand(i int, it *item, cur *cursor) {
	x := &f.xfers[i]
	from, to := max(x.off, it.off), min(x.off+x.n, it.off+it.n)
	if from >= to {
		return
	}
	ok := false
	if it.gpu != nil {
		ok = f.split(i, it, cur, from-x.off, to-from)
	} else {
		ok = cur.copyIn(f.s.stage.bytes(x.buf, x.n)[from-x.off : to-x.off])
	}
	if !ok {
		it.err = errUnreachable("read", f.s)
	}
}

func errUnreachable(op string, s *Store) error {
	return base.Errorf(op, "buffers", ErrMisaligned, "the processor cannot reach them and they do not lie on %d bytes", s.memAlign)
}

// refuse sets the error of a value that would be staged although the store is
// strict; true if it did.
func (it *item) refuse(s *Store, path driver.PathKey) bool {
	if !s.opts.Strict || path.Path != driver.PathStaged || it.whole {
		return false
	}
	op := "get"
	if path.Write {
		op = "put"
	}
	it.err = base.Errorf(op, "buffers", ErrNotSupported, "strict, and the bytes would be staged: %s", path.Reason)
	return true
}

// checkXfer continues the checksum of the piece; false when the piece is over
// and wrong.
func (it *item) checkXfer(x *xfer, f *flight) bool {
	if x.buf.ok() {
		it.crc = crcOf(it.crc, f.s.stage.bytes(x.buf, x.n))
	} else if x.peer != nil {
		it.direct = true
		it.crc = base.CombineCRC32C(it.crc, x.sum, x.n)
	} else {
		for _, sg := range f.segs[x.segAt : x.segAt+x.nseg] {
			b := sg.Region.Bytes(sg.Off, sg.Len)
			if b == nil {
				it.verify = false // the processor cannot read it
				return true
			}
			it.crc = crcOf(it.crc, b)
		}
	}
	end := x.off + x.n
	if end%PieceBytes != 0 && end != it.v.length {
		return true
	}
	want := it.v.crc
	piece := int((end - 1) / PieceBytes)
	if it.v.pieces() > 1 {
		want = it.v.sums[piece]
	}
	direct := it.direct
	it.direct = false
	if it.crc != want {
		it.lost = direct
		it.err = base.WithHint(base.Errorf("read", "object", ErrCorrupt,
			"checksum of piece %d of generation %d is %08x, it was stored as %08x", piece, it.v.gen, it.crc, want),
			"the data on the device changed; put the object anew, or remove it: `ugdsctl fsck --verify-data --repair` lists all such objects and removes them with --yes")
		return false
	}
	it.crc = 0
	return true
}

// Exists tells whether the key is visible.
func (n *Namespace) Exists(_ context.Context, key []byte) (bool, error) {
	var out [1]bool
	err := n.ExistsMany([][]byte{key}, out[:])
	return out[0], err
}

// ExistsMany tells for each of at most MaxBatchKeys keys whether it is visible; out
// has the length of keys.
func (n *Namespace) ExistsMany(keys [][]byte, out []bool) error {
	if err := n.enter("look up", len(keys)); err != nil {
		return err
	}
	defer n.s.gate.leave()
	if len(out) != len(keys) {
		return base.Errorf("look up", "keys", ErrInvalid, "%d keys, %d answers", len(keys), len(out))
	}
	for i, k := range keys {
		if err := checkKey("look up", k); err != nil {
			return err
		}
		fp := n.s.hash.of(n.ns.id, k)
		sh := n.s.idx.shard(fp)
		sh.mu.Lock()
		_, out[i] = sh.find(fp)
		sh.mu.Unlock()
	}
	return nil
}

// Stat describes the object. ErrNotFound when there is none.
func (n *Namespace) Stat(_ context.Context, key []byte) (ObjectInfo, error) {
	if err := n.s.gate.enter("stat", n.ns.name); err != nil {
		return ObjectInfo{}, err
	}
	defer n.s.gate.leave()
	if err := checkKey("stat", key); err != nil {
		return ObjectInfo{}, err
	}
	info, ok := n.info(key)
	if !ok {
		return ObjectInfo{}, base.Wrap("stat", keyText(key), ErrNotFound)
	}
	return info, nil
}

func (n *Namespace) info(key []byte) (ObjectInfo, bool) {
	fp := n.s.hash.of(n.ns.id, key)
	sh := n.s.idx.shard(fp)
	sh.mu.Lock()
	v, volatile, ok := sh.get(fp, nil)
	sh.mu.Unlock()
	if !ok {
		return ObjectInfo{}, false
	}
	return ObjectInfo{Key: bytes.Clone(key), Size: v.length, SlotBytes: v.slotBytes(), Generation: v.gen,
		Durable: !volatile, CRC32C: v.crc, HasCRC: !v.noCRC, Devices: devicesOf(v.exts)}, true
}
