package nvme

import (
	"encoding/binary"
	"math"

	"github.com/ugds-store/ugds/internal/mmio"
)

// Le16 is a 16-bit little-endian field.
type Le16 [2]byte

// Get is the value in the processor's byte order.
func (f *Le16) Get() uint16 { return binary.LittleEndian.Uint16(f[:]) }

// Set stores v.
func (f *Le16) Set(v uint16) { binary.LittleEndian.PutUint16(f[:], v) }

// Le32 is a 32-bit little-endian field.
type Le32 [4]byte

// Get is the value in the processor's byte order.
func (f *Le32) Get() uint32 { return binary.LittleEndian.Uint32(f[:]) }

// Set stores v.
func (f *Le32) Set(v uint32) { binary.LittleEndian.PutUint32(f[:], v) }

// Le64 is a 64-bit little-endian field.
type Le64 [8]byte

// Get is the value in the processor's byte order.
func (f *Le64) Get() uint64 { return binary.LittleEndian.Uint64(f[:]) }

// Set stores v.
func (f *Le64) Set(v uint64) { binary.LittleEndian.PutUint64(f[:], v) }

// Le128 is a 128-bit little-endian counter of the log pages.
type Le128 [16]byte

// Set stores a value that fits 64 bits.
func (f *Le128) Set(v uint64) {
	binary.LittleEndian.PutUint64(f[:8], v)
	clear(f[8:])
}

// Float is the value, rounded to 53 bits: counters of bytes pass 64 bits.
func (f *Le128) Float() float64 {
	return math.Ldexp(float64(binary.LittleEndian.Uint64(f[8:])), 64) + float64(binary.LittleEndian.Uint64(f[:8]))
}

// Uint64 is the value, or the largest uint64 when it does not fit.
func (f *Le128) Uint64() uint64 {
	if binary.LittleEndian.Uint64(f[8:]) != 0 {
		return math.MaxUint64
	}
	return binary.LittleEndian.Uint64(f[:8])
}

// Wire lists the structures that controllers read and write.
type Wire interface {
	Command | Completion | IdentifyController | IdentifyNamespace | IdentifyControllerNVM |
		NamespaceList | ErrorLogEntry | SMARTLog | FirmwareLog | SGLDescriptor | DSMRange | Le64
}

// Overlay views the first bytes of b as a T, without a copy: changes of one are
// changes of the other. It panics when b is shorter than T.
func Overlay[T Wire](b []byte) *T { return mmio.Overlay[T](b) }

// OverlaySlice views as many whole T as fit into b, without a copy.
func OverlaySlice[T Wire](b []byte) []T { return mmio.OverlaySlice[T](b) }

// text is an ASCII field of the identify data: padded with spaces on the right,
// by some controllers with zeros. What is not printable becomes '?', because the
// text ends up on terminals.
func text(b []byte) string {
	out := make([]byte, 0, len(b))
	for _, c := range b {
		switch {
		case c == 0:
			c = ' '
		case c < ' ' || c > '~':
			c = '?'
		}
		out = append(out, c)
	}
	for len(out) > 0 && out[len(out)-1] == ' ' {
		out = out[:len(out)-1]
	}
	for len(out) > 0 && out[0] == ' ' {
		out = out[1:]
	}
	return string(out)
}

// SetText fills an ASCII field with s, cut or padded with spaces.
func SetText(field []byte, s string) {
	for i := range field {
		field[i] = ' '
	}
	copy(field, s)
}
