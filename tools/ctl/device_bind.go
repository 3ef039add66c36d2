package ctl

import (
	"context"
	"fmt"
	"strings"

	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
)

// Names of the verbs in documents.
const (
	verbDeviceBind   = "device bind"
	verbDeviceUnbind = "device unbind"
)

// DeviceBindOptions of DeviceBind and DeviceUnbind.
type DeviceBindOptions struct {
	Address string // of PCI, or a target "pci:ADDRESS"
	Driver  string // ugds or vfio-pci; "" takes the better one that the kernel has
	Yes     bool   // do it; without it the verb only tells what it would do
}

type deviceBindDoc struct {
	header
	Done bool `json:"done"` // false: this is what --yes would do
	probe.Binding
	Target string   `json:"target"` // as a store names it afterwards
	Holds  []string `json:"holds"`  // what is on the disks that vanish, one for each; "" if blank or in use
}

// DeviceBind gives an NVMe controller to a driver through which a store has it alone.
// Its disks vanish from the kernel, so it is refused while anything uses one, and
// given back when anything fails. Without Yes it tells so, changes nothing and ends
// with ExitUsage. It reads below sysfs.
func DeviceBind(ctx context.Context, e *Env, o DeviceBindOptions, sysfs string) error {
	o.Address = strings.TrimPrefix(o.Address, "pci:")
	if o.Driver == "" {
		o.Driver = probe.DefaultDriver(sysfs, o.Address)
	}
	if o.Driver != probe.DriverModule && o.Driver != probe.DriverVFIO {
		return e.fail(verbDeviceBind, usage(verbDeviceBind, "--driver %s is not %s or %s", o.Driver, probe.DriverModule, probe.DriverVFIO))
	}
	return e.fail(verbDeviceBind, e.rebind(ctx, verbDeviceBind, o, sysfs))
}

// DeviceUnbind gives a controller back to the kernel's own driver.
func DeviceUnbind(ctx context.Context, e *Env, o DeviceBindOptions, sysfs string) error {
	o.Address, o.Driver = strings.TrimPrefix(o.Address, "pci:"), probe.DriverKernel
	return e.fail(verbDeviceUnbind, e.rebind(ctx, verbDeviceUnbind, o, sysfs))
}

func (e *Env) rebind(ctx context.Context, verb string, o DeviceBindOptions, sysfs string) (err error) {
	doc := deviceBindDoc{header: head(verb, nil), Target: "pci:" + o.Address, Holds: []string{}}
	if o.Yes {
		doc.Done = true
		doc.Binding, err = probe.Bind(ctx, o.Address, o.Driver)
	} else {
		doc.Binding, err = probe.PlanBind(sysfs, o.Address, o.Driver)
		disks := doc.Controller.Disks
		for i := 0; i < len(disks) && err == nil && doc.Changed; i++ {
			e.look(ctx, &Target{}, &disks[i], sysfs)
			doc.Holds = append(doc.Holds, disks[i].Holds)
		}
	}
	switch {
	case err != nil:
		return err
	case e.JSON:
		err = e.emit(doc)
	case !doc.Changed:
		err = e.say("%s is bound to %s already", doc.Address, doc.To)
	case doc.Done && doc.To == probe.DriverKernel:
		err = e.say("%s is bound to %s", doc.Address, doc.To)
	case doc.Done:
		err = e.say("%s is bound to %s until unbind or the next boot; a store names it %s. Who else than root may open it: docs/hardware.md",
			doc.Address, doc.To, doc.Target)
	default:
		err = e.say(`%s would
  take it from  %s%s
%s  give it to    %s
%sNothing was changed. Add --yes to do it.`, verb, driverName(doc.From), vanishes(doc.Loses), diskLines(&doc.Controller), doc.To, rootLine(doc.Barred))
	}
	if err == nil && !o.Yes && doc.Changed {
		err = quietly(ExitUsage)
	}
	return err
}

// diskLines says what the disks of a controller are and hold, a line for each.
func diskLines(c *probe.Controller) string {
	var out strings.Builder
	for _, d := range c.Disks {
		what := joined(", ", d.Path, sizeOr(d.Bytes, ""), c.Model, word(c.Serial != "", "serial "+c.Serial))
		fmt.Fprintf(&out, "  disk          %s: holds %s\n", Plain(what), Plain(orElse(d.Holds, "nothing: it is blank")))
	}
	return out.String()
}

// rootLine says that this process may not do what it plans.
func rootLine(barred error) string {
	if barred == nil {
		return ""
	}
	why, mend := base.Parts(barred)
	return "This process may not do it: " + joined("; ", why, mend) + ".\n"
}

func driverName(name string) string {
	if name == "" {
		return "no driver"
	}
	return name
}

// vanishes says what the kernel loses.
func vanishes(disks []string) string {
	switch len(disks) {
	case 0:
		return ""
	case 1:
		return "; " + disks[0] + " vanishes"
	}
	return "; " + strings.Join(disks, ", ") + " vanish"
}
