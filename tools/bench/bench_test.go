package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// smallPlace makes the files of a bench of 4 MiB.
func smallPlace(t *testing.T) Place {
	t.Helper()
	p := Place{Dir: t.TempDir(), Fio: FindFio()}
	var wrote int64
	if err := Prepare(t.Context(), p, 4*base.MiB, func(n int64) { wrote += n }); err != nil {
		t.Fatal(err)
	}
	if want := PrepareBytes(p, 4*base.MiB); wrote != want {
		t.Errorf("wrote %d bytes, announced %d", wrote, want)
	}
	return p
}

// TestEveryCase runs every workload on every contestant that suits it, in this
// process: no byte is wrong, and the counters agree.
func TestEveryCase(t *testing.T) {
	place := smallPlace(t)
	for _, op := range []string{OpPut, OpGet, OpMixed, OpDelete, OpExists} {
		for _, subject := range []string{Store, Raw, Ring, Files, PebbleKV, PebbleSync, CommitLoop} {
			for _, c := range []Case{
				{Size: 4096, Objects: 64, Callers: 4, Batch: 1, Sync: true},
				{Size: 5000, Objects: 60, Callers: 3, Batch: 7, Plain: true},
				{Size: 65536, Objects: 32, Callers: 1, Batch: 32, Depth: 8},
				{Size: 5001, Objects: 40, Callers: 2, Batch: 4, GPU: "host"},
			} {
				c.Subject, c.Op, c.Place, c.Seed = subject, op, place, 7
				if !suits(subject, &c) {
					continue
				}
				s, err := RunCase(t.Context(), c)
				if err != nil {
					t.Fatalf("%s, %s: %v", subject, c.Name(), err)
				}
				if s.Seconds <= 0 || s.Ops != int64(c.Objects) || *s.P50 > *s.P99 || *s.P99 > *s.Max {
					t.Errorf("%s, %s: %+v", subject, c.Name(), s)
				}
				if onGPU := c.GPU != "" && subject == Store; onGPU && op != OpDelete && op != OpExists && !strings.Contains(s.Note, "host memory, since") {
					t.Errorf("%s, %s: the way is not told: %q", subject, c.Name(), s.Note)
				}
				counted := s.DeviceBytes != nil
				if counted != (subject == Store || subject == Ring) {
					t.Errorf("%s: device bytes %v", subject, s.DeviceBytes)
				}
			}
		}
	}
	if left, err := os.ReadDir(filepath.Join(place.Dir, filesName)); err != nil || len(left) > 0 {
		t.Errorf("files left behind: %v, %v", left, err)
	}
}

