package bench

import (
	"errors"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/store"
	"github.com/ugds-store/ugds/tools/gputool"
)

// gpuData is the memory of a case whose values lie on a GPU. The regions of the
// dataset are then its host side, in which values are made and compared.
type gpuData struct {
	gpu      *gputool.GPU
	src, dst *gputool.Memory
}

// openGPU takes the memory. Only the store moves values of a GPU: its contestants
// get the same case in host memory.
func (d *dataset) openGPU() (err error) {
	if d.c.GPU == "" || d.c.Subject != Store {
		return nil
	}
	g := &gpuData{}
	d.gpu = g
	if g.gpu, err = gputool.Open(d.c.GPU); err != nil {
		return err
	}
	for _, m := range []struct {
		mem **gputool.Memory
		reg **driver.Region
	}{{&g.src, &d.src}, {&g.dst, &d.dst}} {
		if *m.mem, err = g.gpu.NewMemory(d.c.payload()); err != nil {
			return err
		}
		*m.reg = driver.NewRegion((*m.mem).Host())
	}
	return nil
}

func (g *gpuData) close() {
	if g == nil {
		return
	}
	for _, m := range []*gputool.Memory{g.src, g.dst} {
		if m != nil {
			_ = m.Close() // every call has returned: nothing is in flight
		}
	}
	if g.gpu != nil {
		_ = g.gpu.Close()
	}
}

// made brings the values that were made to the GPU, and what blank left.
func (d *dataset) made() error {
	if d.gpu == nil {
		return nil
	}
	return errors.Join(d.gpu.src.Upload(0, d.gpu.src.Size()), d.gpu.dst.Upload(0, d.gpu.dst.Size()))
}

// fetched brings what was read from the GPU to where it is compared.
func (d *dataset) fetched() error {
	if d.gpu == nil {
		return nil
	}
	return d.gpu.dst.Download(0, d.gpu.dst.Size())
}

// gpuOptions let a store take values of the GPU.
func (d *dataset) gpuOptions() (o store.GPUOptions) {
	if d.gpu != nil {
		o.Backend = d.gpu.gpu.Backend
	}
	return o
}

func (d *dataset) gpuRange(r *driver.Region, i int) store.Range {
	m := d.gpu.dst
	if r == d.src {
		m = d.gpu.src
	}
	return store.Range{GPU: m.Ptr() + gpu.Ptr(d.off(i)), Len: d.c.Size}
}

// gpuRegister registers the memory with the store, and gives what undoes it.
func (d *dataset) gpuRegister(s *store.Store) (undo func() error, err error) {
	undo = func() error { return nil }
	if d.gpu == nil {
		return undo, nil
	}
	var regs []*gpu.Registration
	undo = func() error {
		var errs []error
		for _, r := range regs {
			errs = append(errs, r.Close())
		}
		return errors.Join(errs...)
	}
	for _, m := range []*gputool.Memory{d.gpu.src, d.gpu.dst} {
		r, err := s.RegisterGPU(m.Ptr(), m.Size())
		if err != nil {
			return undo, err
		}
		regs = append(regs, r)
	}
	return undo, nil
}

// gpuNote tells which way the values of a GPU took, and why.
func gpuNote(st store.Stats) string {
	for _, g := range st.GPUs {
		for _, p := range g.Paths {
			if p.Path != driver.PathDirect && p.Path != driver.PathTail {
				return g.Name + ": values pass host memory, since " + p.Reason
			}
		}
	}
	return ""
}
