package store

import (
	"slices"
	"sync"
	"time"
)

// queue holds finished operations in commit order. An operation gets its
// generation when it enters.
type queue struct {
	mu      sync.Mutex
	ops     []*op
	round   []*op // of the rounds under way, in order
	gen     uint64
	relaxed int64     // bytes of relaxed puts not yet decided
	oldest  time.Time // when the first operation of ops entered
	urgent  bool      // the next round takes everything, and at once
	room    chan struct{}

	// Light operations wait for the callers that were answered last.
	light     int       // in ops
	expect    int       // so many are in ops when those callers are back
	gatherEnd time.Time // and no longer than this
	missed    int       // waits in a row that were in vain
	skip      int       // rounds that do not wait, because of that
	part      bool      // the round has closed the first part of its set
}

// Bounds of the wait for callers that were just answered.
const (
	gatherMax    = time.Millisecond // and at most the time that their round took
	gatherMisses = 4                // so many waits in vain, and gatherSkip rounds do not wait
	gatherSkip   = 16
	// partOps is from how many expected operations on a round writes the first
	// three quarters of them while the others come.
	partOps = 32
)

// due reports whether a round should begin or, if it has begun with a first part, go
// on; whatever the age of ops is. Light operations alone wait for the round
// under way to end and for its callers to come back: a round that began at once
// would take the few that are quick, and the others would pay for a flush and a
// commit of their own.
func (q *queue) due() bool {
	switch {
	case q.urgent || len(q.ops) >= MaxRoundOps || q.part && q.light >= q.expect:
		return true
	case q.part || q.light == 0 || len(q.round) > 0:
		return false
	}
	return q.light >= q.expect || q.expect >= partOps && q.light >= q.expect*3/4
}

// giveUp ends a wait that has lasted long enough: the callers have other plans.
func (q *queue) giveUp(now time.Time) {
	if q.light >= q.expect || now.Before(q.gatherEnd) {
		return
	}
	q.expect = 0
	if q.missed++; q.missed == gatherMisses {
		q.missed, q.skip = 0, gatherSkip
	}
}

// close takes at most limit finished operations into the round. more tells that
// these are the first part and the round should wait for the rest.
func (q *queue) close(limit int) (set []*op, more bool) {
	n := min(len(q.ops), limit)
	set = slices.Clone(q.ops[:n])
	rest := copy(q.ops, q.ops[n:])
	clear(q.ops[rest:])
	q.ops = q.ops[:rest]
	q.round = append(q.round, set...)
	light := lightOps(set)
	q.light -= light
	if q.expect > 0 && light >= q.expect {
		q.missed = 0
	}
	q.expect = max(0, q.expect-light)
	q.part = q.expect > 0 && light > 0 && !q.urgent && !q.part && n < limit
	if !q.part {
		q.expect = 0
	}
	q.urgent = rest > 0 && q.urgent
	q.oldest = time.Now()
	return set, q.part
}

// leave forgets the n oldest operations of the rounds under way. took is how
// long their round took.
func (q *queue) leave(n int, took time.Duration) {
	if q.skip > 0 {
		q.skip--
	} else if !q.part {
		q.expect = q.light + lightOps(q.round[:n])
		q.gatherEnd = time.Now().Add(min(took, gatherMax))
	}
	rest := copy(q.round, q.round[n:])
	clear(q.round[rest:])
	q.round = q.round[:rest]
}

func lightOps(ops []*op) (n int) {
	for _, o := range ops {
		if o.light {
			n++
		}
	}
	return n
}

// patience is how long the wait for callers may go on.
func (q *queue) patience(now time.Time) time.Duration { return max(0, q.gatherEnd.Sub(now)) }