func TestFio(t *testing.T) {
	place := smallPlace(t)
	if place.Fio == "" {
		testenv.Skip(t, "fio is not installed: the bench leaves it out as well")
	}
	c := Case{Subject: Fio, Op: OpGet, Size: 65536, Objects: 64, Callers: 1, Batch: 32, Place: place}
	s, err := RunCase(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if s.Seconds <= 0 || s.Bytes != 4*base.MiB || s.Allocs != nil || s.PutsPerFlush != nil {
		t.Errorf("%+v", s)
	}
	c.Op = OpPut
	if _, err := RunCase(t.Context(), c); !errors.Is(err, base.ErrNotSupported) {
		t.Errorf("put: %v", err)
	}
}

// TestWrongCounters covers G-06 and I-05: a contestant whose counters disagree
// with what was asked fails the run, on both sides of the tolerance.
func TestWrongCounters(t *testing.T) {
	asked := int64(100 * base.MiB)
	for moved, good := range map[int64]bool{asked: true, asked + asked/100: true, asked - asked/100: true,
		asked + asked/99: false, asked - asked/99: false, 0: false, 2 * asked: false} {
		s := &Sample{Case: Case{Subject: Store, Op: OpGet, Size: base.MiB, Objects: 100}, Ops: 100}
		err := s.counters(counts{read: 5, hasBytes: true}, counts{read: 5 + moved, hasBytes: true})
		if good != (err == nil) || !good && !errors.Is(err, base.ErrCorrupt) {
			t.Errorf("%d of %d bytes: %v", moved, asked, err)
		}
	}
	s := &Sample{Case: Case{Subject: Store, Op: OpGet, Size: 1, Objects: 1}}
	if err := s.counters(counts{}, counts{}); err != nil || s.DeviceBytes != nil {
		t.Errorf("no counters: %v, %v", err, s.DeviceBytes)
	}
}

// wrong answers gets with bytes that were never put.
type wrong struct{ d *dataset }

func (w *wrong) caller() caller                                 { return w }
func (w *wrong) settle(context.Context) error                   { return nil }
func (w *wrong) count() counts                                  { return counts{} }
func (w *wrong) close(context.Context) error                    { return nil }
func (w *wrong) do(_ context.Context, op string, _ []int) error { return nil }

func TestWrongBytes(t *testing.T) {
	for _, op := range []string{OpPut, OpGet, OpMixed} {
		c := Case{Subject: Store, Op: op, Size: 4096, Objects: 4, Callers: 1, Batch: 1}
		d, err := newDataset(&c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := measure(t.Context(), &wrong{d}, d); !errors.Is(err, base.ErrCorrupt) {
			t.Errorf("%s: %v", op, err)
		}
		d.close()
	}
}

func TestValuesAreDistinct(t *testing.T) {
	c := Case{Size: 100, Objects: 300, Callers: 1, Batch: 1, Seed: 3}
	d, err := newDataset(&c)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	seen := map[string]bool{}
	for version := uint64(1); version <= 2; version++ {
		for i := range c.Objects {
			d.fill(i, version)
			v := string(d.src.Bytes(d.off(i), c.Size))
			if seen[v] {
				t.Fatalf("object %d, version %d is the value of another one", i, version)
			}
			seen[v] = true
		}
	}
}

func TestBadCases(t *testing.T) {
	good := Case{Subject: Store, Op: OpPut, Size: 1, Objects: 1, Callers: 1, Batch: 1}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Case){
		"no size": func(c *Case) { c.Size = 0 }, "no objects": func(c *Case) { c.Objects = 0 },
		"too large": func(c *Case) { c.Size = MaxBytes + 1 }, "too many": func(c *Case) { c.Objects = maxObjects + 1 },
		"no callers": func(c *Case) { c.Callers = 0 }, "many callers": func(c *Case) { c.Callers = MaxCallers + 1 },
		"no batch": func(c *Case) { c.Batch = 0 }, "large batch": func(c *Case) { c.Batch = 2 },
		"depth": func(c *Case) { c.Depth = MaxDepth + 1 }, "contestant": func(c *Case) { c.Subject = "x" },
	} {
		c := good
		change(&c)
		if _, err := RunCase(t.Context(), c); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPlan runs a plan in this process and looks at all three forms of its report.
func TestPlan(t *testing.T) {
	place := smallPlace(t)
	sweep := Sweep{Ops: []string{OpPut, OpGet, OpExists}, Subjects: []string{Store, Raw, Files}, Sizes: []int64{4096, 65536},
		Callers: []int{2}, Batches: []int{1}, Depths: []int{0}, Sync: []bool{false}, Bytes: base.MiB, MaxObjects: 64}
	var cases []string
	p := Plan{Groups: sweep.Groups(), Rounds: 3, Seed: 9, Place: place, Exec: RunCase,
		Progress: func(_, _ int, c Case) { cases = append(cases, c.Subject) }}
	r, err := Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) != p.Steps() || !slices.Equal(cases[:9], []string{Store, Raw, Files, Raw, Files, Store, Files, Store, Raw}) {
		t.Errorf("the contestants do not take turns: %v of %d", cases, p.Steps())
	}
	var doc Report
	b, err := json.Marshal(r)
	if err == nil {
		err = json.Unmarshal(b, &doc)
	}
	if err != nil || doc.Version != Version || len(doc.Groups) != 6 {
		t.Fatalf("%v: %s", err, b)
	}
	if strings.Contains(string(b), `"puts_per_flush":null`) {
		t.Error("a figure that was not measured is in the document")
	}
	var text, html bytes.Buffer
	if err := r.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"put 64.0 KiB, 2 callers", "store / raw slots", "file per object", notMeasured} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &text)
		}
	}
	if err := r.WriteHTML(&html); err != nil {
		t.Fatal(err)
	}
	checkPage(t, html.String())
}

