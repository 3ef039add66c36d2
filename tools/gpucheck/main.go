// Command gpucheck runs the GPU suite on a machine with a GPU: it compares bytes on
// every way, then measures them beside the plain loop of a reader that knows no
// better. It needs glibc and the GPU's driver, no Go and no toolkit.
//
//	gpucheck -build DIR      build it and the test programs into DIR; needs Go
//	DIR/gpucheck [-dir DIR]  run everything; -list shows the parts, -only some
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/tools/gputool"
)

var (
	dir    = flag.String("dir", os.TempDir(), "where the test files go")
	rounds = flag.Int("rounds", 5, "alternating rounds of each figure, at the least")
	only   = flag.String("only", "", "run these parts only, separated by commas")
	list   = flag.Bool("list", false, "list the parts")
	tune   = flag.Bool("tune", false, "try sizes and numbers of bounce buffers")
	size   = flag.Int64("size", 1<<30, "size of the test file")
	which  = flag.String("gpu", "0", "the GPU: "+gputool.Help)
	build  = flag.String("build", "", "build this program and the test programs into this folder")
	soak   = flag.Duration("soak", 0, "how long the part soak runs")
	ends   = flag.Int("ends", 52, "how many processes the part exits lets end")
	life   = flag.String("life", "", "for the part exits: be a process that ends in this way")
	seed   = flag.Uint64("life-seed", 1, "what such a process draws from")
	writer = flag.String("writer", "", "for the part files: change this file until standard input ends")
)

func main() {
	flag.Parse()
	var err error
	switch {
	case *build != "":
		err = buildAll(*build)
	case *opening != "":
		err = openOnce(*opening)
	case *life != "":
		err = live(*life, *seed)
	case *writer != "":
		err = write(*writer)
	default:
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpucheck:", err)
		os.Exit(1)
	}
}

type rig struct {
	g   *gputool.GPU
	b   gpu.Backend
	d   gpu.Device
	mem gpu.Memory
	h   gpu.HostMemory
	f   *os.File
	ref []byte

	figures []figure
}

var ctx = context.Background()

// part is one step of the suite. Parts do not depend on each other.
type part struct {
	name string
	fn   func(*rig) error
}

var parts = []part{{"tests", (*rig).tests}, {"compare", (*rig).compare}, {"store", (*rig).store}, {"files", (*rig).files}, {"exits", (*rig).exits},
	{"open", (*rig).open}, {"small", (*rig).small}, {"pinned", (*rig).pinned}, {"tuning", (*rig).tuning}, {"cached", (*rig).cached},
	{"windows", (*rig).windows}, {"depth", (*rig).depth}, {"disk", (*rig).disk}, {"first", (*rig).first}, {"soak", (*rig).soak}}

func run() error {
	if *list {
		for _, p := range parts {
			fmt.Println(p.name)
		}
		return nil
	}
	began := time.Now()
	r, err := openRig()
	if err != nil {
		return err
	}
	defer r.close()
	var failed []string
	for _, p := range parts {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), p.name) {
			continue
		}
		began, word := time.Now(), "ok"
		fmt.Println("=", p.name)
		if err := p.fn(r); err != nil {
			word = "FAILED: " + err.Error()
			failed = append(failed, p.name)
		}
		fmt.Printf("= %s: %s (%.1f s)\n", p.name, word, time.Since(began).Seconds())
	}
	r.printFigures()
	fmt.Printf("all: %.1f s, %d parts failed\n", time.Since(began).Seconds(), len(failed))
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// openRig opens the GPU, takes its memory and makes the file that the parts share.
func openRig() (r *rig, err error) {
	began := time.Now()
	g, err := gputool.Open(*which)
	if err != nil {
		return nil, err
	}
	opened := time.Since(began)
	r = &rig{g: g, b: g.Backend, d: g.Device()}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if err = r.d.Warm(); err != nil {
		return r, err
	}
	fmt.Printf("%v: load the library %v, context and kernels %v\n", g, opened, time.Since(began)-opened)
	if r.mem, err = r.d.Alloc(*size + base.MiB); err != nil {
		return r, err
	}
	if r.h, err = r.d.AllocHost(*size); err != nil {
		return r, err
	}
	return r, r.makeFile()
}

// close gives back what openRig took. What cannot be given back ends with the process.
func (r *rig) close() {
	if r.f != nil {
		_ = os.Remove(r.f.Name())
		_ = r.f.Close()
	}
	if r.h != nil {
		_ = r.h.Close()
	}
	if r.mem != nil {
		_ = r.mem.Close()
	}
	_ = r.g.Close()
}

