package ctl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

type deviceHealthDoc struct {
	header
	Devices []healthDoc `json:"devices"`
}

// healthDoc is what a controller says about itself.
type healthDoc struct {
	Target  string     `json:"target"`
	State   string     `json:"state"`
	OK      bool       `json:"ok"`
	Warning string     `json:"warning"` // critical ones, "" for none
	Event   string     `json:"event"`   // the last one that it reported since it was opened, "" for none
	SMART   smartDoc   `json:"smart"`
	Errors  []errorRow `json:"errors"` // its error log, newest first
}

// smartDoc is the SMART / Health Information page. Counts of data are bytes, of 128
// bits in the page, so that they are rounded.
type smartDoc struct {
	TemperatureC       *int    `json:"temperature_c"` // null if it is not reported
	SparePercent       int     `json:"spare_percent"`
	SpareThreshold     int     `json:"spare_threshold_percent"`
	UsedPercent        int     `json:"used_percent"` // of its endurance; may pass 100
	ReadBytes          float64 `json:"read_bytes"`
	WrittenBytes       float64 `json:"written_bytes"`
	ReadCommands       float64 `json:"read_commands"`
	WriteCommands      float64 `json:"write_commands"`
	BusyMinutes        float64 `json:"busy_minutes"`
	PowerCycles        float64 `json:"power_cycles"`
	PowerOnHours       float64 `json:"power_on_hours"`
	UnsafeShutdowns    float64 `json:"unsafe_shutdowns"`
	MediaErrors        float64 `json:"media_errors"`
	ErrorLogEntries    float64 `json:"error_log_entries"` // since it was made
	HotMinutes         uint32  `json:"warning_temperature_minutes"`
	CriticalHotMinutes uint32  `json:"critical_temperature_minutes"`
}

// errorRow is an entry of the error log.
type errorRow struct {
	Count  uint64 `json:"count"` // numbers the errors of the controller
	Queue  uint16 `json:"queue"`
	NSID   uint32 `json:"nsid"`
	LBA    uint64 `json:"lba"`
	Status string `json:"status"`
}

// kelvin is 0 °C.
const kelvin = 273

func docSMART(l *nvme.SMARTLog) smartDoc {
	d := smartDoc{nil, int(l.AvailableSpare), int(l.SpareThreshold), int(l.PercentageUsed),
		l.DataUnitsRead.Float() * nvme.DataUnit, l.DataUnitsWritten.Float() * nvme.DataUnit, l.HostReads.Float(), l.HostWrites.Float(),
		l.BusyMinutes.Float(), l.PowerCycles.Float(), l.PowerOnHours.Float(), l.UnsafeShutdowns.Float(), l.MediaErrors.Float(),
		l.ErrorLogEntries.Float(), l.WarningTempMinutes.Get(), l.CriticalTempMinutes.Get()}
	if k := l.CompositeKelvin.Get(); k != 0 {
		c := int(k) - kelvin
		d.TemperatureC = &c
	}
	return d
}

// DeviceHealth asks controllers about themselves: those that are named, or those of
// the store. It ends with a failure when one is not well.
func DeviceHealth(ctx context.Context, e *Env, t *Target, args []string) error {
	return e.fail(verbDeviceHealth, deviceHealth(ctx, e, t, args))
}

