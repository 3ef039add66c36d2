package main

import (
	"flag"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/testenv"
)

// TestMain is also the processes that the part exits starts.
func TestMain(m *testing.M) {
	flag.Parse()
	if *life != "" {
		main()
		return
	}
	testenv.Main(m)
}

// TestExits is the part exits in short, on a simulated GPU.
func TestExits(t *testing.T) {
	*which, *dir, *ends = "host", t.TempDir(), 8
	if err := (&rig{}).exits(); err != nil {
		t.Fatal(err)
	}
}

// TestMeasures runs the parts that only measure, in short and on a simulated GPU: they
// compare the bytes that they moved, and each notes its figures.
func TestMeasures(t *testing.T) {
	*which, *dir, *size, *rounds = "host", t.TempDir(), 16<<20, 1
	r, err := openRig()
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	for name, p := range map[string]struct {
		fn      func() error
		figures int
	}{"cached": {r.cached, 4}, "windows": {r.callWindows, 1}, "depth": {r.depth, 1}, "disk": {r.disk, 1}, "pinned": {r.pinned, 3}} {
		r.figures = nil
		if err := p.fn(); err != nil || len(r.figures) != p.figures {
			t.Errorf("%s: %v; %d figures, want %d", name, err, len(r.figures), p.figures)
		}
	}
}

// TestFigures: what is met, and the median of ratios.
func TestFigures(t *testing.T) {
	r := &rig{}
	r.atLeast(0.95, 0.95, "(b) at the gate")
	r.atLeast(0.95, 0.949, "(a) below")
	r.atMost(50, 50, "(f) at the gate")
	r.atMost(50, 50.1, "(e) above")
	for i, want := range []bool{true, false, true, false} {
		if f := r.figures[i]; f.met() != want {
			t.Errorf("%+v: met %v", f, !want)
		}
	}
	peer, ours := []time.Duration{10, 40, 90}, []time.Duration{10, 20, 30}
	if got := times(peer, ours); got != 2 || mid(peer) != 40 {
		t.Errorf("%v times, median %v", got, mid(peer))
	}
}
