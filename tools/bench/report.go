package bench

import (
	"bufio"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/ugds-store/ugds/internal/unix"
)

// minProcesses is from how many rounds on a ratio of minima decides; with fewer
// the median of pairs does.
const minProcesses = 10

// Report is what a bench found. What was not measured is absent.
type Report struct {
	Version int            `json:"version"`
	Began   time.Time      `json:"began"`
	Seconds float64        `json:"seconds"`
	Seed    uint64         `json:"seed"`
	Rounds  int            `json:"rounds"`
	Machine Machine        `json:"machine"`
	Groups  []*GroupReport `json:"groups"`
}

// Machine describes where a bench ran, without names.
type Machine struct {
	CPUs       int    `json:"cpus"`
	CPU        string `json:"cpu,omitempty"`
	Arch       string `json:"arch"`
	Go         string `json:"go"`
	Filesystem string `json:"filesystem,omitempty"`
	Load       string `json:"load_average,omitempty"` // at the start
}

// GroupReport is one workload.
type GroupReport struct {
	Name  string  `json:"name"`
	Case  Case    `json:"case"`
	Rows  []Row   `json:"rows"`
	Ratio []Ratio `json:"ratios"`
}

// Row is one contestant of a group.
type Row struct {
	Subject string    `json:"subject"`
	Engine  string    `json:"engine,omitempty"`
	Note    string    `json:"note,omitempty"`
	Seconds []float64 `json:"seconds"` // of each process
	Best    float64   `json:"best_seconds"`
	Median  float64   `json:"median_seconds"`
	MBPerS  *float64  `json:"median_mb_per_s,omitempty"` // 10^6 bytes
	OpsPerS float64   `json:"median_ops_per_s"`

	P50          *float64 `json:"p50_seconds,omitempty"` // medians over the processes
	P99          *float64 `json:"p99_seconds,omitempty"`
	PutsPerFlush *float64 `json:"puts_per_flush,omitempty"`
	PutsPerSync  *float64 `json:"puts_per_wal_sync,omitempty"`
	Allocs       *float64 `json:"allocs_per_op,omitempty"`
	CPU          *float64 `json:"cpu_seconds_per_op,omitempty"`
}

// Ratio is throughput divided by that of the baseline.
type Ratio struct {
	Goal
	OfMinima float64 `json:"of_minima"`       // best time of the baseline over best time
	OfPairs  float64 `json:"median_of_pairs"` // median over the rounds
	By       string  `json:"judged_by"`       // "minima" or "pairs"
	Value    float64 `json:"value"`
	Verdict  string  `json:"verdict"` // "aim", "gate", "missed", or "" without a gate
}

func newGroupReport(g *Group, samples map[string][]*Sample) *GroupReport {
	out := &GroupReport{Name: g.Case.Name(), Case: g.Case}
	for _, s := range g.Subjects {
		out.Rows = append(out.Rows, newRow(s, samples[s]))
	}
	for _, goal := range g.Goals {
		out.Ratio = append(out.Ratio, newRatio(goal, samples[goal.Subject], samples[goal.Base]))
	}
	return out
}

func newRow(subject string, samples []*Sample) Row {
	r := Row{Subject: subject}
	for _, s := range samples {
		r.Seconds = append(r.Seconds, s.Seconds)
	}
	r.Best, r.Median = slices.Min(r.Seconds), median(r.Seconds)
	s := samples[0]
	r.Engine, r.Note = s.Engine, s.Note
	if s.Bytes > 0 {
		r.MBPerS = ptr(float64(s.Bytes) / 1e6 / r.Median)
	}
	r.OpsPerS = float64(s.Ops) / r.Median
	r.P50 = medianOf(samples, func(s *Sample) *float64 { return s.P50 })
	r.P99 = medianOf(samples, func(s *Sample) *float64 { return s.P99 })
	r.PutsPerFlush = medianOf(samples, func(s *Sample) *float64 { return s.PutsPerFlush })
	r.PutsPerSync = medianOf(samples, func(s *Sample) *float64 { return s.PutsPerSync })
	r.Allocs = medianOf(samples, func(s *Sample) *float64 { return s.Allocs })
	r.CPU = medianOf(samples, func(s *Sample) *float64 { return s.CPU })
	return r
}

func newRatio(g Goal, mine, base []*Sample) Ratio {
	r := Ratio{Goal: g, By: "pairs"}
	var pairs []float64
	best := [2]float64{math.Inf(1), math.Inf(1)}
	for i := range min(len(mine), len(base)) {
		pairs = append(pairs, base[i].Seconds/mine[i].Seconds)
		best[0], best[1] = min(best[0], mine[i].Seconds), min(best[1], base[i].Seconds)
	}
	r.OfPairs, r.OfMinima = median(pairs), best[1]/best[0]
	r.Value = r.OfPairs
	if len(pairs) >= minProcesses {
		r.By, r.Value = "minima", r.OfMinima
	}
	switch {
	case g.Gate == 0:
	case r.Value < g.Gate:
		r.Verdict = "missed"
	case g.Aim > 0 && r.Value >= g.Aim:
		r.Verdict = "aim"
	default:
		r.Verdict = "gate"
	}
	return r
}

// Missed lists what misses its gate.
func (r *Report) Missed() (out []string) {
	for _, g := range r.Groups {
		for _, q := range g.Ratio {
			if q.Verdict == "missed" {
				out = append(out, g.Name+" against "+q.Base)
			}
		}
	}
	return out
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// medianOf is nil when no process measured it.
func medianOf(samples []*Sample, of func(*Sample) *float64) *float64 {
	var v []float64
	for _, s := range samples {
		if p := of(s); p != nil {
			v = append(v, *p)
		}
	}
	if len(v) == 0 {
		return nil
	}
	return ptr(median(v))
}

func describeMachine(dir string) Machine {
	m := Machine{CPUs: runtime.NumCPU(), Arch: runtime.GOARCH, Go: runtime.Version()}
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		for sc := bufio.NewScanner(f); sc.Scan() && m.CPU == ""; {
			if name, value, ok := strings.Cut(sc.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
			}
		}
		_ = f.Close()
	}
	if fs, err := unix.StatFS(dir); err == nil {
		m.Filesystem = fs.Type
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(b))[:3], " ")
	}
	return m
}
