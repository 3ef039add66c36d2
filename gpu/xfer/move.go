package xfer

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
)

// Read moves n bytes from offset off of e to dst. It gives the bytes moved, all
// of them contiguous from the beginning: n and nil; fewer and io.EOF at the end
// of the data; fewer and the error of the lowest offset that failed. Nothing is
// written outside [dst, dst+n). ErrTimeout when ctx ended first: the transfer
// then ends by itself, dst stays in use until it does, and n is 0.
func (m *Mover) Read(ctx context.Context, e Endpoint, off int64, dst gpu.Ptr, n int64) (int64, error) {
	return m.move(ctx, e, off, dst, n, false)
}

// Write moves n bytes from src to offset off of e, under the same rules.
func (m *Mover) Write(ctx context.Context, e Endpoint, off int64, src gpu.Ptr, n int64) (int64, error) {
	return m.move(ctx, e, off, src, n, true)
}

// job is one Read or Write.
type job struct {
	m     *Mover
	ctx   context.Context
	e     Endpoint
	off   int64
	ptr   gpu.Ptr
	n     int64
	write bool
	path  driver.PathKey
	size  int64        // of a chunk
	skew  int64        // how much less the first chunk is, so that the others begin on a page of the endpoint
	next  atomic.Int64 // first byte that nobody took, plus skew
	stop  atomic.Bool
	doubt atomic.Bool // a copy may still be under way when it ended

	first   *lane
	more    int64 // how many lanes it may have besides those it has; the first worker's
	workers sync.WaitGroup

	mu     sync.Mutex
	failAt int64 // lowest offset that did not move; n if none
	err    error
}

func (m *Mover) move(ctx context.Context, e Endpoint, off int64, p gpu.Ptr, n int64, write bool) (int64, error) {
	if s, err := m.goStraight(e, off, p, n, write); s != nil || err != nil {
		if err != nil {
			return 0, err
		}
		return m.moveStraight(ctx, s, n)
	}
	path, err := m.way(e, off, p, n, write)
	if n == 0 || err != nil {
		return 0, err
	}
	return m.stage(ctx, e, off, p, n, write, path)
}

// stage moves bytes through host memory, or by a window.
func (m *Mover) stage(ctx context.Context, e Endpoint, off int64, p gpu.Ptr, n int64, write bool, path driver.PathKey) (int64, error) {
	if err := m.enter(); err != nil {
		return 0, err
	}
	reg, err := m.hold(p, n, new(memo))
	if err != nil {
		m.jobs.Done()
		return 0, err
	}
	m.why(&path, e, reg, reasonShape)
	j := &job{m: m, ctx: ctx, e: e, off: off, ptr: p, n: n, write: write, path: path, failAt: n}
	first, err := m.take(ctx)
	if err != nil {
		m.dismiss(reg)
		return 0, err
	}
	if _, ok := e.(*pinned); ok {
		return j.whole(first, reg)
	}
	j.size, j.skew = m.chunkFor(n), off&(gpu.HostPage-1)
	if m.opt.TaskBytes == 0 {
		j.size = min(max(j.size, j.leastChunk(m.working())), m.opt.ChunkBytes)
	}
	done := make(chan struct{})
	if ctx.Done() == nil { // nothing can end the wait early
		j.run(first, reg, done)
		return j.failAt, j.err
	}
	go j.run(first, reg, done)
	select {
	case <-done:
	case <-ctx.Done():
		select {
		case <-done: // it ended as well
		default:
			j.stop.Store(true)
			return 0, base.Errorf("move", p.String(), base.ErrTimeout, "%w", ctx.Err())
		}
	}
	return j.failAt, j.err
}

// Way tells how n bytes between e and GPU memory would go, and why; reg is the
// registration of the memory, nil for memory that has none. The error is that of
// the transfer, where one would be refused.
func (m *Mover) Way(e Endpoint, n int64, write bool, reg *gpu.Registration) (driver.PathKey, error) {
	path, err := m.way(e, 0, 0, n, write)
	if err == nil && (reg == nil || reg.HoldNow() == nil) {
		m.why(&path, e, reg, reasonShape)
		if reg != nil {
			reg.Release()
		}
	}
	return path, err
}

