package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// The verdicts of a Finding.
const (
	// Good: what the direct path needs is there.
	Good = "ok"
	// Fallback: something works, but not in the best way.
	Fallback = "fallback"
	// Refused: what this is about cannot be used.
	Refused = "refused"
)

// Finding is one thing about this machine that decides how devices are reached.
type Finding struct {
	Name    string `json:"name"`
	Verdict string `json:"verdict"`
	Reason  string `json:"reason"`
	Mend    string `json:"mend"` // what to do about it, "" if there is nothing
}

// machine reads this machine, or a picture of one below a folder.
type machine struct {
	root    string
	memlock unix.Rlimit
	may     bool // CAP_IPC_LOCK or the superuser: no limit of locked memory
	release string
}

// Machine examines what the storage side of the direct path needs: IOMMU, drivers,
// what a signed boot allows, memory that can be locked, and each NVMe controller. It
// only reads and needs no rights; what it cannot see it says.
func Machine() []Finding {
	l, err := unix.GetRlimit(unix.RlimitMemlock)
	if err != nil {
		l = unix.Rlimit{}
	}
	m := pictured("/")
	m.memlock, m.may = l, os.Geteuid() == 0
	return m.findings()
}

// pictured is the machine whose sys and proc lie below a folder.
func pictured(root string) machine {
	m := machine{root: root}
	m.release = m.text("proc/sys/kernel/osrelease")
	return m
}

func (m machine) text(file string) string {
	b, _ := os.ReadFile(filepath.Join(m.root, file))
	return strings.TrimSpace(string(b))
}

func (m machine) exists(file string) bool {
	_, err := os.Stat(filepath.Join(m.root, file))
	return err == nil
}

func (m machine) findings() []Finding {
	out := []Finding{m.iommu(), m.options(), m.module(), m.vfio(), m.secureBoot(), m.lockdown(), m.hugePages(), m.lockedMemory()}
	controllers, err := Controllers(filepath.Join(m.root, "sys"))
	if err != nil {
		return append(out, Finding{NoControllers, Refused, err.Error(), ""})
	}
	if len(controllers) == 0 {
		out = append(out, Finding{NoControllers, Fallback, "this machine has no NVMe controller: stores are on files and block devices", ""})
	}
	nodes, _ := filepath.Glob(filepath.Join(m.root, "sys/devices/system/node/node[0-9]*"))
	for i := range controllers {
		out = append(out, m.controller(&controllers[i], len(nodes)))
	}
	return append(out, m.nodes(controllers, len(nodes)), Finding{PeerToPeer, Fallback,
		"not tried: every pair of a controller and a GPU is tested with a pattern before its direct path is used",
		"test them now: ugdsctl check --store DIR --gpu GPU --pairs"})
}

// NoControllers is the name of the finding that there is none, or that none can be seen.
const NoControllers = "controllers"

// PeerToPeer is the name of the finding that pairs were not tested.
const PeerToPeer = "peer-to-peer"

// iommus lists the IOMMUs that the kernel has taken into use.
func (m machine) iommus() []string {
	names, _ := kernel(filepath.Join(m.root, "sys")).list("class/iommu")
	return names
}

// iommuOn is what makes the kernel use an IOMMU. AMD's is used when the firmware has it on.
const iommuOn = "switch VT-d or AMD-Vi on in the firmware, and on Intel boot with intel_iommu=on"

func (m machine) iommu() Finding {
	f := Finding{Name: "IOMMU"}
	types := map[string]int{}
	groups, _ := filepath.Glob(filepath.Join(m.root, "sys/kernel/iommu_groups/*/type"))
	for _, g := range groups {
		b, _ := os.ReadFile(g)
		types[strings.TrimSpace(string(b))]++
	}
	switch {
	case len(m.iommus()) == 0:
		f.Verdict, f.Reason = Fallback, "none in use: a controller reaches all memory, so only CAP_SYS_RAWIO may have one"
		f.Mend = iommuOn
	case types["DMA-FQ"] > 0:
		f.Verdict, f.Reason = Good, "translates lazily: a GPU that takes memory back stops the whole controller for a moment"
		f.Mend = "iommu.strict=1 confines that to the memory, at some cost"
	case types["DMA"] > 0:
		f.Verdict, f.Reason = Good, "translates strictly: a controller reaches only what its owner gave it"
	default:
		f.Verdict, f.Reason = Fallback, "passes addresses through: by the kernel module a controller reaches all memory, so only CAP_SYS_RAWIO may have one; VFIO translates anyway"
		f.Mend = "boot without iommu=pt to confine controllers of the module, or take VFIO"
	}
	return f
}

