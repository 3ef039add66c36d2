package ctl

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ugds-store/ugds/store"
)

// demoBatch is how many blocks one call puts or gets, demoSlots how many such
// batches exist: one is filled or compared while the other moves.
const (
	demoBatch = 24
	demoSlots = 2
)

// phase is what one part of the demo moved, and how fast.
type phase struct {
	Objects int     `json:"objects"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	MBPerS  float64 `json:"mb_per_s"` // 10^6 bytes a second
}

func (p *phase) done(since time.Time) {
	p.Seconds = time.Since(since).Seconds()
	p.MBPerS = float64(p.Bytes) / 1e6 / max(p.Seconds, 1e-9)
}

// demoBuffers are what the batches are put from and got into.
type demoBuffers struct{ slots []*valueMemory }

func newDemoBuffers(s *session) (*demoBuffers, error) {
	b := &demoBuffers{}
	for range demoSlots {
		m, err := newValueMemory(s, demoBatch*demoMaxValue, "demo")
		if err != nil {
			b.close()
			return nil, err
		}
		b.slots = append(b.slots, m)
	}
	return b, nil
}

func (b *demoBuffers) close() {
	for _, m := range b.slots {
		m.close()
	}
}

// load puts every block in batches, the next batch being made while one is
// written, then replaces and deletes some.
func (w *demoWork) load(ctx context.Context, s *session, n *store.Namespace, bar Bar) (put, change phase, err error) {
	bufs, err := newDemoBuffers(s)
	if err != nil {
		return put, change, err
	}
	defer bufs.close()
	begin := time.Now()
	all := make([]int, len(w.blocks))
	for i := range all {
		all[i] = i
	}
	if err := w.putAll(ctx, n, bufs, all, store.PutOptions{}, bar, &put); err != nil {
		return put, change, err
	}
	put.done(begin)

	begin = time.Now()
	w.change()
	var replaced []int
	var gone [][]byte
	for i, b := range w.blocks {
		switch {
		case b.deleted:
			gone = append(gone, b.key)
		case b.version == 2:
			replaced = append(replaced, i)
		}
	}
	relaxed := store.PutOptions{Replace: true, Durability: store.Relaxed}
	if err := w.putAll(ctx, n, bufs, replaced, relaxed, noBar{}, &change); err != nil {
		return put, change, err
	}
	for keys := range slices.Chunk(gone, store.MaxBatchKeys) {
		for i, err := range n.DeleteBatch(ctx, keys, store.DeleteOptions{Durability: store.Relaxed}) {
			if err != nil {
				return put, change, fmt.Errorf("key %s: %w", keys[i], err)
			}
		}
	}
	change.Objects += len(gone)
	err = s.Flush(ctx)
	change.done(begin)
	return put, change, err
}

// putAll writes the blocks with these indices.
func (w *demoWork) putAll(ctx context.Context, n *store.Namespace, bufs *demoBuffers, which []int, o store.PutOptions, bar Bar, p *phase) error {
	type batch struct {
		items []store.PutItem
		mem   *valueMemory
		err   error
	}
	free := make(chan *valueMemory, demoSlots)
	for _, m := range bufs.slots {
		free <- m
	}
	full := make(chan batch)
	stop := make(chan struct{})
	go func() { // makes the values
		defer close(full)
		for len(which) > 0 {
			take := which[:min(len(which), demoBatch)]
			which = which[len(take):]
			b := batch{mem: <-free}
			for i, at := range take {
				blk, off := &w.blocks[at], int64(i)*demoMaxValue
				w.fill(blk, b.mem.bytes(off, int64(blk.size)))
				b.items = append(b.items, store.PutItem{Key: blk.key, PutOptions: o,
					Value: b.mem.at(off, int64(blk.size))})
			}
			b.err = b.mem.filled(int64(len(take)) * demoMaxValue)
			select {
			case full <- b:
			case <-stop:
				return
			}
		}
	}()
	var err error
	for b := range full {
		if err == nil {
			if err = b.err; err == nil {
				n.PutBatch(ctx, b.items)
				err = p.count(b.items, bar)
			}
			if err != nil {
				close(stop)
			}
		}
		free <- b.mem
	}
	return err
}

func (p *phase) count(items []store.PutItem, bar Bar) error {
	for i := range items {
		if items[i].Err != nil {
			return items[i].Err
		}
		p.Objects++
		size := items[i].Value.Size()
		p.Bytes += size
		bar.Add(size)
	}
	return nil
}
