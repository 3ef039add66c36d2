package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/cuda"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
)

var cufileLib = flag.String("cufile", "", "NVIDIA's libcufile.so.0, as a peer of the part cached; it needs /run/udev/data to describe the disk")

// The functions of cuFile that a reader needs, and what is passed to them (cufile.h of
// CUDA 13.0).
const (
	cuFileDriverOpen = iota
	cuFileDriverClose
	cuFileHandleRegister
	cuFileHandleDeregister
	cuFileBufRegister
	cuFileBufDeregister
	cuFileRead

	cufileOpaqueFD = 1 // of CUfileDescr_t: int type at 0, int fd at 8, operations at 16
)

func cufileTable() []dl.Symbol {
	return []dl.Symbol{{Name: "cuFileDriverOpen"}, {Name: "cuFileDriverClose_v2"}, {Name: "cuFileHandleRegister"},
		{Name: "cuFileHandleDeregister"}, {Name: "cuFileBufRegister"}, {Name: "cuFileBufDeregister"}, {Name: "cuFileRead"}}
}

// cufile reads a file with NVIDIA's library.
type cufile struct {
	lib    *dl.Library
	b      *cuda.Backend
	dev    int
	mem    gpu.Memory
	handle uintptr
	file   *os.File // without O_DIRECT: it reads the page cache as we do
}

// newCufile opens the library, and registers the file and the GPU memory with it. Nil
// where no library was named.
func (r *rig) newCufile() (*cufile, error) {
	b, ok := r.b.(*cuda.Backend)
	if *cufileLib == "" || !ok {
		return nil, nil
	}
	lib, err := cuda.Load(cufileTable(), *cufileLib)
	if err != nil {
		return nil, err
	}
	c := &cufile{lib: lib, b: b, dev: r.d.Info().Index, mem: r.mem}
	if c.file, err = os.Open(r.f.Name()); err != nil {
		return nil, err
	}
	err = c.b.Use(c.dev, func() error {
		if err := c.status(cuFileDriverOpen); err != nil {
			return err
		}
		f := dl.NewFrame()
		defer f.Done()
		handle := f.Word(0)
		first := f.Word(cufileOpaqueFD)
		f.Word(uint64(c.file.Fd()))
		f.Word(0)
		if err := c.status(cuFileHandleRegister, handle.Addr, first.Addr); err != nil {
			return errors.Join(err, c.status(cuFileDriverClose))
		}
		c.handle = uintptr(handle.Uint64())
		return c.status(cuFileBufRegister, uintptr(c.mem.Ptr()), uintptr(c.mem.Size()), 0)
	})
	if err != nil {
		return nil, errors.Join(err, c.file.Close())
	}
	return c, nil
}

func (c *cufile) close() error {
	return errors.Join(c.b.Use(c.dev, func() error {
		err := c.status(cuFileBufDeregister, uintptr(c.mem.Ptr()))
		c.lib.Call(cuFileHandleDeregister, c.handle)
		return errors.Join(err, c.status(cuFileDriverClose))
	}), c.file.Close())
}

// status calls a function that gives a CUfileError_t: its code in the lower half, a
// CUresult in the upper one.
func (c *cufile) status(sym int, args ...uintptr) error {
	if r := uint64(c.lib.Call(sym, args...)); r != 0 {
		return fmt.Errorf("%s: status %d, CUDA %d", c.lib.Symbol(sym), uint32(r), r>>32)
	}
	return nil
}

// read brings n bytes from the beginning of the file to p by threads that take tasks.
func (c *cufile) read(p gpu.Ptr, n, task int64, threads int) error {
	var next atomic.Int64
	errs := make([]error, threads)
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			errs[i] = c.b.Use(c.dev, func() error {
				for {
					off := next.Add(task) - task
					if off >= n {
						return nil
					}
					size := min(task, n-off)
					got := int64(c.lib.Call(cuFileRead, c.handle, uintptr(c.mem.Ptr()), uintptr(size), uintptr(off), uintptr(int64(p-c.mem.Ptr())+off)))
					if got != size {
						return fmt.Errorf("cuFileRead of %s at %d: %d", base.FormatBytes(size), off, got)
					}
				}
			})
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
