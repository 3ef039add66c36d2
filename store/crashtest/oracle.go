package crashtest

import (
	"fmt"
	"slices"
)

// Object is what a recovered store holds under a key.
type Object struct {
	ID   uint64 // whose value its bytes are; 0 for none that was ever written
	Size int64
	Gen  uint64
}

// Recovered is what came back after a cut.
type Recovered struct {
	LastGen uint64 // the last committed generation
	Objects map[int]Object
}

// judge compares what came back with the history, for a cut at the given step.
// The rule: the recovered state is the replay of all successful operations with
// a generation up to LastGen, which covers every operation that was promised
// before the cut. Operations of unknown outcome may be in or not.
func (h *History) judge(r *Recovered, step int64) (violations []string) {
	complain := func(format string, args ...any) {
		violations = append(violations, fmt.Sprintf(format, args...))
	}
	for _, o := range h.Ops {
		if promised(o, step) && o.Gen > r.LastGen {
			complain("I1: a promised operation is not in the prefix up to generation %d: %v", r.LastGen, o)
		}
	}
	keys := h.byKey(step)
	gens := make(map[uint64]int)
	for k, obj := range r.Objects {
		if _, ok := keys[k]; !ok {
			complain("I1: key %d was never put, and holds %+v", k, obj)
		}
		if other, twice := gens[obj.Gen]; twice {
			complain("I1: keys %d and %d have the same generation %d", other, k, obj.Gen)
		}
		if gens[obj.Gen] = k; obj.Gen > r.LastGen {
			complain("I1: key %d has generation %d after the last, %d", k, obj.Gen, r.LastGen)
		}
	}
	for _, k := range sortedKeys(keys) {
		if why := judgeKey(keys[k], r, k); why != "" {
			complain("%s", why)
		}
	}
	return violations
}

func sortedKeys(m map[int][]*Op) []int {
	out := make([]int, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// promised tells whether the store had promised before step that o survives.
func promised(o *Op, step int64) bool {
	return o.Fate == FateOK && o.Durable > 0 && o.Durable <= step && o.Lost == 0
}

// judgeKey compares one key. ops are its operations in order.
func judgeKey(ops []*Op, r *Recovered, key int) string {
	last := -1 // the last operation that is certainly in
	for i, o := range ops {
		if certain(o) && o.Gen <= r.LastGen {
			last = i
		}
	}
	obj, have := r.Objects[key]
	var allowed []string
	var base *Op
	if last >= 0 {
		base = ops[last]
	}
	try := func(o *Op) bool {
		switch {
		case o == nil || o.Kind == KindDelete:
			allowed = append(allowed, "absent")
			return !have
		default:
			allowed = append(allowed, fmt.Sprintf("op %d", o.ID))
			fits := obj.Gen == o.Gen
			if o.Gen == 0 { // its place is somewhere after what is certainly in
				fits = base == nil || obj.Gen > base.Gen
			}
			return have && obj.ID == o.ID && obj.Size == o.Size && fits
		}
	}
	if try(base) {
		return ""
	}
	for _, o := range ops[last+1:] {
		if possible(o) && (o.Gen == 0 || o.Gen <= r.LastGen) && try(o) {
			return ""
		}
	}
	got := "absent"
	if have {
		got = fmt.Sprintf("op %d size %d generation %d", obj.ID, obj.Size, obj.Gen)
	}
	text := fmt.Sprintf("I1: key %d is %s; up to generation %d it may be %v", key, got, r.LastGen, allowed)
	for _, o := range ops[max(0, len(ops)-8):] {
		text += "\n      " + o.String()
	}
	return text
}

// certain: the store published it and did not take it back.
func certain(o *Op) bool { return o.Gen != 0 && o.Lost == 0 && o.Fate != FateFailed }

// possible: its outcome is open.
func possible(o *Op) bool {
	switch {
	case o.Lost != 0:
		return o.Doubt
	case o.Fate == FateFailed:
		return false
	}
	return o.Gen == 0
}
