package crashtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Config is what a campaign is asked to do.
type Config struct {
	Seed      uint64 // of the first workload; the next ones follow
	Cuts      int    // stop when that many cuts were checked
	Lanes     int    // workloads at a time; default 2
	StopAfter int    // violations; default 1
	// Tune changes the setup of each workload, for tests.
	Tune func(*Setup)
	// Only, if not empty, checks only cuts in one of these states.
	Only States
	// Artifacts is where failing images are kept; "" keeps none.
	Artifacts string
	// OnLife hears how many cuts were done when a life begins; nil for nobody.
	OnLife func(cuts int)
	// Log hears of progress and failures; nil is silent.
	Log func(format string, args ...any)
}

// Result is what a campaign found.
type Result struct {
	Seed, LastSeed uint64
	Cuts           int
	Points         int // distinct (seed, write index) pairs
	Workloads      int
	Lives          int // of all workloads: some go on after a cut
	Ops            int
	Differ         int // images other than "all landed"
	ByCut          [4]int
	ByDisks        [4]int // cuts of pools of so many disks
	PowerCuts      int    // disks that lost power under a living process
	MetaDeaths     int    // metadata disks that died under a living process
	FewestOps      int    // of a workload
	Checked        int    // images that fsck looked at
	Again          int    // images opened a second time
	Churned        int    // images written to after they were opened
	ByState        [NumStates]int
	Unresolved     []int // of each image
	Outcome        Outcome
	Violations     []string
	FirstAt        int // number of the cut that found the first violation
	FirstSeed      uint64
}

// campaign runs workloads until the cuts are done.
type campaign struct {
	cfg Config

	mu   sync.Mutex
	next uint64
	res  Result
}

// Run lives workloads, one seed after the other, and checks the cuts of each.
func Run(ctx context.Context, cfg Config) *Result {
	if cfg.Lanes == 0 {
		cfg.Lanes = 2
	}
	if cfg.StopAfter == 0 {
		cfg.StopAfter = 1
	}
	if cfg.Log == nil {
		cfg.Log = func(string, ...any) {}
	}
	c := &campaign{cfg: cfg, next: cfg.Seed}
	c.res.Seed = cfg.Seed
	var wg sync.WaitGroup
	for range cfg.Lanes {
		wg.Go(func() {
			for seed, ok := c.take(ctx); ok; seed, ok = c.take(ctx) {
				c.workload(ctx, seed)
			}
		})
	}
	wg.Wait()
	return &c.res
}

func (c *campaign) take(ctx context.Context) (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.res.Cuts >= c.cfg.Cuts || len(c.res.Violations) >= c.cfg.StopAfter || ctx.Err() != nil {
		return 0, false
	}
	c.next++
	c.res.Workloads++
	c.res.LastSeed = c.next - 1
	return c.next - 1, true
}

func (c *campaign) enough() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.res.Cuts >= c.cfg.Cuts || len(c.res.Violations) >= c.cfg.StopAfter
}

// workload lives one seed and checks its cuts; then it goes on from one of them,
// so that recovery itself is cut.
func (c *campaign) workload(ctx context.Context, seed uint64) {
	set := NewSetup(seed)
	if c.cfg.Tune != nil {
		c.cfg.Tune(&set)
	}
	w, err := newWorld(set)
	if err != nil {
		panic("crashtest: " + err.Error()) // a setup that cannot be
	}
	c.live(ctx, w)
	for life := 2; life <= set.Lives && len(w.faults) == 0 && !c.enough(); life++ {
		if w = c.goOn(ctx, w, life); w == nil {
			return
		}
		c.live(ctx, w)
	}
}

// goOn opens one of the cuts of a world for good and makes a world of it.
func (c *campaign) goOn(ctx context.Context, w *world, life int) *world {
	for _, at := range w.rng.Perm(len(w.shots)) {
		sh := w.shots[at]
		if !sh.formatted || sh.over != overNot || sh.fillers != w.fillers {
			continue
		}
		im := sh.draw(w.set.Seed, 0)
		im.facts.Extra = extraNone
		r, violations := im.verify(ctx, w.hist, im.facts)
		im.close()
		if len(violations) > 0 { // reported before, as one of the cuts
			return nil
		}
		return w.afterlife(sh, r, life)
	}
	return nil
}

