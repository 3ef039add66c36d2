package crashtest

import (
	"math/rand/v2"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/meta/metatest"
)

// shot is one instant of a world: the disks and the metadata kept together
// under the lab's lock. Many cuts are drawn from it.
type shot struct {
	step       int64
	phase      Phase
	states     States
	unresolved int // writes of disks and records of the log whose fate is open
	metaDead   bool
	disks      []deviceImage
	draws      []metaDraw
	formatted  bool // the format had returned
	fillers    int  // that must be there
	over       over
}

// metaDraw is the metadata of one cut, drawn while the lock was held.
type metaDraw struct {
	percent int // chance of each unsynced block and directory entry to be there
	fs      *metatest.FS
}

// chances of a shot at a step, of 1,000, by what is going on.
const (
	chanceFormat = 70
	chanceOpen   = 60
	chanceClose  = 200
	chanceMeta   = 30
	chanceRun    = 8
	chanceRare   = 40  // a step of a discard or a flush
	chanceDead   = 400 // the metadata disk is dead: few steps are left
	chanceQuiet  = 2   // nothing is unresolved
)

// cut keeps this instant if the dice say so. The lock is held.
func (w *world) cut(s Step) {
	if w.phase == PhaseSetup || w.phase == PhaseDone || len(w.shots) >= w.set.MaxShots {
		return
	}
	chance := chanceRun
	switch {
	case w.phase == PhaseFormat:
		chance = chanceFormat
	case w.phase == PhaseClose:
		chance = chanceClose
	case w.phase == PhaseOpen:
		chance = chanceOpen
	case s.Kind == StepMeta:
		chance = chanceMeta
	case s.Op == driver.OpDiscard || s.Op == driver.OpFlush:
		chance = chanceRare
	}
	if w.metaDead {
		chance = chanceDead
	}
	dice := w.rng.IntN(1000)
	if dice >= chance {
		return
	}
	failed := w.failed && (w.lab.index-w.failedAt < failedSteps || w.anyDown())
	states, unresolved := w.track.states(w.disks, w.phase, failed)
	if unresolved == 0 && dice >= chanceQuiet && !w.metaDead {
		return
	}
	w.keep(s.Index, states, unresolved)
}

// failedSteps is how long after a disk lost power a cut counts for that state.
const failedSteps = 200

func (w *world) anyDown() bool {
	for _, d := range w.disks {
		if d.down() {
			return true
		}
	}
	return false
}

func (w *world) keep(step int64, states States, unresolved int) {
	sh := &shot{step: step, phase: w.phase, states: states, unresolved: unresolved, metaDead: w.metaDead,
		formatted: w.formatted, fillers: w.fillers, over: w.over}
	for _, d := range w.disks {
		sh.disks = append(sh.disks, d.image())
	}
	for i := range w.set.Draws {
		percent := [...]int{0, 100, 50, 80, 20}[(i+int(step))%5]
		rng := rand.New(rand.NewPCG(w.set.Seed^uint64(step), uint64(i)))
		sh.draws = append(sh.draws, metaDraw{percent, w.mfs.Clone(rng, percent)})
	}
	w.shots = append(w.shots, sh)
}

// maybeIncident lets something fail when the setup says that it is time. The
// lock is held.
func (w *world) maybeIncident(s Step) {
	if w.incident >= len(w.set.Incidents) {
		return
	}
	in := w.set.Incidents[w.incident]
	if w.phase != in.Phase {
		return
	}
	if w.runSteps++; w.runSteps < in.After || in.OnFlush && (s.Op != driver.OpFlush || s.Kind != StepSubmit) ||
		in.OnRelaxed && !w.onlyCached(s) {
		return
	}
	d := w.disks[in.Disk%len(w.disks)]
	if in.OnRelaxed {
		d = w.disks[s.Disk]
	}
	if d.down() && in.Kind != MetaDies {
		return // it is still down from the last time
	}
	w.incident++
	w.runSteps = 0
	if in.Kind == MetaDies {
		w.metaDead = true
		w.mfs.FailAt(1, nil, true)
		return
	}
	w.failed, w.failedAt = true, w.lab.index
	switch in.Kind {
	case LosePower:
		w.powerCuts++
		d.losePower(w.rng)
	case LoseContact:
		w.powerCuts++
		d.loseContact(w.rng)
	case FailWrite:
		d.failNext(driver.OpWrite)
	case FailRead:
		d.failNext(driver.OpRead)
	}
}

// onlyCached tells whether s is the answer of a relaxed operation's write while
// no disk has a flush in flight. The lock is held.
func (w *world) onlyCached(s Step) bool {
	if o := w.track.ops[s.Label]; s.Kind != StepAnswer || s.Op != driver.OpWrite || o == nil || !o.Relaxed {
		return false
	}
	for _, d := range w.disks {
		if d.inFlight(driver.OpFlush) > 0 {
			return false
		}
	}
	return true
}
