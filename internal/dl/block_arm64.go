package dl

// blockArgs follows the AAPCS64: a structure of more than 16 bytes travels by
// the address of a copy.
func blockArgs(first uintptr, _ *[BlockBytes]byte, addr, last uintptr) []uintptr {
	return []uintptr{first, addr, last}
}
