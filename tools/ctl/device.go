package ctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/store"
)

// Names of the verbs in documents.
const (
	verbDeviceList   = "device list"
	verbDeviceInfo   = "device info"
	verbDeviceHealth = "device health"
	verbDeviceReset  = "device reset"
)

// targets are the devices that the arguments name, or those of the store.
func (t *Target) targets(verb string, args []string) ([]string, error) {
	if len(args) > 0 && t.Dir != "" {
		return nil, usage(verb, "name targets or --store DIR, not both")
	}
	if len(args) > 0 || t.Dir == "" {
		return args, nil
	}
	p, err := t.parts(verb)
	return p.devices, err
}

type deviceListDoc struct {
	header
	Targets     []targetDoc        `json:"targets"`
	Controllers []probe.Controller `json:"controllers"` // NVMe controllers that the kernel shows
}

// targetDoc is a target and whether a store can have it.
type targetDoc struct {
	Target    string `json:"target"`
	Transport string `json:"transport"`
	Bytes     int64  `json:"bytes"`
	Holds     string `json:"holds"` // what is on it, "" if it is blank
	Usable    bool   `json:"usable"`
	Why       string `json:"why"` // not, or how

	refused error // why it is not usable
}

// DeviceList lists the targets that are named, or those of the store, and the NVMe
// controllers that the kernel shows below sysfs. It only reads.
func DeviceList(ctx context.Context, e *Env, t *Target, args []string, sysfs string) error {
	return e.fail(verbDeviceList, deviceList(ctx, e, t, args, sysfs))
}

func deviceList(ctx context.Context, e *Env, t *Target, args []string, sysfs string) (err error) {
	targets, err := t.targets(verbDeviceList, args)
	if err != nil {
		return err
	}
	doc := deviceListDoc{header: head(verbDeviceList, nil), Targets: []targetDoc{}, Controllers: []probe.Controller{}}
	for _, target := range targets {
		d, err := e.describeTarget(ctx, t, target)
		if err != nil {
			return err
		}
		doc.Targets = append(doc.Targets, d)
	}
	found, err := probe.Controllers(sysfs)
	if err != nil {
		return err
	}
	doc.Controllers = append(doc.Controllers, found...)
	for i := range found {
		for j := range found[i].Disks {
			e.look(ctx, t, &found[i].Disks[j], sysfs)
		}
	}
	if e.JSON {
		err = e.emit(doc)
	} else {
		err = e.deviceListText(&doc)
	}
	for i := range doc.Targets {
		if err == nil && errors.Is(doc.Targets[i].refused, base.ErrNotFound) {
			err = quietly(ExitNotFound) // the list says which
		}
	}
	return err
}

// look says what is on a disk that nothing uses, or why that cannot be read. The disk's
// node lies below the dev beside sysfs.
func (e *Env) look(ctx context.Context, t *Target, d *probe.Disk, sysfs string) {
	if len(d.Holders) > 0 {
		return
	}
	node := filepath.Join(filepath.Dir(filepath.Clean(sysfs)), d.Path)
	holds, _, err := e.inspect(ctx, t, "file:"+node)
	switch {
	case errors.Is(err, fs.ErrPermission):
		d.Holds = "what you may not read"
	case err != nil:
		d.Holds, _ = base.Parts(err)
	default:
		d.Holds = holds
	}
}

// describeTarget looks at a target. Only one that makes no sense is an error.
func (e *Env) describeTarget(ctx context.Context, t *Target, target string) (targetDoc, error) {
	d := targetDoc{Target: target}
	parsed, err := probe.Parse(target)
	if err != nil {
		return d, err
	}
	d.Transport = parsed.Scheme
	if parsed.Scheme == "pci" { // to open one is to bring it up
		return d.choose(parsed.Rest), nil
	}
	path, isPath := filePath(target)
	if st, err := unix.StatPath(path); isPath && err == nil {
		if st.Kind == unix.KindBlock {
			d.Transport = "block"
		}
		d.refused = file.InUse(path)
	}
	if d.refused == nil {
		d.Holds, d.Bytes, d.refused = e.inspect(ctx, t, target)
	}
	if d.refused == nil && isPath {
		d.refused = file.MayWrite(path)
	}
	switch {
	case ctx.Err() != nil:
		return d, interrupted{}
	case d.refused != nil:
		d.Why = d.refused.Error()
	case d.Bytes < store.MinDeviceBytes:
		d.Why = "too small: a store needs " + base.FormatBytes(store.MinDeviceBytes)
	case parsed.Scheme == "sim" && !isPath:
		d.Usable, d.Why = true, "a model in memory, gone when it is closed"
	case d.Holds == "":
		d.Usable, d.Why = true, "nobody has it"
	default:
		d.Usable, d.Why = true, "nobody has it open"
	}
	return d, nil
}

