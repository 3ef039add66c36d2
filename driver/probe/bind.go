package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ugds-store/ugds/driver/hw/kdrv"
	"github.com/ugds-store/ugds/driver/hw/vfio"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// The drivers that Bind knows.
const (
	DriverKernel = "nvme"      // the kernel's own: a block device
	DriverModule = kdrv.Module // our kernel module
	DriverVFIO   = "vfio-pci"
)

const (
	// bindLimit bounds what the kernel is asked to do in one step.
	bindLimit = time.Minute
)

// Binding is what Bind and Unbind have done, or would do.
type Binding struct {
	Address string   `json:"address"`
	From    string   `json:"from"` // the driver before, "" if there was none
	To      string   `json:"to"`
	Changed bool     `json:"changed"` // false: it was bound so already
	Loses   []string `json:"loses"`   // block devices of the kernel that vanish, never nil

	Controller Controller `json:"-"` // as the kernel shows it before
	Barred     error      `json:"-"` // why this process may not do it, nil if it may
}

// binder changes bindings below a kernel's sysfs.
type binder struct {
	kernel
	write func(file, text string) error // an attribute, below sysfs
	inUse func(k kernel, address string) ([]string, error)
	claim func(disks []Disk) (release func(), err error)
}

func newBinder() binder {
	return binder{kernel(Sysfs), func(file, text string) error {
		return os.WriteFile(filepath.Join(Sysfs, file), []byte(text), 0) // one write, as the kernel wants it
	}, holders, claimDisks}
}

// PlanBind tells what Bind would do, and refuses as Bind would. It reads below sysfs,
// usually Sysfs.
func PlanBind(sysfs, address, to string) (Binding, error) {
	b := newBinder()
	b.kernel = kernel(sysfs)
	return b.plan(address, to)
}

// DefaultDriver is the driver that a controller is best given to: our module if it is
// loaded, else VFIO if it is and an IOMMU translates for the controller.
func DefaultDriver(sysfs, address string) string {
	b := binder{kernel: kernel(sysfs)}
	if !b.has(DriverModule) && b.has(DriverVFIO) && b.link("bus/pci/devices/"+address, "iommu_group") != "" {
		return DriverVFIO
	}
	return DriverModule
}

// has tells whether the kernel has a driver.
func (b binder) has(driver string) bool {
	_, err := os.Stat(filepath.Join(string(b.kernel), "bus/pci/drivers", driver))
	return err == nil
}

// Bind gives the NVMe controller at a PCI address to a driver, DriverModule,
// DriverVFIO or DriverKernel. A controller whose disk is in use is refused with
// ErrInUse and whoever uses it: a mount, swap, a device built on it, a process. When
// anything fails the controller is given back to the driver that it had, and the
// error says so if that fails too. ErrNotFound for an address or driver that does not
// exist, EACCES or EROFS for who may not change drivers, ErrNotSupported for VFIO without an IOMMU, ErrGroupNotViable for VFIO when other
// drivers have devices of the IOMMU group that are no NVMe controllers, or the system's
// error.
func Bind(ctx context.Context, address, to string) (Binding, error) {
	return newBinder().bind(ctx, address, to)
}

// bindOp names the operation for messages.
func bindOp(to string) string {
	if to == DriverKernel {
		return "unbind"
	}
	return "bind"
}

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// checkAddress refuses, with ErrInvalid, what is not a PCI address as sysfs writes it,
// and tells how it writes one that others show: without the domain, in capitals.
func checkAddress(op, address string) error {
	if pciAddress.MatchString(address) {
		return nil
	}
	err := base.Errorf(op, "PCI address "+strconv.Quote(address), base.ErrInvalid, "it is like 0000:01:00.0")
	for _, full := range []string{strings.ToLower(address), "0000:" + strings.ToLower(address)} {
		if pciAddress.MatchString(full) {
			return base.WithHint(err, "write %s", full)
		}
	}
	return base.WithHint(err, addresses)
}

// addresses is the hint for who names a controller that there is not.
const addresses = "ugdsctl device list shows the controllers and their addresses"

