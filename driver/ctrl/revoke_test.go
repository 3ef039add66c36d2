package ctrl_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
)

// exporter is a model whose memory behind descriptors can be taken back.
type exporter struct {
	*sim.Sim
	mem  []byte
	gone atomic.Bool
}

func (e *exporter) MapFD(int, int64, int64) (hw.Mapping, error) {
	m, err := e.Map(e.mem)
	return lent{m, e}, err
}

// lent is memory of the exporter.
type lent struct {
	hw.Mapping
	e *exporter
}

func (l lent) Revoked() bool { return l.e.gone.Load() }

// TestRevokedMemory: once the exporter has taken memory back, requests that name it
// fail, those that were in flight too although the controller ended them well, and
// others go on.
func TestRevokedMemory(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	cfg.Real = true
	s := model(t, cfg)
	m, err := dma.Alloc(64*base.KiB, "lent")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	e := &exporter{Sim: s, mem: m.Bytes()}
	d, err := ctrl.Open(bg(t), e, ctrl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(bg(t))
	r := driver.NewFDRegion(1, 64*base.KiB, nil)
	defer r.Close()
	own, err := driver.AllocRegion(64*base.KiB, "own")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	read := func(r *driver.Region) driver.Request {
		return driver.Request{Op: driver.OpRead, Len: 4096, Segs: []driver.Seg{r.Seg(0, 4096)}}
	}
	if err := driver.Do(bg(t), d, read(r), read(own)); err != nil {
		t.Fatal(err)
	}
	s.Hold(true)
	b := &driver.Batch{Reqs: []driver.Request{read(r), read(own)}}
	submit(t, d, b)
	e.gone.Store(true)
	s.Hold(false)
	wait(t, b)
	for what, err := range map[string]error{"in flight": b.Reqs[0].Err, "later": driver.Do(bg(t), d, read(r))} {
		if !errors.Is(err, base.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if b.Reqs[0].Done != 0 || b.Reqs[1].Err != nil {
		t.Errorf("%+v", b.Reqs)
	}
	if err := driver.Do(bg(t), d, read(own)); err != nil || d.State() != driver.StateReady {
		t.Errorf("%v, %v", err, d.State())
	}
}

// closing is a model during whose mapping the region is closed.
type closing struct {
	*sim.Sim
	r    *driver.Region
	maps int // mappings of the region that are not undone
}

func (c *closing) Map(mem []byte) (hw.Mapping, error) {
	m, err := c.Sim.Map(mem)
	if err == nil {
		c.maps++
		err = c.r.Close()
	}
	return undone{m, c}, err
}

// undone counts its end.
type undone struct {
	hw.Mapping
	c *closing
}

func (u undone) Unmap() error {
	u.c.maps--
	return u.Mapping.Unmap()
}

// TestCloseDuringAttach: a region that closes while it is mapped is not attached, and
// its memory does not stay mapped.
func TestCloseDuringAttach(t *testing.T) {
	m, err := dma.Alloc(64*base.KiB, "ctrl test")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	c := &closing{Sim: model(t, sim.Default(16*base.MiB)), r: driver.NewRegion(m.Bytes())}
	d, err := ctrl.Open(bg(t), c, ctrl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(bg(t))
	if err := d.Attach(c.r); !errors.Is(err, base.ErrClosed) || c.maps != 0 {
		t.Errorf("%v, %d mappings left", err, c.maps)
	}
}
