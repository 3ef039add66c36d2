package driver

import (
	"math/bits"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/internal/base"
)

// Path is the way that bytes took between a device and the caller's memory.
type Path uint8

const (
	// PathDirect is a transfer to or from the caller's own memory.
	PathDirect Path = iota
	// PathStaged went through a bounce buffer and a copy.
	PathStaged
	// PathTail is a partial last block that went through a host slot. Allowed
	// in strict mode.
	PathTail
	// PathWindow is cached host data that was moved without a copy by the CPU.
	PathWindow
)

var pathNames = [...]string{"direct", "staged", "tail", "window"}

// String names the path.
func (p Path) String() string { return pathNames[p] }

// MarshalText gives the name.
func (p Path) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText takes a name; ErrInvalid for any other text.
func (p *Path) UnmarshalText(b []byte) error {
	i := slices.Index(pathNames[:], string(b))
	if i < 0 {
		return base.Errorf("read", "path", base.ErrInvalid, "%q is none", b)
	}
	*p = Path(i)
	return nil
}

// PathKey is one line of the mover's statistics.
type PathKey struct {
	Path   Path   `json:"path"`
	Write  bool   `json:"write"`  // to the device
	Reason string `json:"reason"` // why this path; "" for direct
}

// SizeClasses is the number of classes of a histogram of sizes: class 0 holds
// operations of up to 512 bytes, each further one those of up to twice as much,
// the last one everything over 1 GiB.
const SizeClasses = 23

// smallestClass is log2 of the bound of class 0.
const smallestClass = 9

// SizeClass is the class of an operation of n bytes.
func SizeClass(n int64) int {
	if n <= 1<<smallestClass {
		return 0
	}
	return min(bits.Len64(uint64(n-1))-smallestClass, SizeClasses-1)
}

// ClassBound is the largest size of a class in bytes, 0 for the last one, which
// has none.
func ClassBound(class int) int64 {
	if class >= SizeClasses-1 {
		return 0
	}
	return 1 << (smallestClass + class)
}

// PathCount is what moved along one path.
type PathCount struct {
	PathKey
	Bytes  int64              `json:"bytes"`  // bytes that commands carried, whole blocks
	Ops    int64              `json:"ops"`    // operations without an error
	Errors int64              `json:"errors"` // operations that failed; they add no bytes
	Sizes  [SizeClasses]int64 `json:"sizes"`  // Ops by size, see SizeClass
}

// PathStats counts bytes by path and reason. The mover adds to it when a
// transfer ends; the device's own counters are never derived from it, nor it
// from them (I10). The zero value is ready; safe for concurrent use.
type PathStats struct {
	m sync.Map // PathKey → *pathCounter
}

// pathCounter has no counter of its own for operations: their sum is that of the
// classes, so that the two never differ.
type pathCounter struct {
	bytes, errors atomic.Int64
	sizes         [SizeClasses]atomic.Int64
}

// Counter finds the counter of one path. Callers on the data path keep it.
func (s *PathStats) counter(k PathKey) *pathCounter {
	if c, ok := s.m.Load(k); ok {
		return c.(*pathCounter)
	}
	c, _ := s.m.LoadOrStore(k, new(pathCounter))
	return c.(*pathCounter)
}

// Add counts n bytes of one operation.
func (s *PathStats) Add(k PathKey, n int64) {
	c := s.counter(k)
	c.bytes.Add(n)
	c.sizes[SizeClass(n)].Add(1)
}

// Fail counts an operation that failed.
func (s *PathStats) Fail(k PathKey) { s.counter(k).errors.Add(1) }

// Counts lists every path that was used, in a fixed order.
func (s *PathStats) Counts() []PathCount {
	var out []PathCount
	s.m.Range(func(k, v any) bool {
		c := v.(*pathCounter)
		n := PathCount{PathKey: k.(PathKey), Bytes: c.bytes.Load(), Errors: c.errors.Load()}
		for i := range c.sizes {
			n.Sizes[i] = c.sizes[i].Load()
			n.Ops += n.Sizes[i]
		}
		out = append(out, n)
		return true
	})
	sort.Slice(out, func(i, j int) bool {
		a, b := out[i], out[j]
		if a.Path != b.Path {
			return a.Path < b.Path
		}
		if a.Write != b.Write {
			return !a.Write
		}
		return a.Reason < b.Reason
	})
	return out
}
