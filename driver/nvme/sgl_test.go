package nvme_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/testenv"
)

// walkSGL reads a data pointer as Base 4.3.2 tells a controller to. It returns
// the memory named and the segments visited.
func walkSGL(c *nvme.Command, l *lists) (out []nvme.Seg, segments int, err error) {
	if c.PSDT() != nvme.PSDTSGL {
		return nil, 0, errors.New("PSDT is not SGL")
	}
	todo := []nvme.SGLDescriptor{c.SGL1()}
	for last := false; ; segments++ {
		var link *nvme.SGLDescriptor
		for i := range todo {
			d := &todo[i]
			if d.Subtype() != 0 {
				return nil, 0, fmt.Errorf("subtype %d", d.Subtype())
			}
			switch d.Type() {
			case nvme.SGLDataBlock:
				out = appendSeg(out, d.Addr.Get(), uint64(d.Len.Get()))
			case nvme.SGLSegment, nvme.SGLLastSegment:
				if i != len(todo)-1 || last {
					return nil, 0, errors.New("a segment descriptor that is not the last one, or follows the last segment")
				}
				link = d
			default:
				return nil, 0, fmt.Errorf("type %d", d.Type())
			}
		}
		if link == nil {
			if segments > 0 && !last {
				return nil, 0, errors.New("the last segment was not announced")
			}
			return out, segments, nil
		}
		last = link.Type() == nvme.SGLLastSegment
		n := link.Len.Get()
		if n == 0 || n%16 != 0 || link.Addr.Get()%8 != 0 {
			return nil, 0, fmt.Errorf("a segment of %d bytes at %#x", n, link.Addr.Get())
		}
		todo = todo[:0:0]
		for at := link.Addr.Get(); at < link.Addr.Get()+uint64(n); at += 16 {
			lo, err1 := l.at(at)
			hi, err2 := l.at(at + 8)
			if err1 != nil || err2 != nil {
				return nil, 0, errors.Join(err1, err2)
			}
			var d nvme.SGLDescriptor
			d.Addr.Set(lo)
			d.Len.Set(uint32(hi))
			d.ID = uint8(hi >> 56)
			todo = append(todo, d)
		}
	}
}

// TestSGLOracle: any number of pieces of any length, list pages of several sizes.
func TestSGLOracle(t *testing.T) {
	rnd := testenv.Seed(t)
	for _, shift := range []uint{6, 7, 12} {
		fit := 1 << shift / 16
		l := newLists(12, shift)
		for n := 1; n <= min(8*fit, 3*fit+4); n++ {
			var segs []nvme.Seg
			for i := range n {
				segs = append(segs, nvme.Seg{Addr: uint64(i+1)<<33 + rnd.Uint64N(4096), Len: rnd.Uint64N(math.MaxUint32) + 1})
				if rnd.IntN(4) == 0 {
					segs = append(segs, nvme.Seg{Addr: 1}) // nothing
				}
			}
			want := 0
			for n > 1 && want*fit-max(want-1, 0) < n {
				want++
			}
			l.wipe()
			var c nvme.Command
			pages, err := nvme.BuildSGL(&c, segs, 1, l.pages)
			if err != nil || pages != want {
				t.Fatalf("%d pieces, %d a page: %d list pages, %v, want %d", n, fit, pages, err, want)
			}
			got, visited, err := walkSGL(&c, l)
			if err != nil || !slices.Equal(got, merge(segs)) || visited != want || !l.intact(want) {
				t.Fatalf("%d pieces: names %v, want %v; %d segments, %v", n, got, segs, visited, err)
			}
			if want > 0 {
				if _, err := nvme.BuildSGL(&c, segs, 1, l.pages[:want-1]); !errors.Is(err, nvme.ErrListSpace) {
					t.Fatalf("%d pieces with a list page less: %v", n, err)
				}
			}
		}
	}
}

