package cuda

import (
	_ "embed"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
)

// kernels is the text of the kernels: one that carries out a table of moves, one
// block an entry, one that computes checksums, and one that waits. The driver compiles the text
// for the GPU at hand when it is loaded.
//
//go:embed kernels.ptx
var kernels string

const (
	kernelCapability = 75 // compute capability that the text is written for, times 10
	kernelThreads    = 256
	maxMoveBlocks    = 8192
	sumBlocks        = 4 // on each multiprocessor: they are made to stay
)

// loadKernels runs in the primary context, under d.mu. Everything else works
// without kernels.
func (d *device) loadKernels() error {
	if !d.info.Mover {
		return base.Errorf("load", "kernels", base.ErrNotSupported, "they need compute capability 7.5")
	}
	f := dl.NewFrame()
	defer f.Done()
	module := f.Word(0)
	var err error
	dl.Pinned([]byte(kernels+"\x00"), func(text uintptr) {
		err = d.b.do("load", "kernels", cuModuleLoadData, module.Addr, text)
	})
	if err != nil {
		return err
	}
	d.module = uintptr(module.Uint64())
	var all [3]uintptr
	for i, name := range []string{"ugds_move", "ugds_sum", "ugds_watch"} {
		if all[i], err = d.loadKernel(name); err != nil {
			return err
		}
	}
	d.move, d.sum, d.watch = all[0], all[1], all[2]
	return nil
}

// loadKernel finds a kernel and has it loaded at once: drivers may put that off to
// the first launch, and it would then hang while a stream waits.
func (d *device) loadKernel(name string) (uintptr, error) {
	f := dl.NewFrame()
	defer f.Done()
	fn := f.Word(0)
	var err error
	dl.Pinned([]byte(name+"\x00"), func(at uintptr) {
		err = d.b.do("load", name, cuModuleGetFunction, fn.Addr, d.module, at)
	})
	if err == nil && d.b.lib.Has(cuFuncLoad) {
		err = d.b.do("load", name, cuFuncLoad, uintptr(fn.Uint64()))
	}
	return uintptr(fn.Uint64()), err
}

// Move is cuLaunchKernel of the move kernel.
func (s *stream) Move(table gpu.Ptr, count int) error {
	return s.launch("move kernel", s.d.move, table, count, maxMoveBlocks)
}

// Sum is cuLaunchKernel of the checksum kernel.
func (s *stream) Sum(table gpu.Ptr, count int) error {
	return s.launch("checksum kernel", s.d.sum, table, count, s.d.blocks)
}

// Watch is cuLaunchKernel of the kernel that waits.
func (s *stream) Watch(entry gpu.Ptr) error {
	return s.launch("waiting kernel", s.d.watch, entry, 1, 1)
}

// launch runs a kernel over the entries of a table, by at most so many blocks.
func (s *stream) launch(name string, fn uintptr, table gpu.Ptr, count, blocks int) error {
	switch {
	case count < 0 || count > gpu.MaxMoves:
		return base.Errorf("launch", name, base.ErrInvalid, "%d entries, the limit is %d", count, gpu.MaxMoves)
	case fn == 0: // set with the context, before any stream
		return base.Errorf("launch", name, base.ErrNotSupported, "%w", s.d.none)
	case s.ctx != s.d.ctx:
		return base.Errorf("launch", name, base.ErrNotSupported, "the stream is of another context")
	case count == 0:
		return nil
	}
	f := dl.NewFrame()
	defer f.Done()
	a, b := f.Word(uint64(table)), f.Word(uint64(count))
	params := f.Word(uint64(a.Addr))
	f.Word(uint64(b.Addr))
	return s.d.b.with(s.ctx, func() error {
		return s.do("launch "+name+" on", cuLaunchKernel, fn, uintptr(min(count, blocks)), 1, 1,
			kernelThreads, 1, 1, 0, s.handle, params.Addr, 0)
	})
}
