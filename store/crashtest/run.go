package crashtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

// Where the number of the life goes in seeds and in numbers of operations.
const (
	lifeShift   = 48
	opLifeShift = 40
)

// fillerBytes is the largest value that only takes space.
const fillerBytes = 8 * base.MiB

// run lives the whole life of a world: format, open, a random workload with its
// incidents, close. Shots are kept on the way.
func (w *world) run(ctx context.Context) error {
	defer w.end()
	if w.life == 1 {
		if err := w.format(ctx); err != nil {
			return fmt.Errorf("format: %w", err)
		}
	}
	if err := w.open(ctx); err != nil {
		return fmt.Errorf("open: %w", err)
	}
	if w.life == 1 {
		w.setPhase(PhaseSetup)
		if err := w.fill(ctx); err != nil {
			return fmt.Errorf("fill: %w", err)
		}
		w.setPhase(PhaseRun)
	}
	p := newPlan(w.set)
	for part := range parts {
		if part == parts/2 && w.set.Seed%2 == 0 && !w.dead() {
			if err := w.reopen(ctx); err != nil {
				return err
			}
		}
		w.work(ctx, p, part)
		w.lull()
	}
	w.judgeLive(ctx)
	if err := w.close(ctx); err != nil && !w.dead() && !w.downErr(err) {
		return fmt.Errorf("close: %w", err)
	}
	if !w.dead() && w.set.Reformat {
		return w.reformat(ctx)
	}
	w.lab.Locked(func() {
		if w.metaDead { // the fence fell, the process ended: this is what is opened next
			w.keep(w.lab.index, 0, 0)
		}
	})
	return nil
}

// reformat makes a new store over the old one. Cut in between, the old one is
// there as a whole, or nothing is, or the open is refused; afterwards the store
// is empty.
func (w *world) reformat(ctx context.Context) error {
	if err := w.resetDisks(ctx); err != nil {
		return err
	}
	w.lab.Locked(func() { w.phase, w.over = PhaseFormat, overBegun })
	l, err := store.Format(ctx, store.FormatOptions{Devices: w.devices(), Meta: w.metaOptions(),
		SlabBytes: w.set.SlabBytes, Overwrite: true})
	if err != nil {
		return fmt.Errorf("format over a store: %w", err)
	}
	w.setLayout(*l)
	w.lab.Locked(func() { w.phase, w.over = PhaseOpen, overDone })
	if err := w.open(ctx); err != nil {
		return fmt.Errorf("open after the second format: %w", err)
	}
	w.setPhase(PhaseClose)
	err = w.st.Close(ctx)
	w.following.Wait()
	if err != nil && !w.downErr(err) {
		return fmt.Errorf("close after the second format: %w", err)
	}
	return nil
}

// parts is in how many shares the workers do their plan.
const parts = 8

// lull leaves the store alone until it has begun to discard what was emptied,
// which it only does while it is idle, or for a while.
func (w *world) lull() {
	if !w.set.Discard {
		return
	}
	for range 40 {
		var discards bool
		w.lab.Locked(func() {
			for _, d := range w.disks {
				discards = discards || d.inFlight(driver.OpDiscard) > 0
			}
		})
		if discards {
			return
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// work lets every worker do its part-th share of the plan.
func (w *world) work(ctx context.Context, p plan, part int) {
	var wg sync.WaitGroup
	for _, list := range p.workers {
		n := len(list)
		wg.Go(func() { w.runWorker(ctx, list[n*part/parts:n*(part+1)/parts]) })
	}
	wg.Wait()
}

func (w *world) reopen(ctx context.Context) error {
	if err := w.close(ctx); err != nil && !w.downErr(err) {
		if w.dead() { // it died in between
			return nil
		}
		return fmt.Errorf("close: %w", err)
	}
	if err := w.open(ctx); err != nil {
		return fmt.Errorf("reopen: %w", err)
	}
	return nil
}

// downErr tells whether err is what a disk that was made to fail causes.
func (w *world) downErr(err error) bool {
	return w.unsure() && (errors.Is(err, store.ErrIsolated) || w.mediumFailed(err))
}

// fill takes most of the space, so that the workload is short of it.
func (w *world) fill(ctx context.Context) error {
	zeros := make([]byte, fillerBytes)
	slab := w.set.SlabBytes
	for i := 0; ; i++ {
		free := w.st.Stats().Space.FreeSlab
		n := min(fillerBytes, (free/slab-w.set.FreeSlabs)*slab)
		if n <= 0 {
			return w.st.Flush(ctx)
		}
		err := w.ns[0].Put(ctx, fmt.Appendf(nil, "filler-%04d", i), store.Bytes(zeros[:n]),
			store.PutOptions{Durability: store.Relaxed, NoChecksum: true})
		if err != nil {
			return err
		}
		w.fillers++
		w.fillerSum += n
	}
}

// judgeLive compares the living store with the history, when nothing is in
// flight: after a disk lost power this is where withdrawal shows.
func (w *world) judgeLive(ctx context.Context) {
	w.lab.Locked(func() {
		for _, d := range w.disks {
			d.failNoMore()
		}
	})
	w.awaitDisks()
	for range 3 { // the first may only report what a disk lost
		if err := w.st.Flush(ctx); err == nil || w.dead() {
			break
		} else if !w.unsure() || !errors.Is(err, store.ErrIsolated) {
			w.fault("flush at the end: %v", err)
		}
	}
	w.sub.Close()
	w.following.Wait()
	h, now := w.settled()
	if w.dead() {
		return // what a commit of unknown outcome did is only known at the next open
	}
	r, faults := readStore(ctx, w.st, h)
	for _, f := range append(faults, h.judge(&r.Recovered, now)...) {
		w.fault("the living store: %s", f)
	}
	if r.fillers != w.fillers {
		w.fault("the living store has %d fillers of %d", r.fillers, w.fillers)
	}
}

// settled is the history with its generations, and the present step.
func (w *world) settled() (*History, int64) {
	var h *History
	var now int64
	w.lab.Locked(func() {
		for _, f := range w.hist.assign(w.events) {
			w.faultLocked("%s", f)
		}
		h, now = w.hist, w.lab.index
	})
	return h, now
}

// afterlife makes the world that begins with cut 0 of a shot: the same disks as
// that image, slow again, and a history that consists of what was recovered.
func (w *world) afterlife(sh *shot, r *contents, life int) *world {
	set := NewSetup(w.set.Seed + uint64(life)<<lifeShift)
	set.Disks, set.BlockSize, set.SlabBytes, set.Discard = w.set.Disks, w.set.BlockSize, w.set.SlabBytes, w.set.Discard
	set.Lives, set.Controllers = w.set.Lives, w.set.Controllers
	im := sh.drawAt(w.set.Seed, 0, func(o *DiskOptions) { o.Immediate, o.Depth, o.Pace = false, set.Depth, set.Pace })
	n := &world{set: set, lab: im.lab, mfs: im.meta, formatted: true, life: life, rng: rand.New(rand.NewPCG(set.Seed, 0xc7a5)),
		hist: &History{Seed: w.hist.Seed}, track: newTracker(), nextID: uint64(life) << opLifeShift,
		fillers: r.fillers}
	for _, key := range slices.Sorted(maps.Keys(r.Objects)) {
		obj := r.Objects[key]
		o := &Op{ID: obj.ID, Key: key, Size: obj.Size, Gen: obj.Gen, Fate: FateOK, Durable: 1}
		n.hist.Ops = append(n.hist.Ops, o)
		n.track.ops[o.ID] = o
		n.track.current[key] = o
	}
	n.hook()
	return n
}
