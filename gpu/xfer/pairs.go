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

// Reasons of pairs of a device and a GPU, besides those of exports.
const (
	ReasonImport   = "the device cannot use the dma-buf"
	ReasonTest     = "the self-test of the device with the GPU found other bytes"
	ReasonUntested = "the device could not be tested with the GPU"
	ReasonNoFlush  = "the GPU cannot flush writes of other devices"
	ReasonReadOnly = "the device is only to be read"
	ReasonBroken   = "a direct transfer of the memory failed before"
	ReasonRetried  = "the direct transfer failed"
)

// Pair is what is known of the direct way between a device and a GPU.
type Pair struct {
	Device int    `json:"device"` // in the list of the owner
	Target string `json:"target"` // of the device
	GPU    int    `json:"gpu"`
	Tested bool   `json:"tested"`           // the self-test has run
	Direct bool   `json:"direct"`           // and bytes arrive, both ways
	Reason string `json:"reason,omitempty"` // why they do not
	Err    error  `json:"-"`                // what happened then
}

// PairsOptions of NewPairs.
type PairsOptions struct {
	// Devices are those that may move bytes to and from GPUs directly.
	Devices []driver.Device
	// Scratch is a place on a device that belongs to the owner and holds nothing: the
	// self-test writes TestBytes there. ErrReadOnly, or another error, where there is
	// none: then the pair is not used.
	Scratch func(device int) (off int64, err error)
	// ReadOnly: the devices are not to be written. A self-test then reads the bytes at
	// Scratch, which may be anything but should not be all the same, and a pair is good for
	// reads.
	ReadOnly bool
	// Failed, if not nil, is called once for each pair whose self-test found other
	// bytes, and for each registration whose direct transfers began to fail.
	Failed func(Pair)
	// Waits is how often work of the GPU, a kernel if it can, waits for the last bytes of a
	// block in a self-test; 16 if 0.
	Waits int
	// Count, if not nil, gets the bytes that the self-test moved.
	Count func(driver.PathKey, int64)
}

// Pairs finds out which devices reach which GPUs. Each pair is tested with patterns
// before its first use, since a platform that says that devices reach each other may
// lose what they send (D-18). Safe for concurrent use.
type Pairs struct {
	backend gpu.Backend
	opt     PairsOptions

	test  sync.Mutex // one self-test at a time: they share the scratch space
	mu    sync.Mutex
	known map[[2]int]Pair // by device and GPU
	peers map[*Peer]struct{}
}

// NewPairs makes an empty one for the GPUs of b.
func NewPairs(b gpu.Backend, o PairsOptions) *Pairs {
	return &Pairs{backend: b, opt: o, known: map[[2]int]Pair{}, peers: map[*Peer]struct{}{}}
}

// Able tells whether any device could use memory of a GPU: exports are of use.
func (ps *Pairs) Able() bool {
	for _, d := range ps.opt.Devices {
		if d.Info().Peers {
			return true
		}
	}
	return false
}

// Peer is registered GPU memory as the devices reach it.
type Peer struct {
	ps     *Pairs
	reg    *gpu.Registration
	region *driver.Region
	pairs  []Pair // by device
	broken atomic.Bool
}

// Peer gives registered memory as the devices reach it, or the reason why none can
// know it. The first call imports it and tests the pairs that were not tested before,
// which takes memory and a stream of the GPU. The caller has a Hold of the
// registration while it uses the result.
func (ps *Pairs) Peer(reg *gpu.Registration) (*Peer, string) {
	c, why := reg.Import(ps, func(fd int) io.Closer { return ps.join(reg, fd) })
	if why != "" {
		return nil, why
	}
	return c.(*Peer), ""
}