// way decides how the bytes go, before anything is held.
func (m *Mover) way(e Endpoint, off int64, p gpu.Ptr, n int64, write bool) (driver.PathKey, error) {
	path := driver.PathKey{Path: driver.PathStaged, Write: write, Reason: e.reason()}
	if off < 0 || n < 0 {
		return path, base.Errorf("move", p.String(), base.ErrInvalid, "negative offset %d or length %d", off, n)
	}
	pin, _ := e.(*pinned)
	if pin != nil {
		path.Path = pin.path
	}
	if path.Path == driver.PathStaged {
		if err := m.mayStage(&path, p, n); err != nil {
			return path, err
		}
	}
	if pin != nil {
		_, _, err := e.place(off, n, write)
		return path, err
	}
	return path, nil
}

// mayStage tells whether a transfer may pass host memory, and makes its reason
// exact.
func (m *Mover) mayStage(path *driver.PathKey, p gpu.Ptr, n int64) error {
	small, object := n < m.opt.Threshold, p.String()
	if p == 0 {
		object = "GPU memory"
	}
	switch {
	case m.opt.Strict && small:
		return base.WithHint(base.Errorf("move", object, base.ErrNotSupported, "strict, and %s", ReasonSmall),
			"a threshold of 0 lets every size go directly")
	case m.opt.Strict:
		return base.Errorf("move", object, base.ErrNotSupported, "strict, and %s", path.Reason)
	case m.opt.Compat == CompatOff && !small:
		return base.WithHint(base.Errorf("move", object, base.ErrNotSupported, "compat mode is OFF, and %s", path.Reason),
			"compat mode AUTO stages what cannot go directly")
	case m.opt.Compat == CompatOn:
		path.Reason = ReasonCompat
	case small:
		path.Reason = ReasonSmall
	}
	return nil
}

// memo is what one call has learnt about GPU memory, so that the thousand
// values of a call do not ask the driver a thousand times.
type memo struct {
	reg  *gpu.Registration
	base gpu.Ptr
	size int64
}

// hold finds the registration of a range and holds it, or asks the backend
// whether an unregistered range is memory of this GPU.
func (m *Mover) hold(p gpu.Ptr, n int64, known *memo) (*gpu.Registration, error) {
	if m.table != nil {
		if reg := m.table.Find(p, n); reg != nil {
			if reg != known.reg {
				if err := reg.Check(); err != nil {
					return nil, err
				}
				known.reg = reg
			}
			return reg, reg.HoldNow()
		}
	}
	if p >= known.base && base.CheckRange(int64(p-known.base), n, known.size) {
		return nil, nil
	}
	a, err := gpu.Locate(m.back, p, n)
	switch {
	case err != nil:
		return nil, err
	case a.Kind == gpu.KindDevice && a.Device != m.index:
		return nil, base.Errorf("move", p.String(), base.ErrInvalid, "it is memory of gpu %d, not %d", a.Device, m.index)
	}
	known.base, known.size = a.Base, a.Size
	return nil, nil
}

// letGo is dismiss for a request whose copies may still be under way: the GPU memory
// then stays held until the lanes are closed (I4).
func (m *Mover) letGo(reg *gpu.Registration, doubt bool) {
	if doubt && reg != nil {
		m.keep(reg)
		reg = nil
	}
	m.dismiss(reg)
}

func (m *Mover) keep(reg *gpu.Registration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept = append(m.kept, reg)
}

func (m *Mover) dismiss(reg *gpu.Registration) {
	if reg != nil {
		reg.Release()
	}
	m.jobs.Done()
}

// fineChunk is down to where requests are cut so that the lanes share them and
// the copies overlap, in bytes.
const fineChunk = 256 * base.KiB

// fewWorking is how many lanes may be at work for a request of a few megabytes to be
// shared out: with more, all processors are busy soon.
const fewWorking = 2

// leastChunk is down to where a request is cut while so many lanes are at work, its own
// among them. Alone, its chunks overlap with each other, and there are lanes for all of
// them. With others under way it is those that they overlap with, and each chunk costs
// calls of a library that serves one caller at a time: what the processor copies is then
// cut into buffers only.
func (j *job) leastChunk(working int) int64 {
	alone := working <= 1
	switch {
	case j.write || j.e.async():
		if alone {
			return fineChunk
		}
	case alone && j.n < base.MiB:
		return fineChunk
	case alone && j.n < 2*base.MiB:
		return 2 * fineChunk
	case j.n < 2*base.MiB, j.n < 4*base.MiB && working > fewWorking:
		return 2 * base.MiB
	}
	return base.MiB
}

