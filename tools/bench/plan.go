package bench

import (
	"context"
	"time"

	"github.com/ugds-store/ugds/internal/base"
)

// Version of the Report document.
const Version = 1

// Goal compares the store, or another contestant, with a baseline: throughput
// divided by throughput.
type Goal struct {
	Subject string  `json:"subject"`
	Base    string  `json:"base"`
	Gate    float64 `json:"gate,omitempty"` // 0: no gate
	Aim     float64 `json:"aim,omitempty"`
}

// Group is one workload and the contestants that take turns on it.
type Group struct {
	Case     Case // without Subject
	Subjects []string
	Batches  map[string]int // objects a call, where a contestant's differs
	Goals    []Goal
}

// MaxRounds bounds the rounds of a plan.
const MaxRounds = 1000

// Plan is what Run measures.
type Plan struct {
	Groups []Group
	Rounds int // processes of each contestant
	Seed   uint64
	Place  Place
	// Exec measures a case in a process of its own; RunCase does for tests.
	Exec func(ctx context.Context, c Case) (*Sample, error)
	// Progress hears of each case before it is measured.
	Progress func(done, all int, c Case)
	// Budget ends a group early when its rounds have taken that long; 0 is none.
	Budget time.Duration
}

// Payload is what the largest case moves, bytes.
func (p *Plan) Payload() (n int64) {
	for _, g := range p.Groups {
		n = max(n, g.Case.payload())
	}
	return n
}

// Steps is the number of cases that Run measures, without preparations.
func (p *Plan) Steps() (n int) {
	for _, g := range p.Groups {
		n += len(g.Subjects) * p.Rounds
	}
	return n
}

// Run measures every group: all contestants of a round one after the other, then
// the next round, so that what disturbs the machine disturbs all of them alike.
func Run(ctx context.Context, p Plan) (*Report, error) {
	r := &Report{Version: Version, Seed: p.Seed, Rounds: p.Rounds, Began: time.Now().UTC(), Machine: describeMachine(p.Place.Dir)}
	done := 0
	for i := range p.Groups {
		g := &p.Groups[i]
		out, err := p.group(ctx, g, &done)
		if err != nil {
			return nil, err
		}
		r.Groups = append(r.Groups, out)
	}
	r.Seconds = time.Since(r.Began).Seconds()
	return r, nil
}

func (p *Plan) group(ctx context.Context, g *Group, done *int) (*GroupReport, error) {
	samples := make(map[string][]*Sample)
	ready := g.Case.Op == OpGet || g.Case.Op == OpExists
	if ready {
		for _, s := range g.Subjects {
			c := p.caseOf(g, s, 0)
			if c.Subject == Fio {
				continue
			}
			c.Op, c.Keep, c.Ready, c.Sync = OpPut, true, false, false
			c.Batch, c.Callers = min(c.Objects, 32), 1
			if _, err := p.Exec(ctx, c); err != nil {
				return nil, err
			}
		}
	}
	begin := time.Now()
	for round := range p.Rounds {
		for k := range g.Subjects {
			s := g.Subjects[(k+round)%len(g.Subjects)] // nobody always follows the same one
			c := p.caseOf(g, s, round)
			c.Ready, c.Keep = ready, ready
			if p.Progress != nil {
				p.Progress(*done, p.Steps(), c)
			}
			*done++
			out, err := p.Exec(ctx, c)
			if err != nil {
				return nil, err
			}
			samples[s] = append(samples[s], out)
		}
		if p.Budget > 0 && time.Since(begin) > p.Budget {
			*done += len(g.Subjects) * (p.Rounds - round - 1)
			break
		}
	}
	if ready {
		if err := p.remove(ctx, g); err != nil {
			return nil, err
		}
	}
	return newGroupReport(g, samples), nil
}

// remove takes the objects of a prepared group away.
func (p *Plan) remove(ctx context.Context, g *Group) error {
	for _, s := range g.Subjects {
		c := p.caseOf(g, s, 0)
		if s == Raw || s == Ring || s == Fio || s == CommitLoop {
			continue
		}
		c.Op, c.Ready, c.Keep, c.Sync = OpDelete, true, false, false
		c.Batch, c.Callers = min(c.Objects, 32), 1
		if _, err := p.Exec(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// caseOf fills in the contestant. Cases that read share the values of round 0.
func (p *Plan) caseOf(g *Group, subject string, round int) Case {
	c := g.Case
	c.Subject, c.Place, c.Seed = subject, p.Place, p.Seed+uint64(round)<<20
	if c.Op == OpGet || c.Op == OpExists {
		c.Seed = p.Seed
	}
	if n := g.Batches[subject]; n > 0 {
		c.Batch = n
	}
	if subject == CommitLoop {
		c.Batch, c.Callers = c.Callers, 1
	}
	return c
}

// Sweep is what a person asks for on the command line: every combination.
type Sweep struct {
	Ops, Subjects            []string
	Sizes                    []int64
	Callers, Batches, Depths []int
	Sync                     []bool
	Plain                    bool
	GPU                      string
	Bytes                    int64 // of values in each case
	MaxObjects               int
}

// Groups makes the groups of a sweep, the store being compared with each of the
// other contestants that can do the workload.
func (s *Sweep) Groups() (out []Group) {
	for _, op := range s.Ops {
		for _, size := range s.Sizes {
			for _, callers := range s.Callers {
				for _, batch := range s.Batches {
					for _, depth := range s.Depths {
						for _, sync := range s.Sync {
							if sync && (op == OpGet || op == OpExists) {
								continue
							}
							c := Case{Op: op, Size: size, Callers: callers, Batch: batch, Depth: depth, Sync: sync, Plain: s.Plain, GPU: s.GPU}
							c.Objects = objectsFor(s.Bytes, &c, s.MaxObjects)
							out = append(out, newGroup(c, s.Subjects))
						}
					}
				}
			}
		}
	}
	return out
}

// objectsFor fits a case into a number of bytes: whole calls, and at least one
// for each caller.
func objectsFor(bytes int64, c *Case, most int) int {
	n := max(int(min(bytes/c.stride(), int64(most))), c.Batch*c.Callers)
	return n / c.Batch * c.Batch
}

func newGroup(c Case, subjects []string) Group {
	g := Group{Case: c, Batches: map[string]int{}}
	for _, s := range subjects {
		if !suits(s, &c) {
			continue
		}
		g.Subjects = append(g.Subjects, s)
		if s != Store {
			g.Goals = append(g.Goals, Goal{Subject: Store, Base: s})
		}
	}
	return g
}

// suits tells whether a contestant can do the workload in a way that compares.
func suits(s string, c *Case) bool {
	switch s {
	case Raw, Ring:
		return c.Op == OpPut || c.Op == OpGet || c.Op == OpMixed
	case CommitLoop, PebbleSync:
		return c.Op == OpPut && c.Sync && c.Batch == 1 && c.stride() <= 64*base.KiB
	case Fio:
		return c.Op == OpGet && c.Callers == 1
	}
	return true
}
