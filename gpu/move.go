package gpu

import "encoding/binary"

// MoveBytes is the size of an entry of a table of moves, in bytes.
const MoveBytes = 24

// Move is one entry: N bytes from Src to Dst, both addresses that the GPU
// reaches. It is fastest where both have the same remainder by 16.
type Move struct {
	Src, Dst Ptr
	N        int64
}

// PutMove writes entry i of the table that begins at b[0].
func PutMove(b []byte, i int, m Move) {
	e := b[i*MoveBytes : (i+1)*MoveBytes]
	binary.LittleEndian.PutUint64(e, uint64(m.Src))
	binary.LittleEndian.PutUint64(e[8:], uint64(m.Dst))
	binary.LittleEndian.PutUint64(e[16:], uint64(m.N))
}

// GetMove reads entry i of the table that begins at b[0].
func GetMove(b []byte, i int) Move {
	e := b[i*MoveBytes : (i+1)*MoveBytes]
	return Move{Ptr(binary.LittleEndian.Uint64(e)), Ptr(binary.LittleEndian.Uint64(e[8:])),
		int64(binary.LittleEndian.Uint64(e[16:]))}
}
