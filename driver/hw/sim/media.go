package sim

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// chunk is the granularity of sparse memory, in bytes, and of what is copied when
// one of two images changes.
const chunk = 16 * base.KiB

// undo is the granularity in which the durable content of blocks in the volatile
// cache is kept, in bytes.
const undo = 4 * base.KiB

// media is one namespace: what a read returns now, and what of it would be
// something else after a power cut.
type media struct {
	ns     Namespace
	bytes  uint64
	chunks map[uint64]*memory
	owner  *owner   // of the chunks that are not shared with an image
	file   *unix.FD // instead of chunks
	cached bool     // there is a volatile cache

	// dirty is the durable content under the cache: for each unit, a bit for each
	// block that differs and the old bytes.
	dirty map[uint64]*dirtyUnit
	// discards are deallocations that have not taken effect.
	discards []*discard
}

type dirtyUnit struct {
	mask uint8
	old  *[undo]byte // nil for zeros
}

// memory is a chunk. Who is not its owner copies it before changing it.
type memory struct {
	owner *owner
	data  [chunk]byte
}

// owner is known by its address.
type owner struct{ _ byte }

var zeros [chunk]byte

// discard is one deallocated range. Blocks that were written since are not in it
// any more.
type discard struct {
	at     time.Duration
	first  uint64
	blocks []bool
}

