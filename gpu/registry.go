package gpu

import (
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Why a registered range is not exported for direct transfers. They are reasons
// of path counters, so there are few and they are constant.
const (
	ReasonNotAsked  = "no transport takes dma-bufs"
	ReasonManaged   = "managed memory"
	ReasonSeam      = "the range spans several allocations (PyTorch: expandable_segments)"
	ReasonUnaligned = "address or size is not a multiple of 4096"
	ReasonNoRDMA    = "the memory was created without the RDMA property"
	ReasonNoDMABuf  = "the driver exports no dma-bufs"
	ReasonBudget    = "the budget for exported memory is used up"
	ReasonEvicted   = "evicted for a newer registration"
	ReasonNoSync    = "the driver cannot order its own copies to the memory"
	ReasonFailed    = "the export failed"
)

// TableOptions of NewTable. The zero value registers without exporting.
type TableOptions struct {
	// Export makes a dma-buf of each range that allows it.
	Export bool
	// ExportBudget bounds the exported bytes; 0 means no bound. Idle exports,
	// the least recently used first, make room for new ones.
	ExportBudget int64
}

// Table knows which ranges of GPU memory are registered. A range may be
// registered several times with the same address and size, and then closed as
// often; ranges that overlap otherwise are refused (D-12). Safe for concurrent
// use; Find takes no lock.
type Table struct {
	backend Backend
	opt     TableOptions
	ranges  atomic.Pointer[[]*Registration] // sorted by address, replaced whole
	clock   atomic.Int64

	mu       sync.Mutex
	exported int64 // bytes
}

// NewTable makes an empty table for the GPUs of b.
func NewTable(b Backend, o TableOptions) *Table {
	t := &Table{backend: b, opt: o}
	t.ranges.Store(new([]*Registration))
	return t
}

// piece is one allocation of a registered range.
type piece struct {
	at Ptr
	id uint64 // the buffer's id when it was registered
}

// Registration is a registered range. It has a generation and counts the
// requests in flight that name it (I3). Safe for concurrent use.
type Registration struct {
	table  *Table
	base   Ptr
	size   int64
	device int
	kind   Kind
	pieces []piece

	hold atomic.Uint64 // generation<<32 | requests in flight; generation 0 is closed
	dead atomic.Bool   // the memory was freed
	used atomic.Int64  // the table's clock at the last hold

	// Under table.mu.
	refs int
	fd   *unix.FD // dma-buf, nil if none
	why  string   // why none
	err  error    // what the driver said, if it was asked

	importMu sync.Mutex // after table.mu
	imports  map[any]io.Closer
}

// Register makes [p, p+n) known. ErrInvalid for host memory and empty ranges,
// ErrOutOfRange for ranges that leave their memory, ErrExists for a range that
// overlaps a registered one, ErrBusy when such a one is stale and in flight.
// Memory that cannot be exported is registered all the same; Reason tells why.
func (t *Table) Register(p Ptr, n int64) (*Registration, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.describe(p, n)
	if err != nil {
		return nil, err
	}
	old := *t.ranges.Load()
	i, _ := slices.BinarySearchFunc(old, p, func(o *Registration, p Ptr) int {
		if o.base+Ptr(o.size) <= p {
			return -1
		}
		return 1
	})
	for i < len(old) && old[i].base < p+Ptr(n) {
		o := old[i]
		if o.checkID() != nil { // memory that was freed: nobody can use it again
			if err := o.shut(); err != nil {
				return nil, err
			}
			t.unexport(o, ReasonEvicted)
			old = slices.Delete(slices.Clone(old), i, i+1)
			continue
		}
		if o.base == p && o.size == n {
			o.refs++
			return o, nil
		}
		return nil, base.Errorf("register", p.String(), base.ErrExists,
			"%d bytes overlap the registered %d at %s", n, o.size, o.base)
	}
	t.export(r, *t.ranges.Load())
	next := slices.Insert(slices.Clone(old), i, r)
	t.ranges.Store(&next)
	return r, nil
}

// describe asks the backend what the range is, allocation by allocation.
func (t *Table) describe(p Ptr, n int64) (*Registration, error) {
	if n <= 0 || p == 0 || p+Ptr(n) < p {
		return nil, base.Errorf("register", p.String(), base.ErrInvalid, "%d bytes", n)
	}
	r := &Registration{table: t, base: p, size: n, refs: 1}
	r.hold.Store(1 << 32)
	for at := p; ; {
		a, err := t.backend.Attributes(at)
		if err != nil {
			return nil, err
		}
		if at == p {
			if a.Kind != KindDevice && a.Kind != KindManaged {
				return nil, base.Errorf("register", p.String(), base.ErrInvalid, "%s memory is not on a GPU", a.Kind)
			}
			r.device, r.kind = a.Device, a.Kind
			r.why = staticReason(a, p, n)
		} else if a.Kind != r.kind || a.Device != r.device || len(r.pieces) == maxPieces {
			return nil, base.Errorf("register", p.String(), base.ErrOutOfRange,
				"%d bytes leave their memory at %s", n, at)
		}
		r.pieces = append(r.pieces, piece{at, a.BufferID})
		end := a.Base + Ptr(a.Size)
		if a.Size == 0 || end >= p+Ptr(n) {
			return r, nil
		}
		r.why, at = ReasonSeam, end
	}
}

// staticReason is what speaks against an export of the range, or "".
func staticReason(a Attributes, p Ptr, n int64) string {
	switch {
	case a.Kind == KindManaged:
		return ReasonManaged
	case !a.Exportable:
		return ReasonNoRDMA
	case uint64(p)%HostPage != 0 || n%HostPage != 0:
		return ReasonUnaligned
	}
	return ""
}

// export makes the dma-buf of r, if it can, or sets the reason.
func (t *Table) export(r *Registration, others []*Registration) {
	if r.why != "" {
		return
	}
	d := t.device(r.device)
	switch {
	case !t.opt.Export:
		r.why = ReasonNotAsked
	case d == nil || !d.Info().DMABuf:
		r.why = ReasonNoDMABuf
	case !t.room(r.size, others):
		r.why = ReasonBudget
	default:
		// A copy of the driver that is still pending must not race with another
		// device: without that there is no direct path.
		if r.err = d.SyncMemOps(r.base); r.err != nil {
			r.why = ReasonNoSync
			return
		}
		fd, err := d.Export(r.base, r.size)
		if r.err = err; err != nil {
			r.why = ReasonFailed
			return
		}
		r.fd = unix.NewFD(fd, "dma-buf of "+r.base.String())
		t.exported += r.size
	}
}

// room makes room in the budget for n more bytes, if idle exports allow it.
func (t *Table) room(n int64, others []*Registration) bool {
	if t.opt.ExportBudget == 0 {
		return true
	}
	if n > t.opt.ExportBudget {
		return false
	}
	idle := slices.DeleteFunc(slices.Clone(others), func(o *Registration) bool { return o.fd == nil })
	slices.SortFunc(idle, func(a, b *Registration) int { return int(a.used.Load() - b.used.Load()) })
	for _, o := range idle {
		if t.exported+n <= t.opt.ExportBudget {
			break
		}
		if o.renew() {
			t.unexport(o, ReasonEvicted)
		}
	}
	return t.exported+n <= t.opt.ExportBudget
}

func (t *Table) unexport(r *Registration, why string) {
	if r.fd == nil {
		return
	}
	r.endImports()
	_ = r.fd.Close() // the kernel frees the descriptor in any case
	r.fd, r.why = nil, why
	t.exported -= r.size
}

func (t *Table) device(i int) Device {
	if all := t.backend.Devices(); i >= 0 && i < len(all) {
		return all[i]
	}
	return nil
}

// Find gives the registration that contains all of [p, p+n), or nil. A caller
// may name any address inside a registered range (base plus offset, T31).
func (t *Table) Find(p Ptr, n int64) *Registration {
	all := *t.ranges.Load()
	i, found := slices.BinarySearchFunc(all, p, func(r *Registration, p Ptr) int {
		switch {
		case r.base+Ptr(r.size) <= p:
			return -1
		case r.base > p:
			return 1
		}
		return 0
	})
	if !found || !base.CheckRange(int64(p-all[i].base), n, all[i].size) {
		return nil
	}
	return all[i]
}

// Stats of a table.
type Stats struct {
	Ranges        int
	Bytes         int64
	ExportedBytes int64
	InFlight      int64 // requests that hold a range
}

// Stats counts what is registered now.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Stats{ExportedBytes: t.exported}
	for _, r := range *t.ranges.Load() {
		s.Ranges++
		s.Bytes += r.size
		s.InFlight += r.InFlight()
	}
	return s
}
