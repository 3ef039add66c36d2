package driver

import (
	"sort"
	"sync"
	"sync/atomic"
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

// String names the path.
func (p Path) String() string { return [...]string{"direct", "staged", "tail", "window"}[p] }

// PathKey is one line of the mover's statistics.
type PathKey struct {
	Path   Path
	Write  bool   // to the device
	Reason string // why this path; "" for direct
}

// PathCount is what moved along one path.
type PathCount struct {
	PathKey
	Bytes int64 // bytes that commands carried, whole blocks
	Ops   int64
}

// PathStats counts bytes by path and reason. The mover adds to it when a
// transfer ends; the device's own counters are never derived from it, nor it
// from them (I10). The zero value is ready; safe for concurrent use.
type PathStats struct {
	m sync.Map // PathKey → *pathCounter
}

type pathCounter struct{ bytes, ops atomic.Int64 }

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
	c.ops.Add(1)
}

// Counts lists every path that was used, in a fixed order.
func (s *PathStats) Counts() []PathCount {
	var out []PathCount
	s.m.Range(func(k, v any) bool {
		c := v.(*pathCounter)
		out = append(out, PathCount{k.(PathKey), c.bytes.Load(), c.ops.Load()})
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