// chunkFor is the size of the chunks of a request of n bytes: it grows with the root
// of n. So small requests have several chunks, to overlap the reading of one with the
// copy of another, and large ones spend little on each copy: 256 KiB of 1 MiB, 1 MiB of
// 16 MiB, 4 MiB of 256 MiB and more (docs/performance-gpu.md has what was measured).
func (m *Mover) chunkFor(n int64) int64 {
	if m.opt.TaskBytes > 0 {
		return min(m.opt.TaskBytes, m.opt.ChunkBytes)
	}
	share := int64(fineChunk)
	for ; share < m.opt.ChunkBytes && n >= 4*base.MiB; n /= 4 {
		share *= 2
	}
	return min(share, m.opt.ChunkBytes)
}

// Requests for data that the processor copies, of less than sharedFrom bytes, begin with a
// worker for each workerBytes of them, and have more only if less than cachedRate bytes
// are read in a second: to start one takes as long as to copy that much.
const (
	sharedFrom  = 8 * base.MiB
	workerBytes = base.MiB / 2
	cachedRate  = 2 * base.GiB
)

// run has a worker a lane, the first one here.
func (j *job) run(first *lane, reg *gpu.Registration, done chan struct{}) {
	defer close(done)
	defer func() { j.m.letGo(reg, j.doubt.Load()) }()
	if j.windows(first) {
		j.m.give(first)
		return
	}
	chunks := (j.n + j.skew + j.size - 1) / j.size
	j.first, j.more = first, min(int64(j.m.opt.Threads), chunks)-1
	first.cut(j.size)
	if j.more > 0 && !j.write && !j.e.async() && j.n < sharedFrom {
		rest := j.more
		j.more = min(rest, (j.n-1)/workerBytes)
		rest -= j.more
		j.recruit(first)
		began := time.Now()
		if j.fillOne(first) && time.Since(began).Seconds()*cachedRate >= float64(min(j.size, j.n)) {
			j.more += rest
		}
	}
	j.worker(first)
	j.workers.Wait()
}

// recruit gives the request the lanes that are idle, as long as it may have more and
// there is something left to do. The first worker asks, before each chunk.
func (j *job) recruit(l *lane) {
	for l == j.first && j.more > 0 && j.next.Load() < j.n+j.skew {
		var other *lane
		select {
		case <-j.m.ready: // the worker takes the lane, one that its processor knows
		default:
			if other, _ = j.m.grow(); other == nil {
				return // without it the others do the work
			}
		}
		j.more--
		j.workers.Go(func() {
			if other == nil {
				other = j.m.pop()
			}
			other.cut(j.size)
			j.worker(other)
		})
	}
}

func (j *job) worker(l *lane) {
	if j.write {
		j.drain(l)
	} else {
		j.fill(l)
	}
	if err := l.settleAll(); err != nil {
		j.doubt.Store(true)
		j.fail(0, err) // it is not known which copies ended
	}
	j.m.give(l)
}

// settleAll waits for the last copy of every slot.
func (l *lane) settleAll() error {
	for i := range l.slots {
		if err := l.await(l.slots[i].tick); err != nil {
			return err
		}
	}
	if l.sick != nil {
		return l.sick
	}
	return nil
}

// fail notes that nothing from offset at on counts, for err or for the end of
// the data.
func (j *job) fail(at int64, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stop.Store(true)
	if at < j.failAt || j.err == nil {
		j.failAt, j.err = min(at, j.failAt), err
	}
}

// chunk takes the next piece of the request.
func (j *job) chunk() (off, n int64, ok bool) {
	if j.stop.Load() || j.ctx.Err() != nil {
		if at := j.next.Load() - j.skew; at < j.n && !j.stop.Load() {
			j.fail(max(at, 0), base.Errorf("move", j.ptr.String(), base.ErrTimeout, "%w", j.ctx.Err()))
		}
		return 0, 0, false
	}
	from := j.next.Add(j.size) - j.size - j.skew
	off = max(from, 0)
	return off, min(from+j.size, j.n) - off, off < j.n
}

// whole moves pinned memory by one copy. When the context ends first, the rest
// of the wait goes on without the caller.
func (j *job) whole(l *lane, reg *gpu.Registration) (int64, error) {
	mem := j.e.(*pinned).mem.Bytes()
	tick, err := l.copy(gpu.Copy{Dev: j.ptr, Host: mem[j.off : j.off+j.n], ToHost: j.write})
	end := func() error {
		if err == nil {
			err = l.await(tick)
		}
		if err == nil {
			j.m.paths.Add(j.path, j.n)
		}
		j.m.give(l)
		j.m.letGo(reg, InDoubt(err))
		return err
	}
	if err == nil && j.ctx.Done() != nil && !l.soon(tick) {
		c, cancel := context.WithTimeout(j.ctx, j.m.opt.CopyTimeout)
		late := l.stream.WaitTick(c, tick)
		cancel()
		if late != nil && j.ctx.Err() != nil {
			go end()
			return 0, base.Errorf("move", j.ptr.String(), base.ErrTimeout, "%w", j.ctx.Err())
		}
	}
	if err := end(); err != nil {
		j.m.failed(j.path, err)
		return 0, err
	}
	return j.n, nil
}

