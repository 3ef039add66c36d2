package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/unix"
)

// maxViolations bounds how many violations are kept; all are counted.
const maxViolations = 1000

// Sim is one controller. It implements hw.Device. Everything in it belongs to mu;
// the memory that it is given belongs to the driver, whose doorbells, Pause and
// Wait order its accesses with those of the model.
type Sim struct {
	mu    *sync.Mutex
	cfg   Config
	id    hw.ID
	rnd   *rand.Rand
	bus   bus
	media []*media
	live  int // allocations and mappings

	held    bool // Hold
	ones    bool // registers read as ones
	removed bool
	closed  bool

	start    time.Time     // of the real clock
	now      time.Duration // of the virtual clock
	idle     int           // pauses in a row that did nothing
	patience int           // pauses that must do nothing before the virtual clock moves

	toPeer, fromPeer PeerEffect
	landings         []landing // of the read being executed

	regs

	sqs      []*sq // by identifier
	cqs      map[uint16]*cq
	next     int // the queue after the one that was served last
	shadows  doorbells
	ops      opHeap
	waiting  []*op    // due while held
	spare    []*op    // ended, to be used again
	views    [][]byte // the memory of the command being executed
	seq      uint64
	dies     [dies]time.Duration
	link     link
	features map[uint8]uint32
	apst     [256]byte
	aers     []*op
	events   []nvme.AsyncEvent
	errors   []nvme.ErrorLogEntry // newest first
	smart    nvme.SMARTLog
	changed  []uint32 // namespaces

	rules   []*Rule
	fired   [faultKinds]int
	vectors []*vector
	kick    chan struct{} // something to do for a waiter
	kicks   atomic.Uint32 // how often there was; read without mu
	napping atomic.Bool   // a waiter sleeps until something is due

	observer   func(Seen)
	watched    bool   // the observer is being called
	powerCut   func() // what to do as soon as it is not
	late       []late // commands of a host that died
	counts     Counts
	violations []string
}

// Counts is what the model has seen since it was opened.
type Counts struct {
	SQDoorbells, CQDoorbells int64 // writes
	Commands, AdminCommands  int64 // fetched
	Completions              int64 // posted
	Interrupts               int64
	ListPages                int64 // PRP list pages and SGL segments read
	Violations               int64
	Resets                   int64 // of the controller, of any kind
}

// Open makes a controller, powered on and disabled.
func Open(cfg Config) (*Sim, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	return open(cfg, nil)
}

// open is Open with the content of the namespaces in memory, if there is one.
func open(cfg Config, content []*media) (*Sim, error) {
	if cfg.Target == "" {
		cfg.Target = fmt.Sprintf("sim:seed=%d", cfg.Seed)
	}
	if cfg.Lock == nil {
		cfg.Lock = new(sync.Mutex)
	}
	s := &Sim{mu: cfg.Lock, cfg: cfg, rnd: rand.New(rand.NewPCG(cfg.Seed, 0x73696d)), start: time.Now(),
		features: map[uint8]uint32{}, kick: make(chan struct{}, 1)}
	s.id = hw.ID{Target: cfg.Target, Transport: "sim", Vendor: cfg.Vendor, Device: cfg.Device, NUMANode: -1, IOMMU: true, Peers: true}
	s.bus = bus{pages: map[uint64]busPage{}, rnd: rand.New(rand.NewPCG(cfg.Seed, 0x627573))}
	s.vectors = make([]*vector, cfg.Vectors)
	s.smart.CompositeKelvin.Set(310)
	s.smart.AvailableSpare, s.smart.SpareThreshold = 100, 10
	s.media = content
	for i, ns := range cfg.Namespaces[len(content):] {
		path := ""
		if i == 0 {
			path = cfg.Path
		}
		m, err := openMedia(ns, path, cfg.Identify.VolatileCache())
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.media = append(s.media, m)
	}
	s.powerOn()
	s.id.Window = s.window()
	return s, nil
}

