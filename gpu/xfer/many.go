package xfer

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
)

// MaxItems is the largest number of items in one call.
const MaxItems = 1 << 20

// keepParts bounds the groups that are kept for reuse, in values.
const keepParts = 16384

// fewItems is down to how many values lanes share the work of a call.
const fewItems = 32

// fewMoves is up to how many values copies are cheaper than a kernel.
const fewMoves = 3

// Item is one value of ReadMany or WriteMany. N and Err are its answer.
type Item struct {
	End Endpoint
	Off int64   // into End
	Ptr gpu.Ptr // where it goes, or comes from
	Len int64

	N   int64
	Err error
}

// ReadMany moves every item from its endpoint to its place on the GPU. Values
// of up to SmallBytes share bounce buffers and are scattered on the GPU; each
// item has its own answer, under the rules of Read. Values in pinned memory of any
// size are queued together and waited for once. Places must not overlap.
// An error means that the items have no answers: ErrTimeout if ctx ended first,
// and then their memory is in use until the transfers ended; ErrInvalid for more
// than MaxItems; ErrIsolated when no lane is left; ErrClosed.
func (m *Mover) ReadMany(ctx context.Context, items []Item) error { return m.many(ctx, items, false) }

// WriteMany moves every item from its place on the GPU to its endpoint.
func (m *Mover) WriteMany(ctx context.Context, items []Item) error { return m.many(ctx, items, true) }

// part is an item under way.
type part struct {
	Item
	reg  *gpu.Registration
	path driver.PathKey
	at   int64 // in the lane's memory; where the value begins
	lead int64
}

// pack is a run of parts that share a buffer.
type pack struct{ from, to int }

// group is one ReadMany or WriteMany.
type group struct {
	m     *Mover
	ctx   context.Context
	write bool
	parts []part
	packs []pack
	index []int // of each part in the caller's items
	next  atomic.Int64
	known memo
	step  *step // its moves are queued already, see Order
}

// newGroup gives an empty group with room for n parts. Groups are kept for
// reuse: memory that was just taken costs more than the work on it.
func (m *Mover) newGroup(ctx context.Context, n int, write bool) *group {
	g, _ := m.groups.Get().(*group)
	if g == nil || cap(g.parts) < n {
		g = &group{parts: make([]part, 0, n), index: make([]int, 0, n)}
	}
	g.m, g.ctx, g.write = m, ctx, write
	return g
}

// done gives the group back. Nothing of it is under way.
func (g *group) done() {
	m := g.m
	clear(g.parts)
	*g = group{parts: g.parts[:0], packs: g.packs[:0], index: g.index[:0]}
	if cap(g.parts) <= keepParts {
		m.groups.Put(g)
	}
}

func (m *Mover) many(ctx context.Context, items []Item, write bool) error {
	if len(items) > MaxItems {
		return base.Errorf("move", "items", base.ErrInvalid, "%d, the limit is %d", len(items), MaxItems)
	}
	if err := m.enter(); err != nil {
		return err
	}
	g := m.newGroup(ctx, len(items), write)
	var large []int
	for i := range items {
		it := &items[i]
		it.N, it.Err = 0, nil
		if _, pin := it.End.(*pinned); it.Len > m.opt.SmallBytes && !pin {
			large = append(large, i)
			continue
		}
		k := len(g.parts)
		if g.parts = g.parts[:k+1]; g.admit(it, &g.parts[k]) {
			g.index = append(g.index, i)
		} else {
			g.parts[k] = part{}
			g.parts = g.parts[:k]
		}
	}
	done := make(chan error, 1)
	if ctx.Done() == nil { // nothing can end the wait early
		g.finish(done)
	} else {
		go g.finish(done)
	}
	select {
	case err := <-done:
		if err != nil {
			return err
		}
	case <-ctx.Done(): // the group goes on without us
		return base.Errorf("move", "items", base.ErrTimeout, "%w", ctx.Err())
	}
	for k, i := range g.index {
		items[i].N, items[i].Err = g.parts[k].N, g.parts[k].Err
	}
	g.done()
	for _, i := range large {
		it := &items[i]
		if it.N, it.Err = m.move(ctx, it.End, it.Off, it.Ptr, it.Len, write); errors.Is(it.Err, base.ErrTimeout) {
			return it.Err
		}
	}
	return nil
}

// admit checks an item and holds its registration. What it refuses has its
// answer.
func (g *group) admit(it *Item, p *part) bool {
	p.Item = *it
	if p.path, it.Err = g.m.way(it.End, it.Off, it.Ptr, it.Len, g.write); it.Err != nil || it.Len == 0 {
		return false
	}
	if _, _, it.Err = it.End.place(it.Off, it.Len, g.write); it.Err != nil {
		return false
	}
	if p.reg, it.Err = g.m.hold(it.Ptr, it.Len, &g.known); it.Err != nil {
		return false
	}
	g.m.why(&p.path, p.End, p.reg, reasonMany)
	return true
}

