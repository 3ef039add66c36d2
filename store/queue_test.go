package store

import (
	"testing"
	"time"
)

// lightQueue is a queue after a round of n light operations was answered, of
// whose callers none is back.
func lightQueue(n int) *queue {
	q := new(queue)
	enter(q, n)
	set, _ := q.close(MaxRoundOps)
	q.leave(len(set), time.Hour)
	return q
}

// enter queues n light operations.
func enter(q *queue, n int) {
	for range n {
		q.ops = append(q.ops, &op{light: true})
		q.light++
	}
}

// Light operations wait for the round under way, then for its callers.
func TestLightOperationsGather(t *testing.T) {
	q := new(queue)
	enter(q, 1)
	if !q.due() {
		t.Fatal("the first one waits for nobody")
	}
	first, more := q.close(MaxRoundOps)
	if len(first) != 1 || more {
		t.Fatal(len(first), more)
	}
	enter(q, 3)
	if q.due() {
		t.Fatal("a round is under way")
	}
	q.leave(1, time.Hour)
	if q.due() || q.expect != 4 {
		t.Fatalf("three are there, %d expected", q.expect)
	}
	enter(q, 1)
	if !q.due() {
		t.Fatal("all four are there")
	}
	if set, more := q.close(MaxRoundOps); len(set) != 4 || more || q.light != 0 || q.expect != 0 {
		t.Fatalf("%d, %v, %+v", len(set), more, q)
	}
}

// Others do not wait, and take those along that do.
func TestUrgentEndsTheGathering(t *testing.T) {
	q := lightQueue(8)
	enter(q, 2)
	q.ops = append(q.ops, &op{kind: opBarrier})
	q.urgent = true
	if !q.due() {
		t.Fatal("urgent")
	}
	if set, more := q.close(MaxRoundOps); len(set) != 3 || more || q.urgent {
		t.Fatalf("%d, %v, urgent %v", len(set), more, q.urgent)
	}
}

// From partOps expected operations on a round closes in two parts, below it
// does not.
func TestRoundInTwoParts(t *testing.T) {
	q := lightQueue(partOps - 1)
	enter(q, partOps-2)
	if q.due() {
		t.Error("a small round does not begin early")
	}
	q = lightQueue(partOps)
	const first = partOps * 3 / 4
	enter(q, first-1)
	if q.due() {
		t.Error("before the first part is there")
	}
	enter(q, 1)
	if !q.due() {
		t.Error("the first part is there")
	}
	if set, more := q.close(MaxRoundOps); len(set) != first || !more || q.due() {
		t.Errorf("%d, %v, due %v", len(set), more, q.due())
	}
	enter(q, partOps-first-1)
	if q.due() {
		t.Error("one is missing")
	}
	enter(q, 1)
	if !q.due() {
		t.Error("the rest is there")
	}
	if set, more := q.close(MaxRoundOps); len(set) != partOps-first || more || q.part {
		t.Errorf("%d, %v, part %v", len(set), more, q.part)
	}
	if len(q.round) != partOps {
		t.Errorf("%d in the round", len(q.round))
	}
}

// A wait in vain ends in time, and too many of them end the waiting for some
// rounds.
func TestGatheringGivesUp(t *testing.T) {
	q := lightQueue(4)
	if most := time.Until(q.gatherEnd); most > gatherMax {
		t.Errorf("it would wait for %v", most)
	}
	for i := range gatherMisses { // one of four callers always comes late
		enter(q, 3-q.light)
		if q.giveUp(q.gatherEnd.Add(-1)); q.due() {
			t.Fatalf("miss %d: it did not wait", i)
		}
		if q.giveUp(q.gatherEnd.Add(1)); !q.due() {
			t.Fatalf("miss %d: it waits on", i)
		}
		if set, more := q.close(MaxRoundOps); len(set) != 3 || more {
			t.Fatal(len(set), more)
		}
		enter(q, 1)
		q.leave(3, time.Hour)
	}
	q.close(MaxRoundOps)
	q.leave(1, time.Hour)
	for i := range gatherSkip - 2 {
		enter(q, 1)
		if !q.due() {
			t.Fatalf("round %d waits", i)
		}
		q.close(MaxRoundOps)
		q.leave(1, time.Hour)
	}
	enter(q, 1)
	q.close(MaxRoundOps)
	if q.leave(1, time.Hour); q.expect != 1 {
		t.Errorf("it does not wait again: %+v", q)
	}
}

// A round never has more than MaxRoundOps, its second half included.
func TestRoundLimit(t *testing.T) {
	q := lightQueue(8)
	enter(q, MaxRoundOps-1)
	q.expect = 2 * MaxRoundOps
	if q.due() && !q.part && q.light < q.expect/2 {
		t.Error("due below the limit")
	}
	enter(q, 2)
	if !q.due() {
		t.Error("full")
	}
	if set, more := q.close(MaxRoundOps); len(set) != MaxRoundOps || more || q.light != 1 {
		t.Errorf("%d, %v, %d left", len(set), more, q.light)
	}
}
