package base

// castagnoliPoly is the CRC-32C polynomial with its bits reversed.
const castagnoliPoly = 0x82f63b78

// crcOrder is the order of x modulo the polynomial: x^crcOrder is 1.
const crcOrder = 1<<31 - 1

// crcPow[k] is x^(2^k) modulo the polynomial, in reversed bit order.
var crcPow = func() (t [31]uint32) {
	p := uint32(1) << 30 // x
	for k := range t {
		t[k] = p
		p = MulCRC32C(p, p)
	}
	return t
}()

// MulCRC32C multiplies two polynomials modulo the one of CRC-32C, in reversed bit
// order.
func MulCRC32C(a, b uint32) (p uint32) {
	for ; a != 0; a <<= 1 {
		p ^= b & uint32(int32(a)>>31)
		b = b>>1 ^ castagnoliPoly&-(b&1)
	}
	return p
}

// ShiftCRC32C multiplies crc, as a polynomial, by x^bits. A negative number
// divides.
func ShiftCRC32C(crc uint32, bits int64) uint32 {
	n := bits % crcOrder
	if n < 0 {
		n += crcOrder
	}
	for k := 0; n != 0; k, n = k+1, n>>1 {
		if n&1 != 0 {
			crc = MulCRC32C(crc, crcPow[k])
		}
	}
	return crc
}

// CombineCRC32C gives the CRC-32C of A‖B from the CRC of A, the CRC of B and the
// length of B in bytes, without looking at the data: shifting A by B's length is
// a multiplication by x^(8·len).
func CombineCRC32C(a, b uint32, lenB int64) uint32 {
	return ShiftCRC32C(a, lenB%crcOrder*8) ^ b
}

// CRC32CShift is a multiplication by a fixed power of x, for many of them: four
// look-ups each.
type CRC32CShift [4][256]uint32

// NewCRC32CShift makes the tables for x^bits.
func NewCRC32CShift(bits int64) *CRC32CShift {
	t, by := new(CRC32CShift), ShiftCRC32C(1<<31, bits)
	for k := range t {
		for v := 1; v < 256; v++ {
			if low := v & -v; low == v {
				t[k][v] = MulCRC32C(uint32(v)<<(8*k), by)
			} else {
				t[k][v] = t[k][low] ^ t[k][v^low] // both are smaller
			}
		}
	}
	return t
}

// Of is the product with crc.
func (t *CRC32CShift) Of(crc uint32) uint32 {
	return t[0][crc&255] ^ t[1][crc>>8&255] ^ t[2][crc>>16&255] ^ t[3][crc>>24]
}