// room is how much of a buffer a part needs at most, its move included.
func (g *group) room(p *part) int64 {
	_, room, _ := p.End.place(p.Off, p.Len, g.write) // admit has looked at the error
	return room + max(p.End.unit(), 32) + gpu.MoveBytes
}

// finish runs the group and lets go of the memory.
func (g *group) finish(done chan<- error) {
	err := g.run()
	for i := range g.parts {
		p := &g.parts[i]
		g.m.failed(p.path, p.Err)
		switch {
		case p.reg == nil:
		case InDoubt(p.Err):
			g.m.keep(p.reg)
		default:
			p.reg.Release()
		}
	}
	g.m.jobs.Done()
	done <- err // the caller may give the group away
}

// run packs the parts and has lanes work on the packs.
func (g *group) run() error {
	// Enough packs for every lane, but for pinned memory, where one kernel does
	// the work of all.
	most := min(gpu.MaxMoves, max(fewItems, len(g.parts)/g.m.opt.Threads+1))
	var used int64
	for i := range g.parts {
		p := &g.parts[i]
		need, limit := g.room(p), most
		if _, ok := p.End.(*pinned); ok {
			limit = gpu.MaxMoves
		}
		if last := len(g.packs) - 1; last >= 0 && used+need <= g.m.opt.ChunkBytes && i-g.packs[last].from < limit {
			g.packs[last].to, used = i+1, used+need
		} else {
			g.packs, used = append(g.packs, pack{i, i + 1}), need
		}
	}
	if len(g.packs) == 0 {
		return nil
	}
	first, err := g.m.take(g.ctx)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for range min(g.m.opt.Threads, len(g.packs)) - 1 {
		l, _ := g.m.try() // without it the others do the work
		if l == nil {
			break
		}
		wg.Go(func() { g.worker(l) })
	}
	g.worker(first)
	wg.Wait()
	return nil
}

func (g *group) worker(l *lane) {
	l.cut(g.m.opt.ChunkBytes)
	var mine []pack
	for {
		i := int(g.next.Add(1)) - 1
		if i >= len(g.packs) {
			break
		}
		mine = append(mine, g.packs[i])
		parts := g.parts[g.packs[i].from:g.packs[i].to]
		s, err := l.acquire()
		if err == nil {
			err = g.ctx.Err()
		}
		switch {
		case err != nil:
			failParts(parts, base.Wrap("move", "items", err))
		case g.write:
			g.gather(l, s, parts)
		default:
			g.scatter(l, s, parts)
		}
		if s != nil {
			s.busy = false
		}
	}
	if err := l.settleAll(); err != nil { // it is not known which moves ended
		for _, p := range mine {
			failParts(g.parts[p.from:p.to], err)
		}
	}
	g.m.give(l)
}

func failParts(parts []part, err error) {
	for i := range parts {
		if p := &parts[i]; p.Err == nil || p.Err == io.EOF {
			p.N, p.Err = 0, err
		}
	}
}

// layout gives each part its place in the slot: with the remainder by 16 of its
// place on the GPU, so that the kernel moves it in wide words, or on a page if a
// device fills it. It gives the works that the endpoints need, none for pinned
// memory alone, which needs no place either.
func (g *group) layout(s *slot, parts []part) []work {
	at, alone := s.at, true
	for i := range parts {
		p := &parts[i]
		lead, room, err := p.End.place(p.Off, p.Len, g.write)
		if err != nil {
			p.Err = err
			continue
		}
		if unit := p.End.unit(); unit > 1 {
			at = base.AlignUp(at, unit)
		} else {
			at = base.AlignUp(at, 16) + int64(p.Ptr%16)
		}
		p.lead, p.at = lead, at+lead
		at += room
		if _, ok := p.End.(*pinned); !ok {
			alone = false
		}
	}
	if alone {
		return nil
	}
	return make([]work, len(parts))
}

// hostPlace is the place of a part in host memory, as bytes and for the GPU.
func hostPlace(l *lane, p *part, n int64) ([]byte, gpu.Ptr) {
	if pin, ok := p.End.(*pinned); ok {
		return pin.mem.Bytes()[p.Off : p.Off+n], pin.mem.Ptr() + gpu.Ptr(p.Off)
	}
	return l.bytes(p.at, n), l.ptr(p.at)
}

