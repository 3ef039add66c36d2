#include "textflag.h"

// func load32(p unsafe.Pointer) uint32
TEXT ·load32(SB), NOSPLIT|NOFRAME, $0-12
	MOVD  p+0(FP), R0
	MOVWU (R0), R1
	DMB   $1              // OSHLD: this load before later loads and stores
	MOVW  R1, ret+8(FP)
	RET

// func store32(p unsafe.Pointer, v uint32)
TEXT ·store32(SB), NOSPLIT|NOFRAME, $0-12
	MOVD p+0(FP), R0
	MOVW v+8(FP), R1
	DMB  $2               // OSHST: earlier stores before this one
	MOVW R1, (R0)
	RET
