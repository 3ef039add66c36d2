package crashtest

import (
	"fmt"
	"slices"
)

// OpKind is what an operation of the history does to its key.
type OpKind uint8

// The kinds of operations that change a key.
const (
	KindPut OpKind = iota
	KindDelete
)

// Fate is what the caller was told.
type Fate uint8

const (
	// FateOpen is no answer yet.
	FateOpen Fate = iota
	// FateOK is success.
	FateOK
	// FateFailed is an error that promises that nothing happened.
	FateFailed
	// FateUnknown is an error that leaves it open.
	FateUnknown
)

// String names the fate.
func (f Fate) String() string {
	return [...]string{"unanswered", "ok", "failed", "unknown"}[f]
}

// Op is one put or delete. Steps are those of the Lab; 0 means not yet.
type Op struct {
	ID       uint64
	Kind     OpKind
	Key      int
	Size     int64
	Relaxed  bool
	Replace  bool // the key had a value when it was called
	Called   int64
	Returned int64
	Fate     Fate
	Err      string
	// Durable is the step from which a flush or a close promises that the
	// operation survives; for sync operations it is Returned.
	Durable int64
	// Gen is its place in the commit order, as the store's events told; 0 if the
	// store never published it.
	Gen uint64
	// Lost is the step at which the store said that it withdrew the operation.
	Lost int64
	// Doubt is set when the withdrawal followed a commit of unknown outcome.
	Doubt bool
}

// String prints the operation for a log.
func (o *Op) String() string {
	kind := "put"
	if o.Kind == KindDelete {
		kind = "delete"
	}
	if o.Relaxed {
		kind = "relaxed " + kind
	}
	s := fmt.Sprintf("op %d %s key %d size %d: called %d returned %d %s gen %d", o.ID, kind, o.Key,
		o.Size, o.Called, o.Returned, o.Fate, o.Gen)
	if o.Durable > 0 {
		s += fmt.Sprintf(" durable since %d", o.Durable)
	}
	if o.Lost > 0 {
		s += fmt.Sprintf(" lost at %d (doubt %v)", o.Lost, o.Doubt)
	}
	if o.Err != "" {
		s += ": " + o.Err
	}
	return s
}

// History is what was asked of a store and what it answered, in the order of
// calls. Every key has one writer, so its operations have one order.
type History struct {
	Seed uint64 // of the values
	Ops  []*Op
}

// byKey groups the operations that were called up to step.
func (h *History) byKey(step int64) map[int][]*Op {
	out := make(map[int][]*Op)
	for _, o := range h.Ops {
		if o.Called <= step {
			out[o.Key] = append(out[o.Key], o)
		}
	}
	return out
}

// published is an event of the store: an operation became visible, or was
// withdrawn.
type published struct {
	key   int
	kind  OpKind
	size  int64
	gen   uint64
	lost  bool
	doubt bool
	step  int64
}

// assign gives operations the generations that the store's events told. Events
// of one key come in the order of its operations. It reports what cannot be.
func (h *History) assign(events []published) (faults []string) {
	ops := make(map[int][]*Op)
	for _, o := range h.Ops {
		if o.Called > 0 { // not what an earlier life left
			ops[o.Key] = append(ops[o.Key], o)
		}
	}
	byGen := make(map[uint64]*Op)
	for _, e := range events {
		if e.lost {
			if o := byGen[e.gen]; o != nil && o.Key == e.key {
				o.Lost, o.Doubt = e.step, e.doubt
			}
			continue // a sync operation that was never published fails by its answer
		}
		list := ops[e.key]
		i := slices.IndexFunc(list, func(o *Op) bool {
			return o.Fate != FateFailed && o.Kind == e.kind && (o.Kind == KindDelete || o.Size == e.size)
		})
		if i < 0 {
			faults = append(faults, fmt.Sprintf("event of generation %d on key %d belongs to no operation", e.gen, e.key))
			continue
		}
		list[i].Gen = e.gen
		byGen[e.gen] = list[i]
		ops[e.key] = list[i+1:]
	}
	for _, o := range h.Ops {
		if o.Fate == FateOK && o.Gen == 0 && o.Called > 0 {
			faults = append(faults, "no event for "+o.String())
		}
		if o.Fate == FateOK && !o.Relaxed && o.Lost != 0 {
			faults = append(faults, "I1: a synced operation was withdrawn: "+o.String())
		}
	}
	return faults
}
