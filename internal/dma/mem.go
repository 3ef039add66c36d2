package dma

import (
	"reflect"
	"sort"
	"sync"
	"unsafe"

	"github.com/ugds-store/ugds/internal/base"
)

// PageSize is the alignment and granularity of every allocation, in bytes.
const PageSize = 4096

// hugeSize is from where huge pages are asked for, in bytes.
const hugeSize = 2 * base.MiB

// maxAlloc bounds one allocation, in bytes: more than any machine has, and
// small enough that rounding up cannot overflow.
const maxAlloc = 1 << 46

// Mem is one allocation with an owner. The zero value is not usable.
type Mem struct {
	b     []byte // the usable range
	raw   []byte // what the backend gave
	owner string
}

// Alloc gives size bytes, zeroed and aligned to PageSize. owner names them in
// Usage. size must be positive. ErrInvalid, or the kernel's ENOMEM.
func Alloc(size int64, owner string) (*Mem, error) {
	if size <= 0 || size > maxAlloc {
		return nil, base.Errorf("allocate", owner, base.ErrInvalid, "%d bytes", size)
	}
	n := base.AlignUp(size, PageSize)
	raw, b, err := allocPages(n)
	if err != nil {
		return nil, base.Wrap("allocate "+base.FormatBytes(n)+" for", owner, err)
	}
	account(owner, n)
	return &Mem{b: b[:size:size], raw: raw, owner: owner}, nil
}

// Bytes is the memory. It must not be used after Free.
func (m *Mem) Bytes() []byte { return m.b }

// Free gives the memory back. The caller knows that no command in flight names
// it. Freeing twice panics.
func (m *Mem) Free() {
	if m.b == nil {
		panic("dma: freed twice: " + m.owner)
	}
	account(m.owner, -base.AlignUp(int64(len(m.b)), PageSize))
	freePages(m.raw)
	m.b, m.raw = nil, nil
}

// Table is an off-heap array. The collector neither scans nor counts it.
type Table[T any] struct {
	mem *Mem
	E   []T // the elements; not to be used after Free
}

// NewTable gives n zeroed elements. T must not contain pointers: the collector
// would not see them. n must be positive, and T not empty.
func NewTable[T any](n int, owner string) (*Table[T], error) {
	if t := reflect.TypeFor[T](); hasPointers(t) {
		panic("dma: " + t.String() + " has pointers")
	}
	var zero T
	if size := int64(unsafe.Sizeof(zero)); size == 0 || n < 0 || int64(n) > maxAlloc/size {
		return nil, base.Errorf("allocate", owner, base.ErrInvalid, "%d elements of %d bytes", n, size)
	}
	m, err := Alloc(int64(n)*int64(unsafe.Sizeof(zero)), owner)
	if err != nil {
		return nil, err
	}
	return &Table[T]{m, unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(m.b))), n)}, nil
}

// Release gives the memory of elements [from, to) back to the system, as far as
// it fills pages. They are not to be used again; Free frees the rest.
func (t *Table[T]) Release(from, to int) {
	var zero T
	size := int64(unsafe.Sizeof(zero))
	lo, hi := base.AlignUp(int64(from)*size, PageSize), int64(to)*size&^(PageSize-1)
	if lo < hi {
		releasePages(t.mem.b[lo:hi])
	}
}

// Free gives the table's memory back.
func (t *Table[T]) Free() {
	t.mem.Free()
	t.E = nil
}

func hasPointers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
		reflect.Float32, reflect.Float64:
		return false
	case reflect.Array:
		return t.Len() > 0 && hasPointers(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if hasPointers(t.Field(i).Type) {
				return true
			}
		}
		return false
	}
	return true
}

var usage struct {
	sync.Mutex
	bytes map[string]int64
}

// Account counts n bytes, which may be negative, for an owner of memory that did not
// come from Alloc: pages that the kernel gave for a device.
func Account(owner string, n int64) { account(owner, n) }

func account(owner string, n int64) {
	usage.Lock()
	defer usage.Unlock()
	if usage.bytes == nil {
		usage.bytes = make(map[string]int64)
	}
	if usage.bytes[owner] += n; usage.bytes[owner] == 0 {
		delete(usage.bytes, owner)
	}
}

// OwnerBytes is what one owner holds.
type OwnerBytes struct {
	Owner string
	Bytes int64
}

// Usage lists the bytes held by each owner, by name. The Go memory limit and
// profiles do not count them.
func Usage() []OwnerBytes {
	usage.Lock()
	defer usage.Unlock()
	out := make([]OwnerBytes, 0, len(usage.bytes))
	for o, n := range usage.bytes {
		out = append(out, OwnerBytes{o, n})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Owner < out[j].Owner })
	return out
}
