package ctrl_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/internal/base"
)

// TestC01AnyDoubleword: memory may begin wherever PRP entries can point to, or SGLs;
// elsewhere it is refused, and nothing moves. Pieces that PRP entries cannot name
// together have commands of their own, SGLs name them in one.
func TestC01AnyDoubleword(t *testing.T) {
	for _, x := range []struct {
		sgls     uint32
		align    int64
		commands int64 // for four pieces
	}{{0, 4, 4}, {2, 4, 1}, {1, 1, 1}} {
		cfg := sim.Default(16 * base.MiB)
		cfg.Namespaces[0].BlockShift, cfg.Namespaces[0].Blocks = 9, 16<<11
		cfg.Identify.SGLS.Set(x.sgls)
		s := model(t, cfg)
		d := opened(t, s, quiet)
		if got := d.Info().MemAlign; got != x.align {
			t.Errorf("SGLS %d: memory aligned to %d, want %d", x.sgls, got, x.align)
		}
		r, err := driver.AllocRegion(base.MiB, "ctrl test")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for i := range r.CPU() {
			r.CPU()[i] = byte(i * 31 >> 3)
		}
		for _, off := range []int64{0, 1, 2, 4, 8, 12, 100, 508, 4092, 4095} {
			for _, n := range []int64{512, 4096, 64 << 10} {
				segs := func(at int64) (out []driver.Seg) {
					for i := range int64(4) {
						out = append(out, r.Seg(at+off+i*(n/4+4096)/512*512+i*x.align, n/4/512*512))
					}
					if n == 512 {
						out = []driver.Seg{r.Seg(at+off, n)}
					}
					return out
				}
				from, to := segs(0), segs(512<<10)
				before := d.Stats().Commands
				sum := int64(0)
				for _, s := range from {
					sum += s.Len
				}
				err := driver.Do(bg(t), d, driver.Request{Op: driver.OpWrite, Off: 512, Len: sum, Segs: from})
				if off%x.align != 0 {
					if !errors.Is(err, base.ErrMisaligned) || d.Stats().Commands != before {
						t.Errorf("SGLS %d, offset %d: %v", x.sgls, off, err)
					}
					continue
				}
				sent := d.Stats().Commands - before
				if err == nil {
					err = driver.Do(bg(t), d, driver.Request{Op: driver.OpRead, Off: 512, Len: sum, Segs: to})
				}
				if err != nil {
					t.Fatalf("SGLS %d, offset %d: %v", x.sgls, off, err)
				}
				if n > 512 && sent != x.commands {
					t.Errorf("SGLS %d, offset %d, %d bytes: %d commands, want %d", x.sgls, off, n, sent, x.commands)
				}
				for i := range from {
					if !bytes.Equal(r.Bytes(from[i].Off, from[i].Len), r.Bytes(to[i].Off, to[i].Len)) {
						t.Fatalf("SGLS %d, offset %d, %d bytes: wrong bytes in piece %d", x.sgls, off, n, i)
					}
				}
			}
		}
	}
}
