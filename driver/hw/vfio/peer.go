package vfio

import (
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Peer is a device whose memory controllers read and write directly: VFIO maps what
// the CPU can map, BARs of another VFIO device too. It is open, and so nobody
// else's, until Close.
type Peer struct{ link *link }

// OpenPeer opens the device at a PCI address, which is bound to vfio-pci. The errors
// are those of Open.
func OpenPeer(address string) (*Peer, error) {
	l, err := openLink(linux, address)
	if err != nil {
		return nil, err
	}
	return &Peer{l}, nil
}

// Window is memory of a Peer: the descriptor, the offset in it, and the size in
// bytes, for MapFD of a Device. It is valid until Close of the Peer.
type Window struct {
	FD        int
	Off, Size int64
}

// Window gives the memory of BAR n. ErrNotSupported when it cannot be mapped as a
// whole.
func (p *Peer) Window(n int) (Window, error) {
	if n < 0 || n > 5 {
		return Window{}, base.Errorf("open BAR of", p.link.name, base.ErrOutOfRange, "%d is not 0 to 5", n)
	}
	r, err := unix.VFIORegionOf(p.link.dev, uint32(n))
	if err != nil {
		return Window{}, base.Wrap("open BAR of", p.link.name, err)
	}
	if r.Size == 0 || mappable(r) != r.Size {
		return Window{}, base.Errorf("open BAR of", p.link.name, base.ErrNotSupported, "%d of %d bytes of BAR %d can be mapped",
			mappable(r), r.Size, n)
	}
	return Window{p.link.dev.Int(), r.Offset, int64(r.Size)}, nil
}

// Close gives the device back. The caller has unmapped its windows everywhere:
// a controller would go on to reach a device that is no longer there.
func (p *Peer) Close() error { return p.link.close() }