// live runs a world and checks its cuts.
func (c *campaign) live(ctx context.Context, w *world) {
	if c.cfg.OnLife != nil {
		c.mu.Lock()
		n := c.res.Cuts
		c.mu.Unlock()
		c.cfg.OnLife(n)
	}
	err := w.run(ctx)
	if err != nil {
		w.faults = append(w.faults, err.Error())
	}
	w.hist.assign(w.events)
	c.mu.Lock()
	r := &c.res
	r.Lives++
	r.Ops += len(w.hist.Ops)
	r.PowerCuts += w.powerCuts
	if w.metaDead {
		r.MetaDeaths++
	}
	if n := len(w.hist.Ops); r.FewestOps == 0 || n < r.FewestOps {
		r.FewestOps = n
	}
	c.mu.Unlock()
	for _, f := range w.faults {
		c.violation(w, nil, 0, nil, f)
	}
	for _, sh := range w.shots {
		if c.cfg.Only != 0 && sh.states&c.cfg.Only == 0 {
			continue
		}
		for i := range sh.draws {
			if c.enough() {
				return
			}
			c.check(ctx, w, sh, i)
		}
	}
}

// check opens one cut and counts it.
func (c *campaign) check(ctx context.Context, w *world, sh *shot, i int) {
	im := sh.draw(w.set.Seed, i)
	if w.set.NoLock {
		im.facts.Extra = extraChurn
	}
	_, violations := im.verify(ctx, w.hist, im.facts)
	violations = append(violations, im.close()...)
	c.mu.Lock()
	r := &c.res
	r.Cuts++
	if i == 0 {
		r.Points++
	}
	r.ByCut[im.cut]++
	r.ByDisks[len(im.disks)]++
	r.Checked += im.checked
	r.Again += im.again
	r.Churned += im.churned
	if im.differs {
		r.Differ++
	}
	r.Unresolved = append(r.Unresolved, sh.unresolved)
	r.Outcome.add(im.outcome)
	for s := range NumStates {
		if sh.states.Has(s) {
			r.ByState[s]++
		}
	}
	c.mu.Unlock()
	for _, v := range violations {
		c.violation(w, sh, i, im, v)
	}
}

// violation reports one, and keeps the image of the first of each cut.
func (c *campaign) violation(w *world, sh *shot, i int, im *image, text string) {
	seed := w.set.Seed & (1<<lifeShift - 1) // of the first life
	where := fmt.Sprintf("seed %d, life %d", seed, w.life)
	if sh == nil {
		where += ", while the process lived"
	} else {
		where += fmt.Sprintf(", write index %d, draw %d (%s, %s, %v; metadata %d %%)", sh.step, i, im.cut, sh.phase, im.outcome, im.percent)
	}
	c.mu.Lock()
	first := len(c.res.Violations) == 0
	if first {
		c.res.FirstAt, c.res.FirstSeed = c.res.Cuts, seed
	}
	c.res.Violations = append(c.res.Violations, where+": "+text)
	c.mu.Unlock()
	c.cfg.Log("VIOLATION %s: %s", where, text)
	if !first || c.cfg.Artifacts == "" {
		return
	}
	var saved *savedImage
	if im != nil {
		saved = sh.saved(w.set.Seed, i)
		saved.facts = im.facts
	}
	dir, err := w.save(c.cfg.Artifacts, sh, saved, text)
	if err != nil {
		c.cfg.Log("the image could not be kept: %v", err)
		return
	}
	if im == nil {
		c.cfg.Log("log kept in %s; run the same operations again: go test ./store/crashtest -run '^TestCampaign$' -args -seed %d -cuts 1", dir, seed)
		return
	}
	c.cfg.Log("image kept; check it again: go test ./store/crashtest -run '^TestReplay$' -v -args -replay %s", dir)
}

// MedianUnresolved is the median of the unresolved writes and records an image.
func (r *Result) MedianUnresolved() int {
	if len(r.Unresolved) == 0 {
		return 0
	}
	s := slices.Clone(r.Unresolved)
	slices.Sort(s)
	return s[len(s)/2]
}
