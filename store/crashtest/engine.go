package crashtest

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// Pace is how long commands stay in flight. The disk makes one move at a time:
// it gives one command, chosen at random, its effect or its answer.
type Pace struct {
	Pause      time.Duration // the longest pause between two moves; default 100 µs
	PausePer16 int           // of 16 moves, how many are followed by a pause; default 4
	Hold       int           // a flush or discard is passed over that many times of Hold+1; default 3
}

func (p *Pace) defaults() {
	if p.Pause == 0 {
		p.Pause = 100 * time.Microsecond
	}
	if p.PausePer16 == 0 {
		p.PausePer16 = 4
	}
	if p.Hold == 0 {
		p.Hold = 3
	}
}

// ending is a command and its answer, to be given without the lock.
type ending struct {
	c    *command
	done int64
	err  error
}

type endings []ending

// end gives answers. No lock is held; Reset and Close wait for it.
func (d *Disk) end(e endings) {
	for _, x := range e {
		x.c.end(x.done, x.err)
	}
	if len(e) == 0 {
		return
	}
	d.lab.mu.Lock()
	defer d.lab.mu.Unlock()
	if d.answering -= len(e); d.answering == 0 {
		d.signalRoom()
	}
}

// busy tells whether a command has no answer yet. The lock is held.
func (d *Disk) busy() bool { return len(d.queue)+d.answering > 0 }

// engine makes moves until the disk is closed.
func (d *Disk) engine() {
	defer close(d.stopped)
	for {
		d.lab.mu.Lock()
		for d.held || len(d.queue) == 0 && len(d.late) == 0 && !d.final() {
			d.work.Wait()
		}
		if len(d.queue) == 0 && d.final() {
			d.lab.mu.Unlock()
			return
		}
		ended := d.move()
		var pause time.Duration
		if d.rng.IntN(16) < d.opts.Pace.PausePer16 {
			pause = time.Duration(d.rng.Int64N(int64(d.opts.Pace.Pause)))
		}
		d.lab.mu.Unlock()
		d.end(ended)
		if pause > 0 {
			time.Sleep(pause)
		} else {
			runtime.Gosched()
		}
	}
}

func (d *Disk) final() bool {
	return d.state == driver.StateClosed || d.state == driver.StateRemoved
}

// runNow answers everything in flight, in order. The lock is held.
func (d *Disk) runNow() endings {
	var out endings
	for len(d.queue) > 0 {
		c := d.queue[0]
		d.takeEffect(c, true)
		out = append(out, d.answer(c))
	}
	return out
}

// move makes one step. The lock is held.
func (d *Disk) move() endings {
	if len(d.late) > 0 {
		d.landLate()
		return nil
	}
	c := d.queue[d.rng.IntN(len(d.queue))]
	if c.dying {
		return endings{d.answer(c)}
	}
	slow := c.req.Op == driver.OpFlush || c.req.Op == driver.OpDiscard
	if slow && d.rng.IntN(d.opts.Pace.Hold+1) > 0 {
		return nil
	}
	if !c.effect {
		c.effect = d.takeEffect(c, d.rng.IntN(2) == 0)
		if c.w != nil {
			d.step(StepEffect, c)
		}
		if !c.effect || d.rng.IntN(2) == 0 {
			return nil
		}
	}
	return endings{d.answer(c)}
}

// takeEffect changes what reads return. A discard that need not be whole may
// go on; then the answer is false. The lock is held.
func (d *Disk) takeEffect(c *command, whole bool) bool {
	w := c.w
	if w == nil {
		return true // reads copy and flushes act at their answer
	}
	if w.op == driver.OpDiscard {
		w.drawDiscard(d.rng, d.opts.BlockSize)
		whole = whole || d.rng.IntN(2) == 0
	} else {
		whole = true
	}
	w.land(d.visible)
	w.effect = true
	// Later effects win: keep the open writes in the order of their effects.
	i := slices.Index(d.open, w)
	d.open = append(slices.Delete(d.open, i, i+1), w)
	return whole
}

// land makes m hold what w says. A discard that drew nothing changes nothing.
func (w *write) land(m *media) {
	if w.blocks == nil {
		return
	}
	for i := range w.n {
		if !w.skips(i) {
			m.set(w.lba+i, w.blocks[i])
		}
	}
}

// drawDiscard decides for a random share of the blocks that they read as zeros
// or as ones. Called again it decides about more of them.
func (w *write) drawDiscard(rng *rand.Rand, blockBytes int64) {
	if w.blocks == nil {
		w.blocks, w.skip = make([]string, w.n), make([]bool, w.n)
		for i := range w.skip {
			w.skip[i] = true
		}
	}
	share, ones := rng.IntN(5), onesBlock(blockBytes)
	for i := range w.blocks {
		if rng.IntN(4) >= share {
			continue
		}
		w.skip[i], w.blocks[i] = false, ""
		if rng.IntN(2) == 0 {
			w.blocks[i] = ones
		}
	}
}

func (w *write) skips(i int64) bool { return w.skip != nil && w.skip[i] }

