package sim_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/hwtest"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// verdict records what a case of the conformance suite says.
type verdict struct{ first string }

func (v *verdict) Helper()             {}
func (v *verdict) Logf(string, ...any) {}
func (v *verdict) Errorf(format string, args ...any) {
	if v.first == "" {
		v.first = fmt.Sprintf(format, args...)
	}
}
func (v *verdict) Fatalf(format string, args ...any) {
	v.Errorf(format, args...)
	runtime.Goexit()
}

// broken is a backend with one mistake.
type broken struct {
	*sim.Sim
	alloc  func(s *sim.Sim, n int64) (*hw.Buffer, error)
	remap  func(segs []hw.Seg) []hw.Seg
	load32 func(s *sim.Sim, off uint64) (uint32, error)
	vector func(v hw.Vector) hw.Vector
	now    func(s *sim.Sim) time.Duration
	stop   func(s *sim.Sim) error
	close  func(s *sim.Sim) error
	anyVec bool
}

func (b *broken) Alloc(n int64, owner string) (*hw.Buffer, error) {
	if b.alloc != nil && n > 0 {
		return b.alloc(b.Sim, n)
	}
	return b.Sim.Alloc(n, owner)
}

func (b *broken) Map(mem []byte) (hw.Mapping, error) {
	m, err := b.Sim.Map(mem)
	if err != nil || b.remap == nil {
		return m, err
	}
	return remapped{m, b.remap(m.Segments())}, nil
}

type remapped struct {
	hw.Mapping
	segs []hw.Seg
}

func (m remapped) Segments() []hw.Seg { return m.segs }

func (b *broken) Load32(off uint64) (uint32, error) {
	if b.load32 != nil {
		return b.load32(b.Sim, off)
	}
	return b.Sim.Load32(off)
}

func (b *broken) Vector(n int) (hw.Vector, error) {
	if b.anyVec && n < 0 {
		n = 0
	}
	v, err := b.Sim.Vector(n)
	if err == nil && b.vector != nil {
		v = b.vector(v)
	}
	return v, err
}

func (b *broken) Now() time.Duration {
	if b.now != nil {
		return b.now(b.Sim)
	}
	return b.Sim.Now()
}

func (b *broken) Stop(ctx context.Context) error {
	if b.stop != nil {
		return b.stop(b.Sim)
	}
	return b.Sim.Stop(ctx)
}

func (b *broken) Close() error {
	if b.close != nil {
		return b.close(b.Sim)
	}
	return b.Sim.Close()
}

// forgetful loses the interrupts that came before a wait.
type forgetful struct{ hw.Vector }

func (f forgetful) Wait(ctx context.Context) error {
	past, cancel := context.WithTimeout(context.Background(), time.Microsecond)
	defer cancel()
	_ = f.Vector.Wait(past)
	return f.Vector.Wait(ctx)
}

// deaf does not honour deadlines.
type deaf struct{ hw.Vector }

func (d deaf) Wait(context.Context) error { return nil }

// TestSuiteCatches: a backend with a mistake fails the case that is about it.
func TestSuiteCatches(t *testing.T) {
	buffer := func(change func(b *hw.Buffer) *hw.Buffer) func(s *sim.Sim, n int64) (*hw.Buffer, error) {
		return func(s *sim.Sim, n int64) (*hw.Buffer, error) {
			b, err := s.Alloc(n, "broken")
			if err != nil {
				return nil, err
			}
			return change(b), nil
		}
	}
	first := uint64(0)
	ticks := time.Duration(1 << 40)
	closed := false
	for name, x := range map[string]struct {
		in string
		b  broken
	}{
		"not zeroed":        {"Alloc", broken{alloc: buffer(func(b *hw.Buffer) *hw.Buffer { b.Bytes[0] = 1; return b })}},
		"wrong bus address": {"Alloc", broken{alloc: buffer(func(b *hw.Buffer) *hw.Buffer { return hw.NewBuffer(b.Bytes, b.Addr+hw.PageSize, b.Free) })}},
		"virtual address":   {"Alloc", broken{alloc: buffer(func(b *hw.Buffer) *hw.Buffer { return hw.NewBuffer(b.Bytes, 0x7f0000001000, b.Free) })}},
		"never unmapped":    {"Alloc", broken{alloc: buffer(func(b *hw.Buffer) *hw.Buffer { return hw.NewBuffer(b.Bytes, b.Addr, func() { t.Cleanup(b.Free) }) })}},
		"same address": {"BusAddressesAreDistinct", broken{alloc: buffer(func(b *hw.Buffer) *hw.Buffer {
			first = max(first, b.Addr&^0xfff)
			return hw.NewBuffer(b.Bytes, first, b.Free)
		})}},
		"short mapping":       {"Map", broken{remap: func(s []hw.Seg) []hw.Seg { return s[:max(len(s)-1, 1)] }}},
		"order of pages":      {"Map", broken{remap: func(s []hw.Seg) []hw.Seg { return append(append([]hw.Seg{}, s[len(s)-1]), s[:len(s)-1]...) }}},
		"C01 rounded address": {"MapUnaligned", broken{remap: func(s []hw.Seg) []hw.Seg { s = append([]hw.Seg{}, s...); s[0].Addr &^= 4095; return s }}},
		"not merged": {"Map", broken{remap: func(s []hw.Seg) (out []hw.Seg) {
			for _, x := range s {
				out = append(out, hw.Seg{Addr: x.Addr, Len: x.Len / 2}, hw.Seg{Addr: x.Addr + x.Len/2, Len: x.Len - x.Len/2})
			}
			return out
		}}},
		"halves differ": {"Registers", broken{load32: func(s *sim.Sim, off uint64) (uint32, error) { return s.Load32(off ^ 4) }}},
		"offsets believed": {"Registers", broken{load32: func(s *sim.Sim, off uint64) (uint32, error) {
			v, err := s.Load32(off)
			if errors.Is(err, base.ErrOutOfRange) {
				return 0, nil
			}
			return v, err
		}}},
		"lost interrupt":    {"InterruptNotLost", broken{vector: func(v hw.Vector) hw.Vector { return forgetful{v} }}},
		"no deadline":       {"Interrupts", broken{vector: func(v hw.Vector) hw.Vector { return deaf{v} }}},
		"any vector":        {"Interrupts", broken{anyVec: true}},
		"clock runs back":   {"Clock", broken{now: func(*sim.Sim) time.Duration { ticks--; return ticks }}},
		"stop does nothing": {"I04Stop", broken{stop: func(*sim.Sim) error { return nil }}},
		"close fails twice": {"Close", broken{close: func(s *sim.Sim) error {
			defer func() { closed = true }()
			return map[bool]error{true: base.ErrClosed}[closed]
		}}},
		"removal reads zero": {"H04Removal", broken{}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := sim.Open(sim.Default(base.MiB))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close() // ErrBusy where the mistake is that memory is not given back
			b := x.b
			b.Sim = s
			h := hwtest.Harness{Dev: &b, Valid64: nvme.RegCAP, Window: 8192, Soon: 200 * time.Millisecond, Access: s.Access, Raise: s.Raise, Remove: s.Remove}
			if x.in == "H04Removal" {
				h.Remove = func() { _ = s.Close() } // registers that fail in another way than a removal
			}
			var v verdict
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() {
					if p := recover(); p != nil {
						v.Errorf("panic: %v", p)
					}
				}()
				for _, c := range hwtest.Cases() {
					if c.Name == x.in {
						c.Run(&v, h)
					}
				}
			}()
			<-done
			if v.first == "" {
				t.Errorf("case %s passed", x.in)
			}
			t.Log(v.first)
		})
	}
}
