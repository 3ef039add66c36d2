package bench

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strconv"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// dataset is the memory of a case: the values to put, and room for those that
// are read. Both are off-heap and on pages, so that every contestant can use
// them directly.
type dataset struct {
	c        *Case
	src, dst *driver.Region
	gpu      *gpuData // nil unless the values lie on a GPU
	keys     [][]byte
}

func newDataset(c *Case) (d *dataset, err error) {
	d = &dataset{c: c}
	if err := d.openGPU(); err != nil {
		d.close()
		return nil, err
	}
	for _, r := range []**driver.Region{&d.src, &d.dst} {
		if *r != nil {
			continue
		}
		if *r, err = driver.AllocRegion(c.payload(), "bench values"); err != nil {
			d.close()
			return nil, err
		}
	}
	for i := range c.Objects {
		d.fill(i, 1)
		d.keys = append(d.keys, objectKey(c.Seed, i))
	}
	d.blank()
	if err := d.made(); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func objectKey(seed uint64, i int) []byte {
	return strconv.AppendInt(append(strconv.AppendUint([]byte("bench/"), seed, 16), '/'), int64(i), 10)
}

func (d *dataset) close() {
	for _, r := range []*driver.Region{d.src, d.dst} {
		if r != nil {
			_ = r.Close() // every call has returned: nothing is in flight
		}
	}
	d.gpu.close()
}

// off is where object i lies in both regions.
func (d *dataset) off(i int) int64 { return int64(i) * d.c.stride() }

// slot is the memory of object i, in whole blocks.
func (d *dataset) slot(r *driver.Region, i int) []byte { return r.Bytes(d.off(i), d.c.stride()) }

// fill makes a version of object i that no other object or version has.
func (d *dataset) fill(i int, version uint64) {
	b := d.src.Bytes(d.off(i), d.c.Size)
	p := rand.NewPCG(d.c.Seed^version<<48, uint64(i)*0x9e3779b97f4a7c15+1)
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, p.Uint64())
	}
	for v := p.Uint64(); len(b) > 0; b = b[1:] {
		b[0] = byte(v)
		v >>= 8
	}
}

// blank overwrites what was read before, and touches the pages.
func (d *dataset) blank() {
	b := d.dst.CPU()
	for i := range b {
		b[i] = 0xee
	}
}

// compare compares what was read with what was put.
func (d *dataset) compare(ids []int) error {
	for _, i := range ids {
		if !bytes.Equal(d.src.Bytes(d.off(i), d.c.Size), d.dst.Bytes(d.off(i), d.c.Size)) {
			return base.Errorf("compare", string(d.keys[i]), base.ErrCorrupt, "%s read other bytes than were put", d.c.Subject)
		}
	}
	return nil
}

// order is the order in which objects are worked on: as they lie for what
// writes, drawn by the seed for what reads.
func (d *dataset) order() []int {
	ids := make([]int, d.c.Objects)
	for i := range ids {
		ids[i] = i
	}
	if d.c.Op == OpGet || d.c.Op == OpExists {
		r := rand.New(rand.NewPCG(d.c.Seed, 0x6f72646572))
		r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	}
	return ids
}
