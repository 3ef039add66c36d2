package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/statpage"
	"github.com/ugds-store/ugds/store"
)

// StatsOptions of Stats.
type StatsOptions struct {
	PID      int
	Watch    bool          // again and again, until an interrupt or the end of the process
	Interval time.Duration // between two looks of Watch
}

// Bounds of StatsOptions.Interval.
const (
	minInterval = 100 * time.Millisecond
	maxInterval = time.Hour
)

type statsDoc struct {
	header
	PID    int        `json:"pid"`
	Stores []storeRow `json:"stores"`
}

// storeRow is an open store of the process.
type storeRow struct {
	store.Published
	Written time.Time `json:"written"` // when the process last changed it
}

// Stats shows the counters of the stores that another process has open. It reads
// what the process publishes and does not disturb it.
func Stats(ctx context.Context, e *Env, o StatsOptions) error {
	return e.fail("stats", stats(ctx, e, o))
}

func stats(ctx context.Context, e *Env, o StatsOptions) error {
	if o.PID <= 0 {
		return usage("stats", "which process? --pid P")
	}
	if o.Interval < minInterval || o.Interval > maxInterval {
		return usage("stats", "--interval is from %v to %v", minInterval, maxInterval)
	}
	last, err := readStats(o.PID)
	if err == nil {
		err = e.statsOut(last, nil, o)
	}
	tick := time.NewTicker(o.Interval)
	defer tick.Stop()
	for err == nil && o.Watch {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		now, ended := readStats(o.PID)
		if errors.Is(ended, base.ErrNotFound) {
			return e.say("process %d has closed its stores", o.PID)
		}
		if err = ended; err == nil {
			err = e.statsOut(now, last, o)
			last = now
		}
	}
	return err
}

func readStats(pid int) (*statsDoc, error) {
	pages, err := statpage.Read(pid)
	if err != nil {
		return nil, err
	}
	doc := &statsDoc{header: head("stats", nil), PID: pid, Stores: []storeRow{}}
	for _, p := range pages {
		row := storeRow{Written: p.Written}
		if err := json.Unmarshal(p.Body, &row.Published); err != nil {
			return nil, base.Errorf("read statistics of", fmt.Sprintf("process %d", pid), base.ErrInvalid, "%w", err)
		}
		if row.Kind == store.PublishedKind {
			doc.Stores = append(doc.Stores, row)
		}
	}
	if len(doc.Stores) == 0 {
		return nil, base.WithHint(base.Errorf("read statistics of", fmt.Sprintf("process %d", pid), base.ErrNotFound,
			"it has no store open, or does not publish"), "programs publish by Store.Publish")
	}
	return doc, nil
}

// statsOut prints one look; before is the one before it, if there is one.
func (e *Env) statsOut(doc, before *statsDoc, o StatsOptions) error {
	if e.JSON {
		return e.emit(doc)
	}
	for i := range doc.Stores {
		var old *storeRow
		if before != nil && i < len(before.Stores) && before.Stores[i].Store == doc.Stores[i].Store {
			old = &before.Stores[i]
		}
		if err := e.statsText(doc.PID, &doc.Stores[i], old, o.Interval); err != nil {
			return err
		}
	}
	return nil
}

func (e *Env) statsText(pid int, s, old *storeRow, interval time.Duration) error {
	st := &s.Stats
	if old != nil { // what changed, a line
		return e.statsDelta(s, old, interval)
	}
	if err := e.say("%s, process %d, store %s, open since %s; a figure changed last %v ago",
		s.Program, pid, s.Store, s.Since.Format(time.TimeOnly), time.Since(s.Written).Round(time.Millisecond)); err != nil {
		return err
	}
	if err := e.table(
		row("objects", "%d", st.Objects),
		row("allocated", "%s of %s", base.FormatBytes(st.Space.Allocated), base.FormatBytes(st.Space.Capacity)),
		row("rounds", "%d with %d operations, %d WAL syncs", st.Rounds, st.RoundOps, st.Meta.WALSyncs),
		row("not durable yet", "%d operations", st.NotDurable),
		row("withdrawn", "%d", st.Withdrawn),
	); err != nil {
		return err
	}
	if err := e.statsDevices(s); err != nil {
		return err
	}
	return e.statsPaths(st.Paths)
}

func (e *Env) statsDevices(s *storeRow) error {
	w := tabwriter.NewWriter(e.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\ndevice\treads\t\twrites\t\tflushes\terrors\tcommands\tin flight")
	for i, d := range s.Stats.Devices {
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%s\t%d\t%d\t%d\t%s\n", s.Devices[i], d.Reads, base.FormatBytes(d.ReadBytes),
			d.Writes, base.FormatBytes(d.WriteBytes), d.Flushes, d.Errors, d.Commands, base.FormatBytes(d.InFlightBytes))
	}
	return w.Flush()
}

func (e *Env) statsPaths(paths []driver.PathCount) error {
	if len(paths) == 0 {
		return e.say("\nno value has moved")
	}
	w := tabwriter.NewWriter(e.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\npath\t\toperations\tbytes\terrors\treason\tsizes")
	for _, p := range paths {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%s\t%s\n", p.Path, direction(p.Write), p.Ops, base.FormatBytes(p.Bytes), p.Errors,
			orNone(p.Reason), sizesText(p.Sizes))
	}
	return w.Flush()
}

func direction(write bool) string {
	if write {
		return "written"
	}
	return "read"
}

func orNone(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// sizesText lists the classes that hold something: "4.0 KiB: 12" is twelve
// operations of up to 4 KiB, and of more than the class below.
func sizesText(sizes [driver.SizeClasses]int64) string {
	var out []string
	for class, n := range sizes {
		switch bound := driver.ClassBound(class); {
		case n == 0:
		case bound == 0:
			out = append(out, fmt.Sprintf("more: %d", n))
		default:
			out = append(out, fmt.Sprintf("%s: %d", base.FormatBytes(bound), n))
		}
	}
	return strings.Join(out, ", ")
}

// statsDelta prints rates since the look before.
func (e *Env) statsDelta(s, old *storeRow, interval time.Duration) error {
	per := func(n int64) int64 { return int64(float64(n) / interval.Seconds()) }
	var a, b driver.Stats
	for i := range s.Stats.Devices {
		a, b = addStats(a, s.Stats.Devices[i]), addStats(b, old.Stats.Devices[i])
	}
	var errs int64
	for _, p := range s.Stats.Paths {
		errs += p.Errors
	}
	return e.say("%s  read %s/s in %d/s, written %s/s in %d/s, %d operations committed/s, %s in flight, %d errors",
		time.Now().Format(time.TimeOnly), base.FormatBytes(per(a.ReadBytes-b.ReadBytes)), per(a.Reads-b.Reads),
		base.FormatBytes(per(a.WriteBytes-b.WriteBytes)), per(a.Writes-b.Writes), per(s.Stats.RoundOps-old.Stats.RoundOps),
		base.FormatBytes(a.InFlightBytes), errs+a.Errors)
}

func addStats(a, b driver.Stats) driver.Stats {
	a.Reads, a.ReadBytes = a.Reads+b.Reads, a.ReadBytes+b.ReadBytes
	a.Writes, a.WriteBytes = a.Writes+b.Writes, a.WriteBytes+b.WriteBytes
	a.InFlightBytes, a.Errors = a.InFlightBytes+b.InFlightBytes, a.Errors+b.Errors
	return a
}
