package probe

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ugds-store/ugds/driver/hw/vfio"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Sysfs is where the kernel shows its devices.
const Sysfs = "/sys"

// Controller is an NVMe controller as the kernel shows it. What it does not tell is
// "", -1 for the node, or 0.
type Controller struct {
	Address  string `json:"address"` // of PCI, or of the fabric
	Vendor   string `json:"vendor"`  // PCI identifiers, hexadecimal
	Device   string `json:"device"`
	Driver   string `json:"driver"` // of the kernel, "" if none has it
	Name     string `json:"name"`   // nvme0; only the kernel's nvme driver gives one
	Model    string `json:"model"`
	Serial   string `json:"serial"`
	Firmware string `json:"firmware"`
	State    string `json:"state"` // as the kernel's driver says

	NUMANode   int    `json:"numa_node"`
	IOMMUGroup string `json:"iommu_group"` // "" if none: addresses are not translated
	Link       Link   `json:"link"`

	Disks []Disk `json:"disks"`
	// Usable tells whether a store can have it now, Why how, or why not.
	Usable bool   `json:"usable"`
	Why    string `json:"why"`
}

// Link is the PCI Express link of a device.
type Link struct {
	Speed    string `json:"speed"` // as the kernel writes it: "8.0 GT/s PCIe"
	Width    string `json:"width"` // lanes
	MaxSpeed string `json:"max_speed"`
	MaxWidth string `json:"max_width"`
}

// Narrow tells whether the link is slower than device and slot could be.
func (l Link) Narrow() bool {
	return l.MaxWidth != "" && l.Width != l.MaxWidth || l.MaxSpeed != "" && l.Speed != l.MaxSpeed
}

// String is the link in words, "" if there is none.
func (l Link) String() string {
	if l.Width == "" || l.Width == "0" {
		return ""
	}
	s := "PCIe " + strings.TrimSuffix(l.Speed, " PCIe") + " x" + l.Width
	if l.Narrow() {
		s += " (of " + strings.TrimSuffix(l.MaxSpeed, " PCIe") + " x" + l.MaxWidth + ")"
	}
	return s
}

// Disk is a namespace that the kernel shows as a block device.
type Disk struct {
	Name    string   `json:"name"`
	Path    string   `json:"path"`
	Bytes   int64    `json:"bytes"`
	Holders []string `json:"holders"` // what uses it, in words
	Holds   string   `json:"holds"`   // what is on it, "" if it is blank or nobody looked: Controllers opens none
}

// nvmeClass is the PCI class of NVMe controllers.
const nvmeClass = "0x010802"

// Controllers lists the NVMe controllers of this machine, by address. It only
// reads below sysfs, usually Sysfs, opens no device and needs no rights. A machine
// without any gives none.
func Controllers(sysfs string) ([]Controller, error) {
	k := kernel(sysfs)
	addresses, err := k.list("bus/pci/devices")
	if err != nil {
		return nil, err
	}
	var out []Controller
	seen := map[string]bool{}
	for _, address := range addresses {
		dir := "bus/pci/devices/" + address
		if k.text(dir, "class") != nvmeClass {
			continue
		}
		c := k.pci(dir, address)
		seen[c.Name] = true
		out = append(out, c)
	}
	names, err := k.list("class/nvme")
	if err != nil {
		return nil, err
	}
	for _, name := range names { // those behind a fabric
		if !seen[name] {
			c := Controller{NUMANode: -1, Driver: "nvme-" + k.text("class/nvme/"+name, "transport")}
			k.named(&c, name)
			out = append(out, c.judged())
		}
	}
	return out, nil
}

// kernel reads below a directory such as /sys.
type kernel string

