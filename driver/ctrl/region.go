package ctrl

import (
	"errors"
	"sort"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// attached is what the device keeps for a region: where its bytes are on the bus.
type attached struct {
	region  *driver.Region
	mapping hw.Mapping
	segs    []nvme.Seg
	ends    []uint64       // offset in the region after each segment
	table   *nvme.PRPTable // of all of it, or nil: then commands are built from segs
	long    bool           // segs are long: an SGL is shorter than a list of pages
	aligned bool           // the first byte is aligned as Info.MemAlign says

	revocable hw.Revocable // the mapping, if its exporter can take the memory back
}

// longSegs is the mean length of segments from which on SGLs are used, in bytes.
const longSegs = 32 << 10

// maxTable bounds the table of a region, in memory pages: 16 GiB of memory, whose
// table takes 32 MiB.
const maxTable = 1 << 22

// Attach implements driver.Device. A region that was not attached is, by its first
// request, and stays so until Detach or its Close.
func (d *Device) Attach(r *driver.Region) error {
	_, err := d.attach(r)
	return err
}

func (d *Device) attach(r *driver.Region) (*attached, error) {
	d.attachMu.Lock()
	defer d.attachMu.Unlock()
	if r.Closed() {
		return nil, base.Errorf("attach", r.String(), base.ErrClosed, "the region is closed")
	}
	if s := d.State(); s == driver.StateClosed || s == driver.StateRemoved {
		return nil, d.refusal("attach to")
	}
	if a, ok := r.Handle(d).(*attached); ok {
		return a, nil
	}
	m, err := d.mapRegion(r)
	if err != nil {
		return nil, base.Wrap("attach", r.String(), err)
	}
	a := &attached{region: r, mapping: m}
	if v, ok := m.(hw.Revocable); ok {
		a.revocable = v
		d.revocable.Store(true)
	}
	var end uint64
	for _, s := range m.Segments() {
		end += s.Len
		a.segs = append(a.segs, nvme.Seg(s))
		a.ends = append(a.ends, end)
	}
	a.aligned = a.segs[0].Addr%uint64(d.info.MemAlign) == 0
	a.long = d.sgl.Supported && end/uint64(len(a.segs)) >= longSegs
	if t, ok := nvme.MakePRPTable(a.segs, d.cc.PageShift(), maxTable); ok {
		a.table = &t
	}
	if err := r.SetHandle(d, a); err != nil { // closed meanwhile
		return nil, errors.Join(err, m.Unmap())
	}
	d.regions[r.ID()] = a
	return a, nil
}

// lost is an error once the exporter of a region has taken its memory back: from then
// on the device does not reach it, whatever the status of a command says.
func (a *attached) lost(op driver.Op) error {
	if a.revocable == nil || !a.revocable.Revoked() {
		return nil
	}
	return base.Errorf(op.String(), a.region.String(), base.ErrClosed, "its exporter has taken the memory back")
}

// lost is the same for the memory of a request, before that is released.
func (r *request) lost(d *Device) error {
	q := r.entry()
	for i := range r.holds {
		if a, ok := q.Segs[i].Region.Handle(d).(*attached); ok {
			if err := a.lost(q.Op); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Device) mapRegion(r *driver.Region) (hw.Mapping, error) {
	if mem := r.CPU(); mem != nil {
		return d.hw.Map(mem)
	}
	return d.hw.MapFD(r.FD(), r.FDOffset(), r.Size())
}

// Detach implements driver.Device.
func (d *Device) Detach(r *driver.Region) error {
	d.attachMu.Lock()
	defer d.attachMu.Unlock()
	a := d.regions[r.ID()] // a region that is being closed has no handle any more
	if a == nil {
		return nil
	}
	if n := r.InFlight(); n > 0 {
		return base.Errorf("detach", r.String(), base.ErrBusy, "%d requests in flight", n)
	}
	_ = r.SetHandle(d, nil)                                   // to forget is never refused
	if n := r.InFlight(); n > 0 && r.SetHandle(d, a) == nil { // held before the handle went: it may be in use
		return base.Errorf("detach", r.String(), base.ErrBusy, "%d requests in flight", n)
	}
	delete(d.regions, r.ID())
	return base.Wrap("detach", r.String(), a.mapping.Unmap())
}

// handle is what the device keeps for a region that a request holds.
func (d *Device) handle(r *driver.Region) *attached {
	if a, ok := r.Handle(d).(*attached); ok {
		return a
	}
	d.attachMu.Lock() // a Detach that will be refused has it for an instant
	defer d.attachMu.Unlock()
	return r.Handle(d).(*attached)
}

// detachAll forgets every region. Nothing is in flight.
func (d *Device) detachAll() {
	d.attachMu.Lock()
	defer d.attachMu.Unlock()
	for id, a := range d.regions {
		_ = a.region.SetHandle(d, nil)
		_ = a.mapping.Unmap() // the device is stopped and about to be closed
		delete(d.regions, id)
	}
}

// cursor walks the memory of a request, whose regions it holds.
type cursor struct {
	segs []driver.Seg
	i    int   // segment
	off  int64 // bytes into it

	region *driver.Region // the region that was looked up last, and what it gave
	at     *attached
}

// find is the device's part of a region, remembered while the region stays the
// same.
func (c *cursor) find(d *Device, r *driver.Region) *attached {
	if r != c.region {
		c.region, c.at = r, d.handle(r)
	}
	return c.at
}

// single is the device's part of the region that holds all of the next n bytes,
// and their offset in it; nil when they lie in several segments.
func (c *cursor) single(d *Device, n int64) (a *attached, off uint64) {
	s := &c.segs[c.i]
	if s.Len-c.off < n {
		return nil, 0
	}
	return c.find(d, s.Region), uint64(s.Off + c.off)
}

// gather appends the bus memory of the next n bytes to out, without moving the
// cursor. Pieces that are adjacent on the bus are merged.
func (c *cursor) gather(d *Device, n int64, out []nvme.Seg) []nvme.Seg {
	for i, off := c.i, c.off; n > 0; i, off = i+1, 0 {
		s := &c.segs[i]
		take := min(s.Len-off, n)
		if take == 0 {
			continue
		}
		a := c.find(d, s.Region)
		out = a.append(uint64(s.Off+off), uint64(take), out)
		n -= take
	}
	return out
}

// advance moves the cursor by n bytes.
func (c *cursor) advance(n int64) {
	for n > 0 {
		take := min(c.segs[c.i].Len-c.off, n)
		n -= take
		if c.off += take; c.off == c.segs[c.i].Len {
			c.i, c.off = c.i+1, 0
		}
	}
}

// append adds the bus memory of [off, off+n) of the region.
func (a *attached) append(off, n uint64, out []nvme.Seg) []nvme.Seg {
	i := 0
	if len(a.segs) > 1 {
		i = sort.Search(len(a.ends), func(i int) bool { return a.ends[i] > off })
	}
	for ; n > 0; i++ {
		s := a.segs[i]
		skip := off - (a.ends[i] - s.Len)
		s = nvme.Seg{Addr: s.Addr + skip, Len: min(s.Len-skip, n)}
		if k := len(out) - 1; k >= 0 && out[k].Addr+out[k].Len == s.Addr {
			out[k].Len += s.Len
		} else {
			out = append(out, s)
		}
		off, n = off+s.Len, n-s.Len
	}
	return out
}