// join makes the memory known to every device that can take it.
func (ps *Pairs) join(reg *gpu.Registration, fd int) *Peer {
	p := &Peer{ps: ps, reg: reg, region: driver.NewFDRegion(fd, reg.Size(), nil), pairs: make([]Pair, len(ps.opt.Devices))}
	for i, d := range ps.opt.Devices {
		pair := Pair{Device: i, Target: d.Info().Target, GPU: reg.Device(), Reason: ReasonNoTransport}
		if d.Info().Peers {
			if pair = ps.tested(i, reg.Device()); pair.Direct {
				if err := d.Attach(p.region); err != nil {
					pair.Direct, pair.Reason, pair.Err = false, ReasonImport, err
				}
			}
		}
		p.pairs[i] = pair
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.peers[p] = struct{}{}
	return p
}

// tested is the verdict about a pair, after a test if there was none. A test that
// could not run is tried again with the next registration.
func (ps *Pairs) tested(device, index int) Pair {
	ps.test.Lock()
	defer ps.test.Unlock()
	key := [2]int{device, index}
	ps.mu.Lock()
	pair := ps.known[key]
	ps.mu.Unlock()
	if pair.Tested {
		return pair
	}
	d := ps.opt.Devices[device]
	pair = Pair{Device: device, Target: d.Info().Target, GPU: index}
	t := selfTest{dev: d, gpu: ps.backend.Devices()[index], count: ps.opt.Count, waits: ps.opt.Waits, read: ps.opt.ReadOnly}
	if t.off, pair.Err = ps.opt.Scratch(device); pair.Err == nil {
		pair.Err = t.run(context.Background())
	}
	switch {
	case pair.Err == nil:
		pair.Tested, pair.Direct = true, true
	case errors.Is(pair.Err, errOtherBytes):
		pair.Tested, pair.Reason = true, ReasonTest
	case t.exported && !t.imported:
		pair.Reason = ReasonImport
	default:
		pair.Reason = ReasonUntested
	}
	ps.mu.Lock()
	ps.known[key] = pair
	ps.mu.Unlock()
	if pair.Tested && !pair.Direct && ps.opt.Failed != nil {
		ps.opt.Failed(pair)
	}
	return pair
}

// Test tests a pair, if that has not been done, and gives the verdict.
func (ps *Pairs) Test(device, index int) Pair {
	if d := ps.opt.Devices[device]; !d.Info().Peers {
		return Pair{Device: device, Target: d.Info().Target, GPU: index, Reason: ReasonNoTransport}
	}
	return ps.tested(device, index)
}

// warm tests every device with a GPU.
func (ps *Pairs) warm(index int) {
	for i := range ps.opt.Devices {
		ps.Test(i, index)
	}
}

// Known lists the verdicts so far, by device and GPU.
func (ps *Pairs) Known() (out []Pair) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for i := range ps.opt.Devices {
		for k := range ps.backend.Devices() {
			if pair, ok := ps.known[[2]int{i, k}]; ok {
				out = append(out, pair)
			}
		}
	}
	return out
}

// Close ends what was imported, before the devices are closed. Nothing may be in
// flight, and nothing may use the Pairs any more.
func (ps *Pairs) Close() error {
	ps.mu.Lock()
	all := ps.peers
	ps.peers = map[*Peer]struct{}{}
	ps.mu.Unlock()
	var errs []error
	for p := range all {
		errs = append(errs, p.region.Close())
	}
	return errors.Join(errs...)
}

// Close ends the import: nothing is in flight. For gpu.Registration.
func (p *Peer) Close() error {
	p.ps.mu.Lock()
	delete(p.ps.peers, p)
	p.ps.mu.Unlock()
	return p.region.Close()
}

// Region is the memory, of which the processor sees nothing.
func (p *Peer) Region() *driver.Region { return p.region }

// Registration is what the memory was registered as.
func (p *Peer) Registration() *gpu.Registration { return p.reg }

// At is where an address of the registered range lies in the region.
func (p *Peer) At(a gpu.Ptr) int64 { return int64(a - p.reg.Ptr()) }

// Ptr is the address of byte off of the region.
func (p *Peer) Ptr(off int64) gpu.Ptr { return p.reg.Ptr() + gpu.Ptr(off) }

// Why is why bytes do not go directly between the memory and a device, "" if they do.
// toGPU is the direction that needs writes of devices to become visible.
func (p *Peer) Why(device int, toGPU bool) string {
	if pair := &p.pairs[device]; !pair.Direct {
		return pair.Reason
	}
	in := p.ps.backend.Devices()[p.reg.Device()].Info()
	switch {
	case p.broken.Load() || p.region.Closed():
		return ReasonBroken
	case toGPU && needsFlush(in) && !in.CanFlush:
		return ReasonNoFlush
	case !toGPU && p.ps.opt.ReadOnly:
		return ReasonReadOnly
	}
	return ""
}

// Broke notes that a direct transfer of the memory failed on a device that works: no
// further one is tried.
func (p *Peer) Broke(device int, err error) {
	if p.broken.CompareAndSwap(false, true) && p.ps.opt.Failed != nil {
		pair := p.pairs[device]
		pair.Direct, pair.Reason, pair.Err = false, ReasonBroken, err
		p.ps.opt.Failed(pair)
	}
}

// NeedsFlush tells whether Flush is to be called between the end of a read into the
// memory and the answer to whoever waits for it.
func (p *Peer) NeedsFlush() bool {
	return needsFlush(p.ps.backend.Devices()[p.reg.Device()].Info())
}

func needsFlush(in gpu.Info) bool { return in.Ordering < gpu.OrderingOwner }

// Flush makes what devices wrote visible to kernels that run already.
func (p *Peer) Flush() error {
	return base.Wrap("flush", "writes to "+p.reg.String(), p.ps.backend.Devices()[p.reg.Device()].FlushWrites())
}
