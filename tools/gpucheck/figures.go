package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// figure is one of the figures that issue 6 asks for, with its gate.
type figure struct {
	name string
	got  float64
	gate float64
	most bool // the gate is the most that the figure may be; else the least
}

func (f figure) met() bool { return f.most && f.got <= f.gate || !f.most && f.got >= f.gate }

// atLeast and atMost note a figure for the table at the end.
func (r *rig) atLeast(gate, got float64, format string, args ...any) {
	r.figures = append(r.figures, figure{fmt.Sprintf(format, args...), got, gate, false})
}

func (r *rig) atMost(gate, got float64, format string, args ...any) {
	r.figures = append(r.figures, figure{fmt.Sprintf(format, args...), got, gate, true})
}

// printFigures is the table of all figures that the parts measured.
func (r *rig) printFigures() {
	if len(r.figures) == 0 {
		return
	}
	met := 0
	fmt.Println("FIGURES")
	slices.SortStableFunc(r.figures, func(a, b figure) int { return int(a.name[1]) - int(b.name[1]) }) // "(a) …"
	for _, f := range r.figures {
		sign, word := ">=", "met"
		if f.most {
			sign = "<="
		}
		if f.met() {
			met++
		} else {
			word = "MISSED"
		}
		fmt.Printf("  %-72s %8.2f %s %5.2f  %s\n", f.name, f.got, sign, f.gate, word)
	}
	fmt.Printf("  %d of %d met\n", met, len(r.figures))
}

// turns measures ways alternately, after one round that does not count: durations of
// each way, in the order of the rounds. Each round has an order of its own, so that no
// way always finds the caches and threads that the same other one left behind.
func turns(rounds int, ways ...func() error) ([][]time.Duration, error) {
	return turnsThen(rounds, func() {}, ways...)
}

// turnsThen is turns with something after each way that is not measured, so that nothing
// of it falls into the next one.
func turnsThen(rounds int, then func(), ways ...func() error) ([][]time.Duration, error) {
	all := make([][]time.Duration, len(ways))
	order := rand.New(rand.NewPCG(5, uint64(len(ways))))
	for i := range rounds + 1 {
		for _, k := range order.Perm(len(ways)) {
			began := time.Now()
			if err := ways[k](); err != nil {
				return nil, err
			}
			if took := time.Since(began); i > 0 {
				all[k] = append(all[k], took)
			}
			then()
		}
	}
	return all, nil
}

func mid[T float64 | time.Duration](all []T) T {
	all = slices.Clone(all)
	slices.Sort(all)
	return all[len(all)/2]
}

// times is how many times as fast ours is as the peer: the median of the rounds.
func times(peer, ours []time.Duration) float64 {
	var all []float64
	for i := range peer {
		all = append(all, float64(peer[i])/float64(ours[i]))
	}
	return mid(all)
}

func median(n int, fn func() error) (time.Duration, error) {
	all, err := turns(n, fn)
	if err != nil {
		return 0, err
	}
	return mid(all[0]), nil
}