func deviceHealth(ctx context.Context, e *Env, t *Target, args []string) error {
	targets, err := t.targets(verbDeviceHealth, args)
	if err == nil && len(targets) == 0 {
		err = usage(verbDeviceHealth, "which device? a target, or --store DIR for those of a store")
	}
	if err != nil {
		return err
	}
	doc := deviceHealthDoc{header: head(verbDeviceHealth, nil), Devices: []healthDoc{}}
	well := true
	var failed []error
	for _, target := range targets { // one that fails says nothing of the others
		err := e.withDevice(ctx, t, target, func(d driver.Device) error {
			c, err := controllerOf(verbDeviceHealth, target, d)
			if err != nil {
				return err
			}
			h, err := healthOf(ctx, c)
			if err != nil {
				return err
			}
			doc.Devices = append(doc.Devices, h)
			well = well && h.OK
			return nil
		})
		if err != nil {
			failed = append(failed, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	if len(doc.Devices) > 0 || len(failed) == 0 {
		if err := e.showHealth(&doc); err != nil {
			return err
		}
	}
	if err := errors.Join(failed...); err != nil || well {
		return err
	}
	return quietly(ExitFailure)
}

func healthOf(ctx context.Context, c *ctrl.Device) (healthDoc, error) {
	out := healthDoc{Target: c.Info().Target, State: c.State().String(), Event: c.Warning(), Errors: []errorRow{}}
	h, err := c.Health(ctx)
	if err != nil {
		return out, err
	}
	out.OK, out.Warning = h.OK, h.Critical
	l, err := c.SMART(ctx)
	if err != nil {
		return out, err
	}
	out.SMART = docSMART(&l)
	log, err := c.ErrorLog(ctx)
	for i := range log {
		r := &log[i]
		out.Errors = append(out.Errors, errorRow{r.Count.Get(), r.SQID.Get(), r.NSID.Get(), r.LBA.Get(), r.StatusField().String()})
	}
	return out, err
}

func (e *Env) showHealth(d *deviceHealthDoc) error {
	if e.JSON {
		return e.emit(d)
	}
	for i, h := range d.Devices {
		if i > 0 {
			if err := e.say(""); err != nil {
				return err
			}
		}
		if err := e.table(h.rows()...); err != nil {
			return err
		}
	}
	return nil
}

func (h *healthDoc) rows() [][2]string {
	s := &h.SMART
	warm := "not reported"
	if s.TemperatureC != nil {
		warm = fmt.Sprintf("%d °C", *s.TemperatureC)
	}
	rows := [][2]string{
		row("device", "%s", Plain(h.Target)),
		row("state", "%s, %s", h.State, orElse(h.Warning, "well")),
		row("temperature", "%s; too warm for %d minutes, critical for %d", warm, s.HotMinutes, s.CriticalHotMinutes),
		row("spare", "%d %%, the threshold is %d %%", s.SparePercent, s.SpareThreshold),
		row("endurance used", "%d %%", s.UsedPercent),
		row("read", "%s in %.0f commands", base.FormatBytes(int64(min(s.ReadBytes, 1<<62))), s.ReadCommands),
		row("written", "%s in %.0f commands", base.FormatBytes(int64(min(s.WrittenBytes, 1<<62))), s.WriteCommands),
		row("power", "%.0f hours, %.0f cycles, %.0f unsafe shutdowns, busy for %.0f minutes", s.PowerOnHours, s.PowerCycles, s.UnsafeShutdowns, s.BusyMinutes),
		row("errors", "%.0f of the media, %.0f in the log since it was made", s.MediaErrors, s.ErrorLogEntries),
	}
	if h.Event != "" {
		rows = append(rows, row("event", "%s", h.Event))
	}
	for _, r := range h.Errors {
		rows = append(rows, row(fmt.Sprintf("error %d", r.Count), "%s; queue %d, namespace %d, block %d", r.Status, r.Queue, r.NSID, r.LBA))
	}
	return rows
}

// DeviceResetOptions of DeviceReset.
type DeviceResetOptions struct {
	Target string
	Yes    bool // do it; without it the verb only tells what it would do
}

type deviceResetDoc struct {
	header
	Done    bool    `json:"done"` // false: this is what --yes would do
	Target  string  `json:"target"`
	Holds   string  `json:"holds"`
	State   string  `json:"state"`   // after it; "" until done
	Seconds float64 `json:"seconds"` // from the beginning to ready; 0 until done
}

// DeviceReset takes a controller from whatever state a former owner left it in,
// disables it, brings it up anew and shuts it down in an orderly way. What it holds
// stays. Without Yes it tells so, touches nothing and ends with ExitUsage.
func DeviceReset(ctx context.Context, e *Env, t *Target, o DeviceResetOptions) error {
	return e.fail(verbDeviceReset, deviceReset(ctx, e, t, o))
}

func deviceReset(ctx context.Context, e *Env, t *Target, o DeviceResetOptions) error {
	doc := deviceResetDoc{header: head(verbDeviceReset, nil), Target: o.Target}
	d, err := e.mayReset(ctx, t, o.Target)
	if err != nil {
		return err
	}
	if !o.Yes {
		return e.planReset(d, &doc)
	}
	begin := time.Now()
	err = e.withDevice(ctx, t, o.Target, func(d driver.Device) error {
		c, err := controllerOf(verbDeviceReset, o.Target, d)
		if err != nil {
			return err
		}
		doc.Seconds = time.Since(begin).Seconds()
		doc.Done, doc.State = true, c.State().String()
		doc.Holds, err = holdsOf(ctx, c)
		return err
	})
	if err != nil {
		return err
	}
	if e.JSON {
		return e.emit(doc)
	}
	return e.say("%s was disabled, was %s after %.1f ms, and was shut down; it holds %s", Plain(o.Target), doc.State,
		doc.Seconds*1000, kept(doc.Holds))
}

// kept says what a reset leaves on a device.
func kept(holds string) string {
	if holds == "" {
		return "nothing"
	}
	return holds + ", which stays"
}

// mayReset refuses what is no controller or is in use, the same with and without
// --yes. It opens a model only: to open a controller is to bring it up.
func (e *Env) mayReset(ctx context.Context, t *Target, target string) (targetDoc, error) {
	d, err := e.describeTarget(ctx, t, target)
	switch {
	case err != nil:
		return d, err
	case errors.Is(d.refused, base.ErrNotFound):
		return d, d.refused
	case d.Transport == "file" || d.Transport == "block":
		return d, notController(verbDeviceReset, target, d.Transport)
	}
	return d, d.refused
}

// planReset says what a reset would do.
func (e *Env) planReset(d targetDoc, doc *deviceResetDoc) (err error) {
	doc.Holds = d.Holds
	what := kept(doc.Holds)
	if d.Transport != "sim" {
		what = "what nobody looked at, and that stays"
	}
	if e.JSON {
		err = e.emit(doc)
	} else {
		err = e.say(`device reset would
  disable     %s: what a former owner left in flight ends
  bring up    its queues, and ask what it is
  shut down   in an orderly way, so that the next owner finds it so
It holds %s. Nothing was changed. Add --yes to do it.`, Plain(doc.Target), what)
	}
	if err != nil {
		return err
	}
	return quietly(ExitUsage)
}
