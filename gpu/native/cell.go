package native

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/dl"
)

// cells are 8-byte places of pinned memory, 64 bytes apart, for the ticks of streams.
// They are freed when the backend closes, not with the streams: freeing pinned memory
// can hang while some other stream waits.
type cells struct {
	mu    sync.Mutex
	pages []gpu.HostMemory
	free  []Cell
}

const (
	cellBytes = 64
	cellPage  = 4096
)

// Cell is one of them.
type Cell struct {
	page gpu.HostMemory
	off  int
}

// Ptr is its address for the GPU.
func (c Cell) Ptr() gpu.Ptr { return c.page.Ptr() + gpu.Ptr(c.off) }

// Word is the processor's view.
func (c Cell) Word() *atomic.Uint64 { return dl.Cell(c.page.Bytes(), c.off) }

// TakeCell gives a cell that holds 0.
func (g *GPU) TakeCell() (Cell, error) {
	c := &g.cells
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.free) == 0 {
		page, err := g.AllocHost(cellPage)
		if err != nil {
			return Cell{}, err
		}
		c.pages = append(c.pages, page)
		for off := 0; off < cellPage; off += cellBytes {
			c.free = append(c.free, Cell{page, off})
		}
	}
	last := len(c.free) - 1
	x := c.free[last]
	c.free = c.free[:last]
	x.Word().Store(0)
	return x, nil
}

// PutCell gives it back; the GPU stores into it no more.
func (g *GPU) PutCell(x Cell) {
	g.cells.mu.Lock()
	defer g.cells.mu.Unlock()
	g.cells.free = append(g.cells.free, x)
}

// CloseCells frees all of them. No stream is left.
func (g *GPU) CloseCells() error {
	c := &g.cells
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, p := range c.pages {
		errs = append(errs, p.Close())
	}
	c.pages, c.free = nil, nil
	return errors.Join(errs...)
}
