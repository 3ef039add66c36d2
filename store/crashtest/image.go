package crashtest

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/ugds-store/ugds/driver"
)

// Cut is which part of the world stops.
type Cut uint8

// The kinds of cuts; the table of the package comment tells what each may lose.
const (
	CutAll Cut = iota
	CutHost
	CutMeta
	CutSSD
)

// String names the cut.
func (c Cut) String() string {
	return [...]string{"everything", "host alone", "metadata alone", "SSD alone"}[c]
}

// DiskImage is one instant of a disk: what is safe, and every write whose fate
// is open. Many disks can be drawn from it.
type DiskImage struct {
	opts    DiskOptions
	stable  *media
	visible *media
	open    []*write // copies; the disk went on
}

// imageLocked keeps this instant. The lab's lock is held.
func (d *Disk) imageLocked() *DiskImage {
	im := &DiskImage{opts: d.opts, stable: d.stable.clone(), visible: d.visible.clone()}
	for _, w := range d.open {
		im.open = append(im.open, w.copy())
	}
	return im
}

// Open is the number of writes whose fate is open.
func (im *DiskImage) Open() int { return len(im.open) }

// Outcome counts what was drawn.
type Outcome struct {
	Landed, Dropped, Torn, Late int
}

// Total is the number of writes whose fate was drawn.
func (o Outcome) Total() int { return o.Landed + o.Dropped + o.Torn + o.Late }

// Differs tells whether the image is another one than "all landed".
func (o Outcome) Differs() bool { return o.Dropped+o.Torn+o.Late > 0 }

func (o *Outcome) add(p Outcome) {
	o.Landed += p.Landed
	o.Dropped += p.Dropped
	o.Torn += p.Torn
	o.Late += p.Late
}

// String prints the counts.
func (o Outcome) String() string {
	return fmt.Sprintf("%d landed, %d dropped, %d torn, %d late", o.Landed, o.Dropped, o.Torn, o.Late)
}

// Draw makes a disk as it may be after a cut. lab is the world of the new disk;
// change, if not nil, may set its pace.
func (im *DiskImage) Draw(cut Cut, rng *rand.Rand, lab *Lab, change func(*DiskOptions)) (*Disk, Outcome) {
	opts := im.opts
	if change != nil {
		change(&opts)
		opts.defaults()
	}
	if cut == CutAll || cut == CutSSD {
		m := im.stable.clone()
		out := drawOpen(rng, m, opts.BlockSize, im.open)
		return startDisk(lab, opts, m, m.clone(), nil, nil), out
	}
	var out Outcome
	visible := im.visible.clone()
	var cached, late []*write
	for _, w := range im.open {
		c := w.copy()
		switch {
		case c.answered != 0:
			out.Landed++ // the cache is kept
		case cut == CutMeta:
			c.landWhole(rng, visible, opts.BlockSize) // commands go on
			out.Landed++
		case rng.IntN(2) == 0:
			// It lands after the owner's death, before its lock is free (I5).
			if c.op == driver.OpDiscard {
				c.drawDiscard(rng, opts.BlockSize)
			}
			out.Late++
			late = append(late, c)
			continue
		default:
			out.add(drawInFlight(rng, visible, opts.BlockSize, c))
		}
		c.answered = 1
		if c.effect { // else nothing of it is in the cache
			cached = append(cached, c)
		}
	}
	return startDisk(lab, opts, visible, im.stable.clone(), cached, late), out
}

// copy gives a write that can be changed without changing w.
func (w *write) copy() *write {
	c := *w
	c.skip = slices.Clone(w.skip)
	if w.op == driver.OpDiscard { // only they change their blocks
		c.blocks = slices.Clone(w.blocks)
	}
	return &c
}

// drawOpen lands writes on m, in any order, each with one drawn outcome.
func drawOpen(rng *rand.Rand, m *media, blockBytes int64, open []*write) Outcome {
	var out Outcome
	luck := 1 + rng.IntN(6) // of 8: differs by image, so that both ends are seen
	for _, i := range rng.Perm(len(open)) {
		w := open[i].copy()
		switch p := rng.IntN(8); {
		case p < luck:
			w.landWhole(rng, m, blockBytes)
			out.Landed++
		case p == luck && w.n > 1:
			w.landTorn(rng, m, blockBytes)
			out.Torn++
		default:
			out.Dropped++
		}
	}
	return out
}

// drawInFlight gives a write in flight an outcome on m, the content of a cache
// that is kept. What reads have seen of it stays.
func drawInFlight(rng *rand.Rand, m *media, blockBytes int64, w *write) Outcome {
	switch p := rng.IntN(3); {
	case w.effect && w.op != driver.OpDiscard:
		return Outcome{Landed: 1}
	case w.effect:
		return Outcome{Torn: 1} // a discard that had begun
	case p == 0:
		return Outcome{Dropped: 1}
	case p == 1 && w.n > 1:
		w.landTorn(rng, m, blockBytes)
		return Outcome{Torn: 1}
	}
	w.landWhole(rng, m, blockBytes)
	return Outcome{Landed: 1}
}

// landWhole lands every block of w, drawing first what a discard does.
func (w *write) landWhole(rng *rand.Rand, m *media, blockBytes int64) {
	if w.op == driver.OpDiscard && w.blocks == nil {
		w.drawDiscard(rng, blockBytes)
	}
	w.effect = true
	w.land(m)
}

// landTorn lands a part of w: a run from the front, a run to the end, or any
// blocks; at least one and not all of at least two.
func (w *write) landTorn(rng *rand.Rand, m *media, blockBytes int64) {
	skip := make([]bool, w.n)
	at, how := 1+rng.Int64N(w.n-1), rng.IntN(3)
	for i := range skip {
		switch how {
		case 0:
			skip[i] = int64(i) >= at
		case 1:
			skip[i] = int64(i) < at
		default:
			skip[i] = rng.IntN(2) == 0
		}
	}
	if how == 2 {
		skip[at-1], skip[at] = false, true
	}
	if w.op == driver.OpDiscard && w.blocks == nil {
		w.drawDiscard(rng, blockBytes)
	}
	for i := range skip {
		skip[i] = skip[i] || w.skips(int64(i))
	}
	w.skip = skip
	w.effect = true
	w.land(m)
}
