package crashtest

import (
	"strings"

	"github.com/ugds-store/ugds/driver"
)

// State is what the world is in at a cut. A cut counts for a state only if the
// image holds an unresolved write or record of such an operation; the labels
// come from what the disks and the metadata file system saw.
type State uint8

// The states that the campaign must reach.
const (
	StateDataInFlight State = iota
	StateFinished
	StateFlushing
	StateCommitSent
	StateCommitReturned
	StateDelete
	StateReplace
	StateSlabReturn
	StateDiscard
	StateLeaseHeld
	StateFormat
	StateOpen
	StateClose
	StateDeviceFailed
	NumStates
)

// String names the state.
func (s State) String() string {
	return [...]string{"data in flight", "finished, not yet flushing", "flushing", "commit sent",
		"commit returned", "delete", "replace", "slab return", "discard", "lease held", "format",
		"open", "close", "one device failed"}[s]
}

// States is a set.
type States uint32

func (s *States) add(x State) { *s |= 1 << x }

// Has tells whether x is in the set.
func (s States) Has(x State) bool { return s>>x&1 == 1 }

// Phase is what the store as a whole is doing.
type Phase uint8

// The phases. Nothing is cut during the setup.
const (
	PhaseFormat Phase = iota
	PhaseSetup
	PhaseRun
	PhaseOpen
	PhaseClose
	PhaseDone
)

// String names the phase.
func (p Phase) String() string {
	return [...]string{"format", "setup", "run", "open", "close", "done"}[p]
}

type slabRef struct {
	disk int
	slab int64
}

// tracker follows, from the outside, where the versions lie and which records
// are on their way. The lab's lock guards it.
type tracker struct {
	slabOff   []int64 // by disk; nil before the format
	slabBytes int64

	ops      map[uint64]*Op
	byKey    map[int][]*Op // not yet recorded
	where    map[uint64][]slabRef
	live     map[slabRef]map[uint64]bool
	emptied  map[slabRef]bool
	reuses   map[uint64]bool // operations that write into an emptied slab
	current  map[int]*Op     // the version of each key that the store answered last
	leased   map[int]int
	unsynced []*Op // their records are written to the log and not synced
	answered []*Op // their records are synced, their callers have no answer yet
}

func newTracker() *tracker {
	return &tracker{ops: map[uint64]*Op{}, byKey: map[int][]*Op{}, where: map[uint64][]slabRef{},
		live: map[slabRef]map[uint64]bool{}, emptied: map[slabRef]bool{}, reuses: map[uint64]bool{},
		current: map[int]*Op{}, leased: map[int]int{}}
}

func (t *tracker) called(o *Op) {
	t.ops[o.ID] = o
	t.byKey[o.Key] = append(t.byKey[o.Key], o)
}

// submitted notes where a write of a value goes.
func (t *tracker) submitted(s Step) {
	o := t.ops[s.Label]
	if o == nil || s.Disk >= len(t.slabOff) || s.Off < t.slabOff[s.Disk] {
		return
	}
	for off := s.Off; off < s.Off+s.Len; off += t.slabBytes {
		ref := slabRef{s.Disk, (off - t.slabOff[s.Disk]) / t.slabBytes}
		t.where[o.ID] = append(t.where[o.ID], ref)
		if t.emptied[ref] {
			t.reuses[o.ID] = true
			delete(t.emptied, ref)
		}
		if t.live[ref] == nil {
			t.live[ref] = map[uint64]bool{}
		}
		t.live[ref][o.ID] = true
	}
}

// ended notes an answer: a version came, or went.
func (t *tracker) ended(o *Op) {
	if o.Fate == FateFailed {
		if o.Kind == KindPut {
			t.gone(o.ID)
		}
		t.forget(o)
		return
	}
	if o.Fate != FateOK {
		return
	}
	if old := t.current[o.Key]; old != nil {
		t.gone(old.ID)
	}
	if t.current[o.Key] = o; o.Kind == KindDelete {
		delete(t.current, o.Key)
	}
}

func (t *tracker) forget(o *Op) {
	list := t.byKey[o.Key]
	for i, x := range list {
		if x == o {
			t.byKey[o.Key] = append(list[:i:i], list[i+1:]...)
			return
		}
	}
}

func (t *tracker) gone(id uint64) {
	for _, ref := range t.where[id] {
		if live := t.live[ref]; live[id] {
			delete(live, id)
			t.emptied[ref] = len(live) == 0
		}
	}
}

// logged notes a write to the metadata log: the records in it are on their way.
func (t *tracker) logged(path string, data []byte) {
	if !strings.HasSuffix(path, ".log") {
		return
	}
	for _, rec := range recordsIn(data) {
		for _, o := range t.byKey[rec.key] {
			if o.Kind == rec.kind {
				t.unsynced = append(t.unsynced, o)
				t.forget(o)
				break
			}
		}
	}
}

// synced notes that a log was synced.
func (t *tracker) synced(path string) {
	if !strings.HasSuffix(path, ".log") {
		return
	}
	keep := t.answered[:0]
	for _, o := range append(t.answered, t.unsynced...) {
		if o.Returned == 0 {
			keep = append(keep, o)
		}
	}
	t.answered, t.unsynced = keep, nil
}

// states tells what an image of this instant holds. disks are the lab's.
func (t *tracker) states(disks []device, phase Phase, failed bool) (set States, unresolved int) {
	for _, d := range disks {
		open, flush := d.unresolved(), d.inFlight(driver.OpFlush)
		unresolved += len(open)
		for _, w := range open {
			t.writeStates(&set, w, flush)
		}
	}
	for _, o := range t.unsynced {
		set.add(StateCommitSent)
		t.recordStates(&set, o)
	}
	for _, o := range t.answered {
		if o.Returned == 0 {
			set.add(StateCommitReturned)
			t.recordStates(&set, o)
		}
	}
	unresolved += len(t.unsynced)
	if unresolved == 0 {
		return set, 0
	}
	switch phase {
	case PhaseFormat:
		set.add(StateFormat)
	case PhaseOpen:
		set.add(StateOpen)
	case PhaseClose:
		set.add(StateClose)
	}
	if failed {
		set.add(StateDeviceFailed)
	}
	return set, unresolved
}

// writeStates adds what an unresolved write of a disk means.
func (t *tracker) writeStates(set *States, w *write, flush int64) {
	if w.op == driver.OpDiscard {
		set.add(StateDiscard)
		return
	}
	o := t.ops[w.label]
	if o == nil {
		return
	}
	switch {
	case w.answered == 0:
		set.add(StateDataInFlight)
	case flush > w.answered:
		set.add(StateFlushing)
	default:
		set.add(StateFinished)
	}
	if o.Replace {
		set.add(StateReplace)
		if t.leased[o.Key] > 0 {
			set.add(StateLeaseHeld)
		}
	}
	if t.reuses[o.ID] {
		set.add(StateSlabReturn)
	}
}

// recordStates adds what a record on its way means.
func (t *tracker) recordStates(set *States, o *Op) {
	switch {
	case o.Kind == KindDelete:
		set.add(StateDelete)
	case o.Replace:
		set.add(StateReplace)
	default:
		return
	}
	if t.leased[o.Key] > 0 {
		set.add(StateLeaseHeld)
	}
	old := t.current[o.Key]
	if old == nil || old == o {
		return
	}
	for _, ref := range t.where[old.ID] {
		if live := t.live[ref]; len(live) == 1 && live[old.ID] {
			set.add(StateSlabReturn)
		}
	}
}
