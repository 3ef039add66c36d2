package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
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
		if err := e.statsText(doc.PID, &doc.Stores[i], old, o); err != nil {
			return err
		}
	}
	return nil
}

func (e *Env) statsText(pid int, s, old *storeRow, o StatsOptions) error {
	st := &s.Stats
	if old != nil { // what changed, a line
		return e.statsDelta(s, old, o.Interval)
	}
	if err := e.table(
		row("process", "%d, %s", pid, s.Program),
		row("store", "%s", s.Store),
		row("open since", "%s; a figure changed last %v ago", s.Since.Format(time.TimeOnly), time.Since(s.Written).Round(time.Millisecond)),
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
	if err := e.statsPaths(st.Paths); err != nil || !o.Watch {
		return err
	}
	return e.say("\n"+deltaRow, "time", "read/s", "written/s", "committed/s", "in flight", "errors")
}

func (e *Env) statsDevices(s *storeRow) error {
	rows := [][]string{{"reads", "", "writes", "", "flushes", "errors", "commands", "in flight", "device"}}
	for i, d := range s.Stats.Devices {
		rows = append(rows, []string{fmt.Sprint(d.Reads), base.FormatBytes(d.ReadBytes), fmt.Sprint(d.Writes), base.FormatBytes(d.WriteBytes),
			fmt.Sprint(d.Flushes), fmt.Sprint(d.Errors), fmt.Sprint(d.Commands), base.FormatBytes(d.InFlightBytes), Plain(s.Devices[i])})
	}
	if err := e.say(""); err != nil {
		return err
	}
	return e.grid(0, rows)
}

func (e *Env) statsPaths(paths []driver.PathCount) error {
	if len(paths) == 0 {
		return e.say("\nno value has moved")
	}
	rows := [][]string{{"path", "", "operations", "bytes", "errors", "why; sizes"}}
	for _, p := range paths {
		rows = append(rows, []string{p.Path.String(), direction(p.Write), fmt.Sprint(p.Ops), base.FormatBytes(p.Bytes), fmt.Sprint(p.Errors),
			joined("; ", orNone(p.Reason), sizesText(p.Sizes))})
	}
	if err := e.say(""); err != nil {
		return err
	}
	return e.grid(screenColumns, rows)
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

// deltaRow is a line of --watch.
const deltaRow = "%-8s  %-17s  %-17s  %-11s  %-9s  %s"

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
	moved := func(bytes, commands int64) string {
		return fmt.Sprintf("%s in %d", base.FormatBytes(per(bytes)), per(commands))
	}
	return e.say(deltaRow, time.Now().Format(time.TimeOnly), moved(a.ReadBytes-b.ReadBytes, a.Reads-b.Reads),
		moved(a.WriteBytes-b.WriteBytes, a.Writes-b.Writes), fmt.Sprint(per(s.Stats.RoundOps-old.Stats.RoundOps)),
		base.FormatBytes(a.InFlightBytes), fmt.Sprint(errs+a.Errors))
}

func addStats(a, b driver.Stats) driver.Stats {
	a.Reads, a.ReadBytes = a.Reads+b.Reads, a.ReadBytes+b.ReadBytes
	a.Writes, a.WriteBytes = a.Writes+b.Writes, a.WriteBytes+b.WriteBytes
	a.InFlightBytes, a.Errors = a.InFlightBytes+b.InFlightBytes, a.Errors+b.Errors
	return a
}
