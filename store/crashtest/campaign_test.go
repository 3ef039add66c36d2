package crashtest

import (
	"context"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/testenv"
)

var (
	flagFull   = flag.Bool("full", false, "the numbers of make crash instead of the short form")
	flagCuts   = flag.Int("cuts", 0, "cuts to check; 0 chooses by -full")
	flagStates = flag.String("states", "", "check only cuts in these states, comma-separated")
	flagReplay = flag.String("replay", "", "folder of a kept image to check again")
	flagSoak   = flag.Duration("soak", 0, "go on with new seeds for that long")
)

// artifacts is where failing images go; git ignores it.
const artifacts = "../../crash-artifacts"

// firstSeed is -seed, or 1: the operation lists of a plain run are always the
// same.
func firstSeed() uint64 {
	if g, ok := flag.Lookup("seed").Value.(flag.Getter); ok {
		if n, ok := g.Get().(uint64); ok && n != 0 {
			return n
		}
	}
	return 1
}

// cuts is how many cuts a run checks, of which full are the full number.
func cuts(full int) int {
	switch {
	case *flagCuts > 0:
		return *flagCuts
	case *flagFull && !testenv.Race:
		return full
	case testenv.Race:
		return full * WantRaceCuts / WantCuts
	}
	return full / 20
}

// TestCampaign cuts power at writes of random workloads and compares what comes
// back with what was promised.
func TestCampaign(t *testing.T) { campaignTest(t, WantCuts, nil) }

// TestControllers is the campaign on pools of one to three controller models of
// different shapes behind the NVMe driver, with the models' own volatile cache.
func TestControllers(t *testing.T) { campaignTest(t, WantControllerCuts, UseControllers) }

func campaignTest(t *testing.T, full int, tune func(*Setup)) {
	only, err := StatesNamed(*flagStates)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for seed := firstSeed(); ; {
		r := Run(context.Background(), Config{Seed: seed, Cuts: cuts(full), Only: only, Tune: tune, Artifacts: artifacts, Log: t.Logf})
		var b strings.Builder
		if err := r.Print(&b); err != nil {
			t.Fatal(err)
		}
		t.Logf("%v\n%s", time.Since(start).Round(time.Millisecond), b.String())
		for _, v := range r.Violations {
			t.Errorf("VIOLATION %s", v)
		}
		if *flagFull && !testenv.Race && *flagCuts == 0 && only == 0 {
			for _, m := range r.Missing(full) {
				t.Errorf("not reached: %s", m)
			}
		}
		if seed = r.LastSeed + 1; t.Failed() || time.Since(start) >= *flagSoak {
			return
		}
	}
}

// TestLockIsNeeded: if the commands of a dead owner may land while the next one
// works, the laboratory finds wrong bytes. This is why the lock of I5 must be
// held until the last of them has landed.
func TestLockIsNeeded(t *testing.T) {
	r := Run(context.Background(), Config{Seed: firstSeed(), Cuts: 3000, Tune: func(s *Setup) {
		s.NoLock, s.Incidents = true, nil
	}})
	if len(r.Violations) == 0 {
		t.Fatalf("not found in %d cuts, of which %d of the host alone", r.Cuts, r.ByCut[CutHost])
	}
	t.Logf("found at cut %d: %.300s", r.FirstAt, r.Violations[0])
}

// TestReplay checks a kept image again.
func TestReplay(t *testing.T) {
	if *flagReplay == "" {
		t.Log("nothing to replay; -replay names a folder of crash-artifacts")
		return
	}
	violations, err := Replay(context.Background(), *flagReplay)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range violations {
		t.Errorf("VIOLATION %s", v)
	}
}

// TestReplayFindsTheSame keeps an image, spoils one byte of a value in it, and
// replays it: the whole way from a violation to its replay works.
func TestReplayFindsTheSame(t *testing.T) {
	t.Run("disks", func(t *testing.T) { testReplay(t, func(*Setup) {}) })
	t.Run("controllers", func(t *testing.T) { testReplay(t, UseControllers) })
}

func testReplay(t *testing.T, tune func(*Setup)) {
	set := NewSetup(3)
	tune(&set)
	set.Incidents, set.Reformat = nil, false
	w, err := newWorld(set)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.run(context.Background()); err != nil || len(w.faults) > 0 {
		t.Fatal(err, w.faults)
	}
	sh := w.shots[len(w.shots)-1]
	saved := sh.saved(set.Seed, 0)
	saved.facts.Extra = extraNone
	replay := func() []string {
		dir, err := w.save(t.TempDir(), sh, saved, "a test")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir + "/" + logFile); err != nil {
			t.Error(err)
		}
		v, err := Replay(context.Background(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := replay(); len(v) > 0 {
		t.Fatalf("a good image: %v", v)
	}
	spoiled := 0
	for _, d := range saved.disks {
		for lba := range d.opts.Capacity / d.opts.BlockSize {
			if b := d.content.get(lba); valueID(b) != 0 {
				d.content.set(lba, b[:100]+string(b[100]^1)+b[101:])
				spoiled++
			}
		}
	}
	if v := replay(); spoiled == 0 || len(v) == 0 {
		t.Fatalf("%d spoiled blocks, found %v", spoiled, v)
	}
}