func (b binder) plan(address, to string) (p Binding, err error) {
	p = Binding{Address: address, To: to, Loses: []string{}}
	if err := checkAddress(bindOp(to), address); err != nil {
		return p, err
	}
	dir := "bus/pci/devices/" + address
	refuse := func(class error, format string, args ...any) (Binding, error) {
		return p, base.Errorf(bindOp(to), address, class, format, args...)
	}
	switch {
	case b.text(dir, "class") == "":
		_, err := refuse(base.ErrNotFound, "there is no such PCI device")
		return p, base.WithHint(err, addresses)
	case b.text(dir, "class") != nvmeClass:
		return refuse(base.ErrInvalid, "it is not an NVMe controller, its class is %s", b.text(dir, "class"))
	}
	p.From = b.link(dir, "driver")
	if p.From == to {
		return p, nil
	}
	p.Changed = true
	p.Controller = b.pci(dir, address)
	for _, d := range p.Controller.Disks {
		p.Loses = append(p.Loses, d.Path)
	}
	who, err := b.inUse(b.kernel, address)
	if err != nil {
		return p, err
	}
	if len(who) > 0 {
		_, err := refuse(base.ErrInUse, "%s", strings.Join(who, "; "))
		return p, base.WithHint(err, "unmount or release it, or end that process")
	}
	p.Barred = b.barred(dir, bindOp(to), address)
	return p, b.possible(dir, address, to)
}

// possible refuses a driver that the kernel does not have, and VFIO where it could not
// have the controller.
func (b binder) possible(dir, address, to string) error {
	switch {
	case !b.has(to):
		err := base.Errorf(bindOp(to), address, base.ErrNotFound, "the kernel has no driver %s", to)
		return base.WithHint(err, "%s", pictured(filepath.Dir(string(b.kernel))).load(to))
	case to == DriverVFIO && b.link(dir, "iommu_group") == "":
		err := base.Errorf(bindOp(to), address, base.ErrNotSupported, "no IOMMU translates for it")
		return base.WithHint(err, "%s; or bind it to %s", iommuOn, DriverModule)
	case to == DriverVFIO:
		return b.groupAllows(address)
	}
	return nil
}

// barred says why this process may not change the driver of a device, nil if it may.
func (b binder) barred(dir, op, address string) error {
	err := unix.MayWrite(filepath.Join(string(b.kernel), dir, "driver_override"))
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return base.WithHint(base.Errorf(op, address, err, "it needs root, and sysfs that can be written"), "run it as root, outside a container")
}

// groupAllows refuses a controller whose IOMMU group VFIO could not have afterwards. Its
// NVMe controllers are bound one after the other, so those do not count.
func (b binder) groupAllows(address string) error {
	others := slices.DeleteFunc(vfio.Neighbours(string(b.kernel), address), func(n vfio.Neighbour) bool {
		return n.Class == nvmeClass
	})
	if len(others) > 0 {
		return vfio.NotViable("bind", address, others)
	}
	return nil
}

func (b binder) bind(ctx context.Context, address, to string) (Binding, error) {
	p, err := b.plan(address, to)
	if err != nil || !p.Changed {
		return p, err
	}
	if p.Barred != nil {
		return p, p.Barred
	}
	release, err := b.claim(b.pci("bus/pci/devices/"+address, address).Disks)
	if err != nil {
		return p, base.Wrap(bindOp(to), address, err)
	}
	defer release()
	dir := "bus/pci/devices/" + address
	before := b.text(dir, "driver_override")
	if before == "(null)" {
		before = ""
	}
	override := to
	if to == DriverKernel {
		override = "" // it binds by its table of devices
	}
	if err := b.change(ctx, address, override, to); err != nil {
		err = base.Wrap(bindOp(to), address+" to "+to, err)
		release() // what is open of a disk that has gone keeps its name from the one that comes back
		undo := b.change(context.WithoutCancel(ctx), address, before, p.From)
		if undo != nil {
			return p, errors.Join(err, base.Errorf("give back", address, undo, "to %q", p.From))
		}
		return p, base.WithHint(err, "it is bound to %q as before", p.From)
	}
	return p, nil
}

// change takes the driver of a device away and gives it to another; "" is none.
func (b binder) change(ctx context.Context, address, override, want string) error {
	dir := "bus/pci/devices/" + address
	if err := b.ask(ctx, dir+"/driver_override", override+"\n"); err != nil {
		return err
	}
	if now := b.link(dir, "driver"); now != "" && now != want {
		if err := b.ask(ctx, dir+"/driver/unbind", address); err != nil {
			return err
		}
	}
	if want == "" {
		return nil
	}
	// EBUSY: it is bound, perhaps by another thread of the kernel, which names the driver
	// before that has taken the device; the request waits for the end of that.
	err := b.ask(ctx, "bus/pci/drivers/"+want+"/bind", address)
	switch now := b.link(dir, "driver"); {
	case err != nil && !errors.Is(err, unix.EBUSY):
		return base.WithHint(err, "the kernel's log says why %s did not take the device", want)
	case now != want:
		return base.Errorf("bind", address, base.ErrMismatch, "the driver is %q", now)
	}
	return nil
}