// list gives the names in a directory, in order; none if there is no such.
func (k kernel) list(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(string(k), dir))
	if err != nil && !os.IsNotExist(err) {
		return nil, base.Wrap("read", filepath.Join(string(k), dir), err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	slices.Sort(out)
	return out, nil
}

// text reads an attribute, "" if there is none.
func (k kernel) text(dir, name string) string {
	b, err := os.ReadFile(string(k) + "/" + dir + "/" + name) // not cleaned: x/.. is not what x leads to
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// link gives the name of what a link leads to, "" if there is none.
func (k kernel) link(dir, name string) string {
	to, err := os.Readlink(filepath.Join(string(k), dir, name))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

func (k kernel) pci(dir, address string) Controller {
	c := Controller{Address: address, NUMANode: -1, Driver: k.link(dir, "driver"), IOMMUGroup: k.link(dir, "iommu_group"),
		Vendor: strings.TrimPrefix(k.text(dir, "vendor"), "0x"), Device: strings.TrimPrefix(k.text(dir, "device"), "0x"),
		Link: k.pcieLink(dir)}
	if n, err := strconv.Atoi(k.text(dir, "numa_node")); err == nil {
		c.NUMANode = n
	}
	if names, err := k.list(dir + "/nvme"); err == nil && len(names) > 0 {
		k.named(&c, names[0])
	}
	c = c.judged()
	if err := k.taken(dir, &c); err != nil {
		c.Usable, c.Why = false, err.Error()
	}
	return c
}

// taken says why this process cannot open a controller that the module or VFIO has, as
// far as can be told without opening it; nil if it can.
func (k kernel) taken(dir string, c *Controller) error {
	var nodes []string
	switch names, _ := k.list(dir + "/" + moduleClass); {
	case c.Driver == DriverVFIO && c.IOMMUGroup != "":
		if err := vfio.Translated(string(k), c.Address); err != nil {
			return err
		}
		nodes = k.vfioNodes(c)
	case c.Driver == DriverModule && len(names) > 0:
		nodes = []string{"/dev/" + names[0]}
		if why := k.text(dir+"/"+moduleClass+"/"+names[0], "refusal"); why != "" && why != "none" {
			return base.Errorf("open", "pci:"+c.Address, base.ErrNotSupported, "the module refuses it: %s", why)
		}
		if pid := k.owner(dir + "/" + moduleClass + "/" + names[0]); pid != 0 {
			return base.WithHint(base.Errorf("open", "pci:"+c.Address, base.ErrLocked, "process %d (%s) has it", pid, unix.ProcName(pid)),
				"%s", base.OwnerHint(pid))
		}
	}
	for _, node := range nodes {
		switch err := unix.MayWrite(filepath.Join(filepath.Dir(string(k)), node)); {
		case errors.Is(err, unix.EACCES):
			return base.WithHint(base.Errorf("open", node, unix.EACCES, "this process may not open it"),
				"as root: chown $USER %s", strings.Join(nodes, " "))
		case errors.Is(err, unix.ENOENT) && node == nodeIOMMU:
			return base.WithHint(base.Wrap("open", node, unix.ENOENT), "modprobe iommufd, or show this container the node")
		case errors.Is(err, unix.ENOENT):
			return base.WithHint(base.Wrap("open", node, unix.ENOENT), "show this container the node")
		}
	}
	return nil
}

// nodeIOMMU is where iommufd makes its address spaces.
const nodeIOMMU = "/dev/iommu"

// vfioNodes are the nodes that the owner of a controller opens, which VFIO has.
func (k kernel) vfioNodes(c *Controller) []string {
	n := k.vfioNode(c.Address)
	path := strings.TrimPrefix(n.Path, strings.TrimSuffix(filepath.Dir(string(k)), "/"))
	if n.IOMMUFD {
		return []string{path, nodeIOMMU}
	}
	return []string{path}
}

// moduleClass is where our module shows its nodes.
const moduleClass = "ugds_drv"

// owner is the process that has the controller of a node of our module, 0 if none.
func (k kernel) owner(node string) int {
	pid, _ := strconv.Atoi(k.text(node, "owner"))
	if pid <= 0 || !(unix.Proc{PID: pid}).Alive() {
		return 0
	}
	return pid
}

func (k kernel) pcieLink(dir string) Link {
	return Link{k.text(dir, "current_link_speed"), k.text(dir, "current_link_width"),
		k.text(dir, "max_link_speed"), k.text(dir, "max_link_width")}
}

// named fills in what the kernel's driver shows of its controller.
func (k kernel) named(c *Controller, name string) {
	dir := "class/nvme/" + name
	c.Name, c.Model, c.Serial = name, k.text(dir, "model"), k.text(dir, "serial")
	c.Firmware, c.State = k.text(dir, "firmware_rev"), k.text(dir, "state")
	if c.Address == "" {
		c.Address = k.text(dir, "address")
	}
	entries, err := k.list(dir)
	if err != nil {
		return // it went away
	}
	for _, e := range entries {
		if disk := diskName(e); disk != "" {
			c.Disks = append(c.Disks, k.disk(disk))
		}
	}
}

var namespaceName = regexp.MustCompile(`^(nvme\d+)(c\d+)?(n\d+)$`)

// diskName is the block device of a namespace by the name of its directory: with
// several paths, nvme0c1n2 is one to nvme0n2.
func diskName(entry string) string {
	m := namespaceName.FindStringSubmatch(entry)
	if m == nil {
		return ""
	}
	return m[1] + m[3]
}

func (k kernel) disk(name string) Disk {
	d := Disk{Name: name, Path: "/dev/" + name, Holders: []string{}}
	if sectors, err := strconv.ParseInt(k.text("class/block/"+name, "size"), 10, 64); err == nil {
		d.Bytes = sectors * 512 // whatever the size of its blocks
	}
	if dev, ok := unix.ParseDev(k.text("class/block/"+name, "dev")); ok {
		proc := filepath.Join(filepath.Dir(string(k)), "proc") // beside it
		d.Holders = append(d.Holders, unix.BlockHoldersIn(string(k), proc, dev)...)
	}
	return d
}

// partitions lists those of a disk, by name.
func (k kernel) partitions(disk string) (out []string) {
	names, _ := k.list("class/block/" + disk)
	for _, n := range names {
		if k.text("class/block/"+disk+"/"+n, "partition") != "" {
			out = append(out, n)
		}
	}
	return out
}

// judged says whether a store can have the controller.
func (c Controller) judged() Controller {
	if c.Disks == nil {
		c.Disks = []Disk{}
	}
	free := slices.ContainsFunc(c.Disks, func(d Disk) bool { return len(d.Holders) == 0 })
	switch {
	case free:
		c.Usable, c.Why = true, "through the kernel, as a block device"
	case len(c.Disks) > 0:
		c.Why = "something uses each of its disks"
	case c.Name != "":
		c.Why = "the kernel shows no namespace of it"
	case c.Driver == DriverModule:
		c.Usable, c.Why = true, "through the kernel module, as pci:"+c.Address
	case c.Driver == DriverVFIO:
		c.Usable, c.Why = true, "through VFIO, as pci:"+c.Address
	case c.Driver == "":
		c.Why = "no driver has it: ugdsctl device bind " + c.Address
	default:
		c.Why = "the driver " + c.Driver + " has it: ugdsctl device bind " + c.Address + " takes it away"
	}
	return c
}

// LinkOf is the link of the controller behind a block device of the kernel and its
// node; empty and -1 for what is not on PCI Express.
func LinkOf(dev unix.Dev) (Link, int) {
	k, dir := kernel(Sysfs), "dev/block/"+dev.String()
	for _, up := range []string{"/device", "/device/device", "/../device", "/../device/device"} {
		if k.text(dir+up, "current_link_width") != "" {
			n, err := strconv.Atoi(k.text(dir+up, "numa_node"))
			if err != nil {
				n = -1
			}
			return k.pcieLink(dir + up), n
		}
	}
	return Link{}, -1
}
