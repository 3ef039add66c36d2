package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// DeviceReport is what RunDevice found.
type DeviceReport struct {
	Version   int         `json:"version"`
	Began     time.Time   `json:"began"`
	Seconds   float64     `json:"seconds"` // wall time of all of it
	Machine   Machine     `json:"machine"`
	Target    string      `json:"target"`
	Transport string      `json:"transport"`
	Capacity  int64       `json:"capacity"`
	Link      probe.Link  `json:"link"`      // of the disk, if the kernel knows one
	NUMANode  int         `json:"numa_node"` // -1 if unknown
	Unwritten int64       `json:"unwritten"` // bytes of a file that were never written: reads of them do not reach the disk
	Reasons   []string    `json:"reasons"`   // why it is driven as it is
	Rows      []DeviceRow `json:"rows"`
}

// DeviceRow is one case. Latencies are those of a call with all its requests.
type DeviceRow struct {
	DeviceCase
	Engine    string   `json:"engine"`
	Clock     string   `json:"clock"`   // "wall", or "model": virtual time, in which this computer takes none
	Seconds   float64  `json:"seconds"` // by that clock
	Wall      float64  `json:"wall_seconds"`
	Requests  int64    `json:"requests"`
	Bytes     int64    `json:"moved_bytes"`         // that ended requests have moved
	PerSecond float64  `json:"requests_per_second"` // by Clock
	MBPerS    float64  `json:"mb_per_s"`            // 10^6 bytes, by Clock
	P50       float64  `json:"p50_seconds"`
	P90       float64  `json:"p90_seconds"`
	P99       float64  `json:"p99_seconds"`
	P999      float64  `json:"p999_seconds"`
	Max       float64  `json:"max_seconds"`
	CPU       *float64 `json:"cpu_seconds_per_request"` // of this process, the model included; null if unknown, or too short to tell
	Commands  float64  `json:"commands_per_request"`
	Submit    float64  `json:"submit_share"` // of the threads' wall time, in submitting: what Room is not, if Clock is the wall's
	Room      float64  `json:"room_share"`   // of their time by Clock, in waiting for room for what they submit
	Wait      float64  `json:"wait_share"`   // of their wall time, in waiting for ends
	Compared  bool     `json:"compared"`     // what the last requests moved was compared
}

func (r *DeviceReport) describe(d *device) {
	in := d.Info()
	r.Target, r.Transport, r.Capacity, r.Reasons, r.NUMANode = in.Target, in.Transport, in.Capacity, in.Reasons, -1
	if t, err := probe.Parse(in.Target); err == nil && t.Scheme == "file" {
		if st, err := unix.StatPath(t.Rest); err == nil && st.Kind == unix.KindBlock {
			r.Link, r.NUMANode = probe.LinkOf(st.Rdev)
		} else if err == nil {
			r.Unwritten = unwritten(t.Rest, in.Capacity)
		}
	}
}

// unwritten is how many bytes of a file were never written; 0 where that is not
// known.
func unwritten(path string, size int64) int64 {
	f, err := unix.Open(path, unix.ReadOnly, 0)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	n, err := unix.Written(f, size)
	if err != nil {
		return 0
	}
	return size - n
}

// clocks says what the times of a report are.
func (r *DeviceReport) clocks() string {
	if len(r.Rows) > 0 && r.Rows[0].Clock == modelClock {
		return "Times are those of the MODEL'S VIRTUAL CLOCK: what its service model says, in which this computer takes no time.\n" +
			"CPU per request is real, and most of it the work of the model and of looking for each end."
	}
	if r.Transport == "sim" {
		return "Times are those of the wall; the model's own work is part of them."
	}
	if r.Unwritten > 0 {
		return "Times are those of the wall. " + base.FormatBytes(r.Unwritten) + " of the file were never written: READS OF THEM DO NOT REACH THE DISK.\n" +
			"Write the file from end to end first (bench --op write)."
	}
	return "Times are those of the wall."
}

