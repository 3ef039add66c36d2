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