// ask writes an attribute. The kernel may take long, for a device that does not
// answer; who asked waits at most bindLimit.
func (b binder) ask(ctx context.Context, file, text string) error {
	done := make(chan error, 1)
	go func() { done <- b.write(file, text) }()
	ctx, cancel := context.WithTimeout(ctx, bindLimit)
	defer cancel()
	select {
	case err := <-done:
		return base.Wrap("write", file, err)
	case <-ctx.Done():
		return base.Errorf("write", file, base.ErrTimeout, "the kernel has not answered: %w", ctx.Err())
	}
}

// holders names whoever uses a controller or a disk of it, in words.
func holders(k kernel, address string) (out []string, err error) {
	dir := "bus/pci/devices/" + address
	processes := func(node string, kind unix.Kind, dev unix.Dev) {
		for _, pid := range unix.Openers(unix.Stat{Kind: kind, Rdev: dev}) {
			out = append(out, fmt.Sprintf("process %d (%s) has %s open", pid, unix.ProcName(pid), node))
		}
	}
	c := k.pci(dir, address)
	for _, d := range c.Disks {
		for _, h := range d.Holders {
			out = append(out, d.Path+": "+h)
		}
		for _, name := range append([]string{d.Name}, k.partitions(d.Name)...) {
			if dev, ok := unix.ParseDev(k.text("class/block/"+name, "dev")); ok {
				processes("/dev/"+name, unix.KindBlock, dev)
			}
		}
		past := "ng" + strings.TrimPrefix(d.Name, "nvme") // for commands past the block layer
		if dev, ok := unix.ParseDev(k.text("class/nvme-generic/"+past, "dev")); ok {
			processes("/dev/"+past, unix.KindChar, dev)
		}
	}
	for _, class := range []string{"nvme", moduleClass} {
		names, err := k.list(dir + "/" + class)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if dev, ok := unix.ParseDev(k.text(dir+"/"+class+"/"+name, "dev")); ok {
				processes("/dev/"+name, unix.KindChar, dev)
			}
			if pid := k.owner(dir + "/" + class + "/" + name); pid != 0 && len(out) == 0 { // of another user
				out = append(out, fmt.Sprintf("process %d (%s) has /dev/%s", pid, unix.ProcName(pid), name))
			}
		}
	}
	if group := k.link(dir, "iommu_group"); c.Driver == DriverVFIO && group != "" {
		for _, name := range []string{group, "noiommu-" + group} {
			if dev, ok := unix.ParseDev(k.text("class/vfio/"+name, "dev")); ok {
				processes("/dev/vfio/"+name, unix.KindChar, dev)
			}
		}
		own, err := k.list(dir + "/vfio-dev")
		if err != nil {
			return nil, err
		}
		for _, name := range own {
			if dev, ok := unix.ParseDev(k.text(dir+"/vfio-dev/"+name, "dev")); ok {
				processes("/dev/vfio/devices/"+name, unix.KindChar, dev)
			}
		}
	}
	return out, nil
}

// hiddenHolder names what holds a disk and is not seen from here: a mount of another
// mount namespace, such as a container's.
func hiddenHolder(d Disk) string {
	if st, err := unix.StatPath(d.Path); err == nil {
		if pid, point := unix.MountedElsewhere(st.Rdev); pid != 0 {
			return fmt.Sprintf("process %d (%s) has it mounted on %s, where this process does not see it", pid, unix.ProcName(pid), point)
		}
	}
	return "something holds it that this process cannot see"
}

// claimDisks opens disks exclusively, so that nobody mounts one between the look and
// the change. ErrInUse when something holds one that could not be seen.
func claimDisks(disks []Disk) (release func(), err error) {
	var open []*unix.FD
	release = func() {
		for _, f := range open {
			_ = f.Close()
		}
	}
	for _, d := range disks {
		f, err := unix.Open(d.Path, unix.ReadOnly|unix.Excl|unix.NonBlock, 0)
		switch {
		case errors.Is(err, unix.EBUSY):
			release()
			return nil, base.Errorf("claim", d.Path, base.ErrInUse, "%s: %w", hiddenHolder(d), err)
		case err != nil:
			release()
			return nil, base.Wrap("claim", d.Path, err)
		}
		open = append(open, f)
	}
	return release, nil
}