// scatter fills a slot from the endpoints and carries the values to their
// places.
func (g *group) scatter(l *lane, s *slot, parts []part) {
	works := g.layout(s, parts)
	for i := range works {
		if p := &parts[i]; p.Err == nil {
			p.Err = p.End.begin(g.ctx, l, p.at-p.lead, p.Off, p.Len, false, &works[i])
		}
	}
	var tally tally
	for i := range parts {
		p := &parts[i]
		if p.Err != nil {
			continue
		}
		carried := p.Len
		if _, ok := p.End.(*pinned); ok {
			p.N = p.Len
		} else if p.N, carried, p.Err = p.End.end(&works[i]); p.Err != nil {
			p.N = 0
		} else if p.N < p.Len {
			p.Err = io.EOF // and what there is moves
		}
		tally.add(g.m, p.path, carried)
	}
	tally.flush(g.m)
	if err := g.carry(l, s, parts, false); err != nil {
		failParts(parts, err)
	}
}

// gather brings the values into a slot and writes them to the endpoints.
func (g *group) gather(l *lane, s *slot, parts []part) {
	works := g.layout(s, parts)
	for i := range parts {
		if p := &parts[i]; p.Err == nil {
			p.N = p.Len
		}
	}
	err := g.carry(l, s, parts, true)
	if err == nil {
		err = l.await(s.tick)
	}
	if err != nil {
		failParts(parts, err)
		return
	}
	for i := range works {
		if p := &parts[i]; p.Err == nil {
			p.Err = p.End.begin(g.ctx, l, p.at-p.lead, p.Off, p.Len, true, &works[i])
		}
	}
	var tally tally
	for i := range parts {
		p := &parts[i]
		if p.Err != nil {
			p.N = 0
			continue
		}
		carried := p.Len
		if _, ok := p.End.(*pinned); !ok {
			if p.N, carried, p.Err = p.End.end(&works[i]); p.Err == nil && p.N < p.Len {
				p.Err = io.ErrShortWrite
			}
		}
		tally.add(g.m, p.path, carried)
	}
	tally.flush(g.m)
}

// tally adds up neighbours that went the same way: values that share a buffer
// are one operation of the statistics.
type tally struct {
	path  driver.PathKey
	bytes int64
}

func (t *tally) add(m *Mover, path driver.PathKey, n int64) {
	if path != t.path {
		t.flush(m)
		t.path = path
	}
	t.bytes += n
}

func (t *tally) flush(m *Mover) {
	if t.bytes > 0 {
		m.paths.Add(t.path, t.bytes)
		t.bytes = 0
	}
}

// carry queues the moves between the slot and the GPU, small ones by the kernel if
// there is one and large ones by copies, and the tick after them.
func (g *group) carry(l *lane, s *slot, parts []part, toHost bool) error {
	small, large := 0, 0
	for i := range parts {
		switch n := parts[i].N; {
		case n > g.m.opt.SmallBytes:
			large++
		case n > 0:
			small++
		}
	}
	if g.step != nil {
		return g.step.carry(l, parts, toHost)
	}
	if small+large == 0 {
		return nil
	}
	err := base.ErrNotSupported
	if small > fewMoves && g.m.dev.Info().Mover && !g.m.opt.NoKernel && !g.m.noMove.Load() {
		if err = g.kernel(l, s, parts, small, toHost); errors.Is(err, base.ErrNotSupported) {
			g.m.noMove.Store(true)
		}
	}
	switch {
	case errors.Is(err, base.ErrNotSupported):
		err = g.copies(l, parts, 0, toHost)
	case err == nil && large > 0:
		err = g.copies(l, parts, g.m.opt.SmallBytes, toHost)
	}
	if err != nil { // some of it may be queued
		if bad := l.settle(); bad != nil {
			return bad
		}
		return err
	}
	s.tick, err = l.tick()
	return err
}

// kernel puts the table of the count small moves at the end of the slot and
// launches it.
func (g *group) kernel(l *lane, s *slot, parts []part, count int, toHost bool) error {
	at := s.at + s.size - int64(count)*gpu.MoveBytes
	table := l.bytes(at, int64(count)*gpu.MoveBytes)
	k := 0
	for i := range parts {
		p := &parts[i]
		if p.N == 0 || p.N > g.m.opt.SmallBytes {
			continue
		}
		_, host := hostPlace(l, p, p.N)
		mv := gpu.Move{Src: host, Dst: p.Ptr, N: p.N}
		if toHost {
			mv.Src, mv.Dst = mv.Dst, mv.Src
		}
		gpu.PutMove(table, k, mv)
		k++
	}
	return l.stream.Move(l.ptr(at), count)
}

// copies queues a copy for each part of more than min bytes.
func (g *group) copies(l *lane, parts []part, min int64, toHost bool) error {
	list := make([]gpu.Copy, 0, len(parts))
	for i := range parts {
		p := &parts[i]
		if p.N > min {
			b, _ := hostPlace(l, p, p.N)
			list = append(list, gpu.Copy{Dev: p.Ptr, Host: b, ToHost: toHost})
		}
	}
	return l.stream.Copy(list...)
}