// WriteTable writes the report for people; with explain, also what limits each case.
func (r *DeviceReport) WriteTable(w io.Writer, explain bool) error {
	m := &r.Machine
	if _, err := fmt.Fprintf(w, "%s, %s, all bytes direct; %d CPUs (%s), load %s at the start, %.0f s\n%s\n\n", r.Target, base.FormatBytes(r.Capacity),
		m.CPUs, orNot(m.CPU), orNot(m.Load), r.Seconds, r.clocks()); err != nil {
		return err
	}
	if notes := r.notes(); len(notes) > 0 {
		if _, err := fmt.Fprintf(w, "%s\n\n", strings.Join(notes, "\n")); err != nil {
			return err
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tcompletion\tcallers\tdepth\tbatch\trequests/s\tMB/s\tp50\tp90\tp99\tp99.9\tmax\tCPU/request\t")
	for i := range r.Rows {
		row := &r.Rows[i]
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", row.oneLine(), orNot(row.completion()), row.Threads,
			row.Depth, row.Batch, number(&row.PerSecond), number(&row.MBPerS), span(&row.P50), span(&row.P90), span(&row.P99),
			span(&row.P999), span(&row.Max), span(row.CPU))
	}
	if err := t.Flush(); err != nil || !explain {
		return err
	}
	return r.explain(w)
}

// notes says which rows are not quite what was asked for.
func (r *DeviceReport) notes() (out []string) {
	deep := false
	for i := range r.Rows {
		row := &r.Rows[i]
		deep = deep || row.deep()
		if !row.sleepless() {
			continue
		}
		note := fmt.Sprintf("* The device has too few interrupts for %q: all is polled.", row.Completion)
		if row.Engine != ctrl.NoInterrupts {
			note = fmt.Sprintf("* The device has too few interrupts for %q: batches are polled.", row.Completion)
		}
		if !slices.Contains(out, note) {
			out = append(out, note)
		}
	}
	if deep {
		out = append(out, fmt.Sprintf("More than --bytes was moved where that does not fill the depth of every caller %d times.", fillDepth))
	}
	return out
}

// sleepless tells whether queues that should have interrupts are polled.
func (r *DeviceRow) sleepless() bool { return strings.Contains(r.Engine, ctrl.NoInterrupts) }

// completion is what was asked for, marked if it was not to be had.
func (r *DeviceRow) completion() string {
	if r.sleepless() {
		return r.Completion + "*"
	}
	return r.Completion
}

// explain says how the device is reached and what limits each case.
func (r *DeviceReport) explain(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\nhow it is reached\n")
	for _, why := range r.Reasons {
		fmt.Fprintf(&b, "  %s\n", why)
	}
	link := r.Link.String()
	switch {
	case link == "":
		link = "not known: it is no disk on PCI Express, or the kernel does not tell"
	case r.Link.Narrow():
		link += "; device and slot could do more"
	}
	fmt.Fprintf(&b, "  link: %s\n", link)
	if r.NUMANode >= 0 {
		fmt.Fprintf(&b, "  NUMA node %d: callers on others pay for the way\n", r.NUMANode)
	}
	fmt.Fprintf(&b, "  the bytes go directly from and to memory that the device reaches\n\nwhat limits it\n")
	for i := range r.Rows {
		row := &r.Rows[i]
		how := row.completion()
		if how != "" {
			how += ", "
		}
		fmt.Fprintf(&b, "  %s, %scallers %d, depth %d, batch %d: %s\n", row.oneLine(), how, row.Threads, row.Depth, row.Batch, row.verdict())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// limitShare is from which share of the time on waiting or working is what limits.
const limitShare = 0.5

// verdict says whether device or host is the limit.
func (r *DeviceRow) verdict() string {
	shares := fmt.Sprintf("%.0f %% of the callers' time in submitting, %.0f %% in waiting for room, %.0f %% in waiting for ends, %.0f %% in the rest",
		100*r.Submit, 100*r.Room, 100*r.Wait, 100*max(1-r.Submit-r.Room-r.Wait, 0))
	switch {
	case r.Clock == modelClock:
		return "the device: in the model's time the host takes none"
	case r.Room >= limitShare:
		return "the device (" + shares + "): its queues or the window of bytes in flight are full, and more requests do not help"
	case r.Room+r.Wait >= limitShare:
		return "the device (" + shares + "); more requests in flight help if it has room"
	}
	return "the host (" + shares + "); larger requests, larger batches or more callers help"
}