// checkPage: the page is whole, has a plot for each group, and needs nothing
// from elsewhere.
func checkPage(t *testing.T, page string) {
	t.Helper()
	if n := strings.Count(page, "<svg"); n != 6+2 {
		t.Errorf("%d plots, want one a workload and one for each that has two sizes", n)
	}
	for _, bad := range []string{"http:", "https:", "src=", "url(", "@import", "<script", "NaN", "Inf", "ZgotmplZ"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatalf("the page is not well formed: %v", err)
		}
	}
}

func TestRatios(t *testing.T) {
	samples := func(s ...float64) (out []*Sample) {
		for _, v := range s {
			out = append(out, &Sample{Seconds: v})
		}
		return out
	}
	r := newRatio(Goal{Gate: 0.8, Aim: 0.9}, samples(1, 2, 4), samples(0.5, 2, 2))
	if r.OfMinima != 0.5 || r.OfPairs != 0.5 || r.By != "pairs" || r.Verdict != "missed" {
		t.Errorf("%+v", r)
	}
	many := make([]float64, minProcesses)
	for i := range many {
		many[i] = float64(i + 1)
	}
	r = newRatio(Goal{Gate: 0.8, Aim: 2}, samples(many...), samples(many...))
	if r.By != "minima" || r.Value != 1 || r.Verdict != "gate" {
		t.Errorf("%+v", r)
	}
	if r = newRatio(Goal{Gate: 0.8, Aim: 0.9}, samples(many...), samples(many...)); r.Verdict != "aim" {
		t.Errorf("%+v", r)
	}
	if r = newRatio(Goal{}, samples(1), samples(9)); r.Verdict != "" {
		t.Errorf("no gate: %+v", r)
	}
	if m := median([]float64{3, 1, 2, 10}); m != 2.5 {
		t.Errorf("median %v", m)
	}
}

