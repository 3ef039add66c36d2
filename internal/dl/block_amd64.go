package dl

import "encoding/binary"

// blockArgs follows the System V convention: a structure of more than 16 bytes
// travels on the stack, behind the integers that fill the six registers.
func blockArgs(first uintptr, block *[BlockBytes]byte, _, last uintptr) []uintptr {
	args := make([]uintptr, 6+BlockBytes/8)
	args[0], args[1] = first, last
	for i := range BlockBytes / 8 {
		args[6+i] = uintptr(binary.LittleEndian.Uint64(block[8*i:]))
	}
	return args
}