func TestSGLLimits(t *testing.T) {
	var c nvme.Command
	l := newLists(1, 12)
	for _, x := range []struct {
		segs  []nvme.Seg
		align uint64
		want  error
	}{
		{nil, 1, nvme.ErrNoData}, {[]nvme.Seg{{8, 0}}, 1, nvme.ErrNoData},
		{[]nvme.Seg{{1, math.MaxUint32}}, 1, nil}, {[]nvme.Seg{{1, math.MaxUint32 + 1}}, 1, nvme.ErrSGLLength},
		{[]nvme.Seg{{2, 512}}, 4, nvme.ErrSGLAlign}, {[]nvme.Seg{{4, 510}, {8, 2}}, 4, nvme.ErrSGLAlign},
		{[]nvme.Seg{{4, 508}, {8, 4}}, 4, nil},
	} {
		if _, err := nvme.BuildSGL(&c, x.segs, x.align, l.pages); !errors.Is(err, x.want) {
			t.Errorf("%v: %v, want %v", x.segs, err, x.want)
		}
	}
	// One piece, whatever its size, needs no memory but the command (C-13).
	if _, err := nvme.BuildSGL(&c, []nvme.Seg{{1<<40 + 1, 1 << 31}}, 1, nil); err != nil {
		t.Error(err)
	}
	if d := c.SGL1(); d.Type() != nvme.SGLDataBlock || d.Addr.Get() != 1<<40+1 || d.Len.Get() != 1<<31 || c.PSDT() != nvme.PSDTSGL {
		t.Errorf("%+v", d)
	}
	c.SetPSDT(nvme.PSDTPRP)
	if c.Flags = 3; c.FUSE() != 3 || c.PSDT() != nvme.PSDTPRP {
		t.Error("flags mixed up")
	}
}

// TestSGLSpan: what it promises can be built with that many descriptors, and one
// block more cannot.
func TestSGLSpan(t *testing.T) {
	rnd := testenv.Seed(t)
	l := newLists(1, 12)
	for range 3000 {
		var segs []nvme.Seg
		var sum uint64
		for range 1 + rnd.IntN(12) {
			n := rnd.Uint64N(40) * 128
			segs = append(segs, nvme.Seg{Addr: rnd.Uint64N(1<<40) &^ 3, Len: n})
			sum += n
		}
		const block = 512
		limit, room := rnd.Uint64N(sum+2*block)&^(block-1), 1+rnd.IntN(14)
		span := nvme.SGLSpan(segs, limit, block, 4, room)
		if span > limit || span%block != 0 {
			t.Fatalf("%d of %d", span, limit)
		}
		named := func(n uint64) (pieces int, all bool) {
			for _, s := range segs {
				if n > 0 && s.Len > 0 {
					n -= min(n, s.Len)
					pieces++
				}
			}
			return pieces, n == 0
		}
		if k, all := named(span); k > room || !all {
			t.Fatalf("%d bytes need %d descriptors, there are %d", span, k, room)
		}
		if k, all := named(span + block); span+block <= limit && all && k <= room {
			t.Fatalf("%d bytes, and a block more is possible", span)
		}
		if span > 0 {
			var c nvme.Command
			cut := append([]nvme.Seg{}, segs...)
			for i, left := 0, span; i < len(cut); i++ {
				cut[i].Len = min(cut[i].Len, left)
				left -= cut[i].Len
			}
			if _, err := nvme.BuildSGL(&c, cut, 4, l.pages); err != nil {
				t.Fatalf("%v: %v", cut, err)
			}
		}
	}
	if n := nvme.SGLSpan([]nvme.Seg{{0, 512}, {2, 512}}, 1024, 512, 4, 9); n != 512 {
		t.Errorf("past a piece that is not aligned: %d", n)
	}
	if n := nvme.SGLSpan([]nvme.Seg{{0, 512}, {512, 1 << 32}}, 1<<33, 512, 1, 9); n != 512 {
		t.Errorf("past a piece that is too long: %d", n)
	}
}