// choose says how a controller is reached, without a look at it.
func (d targetDoc) choose(address string) targetDoc {
	c, err := probe.Choose(address, 0)
	if err != nil {
		d.refused, d.Why = err, err.Error()
		return d
	}
	d.Transport, d.Usable, d.Why = c.Transport, true, strings.Join(c.Reasons, "; ")
	if c.Transport == "file" {
		d.Transport, d.refused = "block", file.InUse(c.Path)
	} else {
		d.refused = c.Taken
	}
	if d.refused != nil {
		d.Usable, d.Why = false, d.refused.Error()
	}
	return d
}

func (e *Env) deviceListText(d *deviceListDoc) error {
	if len(d.Targets) > 0 {
		rows := [][]string{{"TARGET", "SIZE", "USABLE", "HOLDS, WHY"}}
		for _, t := range d.Targets {
			rows = append(rows, []string{Plain(t.Target), sizeOr(t.Bytes, "?"), yesNo(t.Usable), Plain(joined("; ", t.Holds, t.Why))})
		}
		if err := errors.Join(e.grid(screenColumns, rows), e.say("")); err != nil {
			return err
		}
	}
	if len(d.Controllers) == 0 {
		return e.say("The kernel shows no NVMe controllers.")
	}
	rows := [][]string{{"CONTROLLER", "DISK", "SIZE", "USABLE", "WHAT, WHY"}}
	for _, c := range d.Controllers {
		rows = append(rows, []string{c.Address, c.Name, "", yesNo(c.Usable), controllerText(&c)})
		for _, disk := range c.Disks {
			why := joined("; ", word(disk.Holds != "", "holds "+disk.Holds), "as "+disk.Path)
			if len(disk.Holders) > 0 {
				why = strings.Join(disk.Holders, "; ")
			}
			rows = append(rows, []string{"", disk.Path, sizeOr(disk.Bytes, "?"), yesNo(len(disk.Holders) == 0), Plain(why)})
		}
	}
	return e.grid(screenColumns, rows)
}

func controllerText(c *probe.Controller) string {
	node := ""
	if c.NUMANode >= 0 {
		node = fmt.Sprintf("NUMA node %d", c.NUMANode)
	}
	what := c.Model
	if what == "" && c.Vendor != "" {
		what = c.Vendor + ":" + c.Device
	}
	text := joined(", ", what, node, c.Link.String(), c.State)
	if len(c.Disks) == 0 {
		text = joined("; ", text, c.Why)
	}
	return Plain(text)
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// sizeOr is n in words, or other for 0.
func sizeOr(n int64, other string) string {
	if n == 0 {
		return other
	}
	return base.FormatBytes(n)
}

// joined puts what is not empty in one line.
func joined(between string, parts ...string) string {
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, between)
}

// withDevice opens one target for one verb. A file is opened for reading only; a
// controller has one owner, who works on its queues.
func (e *Env) withDevice(ctx context.Context, t *Target, target string, do func(d driver.Device) error) error {
	parsed, err := probe.Parse(target)
	if err != nil {
		return err
	}
	kernels := parsed.Scheme == "file"
	if parsed.Scheme == "pci" {
		c, err := probe.Choose(parsed.Rest, 0)
		if err != nil {
			return err
		}
		kernels = c.Transport == "file"
	}
	devs, err := e.openDevices(ctx, t, parts{devices: []string{target}}, kernels)
	if err != nil {
		return err
	}
	return errors.Join(do(devs[0]), closeDevices(devs))
}

// controllerOf is the controller that d is, or why it is none.
func controllerOf(verb, target string, d driver.Device) (*ctrl.Device, error) {
	if c, ok := d.(*ctrl.Device); ok {
		return c, nil
	}
	return nil, notController(verb, target, d.Info().Transport)
}

func notController(verb, target, transport string) error {
	what := "block device"
	if transport == "file" {
		what = "file"
	}
	err := base.Errorf(verb, target, base.ErrNotSupported, "it is not a controller but a %s that the kernel drives", what)
	if address, ok := strings.CutPrefix(target, "pci:"); ok {
		return base.WithHint(err, "ugdsctl device bind %s takes it from the kernel; nvme and smartctl ask it where it is", address)
	}
	return base.WithHint(err,
		"`ugdsctl device list` shows the controllers; nvme and smartctl ask those that the kernel drives")
}

// holdsOf says what is on a device, "" if it is blank.
func holdsOf(ctx context.Context, d driver.Device) (string, error) {
	label, err := store.Inspect(ctx, d)
	if err != nil || label.Blank {
		return "", err
	}
	return label.Text, nil
}
