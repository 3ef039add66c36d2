package bench

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
)

// TestGather reads ranges of stores over a file and over a model, in both ways: the
// figures add up, and nothing is left in the store.
func TestGather(t *testing.T) {
	for name, p := range map[string]GatherPlan{
		"file":  {Place: smallPlace(t)},
		"model": {Place: Place{Dir: t.TempDir()}, Model: "sim:size=64MiB"},
		"512":   {Place: Place{Dir: t.TempDir()}, Model: "sim:size=64MiB,lba=512,mdts=1"},
	} {
		t.Run(name, func(t *testing.T) {
			p.Bytes, p.Size, p.Ranges, p.Rounds, p.Seed = 4*base.MiB, 10000, 500, 2, 9
			heard := 0
			p.Progress = func(int, int) { heard++ }
			r, err := Gather(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Rows) != 4 || heard != 8 || r.Objects != 419 || r.Gain <= 0 {
				t.Errorf("%d rounds heard of: %+v", heard, r)
			}
			for _, row := range r.Rows {
				if row.Asked != r.Rows[0].Asked || row.Asked < 1000*RangeUnit || row.Asked > 1000*MaxRange || row.Way == EachCall && row.Moved < row.Asked ||
					row.Seconds <= 0 || row.P50 > row.P999 || row.P999 > row.Max || len(row.Paths) == 0 {
					t.Errorf("%+v", row)
				}
				var moved int64
				for _, path := range row.Paths {
					moved += path.Bytes
					if !row.Verified && strings.Contains(path.Reason, "verify") {
						t.Errorf("nothing was verified: %+v", path)
					}
				}
				if moved != row.Moved {
					t.Errorf("%s: paths hold %d bytes, the device moved %d", row.Way, moved, row.Moved)
				}
			}
			// Verified, each range needs its whole value; one call reads each value once.
			if each, once := r.Rows[3].Moved, r.Rows[2].Moved; each < 1000*10000 || once > 2*419*12288 || once < r.Rows[2].Asked {
				t.Errorf("verified: %d bytes moved by a call a range, %d by one call", each, once)
			}
			var b strings.Builder
			if err := r.WriteTable(&b, true); err != nil || !strings.Contains(b.String(), "one call a range, verified") {
				t.Errorf("%s, %v", &b, err)
			}
		})
	}
}

func TestGatherRefuses(t *testing.T) {
	good := GatherPlan{Place: Place{Dir: t.TempDir()}, Model: "sim:size=64MiB", Bytes: base.MiB, Size: 4096, Ranges: 10, Rounds: 1}
	for what, change := range map[string]func(*GatherPlan){
		"small values": func(p *GatherPlan) { p.Size = 4095 }, "no ranges": func(p *GatherPlan) { p.Ranges = 0 },
		"ranges": func(p *GatherPlan) { p.Ranges = MaxRanges + 1 }, "rounds": func(p *GatherPlan) { p.Rounds = 0 },
		"bytes": func(p *GatherPlan) { p.Bytes = 1 },
	} {
		p := good
		change(&p)
		if _, err := Gather(t.Context(), p); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// 61 slabs of 1 MiB are left for values, each of 85 slots of 12 KiB.
	full := good
	full.Place.Dir, full.Size, full.Bytes = t.TempDir(), 10000, (61*85+1)*10000
	if _, err := Gather(t.Context(), full); !errors.Is(err, base.ErrNoSpace) || !strings.Contains(err.Error(), "room for 5185") || !strings.Contains(err.Error(), "--bytes") {
		t.Errorf("too many values: %v", err)
	}
	full.Place.Dir, full.Bytes = t.TempDir(), full.Bytes-full.Size
	if _, err := Gather(t.Context(), full); err != nil {
		t.Errorf("as many as there is room for: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	good.Progress = func(int, int) { cancel() }
	if _, err := Gather(ctx, good); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}
