package xfer

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

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

	mu     sync.Mutex
	failAt int64 // lowest offset that did not move; n if none
	err    error
}

func (m *Mover) move(ctx context.Context, e Endpoint, off int64, p gpu.Ptr, n int64, write bool) (int64, error) {
	path, err := m.way(e, off, p, n, write)
	if n == 0 || err != nil {
		return 0, err
	}
	if err := m.enter(); err != nil {
		return 0, err
	}
	reg, err := m.hold(p, n, new(memo))
	if err != nil {
		m.jobs.Done()
		return 0, err
	}
	why(&path, reg)
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
	if err == nil {
		why(&path, reg)
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

// why makes the reason of a transfer with a device exact.
func why(path *driver.PathKey, reg *gpu.Registration) {
	if path.Reason != ReasonNoTransport {
		return
	}
	if reg == nil {
		path.Reason = ReasonUnregistered
	} else if _, reason := reg.Direct(); reason != "" {
		path.Reason = reason
	}
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

// chunkFor is the size of the chunks of a request of n bytes.
func (m *Mover) chunkFor(n int64) int64 {
	if m.opt.TaskBytes > 0 {
		return min(m.opt.TaskBytes, m.opt.ChunkBytes)
	}
	share := base.AlignUp(n/int64(2*m.opt.Threads)+1, gpu.HostPage)
	return min(m.opt.ChunkBytes, max(share, fineChunk))
}

// run has a worker a lane, the first one here.
func (j *job) run(first *lane, reg *gpu.Registration, done chan struct{}) {
	defer close(done)
	defer func() { j.m.letGo(reg, j.doubt.Load()) }()
	if j.windows(first) {
		j.m.give(first)
		return
	}
	var wg sync.WaitGroup
	chunks := (j.n + j.skew + j.size - 1) / j.size
	for more := min(int64(j.m.opt.Threads), chunks) - 1; more > 0; more-- {
		l, _ := j.m.try() // without it the others do the work
		if l == nil {
			break
		}
		wg.Go(func() { j.worker(l) })
	}
	j.worker(first)
	wg.Wait()
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
	var tick uint64
	err := l.stream.Copy(gpu.Copy{Dev: j.ptr, Host: mem[j.off : j.off+j.n], ToHost: j.write})
	if err == nil {
		tick, err = l.tick()
	}
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
	if err == nil && j.ctx.Done() != nil {
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
	ahead := 1
	if j.e.async() {
		ahead = len(l.slots)
	}
	var begun []*slot
	for {
		off, n, ok := j.chunk()
		if !ok {
			break
		}
		if len(begun) == ahead {
			j.load(l, begun[0])
			begun = begun[1:]
		}
		s, err := l.acquire()
		if err == nil {
			s.off, s.n = off, n
			if s.lead, _, err = j.e.place(j.off+off, n, false); err == nil {
				err = j.e.begin(j.ctx, l, s.at, j.off+off, n, false, &s.work)
			}
		}
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

// load waits for the bytes of a slot and queues their copy to the GPU.
func (j *job) load(l *lane, s *slot) {
	moved, carried, err := j.e.end(&s.work)
	if moved > 0 && err == nil {
		c := gpu.Copy{Dev: j.ptr + gpu.Ptr(s.off), Host: l.bytes(s.at+s.lead, moved)}
		if err = l.stream.Copy(c); err == nil {
			s.tick, err = l.tick()
		}
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
				err = l.stream.Copy(gpu.Copy{Dev: j.ptr + gpu.Ptr(off), Host: l.bytes(s.at+s.lead, n), ToHost: true})
			}
			if err == nil {
				s.tick, err = l.tick()
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