// fill reads chunks into slots and copies them to the GPU. As many chunks are
// under way as the endpoint can have.
func (j *job) fill(l *lane) {
	if !j.e.async() {
		j.recruit(l)
		for j.fillOne(l) {
			j.recruit(l)
		}
		return
	}
	var begun []*slot
	for {
		j.recruit(l)
		off, n, ok := j.chunk()
		if !ok {
			break
		}
		if len(begun) == len(l.slots) {
			j.load(l, begun[0])
			begun = begun[1:]
		}
		s, err := j.begin(l, off, n)
		if err != nil {
			j.fail(off, err)
			break
		}
		begun = append(begun, s)
	}
	for _, s := range begun {
		j.load(l, s)
	}
}

// fillOne reads one chunk and queues its copy; false when there is none left.
func (j *job) fillOne(l *lane) bool {
	off, n, ok := j.chunk()
	if !ok {
		return false
	}
	s, err := j.begin(l, off, n)
	if err != nil {
		j.fail(off, err)
		return false
	}
	j.load(l, s)
	return true
}

// begin starts reading a chunk into the next slot.
func (j *job) begin(l *lane, off, n int64) (*slot, error) {
	s, err := l.acquire()
	if err != nil {
		return nil, err
	}
	s.off, s.n = off, n
	if s.lead, _, err = j.e.place(j.off+off, n, false); err == nil {
		err = j.e.begin(j.ctx, l, s.at, j.off+off, n, false, &s.work)
	}
	return s, err
}

// load waits for the bytes of a slot and queues their copy to the GPU.
func (j *job) load(l *lane, s *slot) {
	moved, carried, err := j.e.end(&s.work)
	s.busy, s.tick = false, 0
	if moved > 0 && err == nil {
		s.tick, err = l.copy(gpu.Copy{Dev: j.ptr + gpu.Ptr(s.off), Host: l.bytes(s.at+s.lead, moved)})
	}
	if err == nil && moved < s.n {
		err = io.EOF
	}
	if err != nil {
		j.fail(s.off+moved*okay(err), err)
		j.m.failed(j.path, err)
	}
	if carried > 0 {
		j.m.paths.Add(j.path, carried)
	}
}

// failed counts an operation that failed; the end of the data is no failure.
func (m *Mover) failed(path driver.PathKey, err error) {
	if err != nil && err != io.EOF {
		m.paths.Fail(path)
	}
}

// okay is 1 if the bytes before err count.
func okay(err error) int64 {
	if err == io.EOF {
		return 1
	}
	return 0
}

// drain copies chunks from the GPU into slots, several ahead, and writes them.
func (j *job) drain(l *lane) {
	var queued []*slot
	for {
		j.recruit(l)
		off, n, ok := j.chunk()
		if !ok {
			break
		}
		if len(queued) == len(l.slots) {
			j.store(l, queued[0])
			queued = queued[1:]
		}
		s, err := l.acquire()
		if err == nil {
			if s.lead, _, err = j.e.place(j.off+off, n, true); err == nil {
				s.off, s.n = off, n
				s.tick, err = l.copy(gpu.Copy{Dev: j.ptr + gpu.Ptr(off), Host: l.bytes(s.at+s.lead, n), ToHost: true})
			}
		}
		if err != nil {
			j.fail(off, err)
			break
		}
		queued = append(queued, s)
	}
	for _, s := range queued {
		j.store(l, s)
	}
}

// store waits for a copy from the GPU and writes its bytes.
func (j *job) store(l *lane, s *slot) {
	defer func() { s.busy = false }()
	err := l.await(s.tick)
	var moved, carried int64
	if err == nil {
		err = j.e.begin(j.ctx, l, s.at, j.off+s.off, s.n, true, &s.work)
	}
	if err == nil {
		moved, carried, err = j.e.end(&s.work)
	}
	if err == nil && moved < s.n {
		err = io.ErrShortWrite
	}
	if err != nil {
		j.fail(s.off, err)
		j.m.failed(j.path, err)
	}
	if carried > 0 {
		j.m.paths.Add(j.path, carried)
	}
}
