package sim

import (
	"bytes"
	"encoding/binary"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
	"github.com/ugds-store/ugds/internal/peermem"
)

// PeerEffect is what becomes of bytes between the controller and memory of another
// device, on machines whose bridges or IOMMU do not let them pass although the
// platform says so. Commands end well all the same.
type PeerEffect uint8

// The effects.
const (
	PeerRight PeerEffect = iota // they arrive
	PeerDrop                    // writes change nothing; reads give ones, as those that nobody answers do
	PeerZeros                   // zeros arrive
	PeerOnes                    // ones arrive
	PeerTail                    // the last 8 bytes of each page are lost as by PeerDrop
)

// peerTail is how many bytes PeerTail loses.
const peerTail = 8

// String names the effect.
func (e PeerEffect) String() string {
	return [...]string{"right", "drop", "zeros", "ones", "tail"}[e]
}

// Peers sets what becomes of the bytes that commands move to memory of other devices,
// and from it.
func (s *Sim) Peers(to, from PeerEffect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.toPeer, s.fromPeer = to, from
}

// MapFD implements hw.Memory for memory of models of other devices (peermem), which
// stands page by page somewhere on the bus, as that of Map.
func (s *Sim) MapFD(fd int, off, n int64) (hw.Mapping, error) {
	if off%hw.PageSize != 0 || n%hw.PageSize != 0 {
		return nil, base.Errorf("import a descriptor for", s.id.Target, base.ErrMisaligned, "%d bytes at %d, pages have %d", n, off, hw.PageSize)
	}
	m := &lent{mapping: mapping{s: s}}
	mem, b, leave, err := peermem.Join(fd, off, n, m.revoke)
	if err != nil {
		return nil, base.Wrap("import a descriptor for", s.id.Target, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		leave()
		return nil, base.Errorf("import a descriptor for", s.id.Target, base.ErrClosed, "the model is closed")
	}
	m.mem, m.leave = mem, leave
	m.segs = s.bus.add(b, max(uint64(s.cfg.FixedPages), 1<<(s.cap.MinPageShift()-12)), true)
	s.live++
	if mem.Revoked() { // between Join and here
		s.bus.lose(m.segs)
	}
	return m, nil
}

// lent is a mapping of memory that its exporter can take back. It implements
// hw.Revocable.
type lent struct {
	mapping
	mem   *peermem.Memory
	leave func()
}

// Revoked implements hw.Revocable.
func (m *lent) Revoked() bool { return m.mem.Revoked() }

// Unmap implements hw.Mapping.
func (m *lent) Unmap() error {
	m.leave()
	m.s.mu.Lock() // a revocation may be under way
	defer m.s.mu.Unlock()
	if m.segs == nil {
		panic("sim: unmapped twice")
	}
	m.s.bus.remove(m.segs)
	m.s.live--
	m.segs = nil
	return nil
}

// revoke makes accesses of the controller find nothing, which is no violation: the
// driver cannot know yet.
func (m *lent) revoke() {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.s.bus.lose(m.segs)
}

// lose takes the memory away from bus pages that stay where they are.
func (b *bus) lose(segs []hw.Seg) {
	for _, s := range segs {
		for p := s.Addr / hw.PageSize; p <= (s.Addr+s.Len-1)/hw.PageSize; p++ {
			b.pages[p] = busPage{peer: true}
		}
	}
}

// lost tells whether an address is memory that its exporter has taken back.
func (b *bus) lost(addr uint64) bool {
	p := b.pages[addr/hw.PageSize]
	return p.peer && p.mem == nil
}

// landing is memory of another device that a read fills: the bytes are first where
// the model writes them, as those in a bridge.
type landing struct{ dst, src []byte }

// cross appends the view of memory m of another device as a command of the model sees
// it through the bridges between them.
func (s *Sim) cross(o *op, out [][]byte, m []byte) [][]byte {
	b := bytes.Clone(m)
	if o.cmd.OPC == nvme.OpRead {
		s.landings = append(s.landings, landing{m, b})
		return append(out, b)
	}
	switch s.fromPeer {
	case PeerRight:
	case PeerZeros:
		clear(b)
	case PeerTail:
		ones(b[max(0, len(b)-peerTail):])
	default:
		ones(b)
	}
	return append(out, b)
}

// arrive ends the way of what a read moved to memory of other devices. The last 8
// bytes of a page come last and at once: work of that device may wait for them.
func (s *Sim) arrive() {
	for _, l := range s.landings {
		head := max(0, len(l.src)-peerTail)
		switch s.toPeer {
		case PeerDrop:
			continue
		case PeerZeros:
			clear(l.src)
		case PeerOnes:
			ones(l.src)
		case PeerTail:
			copy(l.dst[:head], l.src)
			continue
		}
		copy(l.dst[:head], l.src)
		if last := l.dst[head:]; len(last) == peerTail && dl.Addr(last)%peerTail == 0 {
			dl.Cell(last, 0).Store(binary.NativeEndian.Uint64(l.src[head:]))
		} else {
			copy(last, l.src[head:])
		}
	}
	s.landings = s.landings[:0]
}

func ones(b []byte) {
	for i := range b {
		b[i] = 0xff
	}
}
