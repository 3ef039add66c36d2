//go:build !nogpu

package cuda

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
)

// median runs fn once to warm up and then n times.
func median(t *testing.T, n int, fn func() error) time.Duration {
	t.Helper()
	var all []time.Duration
	for i := range n + 1 {
		began := time.Now()
		if err := fn(); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			all = append(all, time.Since(began))
		}
	}
	slices.Sort(all)
	return all[n/2]
}

func gibs(n int64, d time.Duration) float64 { return float64(n) / d.Seconds() / base.GiB }

// TestRealCopyRates prints what pinned copies reach: one at a time, and eight
// in the queue.
func TestRealCopyRates(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	m, h, s := use(t, d, 1<<30)
	fmt.Println("pinned copies, GiB/s: size, to GPU one, to GPU eight queued, to host one, to host eight queued")
	for _, n := range []int64{4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20} {
		line := fmt.Sprintf("  %9s", base.FormatBytes(n))
		for _, toHost := range []bool{false, true} {
			for _, depth := range []int64{1, 8} {
				if n*depth > 1<<30 {
					depth = 1 << 30 / n
				}
				var list []gpu.Copy
				for i := range depth {
					list = append(list, gpu.Copy{Dev: m.Ptr() + gpu.Ptr(i*n), Host: h.Bytes()[i*n : (i+1)*n], ToHost: toHost})
				}
				took := median(t, 15, func() error { return errors.Join(s.Copy(list...), finish(t, s)) })
				line += fmt.Sprintf(" %6.2f", gibs(n*depth, took))
			}
		}
		fmt.Println(line)
	}
}

// TestRealSmallValues prints the ways to bring 1,024 values to scattered places
// of the GPU, and from there.
func TestRealSmallValues(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	const count = 1024
	m, h, s := use(t, d, 1<<28)
	scratch, _, _ := use(t, d, 1<<26)
	fmt.Println("1,024 values, microseconds: size, waited one by one, queued one by one, copy + kernel, kernel on pinned memory;" +
		" and from the GPU: queued one by one, kernel + copy, kernel on pinned memory")
	for _, n := range []int64{512, 4096, 16384, 49152} {
		table := int64(1 << 27)
		place := func(i int64) gpu.Ptr { return m.Ptr() + gpu.Ptr((i*7919%count)*131072+16*(i%8)) }
		var in, out []gpu.Copy
		for i := range int64(count) {
			host := h.Bytes()[i*n : (i+1)*n]
			in = append(in, gpu.Copy{Dev: place(i), Host: host})
			out = append(out, gpu.Copy{Dev: place(i), Host: host, ToHost: true})
		}
		fill := func(at gpu.Ptr, out bool) {
			for i := range int64(count) {
				mv := gpu.Move{Src: at + gpu.Ptr(i*n), Dst: place(i), N: n}
				if out {
					mv.Src, mv.Dst = mv.Dst, mv.Src
				}
				gpu.PutMove(h.Bytes()[table:], int(i), mv)
			}
		}
		moves := func() error { return s.Move(h.Ptr()+gpu.Ptr(table), count) }
		block := gpu.Copy{Dev: scratch.Ptr(), Host: h.Bytes()[:count*n]}
		back := gpu.Copy{Dev: scratch.Ptr(), Host: h.Bytes()[:count*n], ToHost: true}
		line := fmt.Sprintf("  %6d", n)
		add := func(fn func() error) {
			line += fmt.Sprintf(" %8.1f", float64(median(t, 9, fn))/1e3)
		}
		add(func() error {
			for _, c := range in {
				if err := errors.Join(s.Copy(c), finish(t, s)); err != nil {
					return err
				}
			}
			return nil
		})
		add(func() error { return errors.Join(s.Copy(in...), finish(t, s)) })
		fill(scratch.Ptr(), false)
		add(func() error { return errors.Join(s.Copy(block), moves(), finish(t, s)) })
		fill(h.Ptr(), false)
		add(func() error { return errors.Join(moves(), finish(t, s)) })
		line += "  |"
		add(func() error { return errors.Join(s.Copy(out...), finish(t, s)) })
		fill(scratch.Ptr(), true)
		add(func() error { return errors.Join(moves(), s.Copy(back), finish(t, s)) })
		fill(h.Ptr(), true)
		add(func() error { return errors.Join(moves(), finish(t, s)) })
		fmt.Println(line)
	}
}

// TestRealOverheads prints what single calls cost.
func TestRealOverheads(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	m, h, s := use(t, d, 1<<20)
	const n = 2000
	per := func(name string, fn func() error) {
		took := median(t, 3, func() error {
			for range n {
				if err := fn(); err != nil {
					return err
				}
			}
			return finish(t, s)
		})
		fmt.Printf("  %-28s %6.2f us\n", name, float64(took)/1e3/n)
	}
	per("attributes of a pointer", func() error { _, err := b.Attributes(m.Ptr()); return err })
	per("tick", func() error { _, err := s.Tick(); return err })
	per("tick and wait", func() error { return finish(t, s) })
	per("copy of 4 KiB, queued", func() error { return s.Copy(gpu.Copy{Dev: m.Ptr(), Host: h.Bytes()[:4096]}) })
	per("copy of 4 KiB, waited", func() error {
		return errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: h.Bytes()[:4096]}), finish(t, s))
	})
	for _, size := range []int64{1 << 20, 64 << 20, 1 << 30} {
		began := time.Now()
		p, err := d.AllocHost(size)
		if err != nil {
			t.Fatal(err)
		}
		made := time.Since(began)
		began = time.Now()
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		fmt.Printf("  pin %s: %v, unpin %v\n", base.FormatBytes(size), made, time.Since(began))
	}
}