// openMedia makes the media of a namespace, in memory or in a file.
func openMedia(ns Namespace, path string, cached bool) (*media, error) {
	m := &media{ns: ns, bytes: ns.Blocks << ns.BlockShift, cached: cached, dirty: map[uint64]*dirtyUnit{}}
	if path == "" {
		m.chunks, m.owner = map[uint64]*memory{}, new(owner)
		return m, nil
	}
	mode := unix.ReadWrite
	if ns.ReadOnly {
		mode = unix.ReadOnly
	}
	f, err := unix.Open(path, mode, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, base.Errorf("open", path, base.ErrNotFound, "%w", err)
	}
	if errors.Is(err, unix.EISDIR) {
		return nil, notRegular(path, unix.KindDir)
	}
	if err != nil {
		return nil, base.Wrap("open", path, err)
	}
	if err := m.adopt(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	m.file = f
	return m, nil
}

// adopt locks the file, so that it has one owner or readers only (I5; all its
// accesses are synchronous, so that nothing lands after the lock is free). One that is
// smaller than the namespace has lost something, or is something else.
func (m *media) adopt(f *unix.FD) error {
	how := unix.LockExclusive
	if m.ns.ReadOnly {
		how = unix.LockShared
	}
	st, err := unix.FStat(f)
	switch {
	case err != nil:
		return base.Wrap("open", f.Path(), err)
	case st.Kind != unix.KindRegular:
		return notRegular(f.Path(), st.Kind)
	}
	if err := unix.TryFlock(f, how); err != nil {
		if errors.Is(err, unix.EAGAIN) {
			return locked(f.Path(), st)
		}
		return base.Wrap("lock", f.Path(), err)
	}
	if st, err = unix.FStat(f); err != nil { // the former owner may have changed it
		return base.Wrap("open", f.Path(), err)
	}
	if m.ns.Blocks == 0 {
		m.ns.Blocks = uint64(st.Size) >> m.ns.BlockShift
		m.bytes = m.ns.Blocks << m.ns.BlockShift
	}
	switch {
	case m.bytes == 0:
		return base.CutOff(f.Path(), base.ErrInvalid, &base.TooSmall{Bytes: st.Size})
	case m.bytes > maxBytes:
		return base.Errorf("open", f.Path(), base.ErrInvalid, "it has %d bytes, the limit is %d", m.bytes, uint64(maxBytes))
	case st.Size < int64(m.bytes):
		return base.CutOff(f.Path(), base.ErrMismatch, &base.TooSmall{Bytes: st.Size, Made: int64(m.bytes)})
	}
	return nil
}

// notRegular is the error for what cannot hold blocks.
func notRegular(path string, k unix.Kind) error {
	return base.Errorf("open", path, base.ErrInvalid, "a model needs a regular file, this is a %s", k)
}

// locked is the error for a file that somebody else has.
func locked(path string, st unix.Stat) error {
	pid, who := unix.LockedBy(st), "another process"
	if pid != 0 {
		who = fmt.Sprintf("pid %d (%s)", pid, unix.ProcName(pid))
	}
	return base.WithHint(base.Errorf("open", path, base.ErrLocked, "%s has it open", who), "%s", base.OwnerHint(pid))
}

// whole repeats a read or write until all of p was moved.
func whole(p []byte, off uint64, move func(f *unix.FD, p []byte, off int64) (int, error), f *unix.FD) bool {
	for len(p) > 0 {
		n, err := move(f, p, int64(off))
		if err != nil || n == 0 {
			return false
		}
		p, off = p[n:], off+uint64(n)
	}
	return true
}

func (m *media) close() error {
	if m.file == nil {
		return nil
	}
	return base.Wrap("close", m.file.Path(), m.file.Close())
}

// read fills p from byte off; false when the file behind it fails.
func (m *media) read(p []byte, off uint64) bool {
	if m.file != nil {
		return whole(p, off, unix.Pread, m.file)
	}
	for len(p) > 0 {
		in := off % chunk
		n := min(uint64(len(p)), chunk-in)
		if c := m.chunks[off/chunk]; c != nil {
			copy(p[:n], c.data[in:])
		} else {
			clear(p[:n])
		}
		p, off = p[n:], off+n
	}
	return true
}

// put stores p at byte off without looking at caches.
func (m *media) put(p []byte, off uint64) bool {
	if m.file != nil {
		return whole(p, off, unix.Pwrite, m.file)
	}
	for len(p) > 0 {
		in := off % chunk
		n := min(uint64(len(p)), chunk-in)
		c := m.chunks[off/chunk]
		if c != nil || !bytes.Equal(p[:n], zeros[:n]) {
			copy(m.own(off/chunk, c).data[in:], p[:n])
		}
		p, off = p[n:], off+n
	}
	return true
}

// own makes chunk i, which is c until now, one that can be changed.
func (m *media) own(i uint64, c *memory) *memory {
	switch {
	case c == nil:
		c = &memory{owner: m.owner}
	case c.owner != m.owner:
		c = &memory{owner: m.owner, data: c.data}
	default:
		return c
	}
	m.chunks[i] = c
	return c
}

// clone gives an independent copy of what is in memory, the cache included.
func (m *media) clone() *media {
	c := *m
	m.owner, c.owner = new(owner), new(owner) // what m owned alone is shared from now on
	c.chunks = maps.Clone(m.chunks)
	c.dirty = make(map[uint64]*dirtyUnit, len(m.dirty))
	for i, u := range m.dirty {
		k := &dirtyUnit{mask: u.mask}
		if u.old != nil {
			old := *u.old
			k.old = &old
		}
		c.dirty[i] = k
	}
	c.discards = nil
	for _, d := range m.discards {
		c.discards = append(c.discards, &discard{d.at, d.first, slices.Clone(d.blocks)})
	}
	return &c
}

// write stores whole blocks at byte off. Without fua, and with a cache, they are
// durable only after a flush.
func (m *media) write(p []byte, off uint64, fua bool) bool {
	m.keep(off, uint64(len(p)), fua)
	for _, d := range m.discards {
		for b := off >> m.ns.BlockShift; b < (off+uint64(len(p)))>>m.ns.BlockShift; b++ {
			if b >= d.first && b-d.first < uint64(len(d.blocks)) {
				d.blocks[b-d.first] = false
			}
		}
	}
	return m.put(p, off)
}

// keep remembers what [off, off+n) holds durably, before it is overwritten; with
// fua it forgets, because the new content will be durable.
func (m *media) keep(off, n uint64, fua bool) {
	if !m.cached {
		return
	}
	size := min(uint64(1)<<m.ns.BlockShift, undo)
	for end := off + n; off < end; off += size {
		u := m.dirty[off/undo]
		bit := uint8(1) << (off % undo / size)
		switch {
		case fua && u != nil:
			if u.mask &^= bit; u.mask == 0 {
				delete(m.dirty, off/undo)
			}
		case fua:
		case u == nil:
			u = new(dirtyUnit)
			m.dirty[off/undo] = u
			fallthrough
		case u.mask&bit == 0:
			u.mask |= bit
			m.remember(u, off, size)
		}
	}
}

// remember keeps the size bytes at off, which may be changed now.
func (m *media) remember(u *dirtyUnit, off, size uint64) {
	if u.old == nil {
		if m.file == nil && m.chunks[off/chunk] == nil {
			return
		}
		u.old = new([undo]byte)
	}
	m.read(u.old[off%undo:off%undo+size], off)
}

// flush makes everything durable.
func (m *media) flush() { clear(m.dirty) }

// lose is a power cut: each block in the cache is there or not, with a chance that
// differs from cut to cut.
func (m *media) lose(rnd *rand.Rand) (kept, lost int) {
	for _, d := range m.discards {
		m.settle(d, rnd)
	}
	m.discards = nil
	size := min(uint64(1)<<m.ns.BlockShift, undo)
	luck := rnd.IntN(9)
	for unit := range m.sorted() {
		u := m.dirty[unit]
		for i := range undo / size {
			switch {
			case u.mask&(1<<i) == 0:
			case rnd.IntN(8) < luck:
				kept++
			default:
				lost++
				m.put(u.durable()[i*size:(i+1)*size], unit*undo+i*size)
			}
		}
	}
	clear(m.dirty)
	return kept, lost
}

// durable is what the unit held; only the bytes of the mask say something.
func (u *dirtyUnit) durable() []byte {
	if u.old == nil {
		return zeros[:undo]
	}
	return u.old[:]
}

// sorted walks the dirty units in order, so that a seed repeats.
func (m *media) sorted() func(yield func(uint64) bool) {
	return sortedKeys(m.dirty)
}

// deallocate notes a range that may read as anything from now to at.
func (m *media) deallocate(first, n uint64, at time.Duration) {
	d := &discard{at: at, first: first, blocks: make([]bool, n)}
	for i := range d.blocks {
		d.blocks[i] = true
	}
	m.discards = append(m.discards, d)
}

// settleDue applies the discards whose time has come.
func (m *media) settleDue(now time.Duration, rnd *rand.Rand) {
	left := m.discards[:0]
	for _, d := range m.discards {
		if d.at <= now {
			m.settle(d, rnd)
		} else {
			left = append(left, d)
		}
	}
	m.discards = left
}

// settle gives each deallocated block its content: old, zeros or ones (NVM 3.3.3.2.1).
// It is in the cache then, as a write would be.
func (m *media) settle(d *discard, rnd *rand.Rand) {
	p := make([]byte, 1<<m.ns.BlockShift)
	for i, on := range d.blocks {
		if !on {
			continue
		}
		what := rnd.IntN(3)
		if what == 0 {
			continue
		}
		for k := range p {
			p[k] = byte(what-1) * 0xff
		}
		off := (d.first + uint64(i)) << m.ns.BlockShift
		m.keep(off, uint64(len(p)), false)
		m.put(p, off)
	}
}

// identify is the namespace's identify data (NVM 4.1.5.1).
func (m *media) identify() *nvme.IdentifyNamespace {
	id := &nvme.IdentifyNamespace{DPS: m.ns.Protection, DLFEAT: 0}
	if m.ns.Inactive {
		return id
	}
	id.NSZE.Set(m.ns.Blocks)
	id.NCAP.Set(m.ns.Blocks)
	if m.ns.Allocatable != 0 {
		id.NCAP.Set(m.ns.Allocatable)
	}
	id.NUSE.Set(m.ns.Blocks)
	id.NVMCAP.Set(m.bytes)
	id.NOIOB.Set(m.ns.NOIOB)
	id.LBAF[0].LBADS = m.ns.BlockShift
	id.LBAF[0].MS.Set(m.ns.Metadata)
	if m.ns.Extended {
		id.FLBAS |= 1 << 4
	}
	if m.ns.Shared {
		id.NMIC = 1
	}
	if m.ns.ReadOnly {
		id.NSATTR = 1
	}
	return id
}
