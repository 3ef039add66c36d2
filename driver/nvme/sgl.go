package nvme

import "math"

// SGLDescriptor is one descriptor of a scatter gather list (Base 4.3.2).
type SGLDescriptor struct {
	Addr Le64
	Len  Le32
	_    [3]byte
	ID   uint8 // type in bits 7:4, subtype in bits 3:0
}

// Types of SGL descriptors.
const (
	SGLDataBlock   = 0x0
	SGLBitBucket   = 0x1
	SGLSegment     = 0x2
	SGLLastSegment = 0x3
)

// SGLDescriptorSize is the size of a descriptor in bytes.
const SGLDescriptorSize = 16

// Type is the type of the descriptor.
func (d *SGLDescriptor) Type() uint8 { return d.ID >> 4 }

// Subtype is the subtype: 0 means that Addr is an address.
func (d *SGLDescriptor) Subtype() uint8 { return d.ID & 15 }

// SGL1 decodes the descriptor in the command (Base 4.1.1).
func (c *Command) SGL1() SGLDescriptor {
	var d SGLDescriptor
	d.Addr = c.PRP1
	copy(d.Len[:], c.PRP2[:4])
	d.ID = c.PRP2[7]
	return d
}

// setSGL1 stores the descriptor in the command. The metadata pointer is unused,
// so that PSDT is 01b.
func (c *Command) setSGL1(addr uint64, n uint32, typ uint8) {
	c.SetPSDT(PSDTSGL)
	c.PRP1.Set(addr)
	c.PRP2.Set(uint64(n) | uint64(typ)<<60)
}

// sglPair stores a descriptor as the two halves that list pages are made of.
func sglPair(e []Le64, addr uint64, n uint32, typ uint8) {
	e[0].Set(addr)
	e[1].Set(uint64(n) | uint64(typ)<<60)
}

// BuildSGL makes the data pointer of c name exactly the bytes of segs, in order,
// as an SGL (Base 4.3.2). One piece needs no list. More stand in list pages, two
// entries a descriptor; the last descriptor of a full page links to the next.
// align is what the controller demands of the address and length of data blocks
// (SGLSupport.Align). The list pages used, from the first, are counted.
//
// ErrSGLAlign, ErrSGLLength, ErrListSpace or ErrNoData; then c and list are
// undefined. It allocates nothing.
func BuildSGL(c *Command, segs []Seg, align uint64, list []ListPage) (pages int, err error) {
	n, only, err := countSGL(segs, align)
	if err != nil {
		return 0, err
	}
	if n == 1 {
		c.setSGL1(segs[only].Addr, uint32(segs[only].Len), SGLDataBlock)
		return 0, nil
	}
	// Where the pending segment descriptor goes: the command, or a list slot.
	var link []Le64
	page, slot := -1, 0
	for left, i := n, 0; left > 0; i++ {
		s := segs[i]
		if s.Len == 0 {
			continue
		}
		if page < 0 || slot == len(list[page].Entries)/2-1 && left > 1 {
			if page >= 0 {
				link = list[page].Entries[2*slot:]
			}
			page, slot = page+1, 0
			if page >= len(list) || len(list[page].Entries) < 4 || list[page].Addr%SGLDescriptorSize != 0 {
				return 0, ErrListSpace
			}
			linkSGL(c, link, &list[page], left)
		}
		sglPair(list[page].Entries[2*slot:], s.Addr, uint32(s.Len), SGLDataBlock)
		slot++
		left--
	}
	return page + 1, nil
}

// SGLSpan is how many of the first limit bytes of segs an SGL of at most
// descriptors data blocks can name: a multiple of block (a power of two). Pieces
// are aligned as BuildSGL demands; where one is not, or is too long, the span ends.
func SGLSpan(segs []Seg, limit, block, align uint64, descriptors int) uint64 {
	var n uint64
	for _, s := range segs {
		if s.Len == 0 {
			continue
		}
		if descriptors--; descriptors < 0 || s.Len > math.MaxUint32 || (s.Addr|s.Len)%align != 0 {
			break
		}
		if n += s.Len; n >= limit {
			n = limit
			break
		}
	}
	return n &^ (block - 1)
}

// linkSGL writes the descriptor of the segment in p, which holds the left
// descriptors that remain or, when they are more, as many as fit and a link.
func linkSGL(c *Command, link []Le64, p *ListPage, left int) {
	typ, n := uint8(SGLLastSegment), left
	if fit := len(p.Entries) / 2; n > fit {
		typ, n = SGLSegment, fit
	}
	if link == nil {
		c.setSGL1(p.Addr, uint32(n*SGLDescriptorSize), typ)
		return
	}
	sglPair(link, p.Addr, uint32(n*SGLDescriptorSize), typ)
}

// countSGL checks the pieces and counts those that are not empty; only is the
// index of one of them.
func countSGL(segs []Seg, align uint64) (n, only int, err error) {
	for i, s := range segs {
		switch {
		case s.Len == 0:
			continue
		case s.Len > math.MaxUint32:
			return 0, 0, ErrSGLLength
		case s.Addr%align != 0 || s.Len%align != 0:
			return 0, 0, ErrSGLAlign
		}
		n, only = n+1, i
	}
	if n == 0 {
		return 0, 0, ErrNoData
	}
	return n, only, nil
}
