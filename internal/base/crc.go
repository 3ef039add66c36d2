package base

// castagnoliPoly is the CRC-32C polynomial with its bits reversed.
const castagnoliPoly = 0x82f63b78

// crcPow[k] is x^(2^k) modulo the polynomial, in reversed bit order.
var crcPow = func() (t [64]uint32) {
	p := uint32(1) << 30 // x
	for k := range t {
		t[k] = p
		p = crcMul(p, p)
	}
	return t
}()

// crcMul multiplies two polynomials modulo the CRC-32C polynomial.
func crcMul(a, b uint32) (p uint32) {
	for ; a != 0; a <<= 1 {
		if a&(1<<31) != 0 {
			p ^= b
		}
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= castagnoliPoly
		}
	}
	return p
}

// CombineCRC32C gives the CRC-32C of A‖B from the CRC of A, the CRC of B and the
// length of B in bytes, without looking at the data: shifting A by B's length is
// a multiplication by x^(8·len).
func CombineCRC32C(a, b uint32, lenB int64) uint32 {
	shift := uint32(1) << 31 // the polynomial 1
	for k, n := 3, uint64(lenB); n != 0; k, n = k+1, n>>1 {
		if n&1 != 0 {
			shift = crcMul(crcPow[k], shift)
		}
	}
	return crcMul(shift, a) ^ b
}
