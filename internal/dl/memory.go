package dl

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// frameWords is the size of a Frame in 8-byte words.
const frameWords = 128

// Frame is memory for the arguments and results of calls that C reads and
// writes through pointers and forgets when the call returns. Take one with
// NewFrame and end it with Done, which also keeps it alive across the calls.
// Not safe for concurrent use.
type Frame struct {
	words [frameWords]uint64
	used  int
}

// frames keeps ended frames for reuse.
var frames = newFramePool()

func newFramePool() *sync.Pool { return &sync.Pool{New: func() any { return new(Frame) }} }

// NewFrame gives an empty frame.
func NewFrame() *Frame { return frames.Get().(*Frame) }

// Done gives the frame back; its cells must not be used any more.
func (f *Frame) Done() {
	clear(f.words[:f.used])
	f.used = 0
	frames.Put(f)
}

// Slot is a place in a frame.
type Slot struct {
	Addr uintptr // where C finds it
	word *uint64
}

// Uint64 reads the slot.
func (s Slot) Uint64() uint64 { return *s.word }

// Uint32 reads the first four bytes of the slot: a C int or unsigned.
func (s Slot) Uint32() uint32 { return *(*uint32)(unsafe.Pointer(s.word)) }

// Word takes a slot of 8 bytes that holds v. A frame that is full panics: the
// number of arguments of a C function is no input.
func (f *Frame) Word(v uint64) Slot {
	w := &f.words[f.used]
	f.used++
	*w = v
	return Slot{uintptr(unsafe.Pointer(w)), w}
}

// Bytes takes n zeroed bytes and gives them with their address. n is at least 1.
func (f *Frame) Bytes(n int) ([]byte, uintptr) {
	s := f.Word(0)
	f.used += (n+7)/8 - 1
	_ = f.words[f.used-1]
	return unsafe.Slice((*byte)(unsafe.Pointer(s.word)), n), s.Addr
}

// Pinned calls fn with the address of b, which stays where it is meanwhile. C
// must not keep the address. b must not be empty.
func Pinned(b []byte, fn func(addr uintptr)) {
	var p runtime.Pinner
	p.Pin(unsafe.SliceData(b))
	defer p.Unpin()
	fn(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// Addr is the address of b, which is memory off the Go heap, or 0 if b is empty.
func Addr(b []byte) uintptr {
	if len(b) == 0 {
		return 0
	}
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))
}

// Memory is the Go view of n bytes of C memory at addr. The view ends when C
// frees the memory: nobody may use it after that.
func Memory(addr uintptr, n int64) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}

// maxString bounds the C strings that Text reads, in bytes.
const maxString = 4096

// Text copies the C string at addr, at most 4 KiB of it; "" for address 0.
func Text(addr uintptr) string {
	if addr == 0 {
		return ""
	}
	p := *(*unsafe.Pointer)(unsafe.Pointer(&addr))
	n := 0
	for n < maxString && *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}

// Cell is an 8-byte place of b that a GPU and the processor share, at byte off,
// which must be a multiple of 8 inside b. b must be off the Go heap or stay
// reachable, and aligned to 8 bytes.
func Cell(b []byte, off int) *atomic.Uint64 {
	p := unsafe.Pointer(unsafe.SliceData(b[off : off+8])) // bounds checked, and not read
	if uintptr(p)%8 != 0 {
		panic("dl: a cell is not aligned")
	}
	return (*atomic.Uint64)(p)
}
