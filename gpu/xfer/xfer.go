// Package xfer moves bytes between a file, a device or pinned host memory and
// the memory of a GPU, and says which way they went and why.
//
// The staged way runs in lanes. A lane is a stream with a few bounce buffers in
// pinned memory. A request takes one lane, and more while they are free, and
// cuts its range into chunks; while the copy engine empties one buffer of a
// lane, the processor or the device fills the next. So memory and threads are
// bounded by the lanes, whatever the number of requests, and a request that
// waits for a lane holds nothing (T30).
//
// Many small values share a buffer, and a kernel on the GPU carries them to
// their places or gathers them from there; where no kernel can be loaded, copies
// do it one by one.
//
// A caller's context ends only its wait (I4): what is under way goes on, and the
// registration of its GPU memory stays held until it ended.
package xfer

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
)

// Reasons of the mover, besides those of gpu. They are constant, because each
// is a line of the statistics.
const (
	ReasonFile         = "a file cannot reach GPU memory"
	ReasonNoTransport  = "the device takes no dma-bufs"
	ReasonUnregistered = "the memory is not registered"
	ReasonPinned       = "pinned host memory"
	ReasonCompat       = "compat mode is ON"
	ReasonSmall        = "smaller than the threshold"
)

// Limits of the options, tested on both sides.
const (
	MinChunk = 64 * base.KiB
	MaxChunk = 64 * base.MiB
	MaxLanes = 256
	MaxDepth = 64
	MaxSmall = 64 * base.KiB // values up to this may share a buffer
)

// pinnedDefault is what the bounce buffers of all lanes should not exceed by default,
// in bytes.
const pinnedDefault = 64 * base.MiB

// Options of New. The zero value works.
type Options struct {
	// ChunkBytes is the size of a bounce buffer and the largest unit of staging,
	// a multiple of 4 KiB; small requests are cut finer. The default is 4 MiB, less
	// where the buffers of all lanes together would have more than 64 MiB, and at
	// least 2 MiB.
	ChunkBytes int64
	// Depth is the number of bounce buffers of a lane; requests in smaller chunks have
	// more, of the same memory. Default 2.
	Depth int
	// Lanes bounds what is under way: streams, threads, and with the buffers
	// the pinned memory. Default 16.
	Lanes int
	// Threads is the most lanes that one request uses. Default all.
	Threads int
	// SmallBytes is up to which size values share a buffer. Default 32 KiB.
	SmallBytes int64
	// WindowBytes is from which size on a cached file is read through windows: mapped
	// and registered for the call, and moved without a copy by the processor. 0 is
	// never. It is for programs whose streams do not wait for cells: while one waits,
	// the end of a window hangs, and copies of other threads with it. A window may end
	// a moment after its call has returned, see EndWindows. A mover with an Order uses none.
	WindowBytes int64
	// WindowChunk bounds one window of a request, in bytes. Default 32 MiB.
	WindowChunk int64
	// NoKernel moves small values by copies even where a kernel could.
	NoKernel bool
	// Pairs, if not nil, lets whole blocks of an Extent of one of its devices go between
	// that and registered memory without a stop in host memory. ReadMany and WriteMany
	// share bounce buffers between small values all the same, and orders stage all.
	Pairs *Pairs
	// TaskBytes cuts every request into pieces of exactly this size, but for its
	// last one; ChunkBytes bounds it. 0 cuts by the size of the request.
	TaskBytes int64
	// Strict refuses every way that passes host memory with a CPU copy:
	// ErrNotSupported with the reason, before anything moves.
	Strict bool
	// Compat says what is done where the direct way is not to be had.
	Compat Compat
	// Threshold is the size in bytes below which transfers are staged anyway, and
	// which CompatOff lets pass. Strict does not. Default 0.
	Threshold int64
	// CopyTimeout is how long a copy may take before its lane is given up and
	// stays quarantined. Default 30 s.
	CopyTimeout time.Duration
}

// withDefaults fills the zero fields.
func (o Options) withDefaults() Options {
	if o.Depth == 0 {
		o.Depth = 2
	}
	if o.Lanes == 0 {
		o.Lanes = 16
	}
	chunk := int64(4 * base.MiB)
	for chunk > 2*base.MiB && int64(o.Depth)*int64(o.Lanes)*chunk > pinnedDefault {
		chunk /= 2
	}
	for _, d := range []struct {
		v *int64
		n int64
	}{{&o.ChunkBytes, chunk}, {&o.SmallBytes, 32 * base.KiB}, {&o.WindowChunk, 32 * base.MiB}} {
		if *d.v == 0 {
			*d.v = d.n
		}
	}
	if o.Threads == 0 {
		o.Threads = o.Lanes
	}
	if o.CopyTimeout == 0 {
		o.CopyTimeout = 30 * time.Second
	}
	return o
}

