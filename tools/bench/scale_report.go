package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
)

// ScalePlan is what RunScales measures.
type ScalePlan struct {
	Counts []int // of objects
	Opens  int   // clean opens, of which the median counts; as many crashes
	Puts   int   // stores of at most this many objects are made with puts
	Seed   uint64
	Dir    string
	// Exec does a step in a process of its own. After ScaleCrash it kills that
	// process.
	Exec     func(ctx context.Context, st ScaleStep) (*ScaleSample, error)
	Progress func(n int64) // a step has ended
}

// Steps is the number of steps.
func (p *ScalePlan) Steps() int { return len(p.Counts) * (1 + 3*p.Opens) }

// ScaleGoals are the promises: seconds per million objects, bytes an object,
// nanoseconds, keys a second.
var ScaleGoals = struct{ CleanPerM, CrashExtra, IndexBytes, GrowthPeak, LookupNS, ExistsPerS [2]float64 }{
	CleanPerM: [2]float64{0.6, 0.35}, CrashExtra: [2]float64{0.6, 0.3}, IndexBytes: [2]float64{64, 48},
	GrowthPeak: [2]float64{96, 0}, LookupNS: [2]float64{250, 130}, ExistsPerS: [2]float64{3e6, 0},
}

// ScaleRow is what was found for one number of objects.
type ScaleRow struct {
	Objects   int      `json:"objects"`
	Fill      float64  `json:"fill_seconds"`
	ByPuts    bool     `json:"filled_by_puts"`
	Clean     float64  `json:"clean_open_to_first_hit_seconds"` // median
	Crash     float64  `json:"crash_open_to_first_hit_seconds"` // median
	CleanBest float64  `json:"clean_best_seconds"`
	CrashBest float64  `json:"crash_best_seconds"`
	CleanCPU  *float64 `json:"clean_open_cpu_seconds,omitempty"` // median
	LogBytes  int64    `json:"log_bytes_before_the_crash"`
	Index     *float64 `json:"index_bytes_per_object,omitempty"`
	OffHeap   *float64 `json:"off_heap_bytes_per_object,omitempty"`
	RSS       *float64 `json:"rss_bytes_per_object,omitempty"`
	Peak      *float64 `json:"open_peak_bytes_per_object,omitempty"`
	Growth    *float64 `json:"growth_peak_bytes_per_object,omitempty"`
	Lookup    *float64 `json:"lookup_ns,omitempty"`
	Exists    *float64 `json:"exists_keys_per_s,omitempty"`
}

// RunScales measures each number of objects on a store of its own.
func RunScales(ctx context.Context, p ScalePlan) (rows []ScaleRow, err error) {
	for _, n := range p.Counts {
		dir := filepath.Join(p.Dir, fmt.Sprintf("scale-%d", n))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		row, err := p.one(ctx, ScaleStep{Dir: dir, Objects: n, Puts: n <= p.Puts, Seed: p.Seed})
		if rerr := os.RemoveAll(dir); err == nil {
			err = rerr
		}
		if err != nil {
			return nil, err
		}
		rows = append(rows, *row)
	}
	return rows, nil
}

func (p *ScalePlan) one(ctx context.Context, st ScaleStep) (*ScaleRow, error) {
	row := &ScaleRow{Objects: st.Objects, ByPuts: st.Puts}
	do := func(what string) (*ScaleSample, error) {
		st.Do = what
		s, err := p.Exec(ctx, st)
		p.Progress(1)
		return s, err
	}
	s, err := do(ScaleFill)
	if err != nil {
		return nil, err
	}
	row.Fill, row.Growth = *s.FillSeconds, s.GrowthPeak
	var clean, crash []*ScaleSample
	for range p.Opens {
		if s, err = do(ScaleOpen); err != nil {
			return nil, err
		}
		clean = append(clean, s)
	}
	for range p.Opens {
		if s, err = do(ScaleCrash); err != nil {
			return nil, err
		}
		row.LogBytes = max(row.LogBytes, *s.LogBytes)
		if s, err = do(ScaleOpen); err != nil {
			return nil, err
		}
		crash = append(crash, s)
	}
	row.sum(clean, crash)
	return row, nil
}

func (row *ScaleRow) sum(clean, crash []*ScaleSample) {
	of := func(list []*ScaleSample, get func(*ScaleSample) *float64) *float64 {
		var v []float64
		for _, s := range list {
			if p := get(s); p != nil {
				v = append(v, *p)
			}
		}
		if len(v) == 0 {
			return nil
		}
		return ptr(median(v))
	}
	first := func(s *ScaleSample) *float64 { return s.FirstHitSeconds }
	row.Clean, row.Crash = *of(clean, first), *of(crash, first)
	row.CleanBest, row.CrashBest = *clean[0].FirstHitSeconds, *crash[0].FirstHitSeconds
	for i := range clean {
		row.CleanBest = min(row.CleanBest, *clean[i].FirstHitSeconds)
		row.CrashBest = min(row.CrashBest, *crash[i].FirstHitSeconds)
	}
	row.CleanCPU = of(clean, func(s *ScaleSample) *float64 { return s.OpenCPU })
	row.Index = of(clean, func(s *ScaleSample) *float64 { return s.IndexBytes })
	row.OffHeap = of(clean, func(s *ScaleSample) *float64 { return s.OffHeapBytes })
	row.RSS = of(clean, func(s *ScaleSample) *float64 { return s.RSSBytes })
	row.Peak = of(clean, func(s *ScaleSample) *float64 { return s.PeakBytes })
	row.Lookup = of(clean, func(s *ScaleSample) *float64 { return s.LookupNS })
	row.Exists = of(clean, func(s *ScaleSample) *float64 { return s.ExistsPerS })
}

// WriteScaleTable writes the rows for people.
func WriteScaleTable(w io.Writer, rows []ScaleRow) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "objects\tmade in\tclean open: best\tmedian\tCPU\tcrash open: best\tmedian\tlog\tindex B\toff-heap B\tRSS B\topen peak B\tgrowth peak B\tlookup ns\texists/s\t")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%.1f s\t%.3f s\t%.3f s\t%s\t%.3f s\t%.3f s\t%.1f MiB\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", grouped(fmt.Sprint(r.Objects)), r.Fill,
			r.CleanBest, r.Clean, span(r.CleanCPU), r.CrashBest, r.Crash, float64(r.LogBytes)/(1<<20), number(r.Index), number(r.OffHeap), number(r.RSS), number(r.Peak),
			number(r.Growth), number(r.Lookup), number(r.Exists))
	}
	return t.Flush()
}
