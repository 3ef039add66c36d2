package main

import (
	"flag"
	"testing"

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
