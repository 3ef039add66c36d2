package cuda

import (
	_ "embed"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
)

// moveText is the kernel that carries out a table of moves: one block an entry,
// 16 bytes a thread at a time where source and destination allow it. The driver
// compiles the text for the GPU at hand when it is loaded.
//
//go:embed move.ptx
var moveText string

const (
	moveCapability = 75 // compute capability that the text is written for, times 10
	moveThreads    = 256
	maxMoveBlocks  = 8192
)

// loadKernels runs in the primary context, under d.mu. What fails is kept for
// Move to say: everything else works without kernels.
func (d *device) loadKernels() error {
	if !d.info.Mover {
		d.noMove = base.Errorf("load", "move kernel", base.ErrNotSupported, "it needs compute capability 7.5")
		return d.noMove
	}
	f := dl.NewFrame()
	defer f.Done()
	module, fn := f.Word(0), f.Word(0)
	dl.Pinned([]byte(moveText+"\x00"), func(text uintptr) {
		d.noMove = d.b.do("load", "move kernel", cuModuleLoadData, module.Addr, text)
	})
	if d.noMove != nil {
		return d.noMove
	}
	d.module = uintptr(module.Uint64())
	dl.Pinned([]byte("ugds_move\x00"), func(name uintptr) {
		d.noMove = d.b.do("load", "move kernel", cuModuleGetFunction, fn.Addr, d.module, name)
	})
	d.move = uintptr(fn.Uint64())
	return d.noMove
}

// Move is cuLaunchKernel of the move kernel.
func (s *stream) Move(table gpu.Ptr, count int) error {
	if count == 0 {
		return nil
	}
	if count < 0 || count > gpu.MaxMoves {
		return base.Errorf("launch", "move kernel", base.ErrInvalid, "%d entries, the limit is %d", count, gpu.MaxMoves)
	}
	if s.d.move == 0 { // set with the context, before any stream
		return base.Errorf("launch", "move kernel", base.ErrNotSupported, "%w", s.d.noMove)
	}
	if s.ctx != s.d.ctx {
		return base.Errorf("launch", "move kernel", base.ErrNotSupported, "the stream is of another context")
	}
	f := dl.NewFrame()
	defer f.Done()
	a, b := f.Word(uint64(table)), f.Word(uint64(count))
	params := f.Word(uint64(a.Addr))
	f.Word(uint64(b.Addr))
	return s.d.b.with(s.ctx, func() error {
		return s.do("launch move kernel on", cuLaunchKernel, s.d.move, uintptr(min(count, maxMoveBlocks)), 1, 1,
			moveThreads, 1, 1, 0, s.handle, params.Addr, 0)
	})
}