// TestQuantiles covers I-05 with known data.
func TestQuantiles(t *testing.T) {
	var d []time.Duration
	for i := 1; i <= 100; i++ {
		d = append(d, time.Duration(i)*time.Second)
	}
	for q, want := range map[float64]float64{0: 1, 0.01: 1, 0.5: 50, 0.99: 99, 0.999: 100, 1: 100} {
		if got := quantile(d, q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}

// promised are the gates and aims of the project, by workload and contestant.
var promised = map[string]Goal{
	"put 64.0 KiB x8 raw":         {Gate: 0.85, Aim: 0.95},
	"put 1.0 MiB x8 raw":          {Gate: 0.9, Aim: 0.95},
	"put 2.0 MiB x8 raw":          {Gate: 0.9, Aim: 0.95},
	"put 64.0 KiB x8 files":       {Gate: 3, Aim: 5},
	"put 1.0 MiB x8 files":        {Gate: 1.3, Aim: 1.8},
	"put 2.0 MiB x8 files":        {Gate: 1, Aim: 1.2},
	"get 64.0 KiB x8 raw":         {Gate: 0.85, Aim: 0.95},
	"get 1.0 MiB x8 raw":          {Gate: 0.85, Aim: 0.95},
	"get 2.0 MiB x8 raw":          {Gate: 0.85, Aim: 0.95},
	"get 64.0 KiB x1/32 fio":      {Gate: 0.8, Aim: 0.9},
	"get 1.0 MiB x1/32 fio":       {Gate: 0.8, Aim: 0.9},
	"get 64.0 KiB x1/32 files":    {Gate: 2, Aim: 3},
	"put 4.0 KiB x64 sync loop":   {Gate: 0.8, Aim: 0.95},
	"put 4.0 KiB x64 sync pebble": {Gate: 0.35},
}

// promise names a goal as promised does.
func promise(c *Case, g Goal) string {
	name := fmt.Sprintf("%s %s x%d", c.Op, base.FormatBytes(c.Size), c.Callers)
	if c.Batch > 1 {
		name += fmt.Sprintf("/%d", c.Batch)
	}
	if c.Sync {
		name += " sync"
	}
	short := map[string]string{Raw: "raw", Files: "files", Fio: "fio", CommitLoop: "loop", PebbleSync: "pebble"}
	return name + " " + short[g.Base]
}

// TestSuites: each suite is whole, and the gates are those that the project promises.
func TestSuites(t *testing.T) {
	for _, name := range Suites() {
		groups, err := SuiteGroups(name, 16*base.MiB, true)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range groups {
			c := g.Case
			c.Subject = Store
			if err := c.check(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for _, goal := range g.Goals {
				if !slices.Contains(g.Subjects, goal.Base) {
					t.Errorf("%s, %s: %s is not measured", name, g.Case.Name(), goal.Base)
				}
			}
		}
	}
	groups, err := SuiteGroups("gates", 16*base.MiB, true)
	if err != nil {
		t.Fatal(err)
	}
	judged := 0
	for _, g := range groups {
		for _, goal := range g.Goals {
			if goal.Gate == 0 {
				continue
			}
			judged++
			if want := promised[promise(&g.Case, goal)]; goal.Subject != Store || goal.Gate != want.Gate || goal.Aim != want.Aim {
				t.Errorf("%s: %+v, want %+v", promise(&g.Case, goal), goal, want)
			}
		}
	}
	if judged != len(promised) {
		t.Errorf("%d gates, want %d", judged, len(promised))
	}
	if _, err := SuiteGroups("x", base.MiB, false); !errors.Is(err, base.ErrInvalid) {
		t.Error(err)
	}
}

// TestScale makes small stores both ways, and opens them.
func TestScale(t *testing.T) {
	for _, puts := range []bool{true, false} {
		st := ScaleStep{Dir: t.TempDir(), Objects: 5000, Puts: puts, Seed: 1, Do: ScaleFill}
		if _, err := RunScale(t.Context(), st); err != nil {
			t.Fatal(err)
		}
		st.Do = ScaleOpen
		s, err := RunScale(t.Context(), st)
		if err != nil {
			t.Fatal(err)
		}
		if s.Objects != 5000 || *s.FirstHitSeconds < *s.OpenSeconds || *s.IndexBytes < 40 || *s.ExistsPerS <= 0 || s.GrowthPeak != nil {
			t.Errorf("%+v", s)
		}
	}
	if _, err := RunScale(t.Context(), ScaleStep{Objects: 1, Do: "x"}); !errors.Is(err, base.ErrInvalid) {
		t.Error(err)
	}
}

// TestE02FirstLine: the first line of each report for people tells which way the
// bytes took.
func TestE02FirstLine(t *testing.T) {
	way := driver.PathStaged.String()
	r := Report{Groups: []*GroupReport{{Rows: []Row{{Subject: Raw, Note: "other"}, {Subject: Store, Note: way}}}}}
	g := GatherReport{Rows: []GatherRow{{Paths: []PathRow{{way, "", 1}, {"unused", "", 0}}}}}
	d := DeviceReport{Target: "file:x"}
	for name, c := range map[string]struct {
		write func(io.Writer) error
		want  string
	}{
		"store":  {r.WriteTable, "values of the store: " + way},
		"gather": {func(w io.Writer) error { return g.WriteTable(w, false) }, "by " + way + ";"},
		"device": {func(w io.Writer) error { return d.WriteTable(w, false) }, "all bytes direct"},
	} {
		var b strings.Builder
		if err := c.write(&b); err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(b.String(), "\n")
		if !strings.Contains(first, c.want) || strings.Contains(first, "unused") || strings.Contains(first, "other") {
			t.Errorf("%s: %q", name, first)
		}
	}
}