// options are those of the kernel's command line that matter.
func (m machine) options() Finding {
	var found []string
	for _, w := range strings.Fields(m.text("proc/cmdline")) {
		name, _, _ := strings.Cut(w, "=")
		if slices.Contains([]string{"intel_iommu", "amd_iommu", "iommu", "iommu.strict", "iommu.passthrough", "swiotlb", "mem_encrypt",
			"pci", "pcie_acs_override", "lockdown"}, name) {
			found = append(found, w)
		}
	}
	f := Finding{Name: "kernel", Verdict: Good, Reason: "release " + m.release + ", options: " + strings.Join(found, " ")}
	switch {
	case len(found) == 0:
		f.Reason = "release " + m.release + ", no options that matter here"
	case slices.Contains(found, "swiotlb=force"):
		f.Verdict, f.Mend = Refused, "boot without swiotlb=force: the kernel would copy all data of devices, and the module refuses that"
	case slices.Contains(found, "mem_encrypt=on"):
		f.Verdict, f.Mend = Refused, "boot without mem_encrypt=on: the module refuses controllers then"
	}
	return f
}

func (m machine) module() Finding {
	f := Finding{Name: "module " + DriverModule}
	if m.exists("sys/module/" + DriverModule) {
		f.Verdict, f.Reason = Good, "loaded, version "+m.text("sys/module/"+DriverModule+"/version")
		return f
	}
	f.Verdict, f.Reason = Fallback, "not loaded: no direct path to most GPU memory"
	f.Mend = m.load(DriverModule)
	if !m.loads() {
		f.Verdict, f.Reason = Refused, "this kernel loads no modules: no direct path to most GPU memory"
	}
	return f
}

// loads tells whether the kernel can load modules.
func (m machine) loads() bool { return m.exists("proc/modules") }

// load says how the kernel gets a driver that it does not have.
func (m machine) load(driver string) string {
	installed := func() bool {
		found, _ := filepath.Glob(filepath.Join(m.root, "lib/modules", m.release, "*", driver+".ko*"))
		return len(found) > 0
	}
	switch {
	case !m.loads():
		return "take a kernel that loads modules; this one has no /proc/modules"
	case driver != DriverModule || installed():
		return "load it: modprobe " + driver
	case !m.exists("lib/modules/" + m.release + "/build"):
		return "install the headers of kernel " + m.release + ", then make kmod and insmod bin/kmod/" + DriverModule + ".ko; see docs/hardware.md"
	}
	return "make kmod, then insmod bin/kmod/" + DriverModule + ".ko; see docs/hardware.md"
}

func (m machine) vfio() Finding {
	switch {
	case len(m.iommus()) == 0:
		return Finding{"VFIO", Refused, "it needs an IOMMU", "see IOMMU; the module works without"}
	case !m.exists("sys/bus/pci/drivers/" + DriverVFIO):
		return Finding{"VFIO", Fallback, "not loaded", m.load(DriverVFIO)}
	}
	switch group, own := m.exists("dev/vfio/vfio"), m.exists("dev/iommu"); {
	case !group && !own:
		return Finding{"VFIO", Refused, "loaded, and neither /dev/vfio/vfio nor /dev/iommu is here, by which memory is mapped",
			"modprobe iommufd; or show this container /dev/iommu or /dev/vfio/vfio, and the node of the controller"}
	case !group:
		return Finding{"VFIO", Good, "loaded, by iommufd: controllers can be used without privilege, GPU memory is copied, BARs too", ""}
	}
	return Finding{"VFIO", Good, "loaded: controllers can be used without privilege, GPU memory other than BARs is copied", ""}
}

func (m machine) secureBoot() Finding {
	found, _ := filepath.Glob(filepath.Join(m.root, "sys/firmware/efi/efivars/SecureBoot-*"))
	if len(found) == 0 {
		return Finding{"Secure Boot", Good, "not there", ""}
	}
	b, err := os.ReadFile(found[0])
	switch {
	case err != nil || len(b) != 5: // four bytes of attributes, and the value
		return Finding{"Secure Boot", Fallback, "its state cannot be read", "mokutil --sb-state tells it"}
	case b[4] == 0:
		return Finding{"Secure Boot", Good, "off", ""}
	}
	return Finding{"Secure Boot", Fallback, "on: the kernel may load signed modules only", "sign the module with an enrolled key; DKMS does that"}
}