// answer ends c: it leaves the queue, and what it promises holds from now on.
// The lock is held; the caller gives the answer without it.
func (d *Disk) answer(c *command) ending {
	d.dequeue(c)
	d.answering++
	if c.dying {
		if c.req.Op == driver.OpRead && d.rng.IntN(2) == 0 {
			d.scatter(c.req) // its transfer was under way when the device stopped
		}
		d.stats.Errors++
		return ending{c, 0, stateError(c.req.Op.String(), d.info.Target, driver.StateIsolated)}
	}
	r := c.req
	if d.failing[r.Op] {
		return d.answerFailed(c)
	}
	d.inARow = 0
	switch r.Op {
	case driver.OpRead:
		d.scatter(r)
		d.stats.Reads++
		d.stats.ReadBytes += r.Len
	case driver.OpFlush:
		d.settle(c.submitted)
		d.stats.Flushes++
	default:
		d.answerWrite(c)
	}
	if r.Op != driver.OpRead {
		d.step(StepAnswer, c)
	}
	done := r.Len
	if r.Op == driver.OpFlush {
		done = 0
	}
	return ending{c, done, nil}
}

// errMedium is the cause of a command that was made to fail.
var errMedium = errors.New("the medium failed")

// answerFailed ends a command with an error of the medium. A write may have
// landed, in part; a failed flush stops the disk, since nobody knows what it left.
func (d *Disk) answerFailed(c *command) ending {
	delete(d.failing, c.req.Op)
	d.stats.Errors++
	d.inARow++
	if c.w != nil {
		c.w.answered = d.lab.index + 1
	}
	err := base.Errorf(c.req.Op.String(), d.info.Target, base.ErrCorrupt, "%w", errMedium)
	if c.req.Op == driver.OpFlush {
		err = stateError(c.req.Op.String(), d.info.Target, driver.StateIsolated)
		d.powerCutLocked(d.rng)
	}
	return ending{c, 0, err}
}

func (d *Disk) answerWrite(c *command) {
	r, w := c.req, c.w
	w.answered = d.lab.index + 1
	switch r.Op {
	case driver.OpWrite:
		d.checkUnchanged(c)
		d.stats.Writes++
		d.stats.WriteBytes += r.Len
	case driver.OpDiscard:
		d.stats.Discards++
		d.stats.DiscardBytes += r.Len
	case driver.OpWriteZeroes:
		d.stats.Zeroes++
		d.stats.ZeroBytes += r.Len
	}
	if d.opts.WriteThrough || r.FUA {
		w.land(d.stable)
		d.supersede(w, c.submitted)
		d.open = slices.DeleteFunc(d.open, func(o *write) bool { return o == w })
	}
}

// checkUnchanged compares the caller's memory with what was in it at the
// submission: a device may fetch it at any time in between.
func (d *Disk) checkUnchanged(c *command) {
	var pos int64 // in the payload
	for i := range c.req.Segs {
		s := &c.req.Segs[i]
		for now := s.Region.Bytes(s.Off, s.Len); len(now) > 0; {
			b := c.w.blocks[pos/d.opts.BlockSize]
			if b == "" {
				b = zeroBlock[:d.opts.BlockSize]
			}
			b = b[pos%d.opts.BlockSize:]
			n := min(len(b), len(now))
			if string(now[:n]) != b[:n] {
				d.fault("the memory of a write at %d+%d changed while in flight", c.req.Off, c.req.Len)
				return
			}
			now, pos = now[n:], pos+int64(n)
		}
	}
}

// settle makes every write stable that was answered before step submitted.
func (d *Disk) settle(submitted int64) {
	rest := d.open[:0:0]
	for _, w := range d.open {
		if w.answered == 0 || w.answered >= submitted {
			rest = append(rest, w)
			continue
		}
		w.land(d.stable)
	}
	d.open = rest
}

// supersede keeps older writes, answered before step submitted, from landing
// over w, which is stable.
func (d *Disk) supersede(w *write, submitted int64) {
	for _, o := range d.open {
		if o == w || o.answered == 0 || o.answered >= submitted {
			continue
		}
		for lba := max(o.lba, w.lba); lba < min(o.lba+o.n, w.lba+w.n); lba++ {
			if o.skip == nil {
				o.skip = make([]bool, o.n)
			}
			o.skip[lba-o.lba] = true
		}
	}
}

func (d *Disk) dequeue(c *command) {
	i := slices.Index(d.queue, c)
	d.queue = slices.Delete(d.queue, i, i+1)
	d.bytes -= payload(c.req)
	d.stats.InFlight--
	d.stats.InFlightBytes -= payload(c.req)
	d.signalRoom()
}

// signalRoom wakes whoever waits for the queue or for a state. The lock is held.
func (d *Disk) signalRoom() {
	close(d.room)
	d.room = make(chan struct{})
	d.work.Broadcast()
}

// scatter copies what a read returns into the caller's memory.
func (d *Disk) scatter(r *driver.Request) {
	pos := r.Off // on the disk
	for i := range r.Segs {
		s := &r.Segs[i]
		for dst := s.Region.Bytes(s.Off, s.Len); len(dst) > 0; {
			in := pos % d.opts.BlockSize
			n := int(min(d.opts.BlockSize-in, int64(len(dst))))
			if b := d.visible.get(pos / d.opts.BlockSize); b == "" {
				clear(dst[:n])
			} else {
				copy(dst[:n], b[in:])
			}
			dst, pos = dst[n:], pos+int64(n)
		}
	}
}

// landLate lets one command of the dead owner land. The lock is held.
func (d *Disk) landLate() {
	w := d.late[0]
	d.late = d.late[1:]
	w.land(d.visible)
	w.answered = d.lab.index + 1
	d.open = append(d.open, w)
	d.lab.note(Step{Kind: StepEffect, Disk: d.index, Op: w.op, Off: w.lba * d.opts.BlockSize,
		Len: w.n * d.opts.BlockSize, Label: w.label, Text: "late"})
	d.signalRoom()
}
