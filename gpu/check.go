package gpu

import "github.com/ugds-store/ugds/internal/base"

// CheckExport tells whether [p, p+n) may be exported, given the attributes of
// p. Backends call it, so that all refuse the same ranges with the same words.
func CheckExport(a Attributes, p Ptr, n int64) error {
	switch {
	case a.Kind != KindDevice:
		return base.Errorf("export", p.String(), base.ErrNotSupported, "%s memory", a.Kind)
	case n <= 0:
		return base.Errorf("export", p.String(), base.ErrInvalid, "%d bytes", n)
	case uint64(p)%HostPage != 0 || n%HostPage != 0:
		return base.Errorf("export", p.String(), base.ErrMisaligned,
			"address and size %d must be multiples of %d", n, HostPage)
	case a.Size > 0 && !base.CheckRange(int64(p-a.Base), n, a.Size):
		return base.Errorf("export", p.String(), base.ErrOutOfRange,
			"%d bytes leave the allocation of %d at %s", n, a.Size, a.Base)
	}
	return nil
}

// maxPieces bounds the allocations that one range may span.
const maxPieces = 65536

// Locate gives the attributes of p, and refuses [p, p+n) unless all of it is memory
// of one GPU: ErrInvalid for host memory, ErrOutOfRange for a range that leaves its
// memory.
func Locate(b Backend, p Ptr, n int64) (Attributes, error) {
	if n <= 0 || p == 0 || p+Ptr(n) < p {
		return Attributes{}, base.Errorf("use", p.String(), base.ErrInvalid, "%d bytes", n)
	}
	first, err := b.Attributes(p)
	switch {
	case err != nil:
		return first, err
	case first.Kind != KindDevice && first.Kind != KindManaged:
		return first, base.Errorf("use", p.String(), base.ErrInvalid, "%s memory is not on a GPU", first.Kind)
	}
	a := first
	for range maxPieces {
		end := a.Base + Ptr(a.Size)
		if a.Size == 0 || end >= p+Ptr(n) {
			return first, nil
		}
		if a, err = b.Attributes(end); err != nil || a.Kind != first.Kind || a.Device != first.Device {
			break
		}
	}
	return first, base.Errorf("use", p.String(), base.ErrOutOfRange, "%d bytes leave their memory", n)
}
