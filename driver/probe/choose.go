package probe

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/kdrv"
	"github.com/ugds-store/ugds/driver/hw/vfio"
	"github.com/ugds-store/ugds/internal/base"
)

// Choice is how a controller is reached, and why.
type Choice struct {
	Transport string   `json:"transport"` // "kdrv", "vfio" or "file"; "" if there is no way
	Path      string   `json:"path"`      // the block device, for "file"
	Reasons   []string `json:"reasons"`
	Taken     error    `json:"-"` // why this process cannot open it now, nil if that does not show
}

// Choose decides by which transport the controller at a PCI address is reached: the
// one whose driver has it. Nothing is bound here: who changes drivers takes disks away
// from the kernel, which only Bind does, and only when it is asked to. nsid is the
// wanted namespace, 0 for the only one. ErrInvalid for what is no address, ErrNotFound
// for one without a controller; ErrNotSupported, with what to do, when no driver that is known here has it.
func Choose(address string, nsid uint32) (Choice, error) { return kernel(Sysfs).choose(address, nsid) }

func (k kernel) choose(address string, nsid uint32) (c Choice, err error) {
	if err := checkAddress("find", address); err != nil {
		return c, err
	}
	dir := "bus/pci/devices/" + address
	if k.text(dir, "class") != nvmeClass {
		err := base.Errorf("find", "pci:"+address, base.ErrNotFound, "there is no NVMe controller at this address")
		return c, base.WithHint(err, addresses)
	}
	say := func(format string, args ...any) { c.Reasons = append(c.Reasons, fmt.Sprintf(format, args...)) }
	now := k.pci(dir, address)
	c.Taken = k.taken(dir, &now)
	switch now.Driver {
	case DriverModule:
		c.Transport = "kdrv"
		say("our kernel module has it: GPU memory can be reached without a copy")
		return c, nil
	case DriverVFIO:
		c.Transport = "vfio"
		say("VFIO has it: %s", k.vfioNode(address).Why())
		return c, nil
	case DriverKernel:
		return k.chooseDisk(c, now, nsid)
	case "":
		err = base.Errorf("open", "pci:"+address, base.ErrNotSupported, "no driver has it")
	default:
		err = base.Errorf("open", "pci:"+address, base.ErrNotSupported, "the driver %s has it", now.Driver)
	}
	return c, base.WithHint(err, "bind it: ugdsctl device bind %s", address)
}

// vfioNode is how VFIO gives out the controller at an address.
func (k kernel) vfioNode(address string) vfio.Node {
	return vfio.NodeOf(string(k), filepath.Join(filepath.Dir(string(k)), "dev"), address)
}

// chooseDisk is for a controller that the kernel drives: its disk is used as a block
// device, through host memory.
func (k kernel) chooseDisk(c Choice, now Controller, nsid uint32) (Choice, error) {
	var found []Disk
	for _, d := range now.Disks { // their numbers need not be those of the namespaces
		if nsid == 0 || k.text("class/block/"+d.Name, "nsid") == fmt.Sprint(nsid) {
			found = append(found, d)
		}
	}
	object := "pci:" + now.Address
	switch {
	case len(found) == 0:
		return c, base.Errorf("open", object, base.ErrNotFound, "the kernel shows no such namespace of it")
	case len(found) > 1:
		return c, base.WithHint(base.Errorf("open", object, base.ErrInvalid, "it has %d namespaces", len(found)), "name one")
	}
	c.Transport, c.Path = "file", found[0].Path
	c.Reasons = append(c.Reasons, "the kernel drives it: its disk is used as the block device "+c.Path+", through host memory",
		"ugdsctl device bind "+now.Address+" gives it to the store, if nothing else uses it")
	return c, nil
}

// openController opens a controller by the transport that has it.
func openController(ctx context.Context, address string, o Options) (driver.Device, error) {
	c, err := Choose(address, o.Ctrl.NSID)
	if err != nil {
		return nil, err
	}
	if c.Transport == "file" {
		o.File.Path = c.Path
		d, err := file.Open(ctx, o.File)
		if err != nil {
			return nil, err
		}
		return d, nil
	}
	seam, err := openSeam(ctx, c.Transport, address)
	if err != nil {
		return nil, err
	}
	d, err := ctrl.Open(ctx, seam, o.Ctrl) // which closes the seam when it fails
	if err != nil {
		return nil, err
	}
	if o.File.ReadOnly {
		return readOnly{d}, nil
	}
	return d, nil
}

func openSeam(ctx context.Context, transport, address string) (hw.Device, error) {
	if transport == "kdrv" {
		d, err := kdrv.Open(ctx, address)
		if err != nil {
			return nil, err
		}
		return d, nil
	}
	d, err := vfio.Open(address)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// readOnly is a controller that is not written: the driver has it alone even then,
// since it resets it, but no request of the caller changes the medium.
type readOnly struct{ driver.Device }

// Submit implements driver.Device.
func (r readOnly) Submit(ctx context.Context, b *driver.Batch) error {
	for i := range b.Reqs {
		if op := b.Reqs[i].Op; op != driver.OpRead && op != driver.OpFlush {
			return base.Errorf(op.String(), r.Info().Target, base.ErrReadOnly, "it was opened for reading only")
		}
	}
	return r.Device.Submit(ctx, b)
}

// explainController says how the controller at an address would be opened.
func explainController(address string) []string {
	c, err := Choose(address, 0)
	if err != nil {
		return []string{err.Error()}
	}
	out := append([]string{"an NVMe controller, by the transport " + c.Transport}, c.Reasons...)
	who, err := holders(kernel(Sysfs), address)
	if err != nil {
		return append(out, err.Error())
	}
	for _, w := range who {
		out = append(out, "in use: "+w)
	}
	return out
}
