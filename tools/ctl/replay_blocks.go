package ctl

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

// replayMemory bounds the memory of one call, bytes; a request with more blocks
// takes several calls.
const replayMemory = 256 * base.MiB

// replayBlocks is the memory that blocks are put from and read into.
type replayBlocks struct {
	size int64 // of a block
	s    *session
	mem  *valueMemory
}

func (b *replayBlocks) init(size int64, s *session) { b.size, b.s = size, s }

func (b *replayBlocks) close() {
	b.mem.close()
	b.mem = nil
}

func (b *replayBlocks) stride() int64 { return base.AlignUp(b.size, base.StoreBlock) }

// most is how many blocks one call may have.
func (b *replayBlocks) most() int { return int(max(replayMemory/b.stride(), 1)) }

// room makes sure that n blocks fit.
func (b *replayBlocks) room(n int) (err error) {
	need := int64(n) * b.stride()
	if b.mem != nil && b.mem.size() >= need {
		return nil
	}
	if b.mem != nil {
		need = min(max(need, 2*b.mem.size()), int64(b.most())*b.stride())
	}
	b.close()
	b.mem, err = newValueMemory(b.s, need, "replay")
	return err
}

func (b *replayBlocks) at(i int) store.Buffers { return b.mem.at(int64(i)*b.stride(), b.size) }
func (b *replayBlocks) bytes(i int) []byte     { return b.mem.bytes(int64(i)*b.stride(), b.size) }

// blockKey is the key of a block of a trace.
func blockKey(id uint64) []byte { return strconv.AppendUint([]byte("trace/"), id, 10) }

// blockNumbers is the stream of numbers that a block consists of; it follows
// from the id alone, so that any later run can verify it.
func blockNumbers(id uint64) *rand.PCG { return rand.NewPCG(id, 0x7472616365) }

func fillBlock(id uint64, b []byte) {
	p := blockNumbers(id)
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, p.Uint64())
	}
	for v := p.Uint64(); len(b) > 0; b = b[1:] {
		b[0] = byte(v)
		v >>= 8
	}
}

// blockDiffers gives the first byte that is not as fillBlock makes it, or -1.
func blockDiffers(id uint64, b []byte) int {
	p := blockNumbers(id)
	at := 0
	for ; len(b)-at >= 8; at += 8 {
		if binary.LittleEndian.Uint64(b[at:]) != p.Uint64() {
			return at
		}
	}
	for v := p.Uint64(); at < len(b); at++ {
		if b[at] != byte(v) {
			return at
		}
		v >>= 8
	}
	return -1
}

// one replays a request: its hits are read in one call, what is missing is put
// in another. An id that stands in the request again after its put is a hit, and
// is read after the puts.
func (p *replay) one(ctx context.Context, ids []uint64) error {
	p.doc.References += int64(len(ids))
	keys := make([][]byte, len(ids))
	for i, id := range ids {
		keys[i] = blockKey(id)
	}
	there := make([]bool, len(ids))
	if err := p.n.ExistsMany(keys, there); err != nil {
		return err
	}
	var hits, misses, again []uint64
	missed := make(map[uint64]bool)
	for i, id := range ids {
		switch {
		case there[i]:
			hits = append(hits, id)
		case missed[id]:
			again = append(again, id)
		default:
			missed[id] = true
			misses = append(misses, id)
		}
	}
	gone, err := p.getAll(ctx, hits)
	if err != nil {
		return err
	}
	for _, id := range gone { // evicted since it was looked up
		if !missed[id] {
			missed[id] = true
			misses = append(misses, id)
		} else {
			again = append(again, id)
		}
	}
	if err := p.putAll(ctx, misses); err != nil {
		return err
	}
	gone, err = p.getAll(ctx, again)
	if err == nil && len(gone) > 0 {
		err = base.Errorf("replay", string(blockKey(gone[0])), base.ErrNotFound, "it was put a moment ago")
	}
	return err
}

// getAll reads blocks and gives those that are not there any more.
func (p *replay) getAll(ctx context.Context, ids []uint64) (gone []uint64, err error) {
	for len(ids) > 0 {
		now := ids[:min(len(ids), p.blocks.most())]
		ids = ids[len(now):]
		if err := p.blocks.room(len(now)); err != nil {
			return nil, err
		}
		items := make([]store.GetItem, len(now))
		for i, id := range now {
			items[i] = store.GetItem{Key: blockKey(id), Dst: p.blocks.at(i)}
		}
		begin := time.Now()
		p.n.GetBatch(ctx, items)
		p.get.add(time.Since(begin))
		if p.o.Verify {
			if err := p.blocks.mem.got(int64(len(now)) * p.blocks.stride()); err != nil {
				return nil, err
			}
		}
		for i := range items {
			it := &items[i]
			if errors.Is(it.Err, store.ErrNotFound) {
				gone = append(gone, now[i])
				continue
			}
			if err := p.took(it, now[i], p.blocks.bytes(i)); err != nil {
				return nil, err
			}
		}
	}
	return gone, nil
}

// took counts a hit, and compares it.
func (p *replay) took(it *store.GetItem, id uint64, b []byte) error {
	switch {
	case it.Err != nil && !errors.Is(it.Err, store.ErrOutOfRange):
		return it.Err
	case it.Size != p.o.BlockBytes:
		return base.WithHint(base.Errorf("replay", string(it.Key), base.ErrMismatch, "it has %d bytes, --block-bytes says %d",
			it.Size, p.o.BlockBytes), "use another --namespace, or the size of the first replay")
	case it.Err != nil:
		return it.Err
	}
	p.doc.Hits++
	p.doc.BytesGot += it.N
	if !p.o.Verify {
		return nil
	}
	if at := blockDiffers(id, b); at >= 0 {
		return base.Errorf("replay", string(it.Key), base.ErrCorrupt, "byte %d of %d is not what was put", at, it.N)
	}
	p.doc.Verified++
	return nil
}

func (p *replay) putAll(ctx context.Context, ids []uint64) error {
	o := store.PutOptions{Durability: store.Relaxed}
	if p.o.Sync {
		o.Durability = store.Sync
	}
	for len(ids) > 0 {
		now := ids[:min(len(ids), p.blocks.most())]
		ids = ids[len(now):]
		if err := p.blocks.room(len(now)); err != nil {
			return err
		}
		items := make([]store.PutItem, len(now))
		for i, id := range now {
			fillBlock(id, p.blocks.bytes(i))
			items[i] = store.PutItem{Key: blockKey(id), Value: p.blocks.at(i), PutOptions: o}
		}
		if err := p.blocks.mem.filled(int64(len(now)) * p.blocks.stride()); err != nil {
			return err
		}
		begin := time.Now()
		p.n.PutBatch(ctx, items)
		p.put.add(time.Since(begin))
		for i := range items {
			if err := items[i].Err; err != nil {
				return err
			}
			p.doc.Puts++
			p.doc.BytesPut += p.o.BlockBytes
		}
	}
	return nil
}