// validate tells every fault at once.
func (o Options) validate() error {
	var errs []error
	check := func(ok bool, name string, v, low, high int64) {
		if !ok || v < low || v > high {
			errs = append(errs, base.Errorf("set", name, base.ErrInvalid, "%d; it must be from %d to %d", v, low, high))
		}
	}
	check(o.ChunkBytes%gpu.HostPage == 0, "ChunkBytes (a multiple of 4096)", o.ChunkBytes, MinChunk, MaxChunk)
	check(true, "Depth", int64(o.Depth), 1, MaxDepth)
	check(true, "Lanes", int64(o.Lanes), 1, MaxLanes)
	check(true, "Threads", int64(o.Threads), 1, int64(MaxLanes))
	check(o.WindowBytes == 0 || o.WindowBytes >= MinWindow, "WindowBytes (0, or at least 1 MiB)", o.WindowBytes, 0, 1<<62)
	check(true, "WindowChunk", o.WindowChunk, MinWindow, 1<<40)
	check(true, "SmallBytes", o.SmallBytes, 1, MaxSmall)
	check(true, "Threshold", o.Threshold, 0, MaxTask)
	check(o.TaskBytes == 0 || o.TaskBytes >= gpu.HostPage, "TaskBytes (0, or from 4096 on)", o.TaskBytes, 0, MaxTask)
	check(true, "CopyTimeout", int64(o.CopyTimeout), 1, int64(time.Hour))
	return errors.Join(errs...)
}

// Mover moves bytes to and from one GPU. Safe for concurrent use.
type Mover struct {
	dev   gpu.Device
	index int // of dev
	back  gpu.Backend
	table *gpu.Table
	opt   Options
	loads int // how often a lane looks before it lets others run
	paths driver.PathStats

	noMove  atomic.Bool  // the kernel could not be loaded
	ordered atomic.Int32 // orders that are open
	groups  sync.Pool    // of *group

	ready chan struct{} // a token for each idle lane
	late  chan struct{} // a token while windows of a call that has returned end
	warm  chan struct{} // a token while lanes are warmed: two that want all would wait for ever

	mu     sync.Mutex
	idle   []*lane             // the one used last is the last: its memory is in the caches
	made   int                 // lanes that exist or are being made
	lost   []*lane             // lanes in quarantine
	kept   []*gpu.Registration // what they may still read or write
	closed bool
	jobs   sync.WaitGroup
}

// New makes a mover for device dev of backend b. Ranges that are registered in
// table are held while in use; table may be nil. It allocates nothing on the
// GPU and no pinned memory before the first transfer or Warm.
func New(b gpu.Backend, dev gpu.Device, table *gpu.Table, o Options) (*Mover, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, base.Wrap("open", "mover", err)
	}
	loads := quickLoads
	if runtime.GOMAXPROCS(0) > fewProcessors {
		loads = longLoads
	}
	return &Mover{dev: dev, index: dev.Info().Index, back: b, table: table, opt: o, loads: loads, ready: make(chan struct{}, o.Lanes),
		late: make(chan struct{}, 1), warm: make(chan struct{}, 1)}, nil
}

// Options are the ones in effect.
func (m *Mover) Options() Options { return m.opt }

// Paths counts the bytes that moved, by way and reason (I10).
func (m *Mover) Paths() []driver.PathCount { return m.paths.Counts() }

// PinnedBytes is the size of the bounce buffers when every lane exists.
func (m *Mover) PinnedBytes() int64 { return int64(m.opt.Lanes) * m.laneBytes() }

// Warm does beforehand what would make a first transfer slow: the context, the
// kernels, every lane, one copy in each, and the self-tests of the pairs.
func (m *Mover) Warm(ctx context.Context) error {
	if err := m.enter(); err != nil {
		return err
	}
	defer m.jobs.Done()
	if err := m.dev.Warm(); err != nil {
		return err
	}
	if m.opt.Pairs != nil {
		m.opt.Pairs.warm(m.index)
	}
	select {
	case m.warm <- struct{}{}:
		defer func() { <-m.warm }()
	case <-ctx.Done():
		return base.Errorf("warm up", "mover", base.ErrTimeout, "another one does so: %w", ctx.Err())
	}
	var all []*lane
	defer func() {
		for _, l := range all {
			m.give(l)
		}
	}()
	scratch, err := m.dev.Alloc(gpu.HostPage)
	if err != nil {
		return err
	}
	m.mu.Lock()
	healthy := m.opt.Lanes - len(m.lost)
	m.mu.Unlock()
	for range max(healthy, 1) { // without any the first one says why
		l, err := m.take(ctx)
		if err != nil {
			return errors.Join(err, scratch.Close())
		}
		all = append(all, l)
		err = l.stream.Copy(gpu.Copy{Dev: scratch.Ptr(), Host: l.mem.Bytes()[:gpu.HostPage]})
		if err == nil {
			err = l.settle()
		}
		if err != nil {
			return err // the copy may still run: the page stays
		}
	}
	return scratch.Close()
}

// Close waits for what is under way until ctx ends (then ErrBusy: call it
// again) and frees the lanes. Lanes in quarantine are freed if their streams can
// be ended; if not, their memory stays, and the error tells. Later requests get
// ErrClosed.
func (m *Mover) Close(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		m.jobs.Wait()
		done <- m.closeLanes()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return base.Errorf("close", "mover", base.ErrBusy, "%w", ctx.Err())
	}
}

// closeLanes closes every lane; nothing is under way.
func (m *Mover) closeLanes() error {
	m.mu.Lock()
	all := append(m.lost, m.idle...)
	m.lost, m.idle = nil, nil
	m.mu.Unlock()
	var errs []error
	for _, l := range all {
		errs = append(errs, l.close())
	}
	err := errors.Join(errs...)
	if err == nil { // nothing is under way any more
		for _, reg := range m.kept {
			reg.Release()
		}
		m.kept = nil
	}
	return err
}

// enter counts a job in; leave must follow.
func (m *Mover) enter() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return base.Errorf("move", "bytes", base.ErrClosed, "the mover is closed")
	}
	m.jobs.Add(1)
	return nil
}
