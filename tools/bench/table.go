package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// notMeasured stands where a figure was not measured.
const notMeasured = "n/a"

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	m := &r.Machine
	if _, err := fmt.Fprint(w, r.ways()); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "%d CPUs (%s), %s, load %s at the start; %d rounds, seed %d, %.0f s\n",
		m.CPUs, orNot(m.CPU), orNot(m.Filesystem), orNot(m.Load), r.Rounds, r.Seed, r.Seconds); err != nil {
		return err
	}
	for _, g := range r.Groups {
		if err := g.writeTable(w); err != nil {
			return err
		}
	}
	return nil
}

// ways is the first line: which ways the values of the store took.
func (r *Report) ways() string {
	var ways []string
	for _, g := range r.Groups {
		for _, row := range g.Rows {
			if row.Subject == Store && row.Note != "" && !slices.Contains(ways, row.Note) {
				ways = append(ways, row.Note)
			}
		}
	}
	if len(ways) == 0 {
		return ""
	}
	return "values of the store: " + strings.Join(ways, "; ") + "\n"
}

func (g *GroupReport) writeTable(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "\n%s\n", g.Name); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tMB/s\tops/s\tp50\tp99\tputs/flush\tputs/WAL sync\tallocs/op\tCPU/op\t")
	for _, r := range g.Rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.Subject, number(r.MBPerS), number(&r.OpsPerS),
			span(r.P50), span(r.P99), number(r.PutsPerFlush), number(r.PutsPerSync), number(r.Allocs), span(r.CPU))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range g.Rows {
		if r.Note == "" || r.Subject == Store { // that of the store is the first line
			continue
		}
		if _, err := fmt.Fprintf(w, "  %s: %s\n", r.Subject, r.Note); err != nil {
			return err
		}
	}
	for _, q := range g.Ratio {
		if _, err := fmt.Fprintf(w, "  %s / %s: %.2f (minima %.2f, pairs %.2f)%s\n",
			q.Subject, q.Base, q.Value, q.OfMinima, q.OfPairs, q.goalText()); err != nil {
			return err
		}
	}
	return nil
}

func (q *Ratio) goalText() string {
	if q.Gate == 0 {
		return ""
	}
	s := fmt.Sprintf(", gate %.2g", q.Gate)
	if q.Aim > 0 {
		s += fmt.Sprintf(", aim %.2g", q.Aim)
	}
	return s + ": " + map[string]string{"missed": "MISSED", "gate": "gate met", "aim": "aim met"}[q.Verdict]
}

func orNot(s string) string {
	if s == "" {
		return notMeasured
	}
	return s
}

// number prints three significant digits, and whole numbers above.
func number(v *float64) string {
	switch {
	case v == nil:
		return notMeasured
	case *v >= 100:
		return grouped(fmt.Sprintf("%.0f", *v))
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", *v), ".0")
}

// grouped puts commas between thousands.
func grouped(digits string) string {
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func span(seconds *float64) string {
	if seconds == nil {
		return notMeasured
	}
	d := time.Duration(*seconds * 1e9)
	switch {
	case d < 10*time.Microsecond:
		return d.Round(10 * time.Nanosecond).String()
	case d < 10*time.Millisecond:
		return d.Round(time.Microsecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}
