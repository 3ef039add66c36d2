package store

import (
	"context"
	"errors"
	"sync"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	gpuxfer "github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
)

// GPUOptions let values come from and go to the memory of GPUs.
type GPUOptions struct {
	// Backend is opened by the caller, who closes it after the store. The store
	// loads no library by itself.
	Backend gpu.Backend
	// Table knows the ranges that are registered. Nil makes one: RegisterGPU.
	Table *gpu.Table
	// WindowBytes is how much of the store's own files may be mapped and registered
	// with the GPUs: values of 1 MiB and more that are read into GPU memory again and
	// again then come from the page cache by one copy of the GPU, without the
	// processor and the device. They count as "window" of the GPU, and not as bytes of
	// the device. 0 is none. It is for programs whose streams do not wait for cells:
	// the end of a window hangs meanwhile, and copies of other threads with it.
	WindowBytes int64
	// DirectBytes bounds the registered memory that devices reach directly at a time,
	// if Table is nil: a GPU's window to other devices may be smaller than its memory.
	// 0 is no bound. Idle registrations, the least recently used first, make room for
	// new ones and are staged from then on.
	DirectBytes int64
	// Move tunes the movers, one a GPU. The zero value is right: values pass the
	// store's own staging memory, so that lanes need little of their own.
	Move gpuxfer.Options
}

// Defaults of GPUOptions.Move: a lane is a stream here, and its buffer holds the
// tables of moves.
const (
	gpuLanes      = 8
	gpuChunkBytes = gpuxfer.MinChunk
)

// OnGPU makes Buffers of one range of GPU memory.
func OnGPU(p gpu.Ptr, n int64) Buffers { return Buffers{{GPU: p, Len: n}} }

// GPUStat is what one GPU moved for the store.
type GPUStat struct {
	Index       int    `json:"index"`
	Name        string `json:"name"`
	UUID        string `json:"uuid"` // 32 hexadecimal digits
	PinnedBytes int64  `json:"pinned_bytes"`
	// Paths count the bytes of values between host memory and the GPU.
	// Direct ones, which no host memory sees, are among them.
	Paths []driver.PathCount `json:"paths"`
}

// gpuSide is what a store has of GPUs. Nothing of it exists before the first value
// that needs it, or WarmGPU.
type gpuSide struct {
	s     *Store
	opt   GPUOptions
	table *gpu.Table
	pairs *gpuxfer.Pairs // with the devices

	mu     sync.Mutex
	pin    gpu.HostMemory // the staging memory
	movers []*gpuxfer.Mover
	direct []driver.PathStats // what moved between devices and each GPU
	sums   []gpuSums
	leak   bool // the GPU may still use the staging memory
	closed bool
	broken error // the GPUs failed too often
}

func newGPUSide(s *Store, o GPUOptions) *gpuSide {
	if o.Backend == nil {
		return nil
	}
	if o.Move.Lanes == 0 {
		o.Move.Lanes = gpuLanes
	}
	if o.Move.ChunkBytes == 0 {
		o.Move.ChunkBytes = gpuChunkBytes
	}
	g := &gpuSide{s: s, opt: o, table: o.Table, movers: make([]*gpuxfer.Mover, len(o.Backend.Devices())),
		direct: make([]driver.PathStats, len(o.Backend.Devices())), sums: make([]gpuSums, len(o.Backend.Devices()))}
	g.pairs = gpuxfer.NewPairs(o.Backend, gpuxfer.PairsOptions{Devices: s.devs, Scratch: s.testSpace, ReadOnly: s.opts.ReadOnly,
		Failed: g.pairFailed, Count: s.paths.Add})
	if g.table == nil {
		g.table = gpu.NewTable(o.Backend, gpu.TableOptions{Export: g.pairs.Able(), ExportBudget: o.DirectBytes})
	}
	return g
}

func errNoGPU(op string) error {
	return base.WithHint(base.Errorf(op, "gpu memory", ErrNotSupported, "the store was opened without a GPU"),
		"open it with Options.GPU")
}

// RegisterGPU makes [p, p+n) known, so that it is held while a call uses it and
// memory that was freed and allocated again is noticed. Devices that can reach GPU
// memory then move whole blocks of values to and from it directly; the first
// registration for a GPU tests them with it, which takes memory and a stream of the
// GPU, so it is to be made before streams wait for cells. Why bytes are staged all the
// same is in the statistics. Memory need not be registered. Errors are those of
// gpu.Table.Register; closing the result gives ErrBusy while a call, or a device after
// it, uses it (I3, I4).
func (s *Store) RegisterGPU(p gpu.Ptr, n int64) (*gpu.Registration, error) {
	if s.gpu == nil {
		return nil, errNoGPU("register")
	}
	reg, err := s.gpu.table.Register(p, n)
	if err == nil && s.gpu.pairs.Able() && reg.HoldNow() == nil {
		s.gpu.pairs.Peer(reg) // what it finds out is told with each transfer
		s.gpu.canSum(reg.Device())
		reg.Release()
	}
	return reg, err
}

// WarmGPU does beforehand what makes the first value of GPU index slow: its context,
// its kernels, streams, and pinning the staging memory.
func (s *Store) WarmGPU(ctx context.Context, index int) error {
	if s.gpu == nil {
		return errNoGPU("warm up")
	}
	if err := s.gate.enter("warm up", "gpu"); err != nil {
		return err
	}
	defer s.gate.leave()
	m, err := s.gpu.mover(index)
	if err != nil {
		return err
	}
	s.gpu.canSum(index) // its stream must be there before any stream waits
	return m.Warm(ctx)
}

