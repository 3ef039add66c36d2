package testenv

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
)

// Fill fills b with bytes that tell where they were written, and with which
// seed: no two blocks are the same, of one seed or of two. The cipher's own
// code does it, which the race detector does not slow down as it does a loop.
func Fill(b []byte, seed uint64) {
	var key, start [aes.BlockSize]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // the length of the key is right
	}
	clear(b)
	cipher.NewCTR(block, start[:]).XORKeyStream(b, b)
}
