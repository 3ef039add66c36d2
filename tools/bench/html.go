package bench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"

	"github.com/ugds-store/ugds/internal/base"
)

//go:embed page.html
var pageText string

// colors of the contestants, told apart by colour-blind people too.
var colors = map[string]string{Store: "#0072b2", Raw: "#e69f00", Ring: "#d55e00", Files: "#009e73", PebbleKV: "#cc79a7",
	CommitLoop: "#56b4e9", PebbleSync: "#a65628", Fio: "#7f7f7f"}

// Sizes of the plots, in pixels.
const (
	plotWidth   = 860.0
	labelWidth  = 140.0
	valueWidth  = 130.0
	barHeight   = 26.0
	linesHeight = 300.0
)

// barPlot is one workload: a bar for the median of each contestant, a dot for
// each process.
type barPlot struct {
	Height float64
	Unit   string
	Bars   []bar
	Ticks  []tick
}

type bar struct {
	Label, Color, Value string
	Y, Width            float64
	Dots                []float64
}

type tick struct {
	At    float64
	Label string
}

// linePlot shows throughput over the size of values.
type linePlot struct {
	Title  string
	Ticks  []tick // of the sizes
	Levels []tick // of the throughput
	Lines  []line
}

type line struct {
	Label, Color, Points string
	Dots                 []point
	LegendY              float64
}

type point struct{ X, Y float64 }

type page struct {
	*Report
	Lines []linePlot
}

// WriteHTML writes a page with plots that needs no network.
func (r *Report) WriteHTML(w io.Writer) error {
	t, err := template.New("page").Funcs(template.FuncMap{
		"bars": bars, "number": number, "span": span, "orNot": orNot, "goal": goalCell, "bytes": base.FormatBytes,
		"ratio": func(v float64) string { return fmt.Sprintf("%.2f", v) },
		"ops":   func(v float64) string { return number(&v) },
	}).Parse(pageText)
	if err != nil {
		return base.Wrap("bench", "page", err)
	}
	return base.Wrap("write", "page", t.Execute(w, page{r, linePlots(r.Groups)}))
}

// goalCell is the verdict in words, and the class of its colour.
func goalCell(q Ratio) map[string]string {
	switch q.Verdict {
	case "missed":
		return map[string]string{"text": "missed", "class": "bad"}
	case "gate":
		return map[string]string{"text": "gate met", "class": "good"}
	case "aim":
		return map[string]string{"text": "aim met", "class": "best"}
	}
	return map[string]string{"text": "no gate", "class": "none"}
}

// rate is what a process reached, in the unit of its group.
func (g *GroupReport) rate(seconds float64) float64 {
	if g.inBytes() {
		return float64(g.Case.Objects) * float64(g.Case.Size) / 1e6 / seconds
	}
	return float64(g.Case.Objects) / seconds
}

func (g *GroupReport) inBytes() bool {
	return g.Case.Op != OpDelete && g.Case.Op != OpExists && g.Case.Size >= 16*base.KiB
}

func (g *GroupReport) unit() string {
	if g.inBytes() {
		return "MB/s"
	}
	return "ops/s"
}

func bars(g *GroupReport) barPlot {
	p := barPlot{Unit: g.unit(), Height: barHeight*float64(len(g.Rows)) + 24}
	most := 0.0
	for _, r := range g.Rows {
		most = max(most, g.rate(r.Best))
	}
	step := niceStep(most, 6)
	room := plotWidth - labelWidth - valueWidth
	scale := room / max(most, step)
	for v := 0.0; v <= most+step/1e6; v += step {
		p.Ticks = append(p.Ticks, tick{labelWidth + v*scale, number(&v)})
	}
	for i, r := range g.Rows {
		median := g.rate(r.Median)
		b := bar{Label: r.Subject, Color: colors[r.Subject], Y: barHeight * float64(i), Width: median * scale,
			Value: number(&median) + " " + p.Unit}
		for _, s := range r.Seconds {
			b.Dots = append(b.Dots, labelWidth+g.rate(s)*scale)
		}
		p.Bars = append(p.Bars, b)
	}
	return p
}

// niceStep divides [0, most] into at most n steps of 1, 2 or 5 times a power of ten.
func niceStep(most float64, n int) float64 {
	if most <= 0 {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(most/float64(n))))
	for _, f := range []float64{1, 2, 5, 10} {
		if most/(p*f) <= float64(n) {
			return p * f
		}
	}
	return 10 * p
}

// linePlots makes a plot for each workload that was measured at several sizes.
func linePlots(groups []*GroupReport) (out []linePlot) {
	byTitle := map[string][]*GroupReport{}
	var titles []string
	for _, g := range groups {
		c := g.Case
		c.Size = 0
		title := fmt.Sprintf("%s, %d callers, %d a call", c.Op, c.Callers, c.Batch)
		if c.Sync {
			title += ", synced"
		}
		if c.Depth > 0 {
			title += fmt.Sprintf(", depth %d", c.Depth)
		}
		if g.Case.Op == OpDelete || g.Case.Op == OpExists {
			continue
		}
		if byTitle[title] == nil {
			titles = append(titles, title)
		}
		byTitle[title] = append(byTitle[title], g)
	}
	for _, t := range titles {
		if gs := byTitle[t]; len(gs) > 1 {
			slices.SortStableFunc(gs, func(a, b *GroupReport) int { return int(min(max(a.Case.Size-b.Case.Size, -1), 1)) })
			out = append(out, newLinePlot(t, gs))
		}
	}
	return out
}

func newLinePlot(title string, gs []*GroupReport) linePlot {
	p := linePlot{Title: title}
	mbs := func(g *GroupReport, seconds float64) float64 {
		return float64(g.Case.Objects) * float64(g.Case.Size) / 1e6 / seconds
	}
	most := 0.0
	for _, g := range gs {
		for _, r := range g.Rows {
			most = max(most, mbs(g, r.Median))
		}
	}
	room := plotWidth - labelWidth - valueWidth
	x := func(i int) float64 { return labelWidth + room*float64(i)/float64(len(gs)-1) }
	y := func(v float64) float64 { return linesHeight - 30 - (linesHeight-50)*v/most }
	step := niceStep(most, 5)
	for v := 0.0; v <= most; v += step {
		p.Levels = append(p.Levels, tick{y(v), number(&v)})
	}
	lines := map[string]*line{}
	var order []string
	for i, g := range gs {
		p.Ticks = append(p.Ticks, tick{x(i), base.FormatBytes(g.Case.Size)})
		for _, r := range g.Rows {
			l := lines[r.Subject]
			if l == nil {
				l = &line{Label: r.Subject, Color: colors[r.Subject], LegendY: 30 + 20*float64(len(order))}
				lines[r.Subject] = l
				order = append(order, r.Subject)
			}
			at := point{x(i), y(mbs(g, r.Median))}
			l.Dots = append(l.Dots, at)
			l.Points += fmt.Sprintf("%.1f,%.1f ", at.X, at.Y)
		}
	}
	for _, s := range order {
		p.Lines = append(p.Lines, *lines[s])
	}
	return p
}
