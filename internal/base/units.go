package base

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Binary units, in bytes.
const (
	KiB = 1 << 10
	MiB = 1 << 20
	GiB = 1 << 30
	TiB = 1 << 40
)

// StoreBlock is the unit of space of the store, in bytes, on every device.
const StoreBlock = 4 * KiB

// AlignUp rounds n up to a multiple of a, which must be a power of two. The
// caller guarantees that n+a does not overflow.
func AlignUp(n, a int64) int64 { return (n + a - 1) &^ (a - 1) }

// IsAligned reports whether n is a multiple of a, which must be a power of two.
func IsAligned(n, a int64) bool { return n&(a-1) == 0 }

// CheckRange reports whether [off, off+n) lies inside [0, size) without
// overflow; n may be zero.
func CheckRange(off, n, size int64) bool {
	return off >= 0 && n >= 0 && off <= size && n <= size-off
}

// FormatBytes prints n with a binary unit: "4.0 MiB", "512 B".
func FormatBytes(n int64) string {
	if n < 0 {
		return "-" + FormatBytes(-n)
	}
	if n < KiB {
		return strconv.FormatInt(n, 10) + " B"
	}
	v, unit := float64(n), 0
	for v >= 1023.95 && unit < 4 {
		v /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", v, "BKMGT"[unit])
}

// ParseBytes reads "4GiB", "512KiB", "64M", "4096": binary units only. It
// refuses negative sizes, fractions of a byte and values past the int64 range.
func ParseBytes(s string) (int64, error) {
	text := strings.TrimSpace(s)
	if strings.HasPrefix(text, "-") {
		return 0, fmt.Errorf("%w: size %q is negative", ErrInvalid, s)
	}
	i := 0
	for i < len(text) && (text[i] >= '0' && text[i] <= '9' || text[i] == '.') {
		i++
	}
	num, unit := text[:i], strings.ToLower(strings.TrimSpace(text[i:]))
	var mult float64
	switch strings.TrimSuffix(strings.TrimSuffix(unit, "b"), "i") {
	case "":
		mult = 1
	case "k":
		mult = KiB
	case "m":
		mult = MiB
	case "g":
		mult = GiB
	case "t":
		mult = TiB
	default:
		return 0, fmt.Errorf("%w: size %q: unknown unit %q (use KiB, MiB, GiB or TiB)", ErrInvalid, s, unit)
	}
	if n, err := strconv.ParseInt(num, 10, 64); err == nil {
		if n > math.MaxInt64/int64(mult) {
			return 0, fmt.Errorf("%w: size %q is too large", ErrInvalid, s)
		}
		return n * int64(mult), nil
	}
	v, err := strconv.ParseFloat(num, 64)
	v *= mult
	if err != nil || v != math.Trunc(v) || v >= math.MaxInt64 {
		return 0, fmt.Errorf("%w: size %q (write a number and a unit, for example 4GiB)", ErrInvalid, s)
	}
	return int64(v), nil
}