func (m machine) lockdown() Finding {
	text := m.text("sys/kernel/security/lockdown")
	_, rest, ok := strings.Cut(text, "[")
	mode, _, _ := strings.Cut(rest, "]")
	switch {
	case !ok:
		return Finding{"lockdown", Good, "the kernel shows none", ""}
	case mode == "none":
		return Finding{"lockdown", Good, "off", ""}
	}
	return Finding{"lockdown", Fallback, mode + ": the module gives out only controllers for which an IOMMU translates",
		"see IOMMU; or boot without lockdown"}
}

func (m machine) hugePages() Finding {
	f := Finding{Name: "huge pages"}
	var total, free int
	for line := range strings.Lines(m.text("proc/meminfo")) {
		_, _ = fmt.Sscanf(line, "HugePages_Total: %d", &total)
		_, _ = fmt.Sscanf(line, "HugePages_Free: %d", &free)
	}
	_, rest, _ := strings.Cut(m.text("sys/kernel/mm/transparent_hugepage/enabled"), "[")
	transparent, _, _ := strings.Cut(rest, "]")
	f.Reason = fmt.Sprintf("transparent ones: %s; %d reserved, %d of them free", orNone(transparent), total, free)
	f.Verdict = Good
	if transparent != "always" && transparent != "madvise" {
		f.Verdict, f.Mend = Fallback, "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled: large regions have fewer pieces then"
	}
	return f
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// enoughMemlock is what a store that registers its caches wants to lock, in bytes.
const enoughMemlock = 1 << 30

func (m machine) lockedMemory() Finding {
	f := Finding{Name: "locked memory", Verdict: Good}
	switch {
	case m.may:
		f.Reason = "not limited for the superuser"
	case m.memlock.Soft == unix.Unlimited:
		f.Reason = "not limited"
	default:
		f.Reason = base.FormatBytes(int64(min(m.memlock.Soft, 1<<62))) + " may be locked"
		if m.memlock.Soft < enoughMemlock {
			f.Verdict = Fallback
			f.Mend = "raise it: ulimit -l, LimitMEMLOCK= of a service, or limits.conf"
		}
	}
	return f
}

// controller says how one is reached, and whether it is on the node of its user.
func (m machine) controller(c *Controller, nodes int) Finding {
	f := Finding{Name: "controller " + c.Address, Verdict: Good, Reason: c.Why}
	switch {
	case c.Driver == DriverModule, c.Driver == DriverVFIO:
		if !c.Usable {
			f.Verdict, f.Mend = Refused, `see docs/hardware.md, "Who may open"`
			if c.Driver == DriverVFIO {
				f.Mend = `see docs/hardware.md, "VFIO", step 5`
			}
		}
	case c.Usable:
		f.Verdict = Fallback
		f.Mend = "ugdsctl device bind " + c.Address + " gives it to the store alone"
	case c.Driver != DriverKernel:
		f.Verdict = Refused
		f.Reason, _, _ = strings.Cut(c.Why, ": ")
		f.Mend = "ugdsctl device bind " + c.Address
	default:
		f.Verdict = Refused
		f.Mend = "take another"
		for _, d := range c.Disks {
			for _, h := range d.Holders {
				f.Mend += "; " + d.Path + ": " + h
			}
		}
	}
	where := []string{}
	if nodes > 1 {
		node := "node unknown"
		if c.NUMANode >= 0 {
			node = "NUMA node " + strconv.Itoa(c.NUMANode)
		}
		where = append(where, node)
	}
	if s := c.Link.String(); s != "" {
		where = append(where, s)
	}
	if len(where) > 0 {
		f.Reason += " (" + strings.Join(where, ", ") + ")"
	}
	return f
}

// nodes says whether a store that is started here has its memory beside its controllers.
func (m machine) nodes(controllers []Controller, nodes int) Finding {
	f := Finding{Name: "NUMA", Verdict: Good}
	if nodes < 2 {
		f.Reason = "one node"
		return f
	}
	var on []string
	for _, c := range controllers {
		if n := strconv.Itoa(c.NUMANode); c.NUMANode >= 0 && !slices.Contains(on, n) {
			on = append(on, n)
		}
	}
	memory := ""
	for line := range strings.Lines(m.text("proc/self/status")) {
		if list, ok := strings.CutPrefix(line, "Mems_allowed_list:"); ok {
			memory = strings.TrimSpace(list)
		}
	}
	f.Reason = fmt.Sprintf("%d nodes; controllers are on %s, memory of what is started here comes from %s", nodes,
		orNone(strings.Join(on, ", ")), orNone(memory))
	if len(on) > 1 || len(on) == 1 && memory != on[0] {
		f.Verdict = Fallback
		f.Mend = "start a store on the node of its controllers: numactl --cpunodebind=" + on[0] + " --membind=" + on[0]
	}
	return f
}
