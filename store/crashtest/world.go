package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/meta/metatest"
	"github.com/ugds-store/ugds/store"
)

// metaDir is where the metadata of every world lies.
const metaDir = "/meta"

// The namespaces of a workload; a key belongs to the one with its parity.
var nsNames = [2]string{"default", "other"}

// world is one store with its disks and its metadata disk, from the format or
// from a crash image to its last close, and the history of what was asked.
type world struct {
	set   Setup
	life  int // 1, or it began with a cut
	lab   *Lab
	disks []device
	mfs   *metatest.FS
	rng   *rand.Rand // of cuts and incidents; the lab's lock guards it

	// The lab's lock guards these.
	phase     Phase
	hist      *History
	track     *tracker
	nextID    uint64
	events    []published
	faults    []string // violations seen while the process lived
	shots     []*shot
	failed    bool // a disk lost power and objects may be withdrawn
	failedAt  int64
	metaDead  bool
	runSteps  int64
	over      over // a format over the old store
	formatted bool // the format had returned
	fillers   int
	fillerSum int64
	powerCuts int
	incident  int // of the setup's incidents, how many happened
	trace     Trace

	st        *store.Store
	ns        [2]*store.Namespace
	following sync.WaitGroup
	sub       *store.Subscription
}

// over tells how far a format over an old store has come.
type over uint8

const (
	overNot   over = iota
	overBegun      // the old store may be there as a whole, or not
	overDone       // nothing of it may be there
)

func newWorld(set Setup) (*world, error) {
	w := &world{set: set, life: 1, lab: new(Lab), mfs: metatest.NewCrashFS(),
		rng:  rand.New(rand.NewPCG(set.Seed, 0xc7a5)),
		hist: &History{Seed: set.Seed}, track: newTracker(), nextID: 1}
	for i := range set.Disks {
		opts := DiskOptions{Name: fmt.Sprintf("crash%d", i), BlockSize: set.BlockSize,
			NoDiscard: !set.Discard, Seed: set.Seed + uint64(i)<<32, Depth: set.Depth, Pace: set.Pace, NoLock: set.NoLock}
		if set.Controllers != nil {
			opts.Controller = &set.Controllers[i]
		}
		if _, err := newDevice(w.lab, opts); err != nil {
			return nil, err
		}
	}
	w.hook()
	return w, nil
}

// hook makes the lab and the metadata file system report every step.
func (w *world) hook() {
	w.disks = w.lab.disks
	w.lab.SetLabel(labelPayload)
	w.lab.SetTrace(&w.trace)
	w.lab.SetHook(w.step)
	w.mfs.Before(func(op metatest.Op) {
		w.lab.Locked(func() {
			if op.Name == "write" {
				w.track.logged(op.Path, op.Data)
			}
			w.lab.note(Step{Kind: StepMeta, Disk: -1, Text: op.Name + " " + op.Path})
		})
	})
	w.mfs.After(func(op metatest.Op, err error) {
		if op.Name != "sync" || err != nil {
			return
		}
		w.lab.Locked(func() {
			w.track.synced(op.Path)
			w.lab.note(Step{Kind: StepMeta, Disk: -1, Text: "synced " + op.Path})
		})
	})
}

// step is the lab's hook. The lock is held.
func (w *world) step(s Step) {
	if s.Kind == StepSubmit && s.Op == driver.OpWrite {
		w.track.submitted(s)
	}
	w.cut(s)
	if s.Kind != StepPower {
		w.maybeIncident(s)
	}
}

func (w *world) devices() []driver.Device {
	out := make([]driver.Device, len(w.disks))
	for i, d := range w.disks {
		out[i] = d
	}
	return out
}

func (w *world) metaOptions() meta.Options { return meta.Options{Dir: metaDir, FS: w.mfs} }

func (w *world) setPhase(p Phase) {
	w.lab.Locked(func() { w.phase = p })
}

// fault records a violation that the living process showed.
func (w *world) fault(format string, args ...any) {
	w.lab.Locked(func() { w.faultLocked(format, args...) })
}

func (w *world) faultLocked(format string, args ...any) {
	if len(w.faults) < 100 {
		w.faults = append(w.faults, fmt.Sprintf("at step %d: ", w.lab.index)+fmt.Sprintf(format, args...))
	}
}

// format makes the store.
func (w *world) format(ctx context.Context) error {
	w.setPhase(PhaseFormat)
	l, err := store.Format(ctx, store.FormatOptions{Devices: w.devices(), Meta: w.metaOptions(), SlabBytes: w.set.SlabBytes})
	if err != nil {
		return err
	}
	w.setLayout(*l)
	w.lab.Locked(func() { w.formatted = true })
	return nil
}

func (w *world) setLayout(l store.Layout) {
	w.lab.Locked(func() {
		w.track.slabBytes = l.SlabBytes
		w.track.slabOff = nil
		for _, d := range l.Devices {
			w.track.slabOff = append(w.track.slabOff, d.SlabOff)
		}
	})
}

