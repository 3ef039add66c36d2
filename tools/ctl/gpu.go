package ctl

import (
	"errors"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
	"github.com/ugds-store/ugds/tools/gputool"
)

// openGPU opens the GPU that the target names, or gives nil.
func (t *Target) openGPU() (*gputool.GPU, error) {
	if t.GPU == "" {
		return nil, nil
	}
	return gputool.Open(t.GPU)
}

// gpuOptions are the store's, for a GPU that may be nil.
func gpuOptions(g *gputool.GPU, set xfer.Settings) (o store.GPUOptions) {
	if g != nil {
		o.Backend = g.Backend
		o.Move = xfer.Options{Compat: set.Compat, Strict: set.Strict, Threshold: set.Threshold}
	}
	return o
}

func closeGPU(g *gputool.GPU) error {
	if g == nil {
		return nil
	}
	return g.Close()
}

// gpuDoc says which GPU values were put from and got into, and what moved.
type gpuDoc struct {
	Name  string    `json:"name"`
	Paths []pathDoc `json:"paths"`
}

// gpuDoc of the session, or nil without a GPU.
func (s *session) gpuDoc() *gpuDoc {
	if s.gpu == nil {
		return nil
	}
	d := &gpuDoc{Name: s.gpu.String()}
	for _, st := range s.Stats().GPUs {
		if st.Index == s.gpu.Index {
			d.Paths = docPaths(st.Paths)
		}
	}
	return d
}

// rows tell which way the bytes took, in words; more are those of another process.
func (d *gpuDoc) rows(more ...*gpuDoc) (out [][2]string) {
	if d == nil {
		return nil
	}
	out = append(out, row("gpu", "%s", d.Name))
	paths := d.Paths
	for _, m := range more {
		if m != nil {
			paths = append(paths, m.Paths...)
		}
	}
	for _, p := range paths {
		way := "from the device to the GPU"
		if p.Write {
			way = "from the GPU to the device"
		}
		if p.Path == driver.PathDirect.String() {
			out = append(out, row("", "%s %s without a stop", base.FormatBytes(p.Bytes), way))
		} else {
			out = append(out, row("", "%s %s through host memory: %s", base.FormatBytes(p.Bytes), way, p.Reason))
		}
	}
	return out
}

// valueMemory is memory that values are put from and got into: a region that devices
// reach, or GPU memory with host memory beside it, in which values are made and
// compared.
type valueMemory struct {
	region *driver.Region
	gpu    *gputool.Memory // nil without a GPU; then region is its host memory
	reg    *gpu.Registration
}

func newValueMemory(s *session, size int64, owner string) (m *valueMemory, err error) {
	m = &valueMemory{}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if s.gpu != nil {
		if m.gpu, err = s.gpu.NewMemory(size); err != nil {
			return m, err
		}
		m.region = driver.NewRegion(m.gpu.Host())
		m.reg, err = s.RegisterGPU(m.gpu.Ptr(), size)
		return m, err
	}
	if m.region, err = driver.AllocRegion(size, owner); err != nil {
		return m, err
	}
	for _, d := range s.devs {
		if err := d.Attach(m.region); err != nil {
			return m, err
		}
	}
	return m, nil
}

func (m *valueMemory) size() int64 { return m.region.Size() }

// bytes is where values are made and compared.
func (m *valueMemory) bytes(off, n int64) []byte { return m.region.Bytes(off, n) }

// at is the same memory as the store is told.
func (m *valueMemory) at(off, n int64) store.Buffers {
	if m.gpu != nil {
		return store.OnGPU(m.gpu.Ptr()+gpu.Ptr(off), n)
	}
	return store.InRegion(m.region, off, n)
}

// filled brings the first n bytes to where they are put from.
func (m *valueMemory) filled(n int64) error {
	if m.gpu == nil {
		return nil
	}
	return m.gpu.Upload(0, min(n, m.size()))
}

// got brings the first n bytes from where they were got to where they are compared,
// over what was there.
func (m *valueMemory) got(n int64) error {
	if m.gpu == nil {
		return nil
	}
	n = min(n, m.size())
	clear(m.bytes(0, n))
	return m.gpu.Download(0, n)
}

// close gives everything back. Every call that used the memory has returned.
func (m *valueMemory) close() {
	if m == nil {
		return
	}
	var errs []error
	if m.reg != nil {
		errs = append(errs, m.reg.Close())
	}
	if m.region != nil {
		errs = append(errs, m.region.Close())
	}
	if m.gpu != nil && errors.Join(errs...) == nil {
		_ = m.gpu.Close() // the process ends soon
	}
}