func (r *rig) makeFile() (err error) {
	if r.f, err = os.Create(filepath.Join(*dir, "gpucheck.data")); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(1, 2))
	block := make([]byte, base.MiB)
	for i := range block {
		block[i] = byte(rng.Uint32())
	}
	r.ref = make([]byte, *size)
	for at := int64(0); at < *size; at += int64(len(block)) {
		block[0]++
		block[at>>20%4096]++
		copy(r.ref[at:], block)
	}
	_, err = r.f.WriteAt(r.ref, 0)
	return err
}

func (r *rig) mover(o xfer.Options) (*xfer.Mover, error) {
	m, err := xfer.New(r.b, r.d, nil, o)
	if err != nil {
		return nil, err
	}
	return m, m.Warm(ctx)
}

// check compares n bytes on the GPU with want.
func (r *rig) check(p gpu.Ptr, want []byte, what string) error {
	s, err := r.d.NewStream()
	if err != nil {
		return err
	}
	defer s.Close()
	n := len(want)
	h, err := r.d.AllocHost(int64(n))
	if err != nil {
		return err
	}
	defer h.Close()
	if err := s.Copy(gpu.Copy{Dev: p, Host: h.Bytes(), ToHost: true}); err != nil {
		return err
	}
	if err := finish(s); err != nil {
		return err
	}
	if !bytes.Equal(h.Bytes(), want) {
		return fmt.Errorf("%s: other bytes", what)
	}
	return nil
}

func finish(s gpu.Stream) error {
	n, err := s.Tick()
	if err != nil {
		return err
	}
	return s.WaitTick(ctx, n)
}

// compare moves random ranges both ways, by every way, with guards.
func (r *rig) compare() error {
	m, err := r.mover(xfer.Options{ChunkBytes: 256 << 10, Lanes: 8})
	if err != nil {
		return err
	}
	defer m.Close(ctx)
	rng := rand.New(rand.NewPCG(3, 4))
	e := xfer.File(r.f)
	span := int64(64 << 20)
	model := make([]byte, span)
	n, err := m.Read(ctx, e, 0, r.mem.Ptr(), span)
	if err != nil || n != span {
		return fmt.Errorf("read: %d, %w", n, err)
	}
	copy(model, r.ref[:span])
	for range 200 {
		n := rng.Int64N(1<<uint(rng.IntN(24)) + 1)
		off, at := rng.Int64N(*size-n), rng.Int64N(span-n)
		if _, err := m.Read(ctx, e, off, r.mem.Ptr()+gpu.Ptr(at), n); err != nil {
			return err
		}
		copy(model[at:], r.ref[off:off+n])
	}
	if err := r.check(r.mem.Ptr(), model, "single reads"); err != nil {
		return err
	}
	copy(r.h.Bytes(), r.ref)
	ends := []xfer.Endpoint{e, xfer.Pinned(r.h)}
	var items []xfer.Item
	for at := int64(0); at+70_000 < span; at += 70_000 {
		n := rng.Int64N(40_000)
		to, off := at+rng.Int64N(70_000-n), rng.Int64N(*size-n)
		items = append(items, xfer.Item{End: ends[rng.IntN(2)], Off: off, Ptr: r.mem.Ptr() + gpu.Ptr(to), Len: n})
		copy(model[to:], r.ref[off:off+n])
	}
	if err := m.ReadMany(ctx, items); err != nil {
		return err
	}
	if err := answers(items); err != nil {
		return err
	}
	if err := r.check(r.mem.Ptr(), model, "scattered values"); err != nil {
		return err
	}
	out, err := os.Create(filepath.Join(*dir, "gpucheck.out"))
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	if n, err := m.Write(ctx, xfer.File(out), 12345, r.mem.Ptr()+7, span-100); err != nil || n != span-100 {
		return fmt.Errorf("write: %d, %w", n, err)
	}
	back := make([]byte, span-100)
	if _, err := out.ReadAt(back, 12345); err != nil || !bytes.Equal(back, model[7:span-93]) {
		return fmt.Errorf("written file: %w, or other bytes", err)
	}
	for i := range items {
		items[i].End, items[i].Off = xfer.File(out), int64(i)*70_000
	}
	if err := errors.Join(m.WriteMany(ctx, items), answers(items)); err != nil {
		return err
	}
	for i, it := range items {
		b := make([]byte, it.Len)
		at := int64(it.Ptr - r.mem.Ptr())
		if _, err := out.ReadAt(b, int64(i)*70_000); it.Len > 0 && err != nil || !bytes.Equal(b, model[at:at+it.Len]) {
			return fmt.Errorf("gathered value %d: %w, or other bytes", i, err)
		}
	}
	fmt.Printf("bytes compared: 200 reads, %d scattered and gathered values, one write\n", len(items))
	for _, c := range m.Paths() {
		fmt.Printf("  %+v\n", c)
	}
	return nil
}

func answers(items []xfer.Item) error {
	for i, it := range items {
		if it.Err != nil || it.N != it.Len {
			return fmt.Errorf("item %d: %d of %d, %w", i, it.N, it.Len, it.Err)
		}
	}
	return nil
}