// open opens the store and follows its events. A disk that fails under it is
// reset, and the store opened again.
func (w *world) open(ctx context.Context) error {
	w.setPhase(PhaseOpen)
	for try := 0; ; try++ {
		err := w.openOnce(ctx)
		if err == nil || try == 3 || !w.unsure() || !errors.Is(err, store.ErrIsolated) && !w.mediumFailed(err) {
			return err
		}
		if w.st != nil {
			_ = w.st.Close(ctx)
			w.following.Wait()
		}
		if err := w.resetDisks(ctx); err != nil {
			return err
		}
	}
}

// resetDisks brings back what stopped while no store was there to do it.
func (w *world) resetDisks(ctx context.Context) error {
	for _, d := range w.disks {
		if err := d.Reset(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) openOnce(ctx context.Context) error {
	w.st = nil
	s, err := store.Open(ctx, store.Options{Devices: w.devices(), Meta: w.metaOptions(),
		StagingBytes: 4 * base.MiB, Discard: w.set.Discard, RoundAge: w.set.RoundAge, IdleMark: w.set.IdleMark})
	if err != nil {
		return err
	}
	w.st = s
	w.sub = s.Subscribe(1 << 15)
	w.following.Add(1)
	go w.follow(w.sub)
	for i, name := range nsNames {
		if w.ns[i], err = s.Namespace(ctx, name, store.NamespaceOptions{Create: true}); err != nil {
			return err
		}
	}
	w.setLayout(s.Info())
	w.setPhase(PhaseRun)
	return nil
}

// follow keeps what the store publishes, until the subscription ends.
func (w *world) follow(sub *store.Subscription) {
	defer w.following.Done()
	for {
		e, err := sub.Next(context.Background())
		if err != nil {
			if n := sub.Missed(); n > 0 {
				w.fault("the harness missed %d events", n)
			}
			return
		}
		var p published
		switch e.Kind {
		case store.EventStored:
			p.kind = KindPut
		case store.EventDeleted:
			p.kind = KindDelete
		case store.EventLost:
			p.lost, p.doubt = true, errors.Is(e.Err, store.ErrUnknown)
		default:
			continue
		}
		number := keyNumber(e.Key)
		if number < 0 {
			continue // a filler
		}
		p.key, p.size, p.gen = number, e.Size, e.Generation
		w.lab.Locked(func() {
			p.step = w.lab.index
			w.events = append(w.events, p)
		})
	}
}

// close closes the store; the disks stay.
func (w *world) close(ctx context.Context) error {
	w.setPhase(PhaseClose)
	called := w.promiseBegin()
	err := w.st.Close(ctx)
	w.following.Wait() // the subscription ends with the store
	if err == nil {
		w.promiseEnd(called)
	}
	return err
}

// end stops the disks.
func (w *world) end() {
	w.setPhase(PhaseDone)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, f := range closeAll(ctx, w.disks) {
		w.fault("%s", f)
	}
}

// promiseBegin lists the operations that a flush called now must cover.
func (w *world) promiseBegin() (ops []*Op) {
	w.lab.Locked(func() {
		for _, o := range w.hist.Ops {
			if o.Fate == FateOK && o.Durable == 0 {
				ops = append(ops, o)
			}
		}
	})
	return ops
}

func (w *world) promiseEnd(ops []*Op) {
	w.lab.Locked(func() {
		for _, o := range ops {
			if o.Durable == 0 {
				o.Durable = w.lab.index + 1
			}
		}
	})
}

// begin notes that an operation is about to be called.
func (w *world) begin(kind OpKind, key int, size int64, relaxed bool) *Op {
	o := &Op{Kind: kind, Key: key, Size: size, Relaxed: relaxed}
	w.lab.Locked(func() {
		o.ID = w.nextID
		w.nextID++
		o.Called = w.lab.index + 1
		o.Replace = w.track.current[key] != nil
		w.hist.Ops = append(w.hist.Ops, o)
		w.track.called(o)
	})
	return o
}

// finish notes the answer.
func (w *world) finish(o *Op, err error) {
	w.lab.Locked(func() {
		o.Returned = w.lab.index + 1
		switch {
		case err == nil:
			o.Fate = FateOK
			if !o.Relaxed {
				o.Durable = o.Returned
			}
		case errors.Is(err, store.ErrUnknown), errors.Is(err, store.ErrTimeout):
			o.Fate = FateUnknown
		case w.failed && (errors.Is(err, store.ErrCorrupt) || w.mediumFailed(err)): // a write failed
			o.Fate = FateFailed
		case errors.Is(err, store.ErrExists), errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrNoSpace),
			errors.Is(err, store.ErrIsolated), errors.Is(err, store.ErrReadOnly):
			o.Fate = FateFailed
		default:
			o.Fate = FateUnknown
			w.faultLocked("an error that is not documented: %v: %v", o, err)
		}
		if err != nil {
			o.Err = err.Error()
		}
		w.track.ended(o)
	})
}
