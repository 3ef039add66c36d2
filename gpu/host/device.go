package host

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/peermem"
)

// device is one simulated GPU. used is under the backend's lock.
type device struct {
	b     *Backend
	index int
	used  int64
}

func (d *device) Info() gpu.Info {
	f := &d.b.opt.Faults
	in := gpu.Info{Backend: "host", Index: d.index, Name: "host memory", Bytes: d.b.opt.Bytes,
		Ordering: f.Ordering, CanFlush: !f.NoFlush, DMABuf: !f.NoDMABuf, MemOps: !f.NoMemOps, Mover: !f.NoMover}
	copy(in.UUID[:], fmt.Sprintf("host-device-%04d", d.index))
	return in
}

func (d *device) Warm() error { return nil }

func (d *device) Alloc(n int64) (gpu.Memory, error) {
	all, err := d.alloc(gpu.KindDevice, false, n)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// AllocSpan allocates memory with properties that only some GPU memory has: one
// allocation a size, one directly behind the other, as virtual mappings have
// it. plain memory lacks the RDMA property. d must be of this backend.
func (b *Backend) AllocSpan(d gpu.Device, kind gpu.Kind, plain bool, sizes ...int64) ([]gpu.Memory, error) {
	return d.(*device).alloc(kind, plain, sizes...)
}

func (d *device) alloc(kind gpu.Kind, plain bool, sizes ...int64) ([]gpu.Memory, error) {
	b := d.b
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []gpu.Memory
	for _, n := range sizes {
		if f := b.opt.Faults.Alloc; f != nil {
			if err := f(n); err != nil {
				return out, err
			}
		}
		if n <= 0 || n > b.opt.Bytes-d.used {
			return out, base.Errorf("allocate", d.Info().Name, base.ErrNoSpace,
				"%d bytes, %d of %d are used", n, d.used, b.opt.Bytes)
		}
		from, err := b.take(n)
		if err != nil {
			return out, err
		}
		b.nextID++
		m := &memory{b: b, dev: d, at: b.next, size: n, id: b.nextID, kind: kind, plain: plain, view: from.Bytes, from: from}
		b.next += gpu.Ptr(n)
		d.used += n
		b.insert(m)
		out = append(out, m)
	}
	b.next = gpu.Ptr(base.AlignUp(int64(b.next), gpu.PinPage)) + addressGap
	return out, nil
}

// take gives n bytes of memory for an allocation.
func (b *Backend) take(n int64) (Lent, error) {
	if b.opt.Memory != nil {
		return b.opt.Memory(n)
	}
	mem, err := dma.Alloc(n, "host gpu")
	if err != nil {
		return Lent{}, err
	}
	return Lent{Bytes: mem.Bytes(), Free: mem.Free}, nil
}

func (b *Backend) insert(m *memory) {
	i, _ := slices.BinarySearchFunc(b.allocs, m.at, func(o *memory, p gpu.Ptr) int {
		if o.at < p {
			return -1
		}
		return 1
	})
	b.allocs = slices.Insert(b.allocs, i, m)
}

// Replace frees m and allocates as much at the same address, as an allocator of
// a real GPU may do. The result has another buffer id.
func (b *Backend) Replace(m gpu.Memory) (gpu.Memory, error) {
	old := m.(*memory)
	if err := old.Close(); err != nil {
		return nil, err
	}
	from, err := b.take(old.size)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nextID++
	n := &memory{b: b, dev: old.dev, at: old.at, size: old.size, id: b.nextID, kind: old.kind, view: from.Bytes, from: from}
	old.dev.used += n.size
	b.insert(n)
	return n, nil
}

func (d *device) AllocHost(n int64) (gpu.HostMemory, error) {
	if f := d.b.opt.Faults.Alloc; f != nil {
		if err := f(n); err != nil {
			return nil, err
		}
	}
	mem, err := dma.Alloc(n, "host gpu pinned")
	if err != nil {
		return nil, err
	}
	return d.b.pin(mem.Bytes(), mem)
}

func (d *device) PinHost(b []byte, _ bool) (gpu.HostMemory, error) { return d.b.pin(b, nil) }

func (b *Backend) pin(p []byte, own *dma.Mem) (gpu.HostMemory, error) {
	if len(p) == 0 {
		return nil, base.Errorf("pin", "host memory", base.ErrInvalid, "0 bytes")
	}
	h := &hostMemory{back: b, at: gpu.Ptr(dl.Addr(p)), b: p, own: own}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pinned = append(b.pinned, h)
	return h, nil
}

// Export gives a descriptor that stands for a dma-buf: controller models reach the
// memory through it, until it is freed or Revoke takes it back.
func (d *device) Export(p gpu.Ptr, n int64) (int, error) {
	a, err := d.b.Attributes(p)
	if err == nil {
		err = gpu.CheckExport(a, p, n)
	}
	if err != nil {
		return -1, err
	}
	if d.b.opt.Faults.NoDMABuf || !a.Exportable {
		return -1, base.Errorf("export", p.String(), base.ErrNotSupported, "no dma-buf for this memory")
	}
	b := d.b
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.find(p)
	if m == nil {
		return -1, base.Errorf("export", p.String(), base.ErrNotFound, "it was freed meanwhile")
	}
	if m.from.Export != nil {
		return m.from.Export(int64(p-m.at), n)
	}
	fd, lent, err := peermem.Export(m.view[p-m.at:][:n])
	if err != nil {
		return -1, base.Wrap("export", p.String(), err)
	}
	m.lent = append(m.lent, lent)
	return fd.Int(), nil
}

// Revoke takes the memory away from every device that reaches it through an export,
// as a driver does that resets its GPU. The GPU itself goes on to use it.
func (b *Backend) Revoke(m gpu.Memory) { m.(*memory).revoke() }

func (d *device) SyncMemOps(p gpu.Ptr) error {
	_, err := d.b.bytes(p, 1)
	return err
}

func (d *device) FlushWrites() error {
	if d.b.opt.Faults.NoFlush {
		return base.Errorf("flush", "writes", base.ErrNotSupported, "the device has no flush")
	}
	d.b.flushes.Add(1)
	if f := d.b.opt.Faults.Flush; f != nil {
		return f()
	}
	return nil
}

func (d *device) IPCHandle(p gpu.Ptr) (h [64]byte, err error) {
	d.b.mu.Lock()
	defer d.b.mu.Unlock()
	m := d.b.find(p)
	if m == nil || m.at != p {
		return h, base.Errorf("share", p.String(), base.ErrInvalid, "not the beginning of an allocation")
	}
	d.b.ipc[m.id] = m
	binary.LittleEndian.PutUint64(h[:], m.id)
	return h, nil
}

func (d *device) OpenIPC(h [64]byte) (gpu.Memory, error) {
	d.b.mu.Lock()
	defer d.b.mu.Unlock()
	m := d.b.ipc[binary.LittleEndian.Uint64(h[:])]
	if m == nil {
		return nil, base.Errorf("open", "shared memory", base.ErrNotFound, "no such handle")
	}
	return &shared{m}, nil
}

// shared is memory of somebody else: closing it frees nothing.
type shared struct{ m *memory }

func (s *shared) Ptr() gpu.Ptr { return s.m.at }
func (s *shared) Size() int64  { return s.m.size }
func (s *shared) Close() error { return nil }