func rate(n int64, d time.Duration) float64 { return float64(n) / d.Seconds() / base.GiB }

// small: 1,024 values to scattered places, and from them.
func (r *rig) small() error {
	m, err := r.mover(xfer.Options{})
	if err != nil {
		return err
	}
	defer m.Close(ctx)
	plain, err := r.mover(xfer.Options{NoKernel: true})
	if err != nil {
		return err
	}
	defer plain.Close(ctx)
	s, err := r.d.NewStream()
	if err != nil {
		return err
	}
	defer s.Close()
	fmt.Println("1,024 values in one call, us: size, end, one by one waited, read, read without kernel, write, write without kernel")
	for _, n := range []int64{512, 4096, 16384} {
		for name, e := range map[string]xfer.Endpoint{"pinned": xfer.Pinned(r.h), "cached file": xfer.File(r.f)} {
			items := make([]xfer.Item, 1024)
			for i := range items {
				items[i] = xfer.Item{End: e, Off: int64(i) * n, Ptr: r.mem.Ptr() + gpu.Ptr(i*7919%1024*65536+i%4*16), Len: n}
			}
			line := fmt.Sprintf("  %6d %-12s", n, name)
			one, err := median(3, func() error {
				for i := range items {
					if err := s.Copy(gpu.Copy{Dev: items[i].Ptr, Host: r.h.Bytes()[:n]}); err != nil {
						return err
					}
					if err := finish(s); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %8.0f", float64(one)/1e3)
			gain := 0.0
			for _, write := range []bool{false, true} {
				for _, mv := range []*xfer.Mover{m, plain} {
					took, err := median(11, func() error {
						if write {
							return errors.Join(mv.WriteMany(ctx, items), answers(items))
						}
						return errors.Join(mv.ReadMany(ctx, items), answers(items))
					})
					if err != nil {
						return err
					}
					line += fmt.Sprintf(" %8.0f", float64(took)/1e3)
					if !write && mv == m {
						gain = float64(one) / float64(took)
					}
				}
			}
			fmt.Println(line)
			if n == 4096 && name == "pinned" {
				r.atLeast(20, gain, "(b) 1,024 values of 4 KiB to scattered places, times one by one")
			}
		}
	}
	return nil
}

// pinned: one piece of pinned memory, beside a bare copy.
func (r *rig) pinned() error {
	m, err := r.mover(xfer.Options{})
	if err != nil {
		return err
	}
	defer m.Close(ctx)
	s, err := r.d.NewStream()
	if err != nil {
		return err
	}
	defer s.Close()
	fmt.Println("pinned memory to GPU, in turns, GiB/s: size, bare copy, ours, ratio")
	for _, n := range upToFile(64<<10, 1<<20, 4<<20, 16<<20, 256<<20, 1<<30) {
		took, err := turns(max(2**rounds, min(40**rounds, int(base.GiB/n))), func() error {
			n, err := gpu.CopyTick(s, gpu.Copy{Dev: r.mem.Ptr(), Host: r.h.Bytes()[:n]})
			for err == nil && s.Ticked() < n { // no way to wait is quicker
			}
			return err
		}, func() error { _, err := m.Read(ctx, xfer.Pinned(r.h), 0, r.mem.Ptr(), n); return err })
		if err != nil {
			return err
		}
		ratio := times(took[0], took[1])
		fmt.Printf("  %9s %6.2f %6.2f %5.3f\n", base.FormatBytes(n), rate(n, mid(took[0])), rate(n, mid(took[1])), ratio)
		if n >= base.MiB {
			r.atLeast(0.95, ratio, "(b) pinned memory, %s, beside the bare copy", base.FormatBytes(n))
		}
	}
	return nil
}

func (r *rig) tuning() error {
	if !*tune {
		return nil
	}
	fmt.Println("cached file to GPU, GiB/s for 256 MiB: chunk KiB x buffers, then 1, 4, 16 threads")
	for _, chunk := range []int64{256, 512, 1024, 2048, 4096} {
		for _, depth := range []int{2, 4} {
			line := fmt.Sprintf("  %4d x %d", chunk, depth)
			for _, threads := range []int{1, 4, 16} {
				m, err := r.mover(xfer.Options{ChunkBytes: chunk << 10, Depth: depth, Lanes: threads})
				if err != nil {
					return err
				}
				took, err := median(5, func() error { _, err := m.Read(ctx, xfer.File(r.f), 0, r.mem.Ptr(), 256<<20); return err })
				if err := errors.Join(err, m.Close(ctx)); err != nil {
					return err
				}
				line += fmt.Sprintf(" %6.2f", rate(256<<20, took))
			}
			fmt.Println(line)
		}
	}
	return nil
}

// load brings the file to the GPU.
func (r *rig) load() error {
	m, err := r.mover(xfer.Options{})
	if err != nil {
		return err
	}
	_, err = m.Read(ctx, xfer.File(r.f), 0, r.mem.Ptr(), *size)
	return errors.Join(err, m.Close(ctx))
}

// first: the first transfer to memory that was just registered, beside later ones.
func (r *rig) first() error {
	tab := gpu.NewTable(r.b, gpu.TableOptions{Export: true})
	m, err := xfer.New(r.b, r.d, tab, xfer.Options{})
	if err == nil {
		err = m.Warm(ctx)
	}
	if err != nil {
		return err
	}
	defer m.Close(ctx)
	for _, n := range []int64{4096, 1 << 20, 64 << 20} {
		var firsts, later, regs []time.Duration
		for range 15 {
			mem, err := r.d.Alloc(n)
			if err != nil {
				return err
			}
			t0 := time.Now()
			reg, err := tab.Register(mem.Ptr(), n)
			if err != nil {
				return err
			}
			regs = append(regs, time.Since(t0))
			for k := range 8 {
				t0 := time.Now()
				if _, err := m.Read(ctx, xfer.File(r.f), 0, mem.Ptr(), n); err != nil {
					return err
				}
				if took := time.Since(t0); k == 0 {
					firsts = append(firsts, took)
				} else {
					later = append(later, took)
				}
			}
			if err := errors.Join(reg.Close(), mem.Close()); err != nil {
				return err
			}
		}
		for _, l := range [][]time.Duration{firsts, later, regs} {
			slices.Sort(l)
		}
		f, l := firsts[len(firsts)/2], later[len(later)/2]
		fmt.Printf("first read into new memory, %s: register with export %v, first %v, later %v, ratio %.2f\n",
			base.FormatBytes(n), regs[len(regs)/2], f, l, float64(f)/float64(l))
		r.atMost(1.5, float64(f)/float64(l), "(e) first read into new memory, %s, times a later one", base.FormatBytes(n))
	}
	return nil
}

// disk: O_DIRECT through the file device, beside the device alone.
func (r *rig) disk() error {
	if err := r.load(); err != nil {
		return err
	}
	path := filepath.Join(*dir, "gpucheck.dev")
	defer os.Remove(path)
	if err := file.Create(path, *size, false); err != nil {
		return err
	}
	d, err := file.Open(ctx, file.Options{Path: path})
	if err != nil {
		return err
	}
	defer d.Close(ctx)
	e, err := xfer.Extent(d, 0, *size)
	if err != nil {
		return err
	}
	m, err := r.mover(xfer.Options{})
	if err != nil {
		return err
	}
	defer m.Close(ctx)
	began := time.Now()
	if _, err := m.Write(ctx, e, 0, r.mem.Ptr(), *size); err != nil {
		return err
	}
	wrote := time.Since(began)
	reg := driver.NewRegion(r.h.Bytes())
	defer reg.Close()
	bare := func() error {
		b := driver.Batch{}
		for at := int64(0); at < *size; at += base.MiB {
			b.Reqs = append(b.Reqs, driver.Request{Op: driver.OpRead, Off: at, Len: base.MiB, Segs: []driver.Seg{reg.Seg(at, base.MiB)}})
		}
		if err := d.Submit(ctx, &b); err != nil {
			return err
		}
		return errors.Join(b.Wait(ctx), b.Err())
	}
	in := d.Info()
	fmt.Printf("file device (%s), %s: write from GPU %.2f GiB/s; read: chunk, buffers, by the device alone, to GPU, ratio\n",
		in.Engine, base.FormatBytes(*size), rate(*size, wrote))
	shapes := []xfer.Options{{}}
	if *tune {
		shapes = append(shapes, xfer.Options{Depth: 3}, xfer.Options{ChunkBytes: base.MiB, Depth: 4}, xfer.Options{ChunkBytes: base.MiB, Depth: 6})
	}
	for _, o := range shapes {
		mv, err := r.mover(o)
		if err != nil {
			return err
		}
		took, err := turns(2**rounds, bare, func() error { _, err := mv.Read(ctx, e, 0, r.mem.Ptr(), *size); return err })
		if err := errors.Join(err, mv.Close(ctx)); err != nil {
			return err
		}
		in := mv.Options()
		ratio := times(took[0], took[1])
		fmt.Printf("  %s x %d: %.2f %.2f %.2f\n", base.FormatBytes(in.ChunkBytes), in.Depth, rate(*size, mid(took[0])), rate(*size, mid(took[1])), ratio)
		if o == (xfer.Options{}) {
			r.atLeast(0.93, ratio, "(c) file device with O_DIRECT, beside the device alone")
		}
	}
	return r.check(r.mem.Ptr(), r.ref, "file device")
}