// mover gives the mover of a GPU, and pins the staging memory for it.
func (g *gpuSide) mover(index int) (*gpuxfer.Mover, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, base.Wrap("use", "gpu", ErrClosed)
	}
	if g.broken != nil {
		return nil, base.Errorf("use", "gpu", ErrIsolated, "too many copies did not end: %w", g.broken)
	}
	all := g.opt.Backend.Devices()
	if index < 0 || index >= len(all) {
		return nil, base.Errorf("use", "gpu", ErrNotFound, "number %d of %d", index, len(all))
	}
	var err error
	if g.pin == nil {
		if g.pin, err = all[index].PinHost(g.s.stage.region.CPU(), false); err != nil {
			g.pin = nil
			return nil, base.WithHint(base.Wrap("pin", "staging memory", err), "raise the limit of locked memory (ulimit -l)")
		}
	}
	if g.movers[index] == nil {
		g.movers[index], err = gpuxfer.New(g.opt.Backend, all[index], g.table, g.opt.Move)
	}
	return g.movers[index], err
}

// giveUp keeps the GPUs from costing host memory its buffers.
func (g *gpuSide) giveUp(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.broken == nil {
		g.broken = cause
	}
}

// gpuRange is what is known of one range of a value that is GPU memory; the zero
// value is a range of host memory.
type gpuRange struct {
	dev  int
	peer *gpuxfer.Peer // as devices reach it, if any may
	lost *gpuxfer.Peer // that, if bytes seem to have been lost on the way
	why  string        // why all of it is staged
}

// gpuItem is a value with GPU memory among its ranges. Its checksums are computed
// when its bytes are in host memory.
type gpuItem struct {
	ranges []gpuRange
	regs   []*gpu.Registration
}

// holdGPU finds out about the GPU memory that the value names and holds what is
// registered until release (I3). ErrMismatch when registered memory is known to
// have been freed.
func (s *Store) holdGPU(op string, it *item) error {
	return s.holdGPUOf(op, it, new(gpu.Attributes))
}

// holdGPUOf is holdGPU for one of the values of a call, of which known is what was
// learnt last: the driver is not asked again about the same allocation.
func (s *Store) holdGPUOf(op string, it *item, known *gpu.Attributes) error {
	bufs := it.cur.bufs
	first := 0
	for first < len(bufs) && bufs[first].GPU == 0 {
		first++
	}
	if first == len(bufs) {
		return nil
	}
	if s.gpu == nil {
		return errNoGPU(op)
	}
	gi := &gpuItem{ranges: make([]gpuRange, len(bufs))}
	for i := first; i < len(bufs); i++ {
		if bufs[i].GPU == 0 || bufs[i].Len == 0 {
			continue
		}
		if err := s.gpu.hold(&bufs[i], gi, &gi.ranges[i], known); err != nil {
			gi.release()
			return err
		}
	}
	it.gpu, it.cur.gpu = gi, gi.ranges
	return nil
}

func (g *gpuSide) hold(r *Range, gi *gpuItem, out *gpuRange, known *gpu.Attributes) error {
	p := r.GPU + gpu.Ptr(r.Off)
	if reg := g.table.Find(p, r.Len); reg != nil {
		if err := firstErr(reg.Check(), reg.HoldNow()); err != nil {
			return err
		}
		gi.regs = append(gi.regs, reg)
		out.dev = reg.Device()
		if g.pairs.Able() {
			out.peer, out.why = g.pairs.Peer(reg)
		} else if _, out.why = reg.Direct(); out.why == "" {
			out.why = gpuxfer.ReasonNoTransport
		}
		return nil
	}
	var err error
	if p < known.Base || !base.CheckRange(int64(p-known.Base), r.Len, known.Size) {
		if *known, err = gpu.Locate(g.opt.Backend, p, r.Len); err != nil {
			*known = gpu.Attributes{}
		}
	}
	out.dev, out.why = max(known.Device, 0), gpuxfer.ReasonUnregistered
	return err
}

// release lets go of the registered memory. No copy may be under way.
func (gi *gpuItem) release() {
	if gi == nil {
		return
	}
	for _, r := range gi.regs {
		r.Release()
	}
	gi.regs = nil
}

// stats of every GPU that was used.
func (g *gpuSide) stats() (out []GPUStat) {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, m := range g.movers {
		paths := g.direct[i].Counts()
		if m == nil && len(paths) == 0 {
			continue
		}
		in := g.opt.Backend.Devices()[i].Info()
		st := GPUStat{Index: i, Name: in.Name, UUID: ID(in.UUID).String(), Paths: paths}
		if m != nil {
			st.PinnedBytes, st.Paths = m.PinnedBytes(), append(paths, m.Paths()...)
		}
		out = append(out, st)
	}
	return out
}

// close ends the movers and unpins the staging memory; no call is inside. ErrBusy
// when ctx ends first: it must be called again. Any other error means that a GPU
// may use the staging memory for ever, which then stays.
func (g *gpuSide) close(ctx context.Context) error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	g.closed = true
	movers, pin := g.movers, g.pin
	g.mu.Unlock()
	var errs []error
	for _, m := range movers {
		if m != nil {
			errs = append(errs, m.Close(ctx))
		}
	}
	if err := errors.Join(errs...); err != nil {
		g.leak = !errors.Is(err, ErrBusy)
		return err
	}
	if pin == nil {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- pin.Close() }() // it hangs while a stream of the caller waits for a cell
	select {
	case err := <-done:
		g.mu.Lock()
		g.pin, g.leak = nil, err != nil
		g.mu.Unlock()
		return err
	case <-ctx.Done():
		g.leak = true // the call is not repeated: it still hangs
		return base.Errorf("unpin", "staging memory", ErrTimeout, "a stream of the GPU still waits: %w", ctx.Err())
	}
}
