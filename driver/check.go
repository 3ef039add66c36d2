package driver

import "github.com/ugds-store/ugds/internal/base"

// CheckRequest tells whether r can be given to a device described by in:
// alignment, range, segment count and lengths. It does not look at the
// generation of regions; Hold does. Every implementation calls it, so that all
// refuse the same requests with the same words.
func CheckRequest(in *Info, r *Request) error {
	if r.Op > OpWriteZeroes {
		return base.Errorf("submit", "request", base.ErrInvalid, "unknown operation %d", r.Op)
	}
	if r.Op == OpFlush {
		return nil
	}
	if r.Off < 0 || r.Len < 0 {
		return base.Errorf(r.Op.String(), in.Target, base.ErrInvalid, "negative offset %d or length %d", r.Off, r.Len)
	}
	if !base.IsAligned(r.Off|r.Len, in.BlockSize) {
		return base.Errorf(r.Op.String(), in.Target, base.ErrMisaligned,
			"offset %d and length %d must be multiples of %d", r.Off, r.Len, in.BlockSize)
	}
	if !base.CheckRange(r.Off, r.Len, in.Capacity) {
		return base.Errorf(r.Op.String(), in.Target, base.ErrOutOfRange,
			"offset %d, length %d, capacity %d", r.Off, r.Len, in.Capacity)
	}
	if r.Op == OpRead || r.Op == OpWrite {
		return checkSegs(in, r)
	}
	if len(r.Segs) != 0 {
		return base.Errorf(r.Op.String(), in.Target, base.ErrInvalid, "it takes no memory segments")
	}
	return nil
}

func checkSegs(in *Info, r *Request) error {
	if len(r.Segs) > MaxSegs {
		return base.Errorf(r.Op.String(), in.Target, base.ErrInvalid,
			"%d segments, the limit is %d", len(r.Segs), MaxSegs)
	}
	var sum int64
	piece := max(in.MemAlign, in.BlockSize)
	for i := range r.Segs {
		s := &r.Segs[i]
		if s.Region == nil || !base.CheckRange(s.Off, s.Len, s.Region.Size()) {
			return base.Errorf(r.Op.String(), in.Target, base.ErrOutOfRange,
				"segment %d (offset %d, length %d) is outside its region", i, s.Off, s.Len)
		}
		if !base.IsAligned(s.Off, in.MemAlign) || !base.IsAligned(s.Len, piece) {
			return base.Errorf(r.Op.String(), in.Target, base.ErrMisaligned,
				"segment %d: offset %d must be a multiple of %d, length %d of %d", i, s.Off, in.MemAlign, s.Len, piece)
		}
		sum += s.Len // cannot wrap: at most MaxSegs regions that exist in memory
		if sum > r.Len {
			break
		}
	}
	if sum != r.Len {
		return base.Errorf(r.Op.String(), in.Target, base.ErrInvalid,
			"the segments hold %d bytes, the request %d", sum, r.Len)
	}
	return nil
}
