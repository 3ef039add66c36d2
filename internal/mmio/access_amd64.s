#include "textflag.h"

// func load32(p unsafe.Pointer) uint32
// Loads are not reordered with other loads on this architecture.
TEXT ·load32(SB), NOSPLIT|NOFRAME, $0-12
	MOVQ p+0(FP), AX
	MOVL (AX), AX
	MOVL AX, ret+8(FP)
	RET

// func store32(p unsafe.Pointer, v uint32)
// A store to uncached memory follows stores to ordinary memory by itself; SFENCE
// is for stores to write-combining memory before it.
TEXT ·store32(SB), NOSPLIT|NOFRAME, $0-12
	MOVQ p+0(FP), AX
	MOVL v+8(FP), CX
	SFENCE
	MOVL CX, (AX)
	RET