// ID implements hw.Device.
func (s *Sim) ID() hw.ID { return s.id }

// Counts is what the model has seen.
func (s *Sim) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Violations lists what the driver did that the specification forbids, or that no
// careful driver does. A test of a driver ends by looking at it.
func (s *Sim) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.violations)
}

func (s *Sim) violate(format string, args ...any) {
	s.counts.Violations++
	if len(s.violations) < maxViolations {
		s.violations = append(s.violations, fmt.Sprintf(format, args...))
	}
}

// Start implements hw.Device.
func (s *Sim) Start(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return base.Errorf("start", s.id.Target, base.ErrClosed, "the model is closed")
	case s.removed:
		return base.Errorf("start", s.id.Target, base.ErrDeviceGone, "the device was pulled out")
	}
	s.bus.master = true
	return nil
}

// Stop implements hw.Device: a function-level reset. While completions are held
// it cannot confirm.
func (s *Sim) Stop(ctx context.Context) error {
	for {
		s.mu.Lock()
		if s.closed || s.removed || !s.held && !s.cfg.StopFails {
			if !s.closed && !s.removed {
				s.landLate()
				s.powerOn()
			}
			s.bus.master, s.ones = false, false
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return base.Errorf("stop", s.id.Target, base.ErrTimeout, "%w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// Close implements hw.Device. ErrBusy when memory is still allocated or mapped:
// the model is closed all the same, and nothing reaches that memory.
func (s *Sim) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.landLate()
	s.powerOn()
	s.closed, s.bus.master = true, false
	s.wakeAll()
	var err error
	for _, m := range s.media {
		err = errors.Join(err, m.close())
	}
	if s.live != 0 {
		err = errors.Join(err, base.Errorf("close", s.id.Target, base.ErrBusy, "%d pieces of memory are not given back", s.live))
	}
	return err
}

// Alloc implements hw.Memory. The memory is resident, as memory is that hardware can
// reach.
func (s *Sim) Alloc(size int64, owner string) (*hw.Buffer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, base.Errorf("allocate", owner, base.ErrClosed, "the model is closed")
	}
	mem, err := dma.Alloc(size, owner)
	if err != nil {
		return nil, err
	}
	clear(mem.Bytes())
	n := uint64(size+hw.PageSize-1) / hw.PageSize
	first := s.bus.reserve(n, 1<<(s.cap.MinPageShift()-12), 0)
	for i, b := uint64(0), mem.Bytes(); i < n; i++ {
		k := min(len(b), hw.PageSize)
		s.bus.pages[first+i] = busPage{mem: b[:k:k]}
		b = b[k:]
	}
	s.live++
	seg := hw.Seg{Addr: first * hw.PageSize, Len: uint64(size)}
	return hw.NewBuffer(mem.Bytes(), seg.Addr, func() {
		s.unmap([]hw.Seg{seg})
		mem.Free()
	}), nil
}

func (s *Sim) unmap(segs []hw.Seg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bus.remove(segs)
	s.live--
}

// Map implements hw.Memory: each page, or each run of Config.FixedPages pages,
// stands somewhere else on the bus.
func (s *Sim) Map(mem []byte) (hw.Mapping, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, base.Errorf("map memory for", s.id.Target, base.ErrClosed, "the model is closed")
	case len(mem) == 0:
		return nil, base.Errorf("map memory for", s.id.Target, base.ErrInvalid, "no bytes")
	}
	run := max(uint64(s.cfg.FixedPages), 1<<(s.cap.MinPageShift()-12))
	s.live++
	return &mapping{s, s.bus.add(mem, run, false)}, nil
}

type mapping struct {
	s    *Sim
	segs []hw.Seg
}

// Segments implements hw.Mapping.
func (m *mapping) Segments() []hw.Seg { return m.segs }

// Unmap implements hw.Mapping.
func (m *mapping) Unmap() error {
	if m.segs == nil {
		panic("sim: unmapped twice")
	}
	m.s.unmap(m.segs)
	m.segs = nil
	return nil
}

// Access reads or writes memory as the controller would, for tests of the seam.
func (s *Sim) Access(addr uint64, p []byte, write bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.bus.copy(addr, p, write) {
		return base.Errorf("access", fmt.Sprintf("bus address %#x", addr), base.ErrOutOfRange, "nothing is mapped there")
	}
	return nil
}

// Now implements hw.Clock.
func (s *Sim) Now() time.Duration {
	if s.cfg.Real {
		return time.Since(s.start)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock()
}

func (s *Sim) clock() time.Duration {
	if s.cfg.Real {
		s.now = time.Since(s.start)
	}
	return s.now
}

// idlePauses is how many pauses in a row do nothing before the real clock's
// pauses sleep, and maxRest is for how long one does at most.
const (
	idlePauses = 64
	maxRest    = 500 * time.Microsecond
)

// Pause implements hw.Clock: the model does one step.
func (s *Sim) Pause(until time.Duration) {
	if s.cfg.Dedicated {
		runtime.Gosched()
		return
	}
	s.mu.Lock()
	did := s.step(until)
	if s.idle++; did {
		s.idle = 0
	}
	var rest time.Duration
	if s.idle > idlePauses && (s.cfg.Real || s.held) {
		rest = min(s.upcoming()-s.clock(), maxRest)
	}
	s.mu.Unlock()
	switch {
	case rest > 0:
		unix.Delay(rest)
	case !did:
		runtime.Gosched()
	}
}

// Serve works until ctx ends, for a model with Config.Dedicated: then nothing
// repeats by its seed, but driver and controller run at the same time, as they do
// in a machine.
func (s *Sim) Serve(ctx context.Context) {
	for ctx.Err() == nil {
		seen := s.kicks.Load()
		s.mu.Lock()
		did := s.step(hw.Forever)
		next, looks := s.upcoming(), s.shadows.values != 0
		s.mu.Unlock()
		if did {
			continue
		}
		runtime.Gosched()
		// The driver would wait up to a millisecond for a lock that is always taken
		// again at once, so there is no lock while there is nothing to do.
		for i := 0; i < serveIdle && s.cfg.Real && !looks && s.kicks.Load() == seen && s.Now() < next; i++ {
			runtime.Gosched()
		}
	}
}

// serveIdle is how many times Serve looks for work without the lock before it looks
// with it.
const serveIdle = 1000

// step does what is to be done now, or moves the virtual clock to what comes next,
// but not past until. It tells whether anything happened.
func (s *Sim) step(until time.Duration) bool {
	if s.closed {
		return false
	}
	s.clock()
	if s.work() {
		s.patience = s.cfg.Patience
		return true
	}
	if s.cfg.Real {
		return false
	}
	if s.patience > 0 {
		s.patience--
		return false
	}
	t := min(s.upcoming(), until)
	if t == hw.Forever || t <= s.now {
		return false
	}
	s.now, s.patience = t, s.cfg.Patience
	s.work()
	return true // time has passed, at least
}

// work does everything that is due.
func (s *Sim) work() bool {
	did := s.transitions()
	did = s.fetch() || did
	did = s.run() || did
	return s.echo(!did) || did
}

// upcoming is when something is due next.
func (s *Sim) upcoming() time.Duration {
	t := min(s.readyAt, s.shutdownAt)
	if !s.held {
		t = min(t, s.unreadyAt)
	}
	if s.now < s.cfg.OnesUntil {
		t = min(t, s.cfg.OnesUntil)
	}
	if s.deafUntil > s.now {
		t = min(t, s.deafUntil)
	}
	if len(s.ops) > 0 && s.running() { // or they never end
		t = min(t, s.ops[0].at)
	}
	return t
}

// sortedKeys walks the keys of a map in order.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) func(yield func(K) bool) {
	return slices.Values(slices.Sorted(maps.Keys(m)))
}
