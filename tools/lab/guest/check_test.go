//go:build ugds_lab

package guest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ugds-store/ugds/driver/hw/kdrv"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/tools/ctl"
)

// checked is what "ugdsctl check" says here, by name.
func checked(t testing.TB) map[string]probe.Finding {
	t.Helper()
	var out bytes.Buffer
	if err := ctl.Check(t.Context(), &ctl.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out, JSON: true}, &ctl.Target{}, false); err != nil {
		t.Fatal(err)
	}
	return findingsIn(t, out.Bytes())
}

func findingsIn(t testing.TB, text []byte) map[string]probe.Finding {
	t.Helper()
	var doc struct{ Findings []probe.Finding }
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	found := map[string]probe.Finding{}
	for _, f := range doc.Findings {
		found[f.Name] = f
	}
	return found
}

// wantFinding wants a verdict with words in its reason, and what to do in its mend; a
// verdict that is not good and says nothing of what to do is of no use.
func wantFinding(t testing.TB, found map[string]probe.Finding, name, verdict, reason, mend string) {
	t.Helper()
	f, ok := found[name]
	if !ok || f.Verdict != verdict || !strings.Contains(f.Reason, reason) || !strings.Contains(f.Mend, mend) {
		t.Errorf("%s: %+v, want %s, %q, mend %q", name, f, verdict, reason, mend)
	}
	if f.Verdict != probe.Good && f.Mend == "" {
		t.Errorf("%s is %s and nothing is said to mend it", name, f.Verdict)
	}
}

func textOf(t testing.TB, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// TestCheck: "ugdsctl check" says of this machine what the machine is.
func TestCheck(t *testing.T) {
	found := checked(t)
	for _, f := range found {
		t.Logf("%s\t%s\t%s → %s", f.Name, f.Verdict, f.Reason, f.Mend)
	}
	options := strings.Fields(textOf(t, "/proc/cmdline"))
	has := map[string]bool{}
	for _, o := range options {
		has[o] = true
	}
	release := textOf(t, "/proc/sys/kernel/osrelease")
	switch {
	case !has["intel_iommu=on"]:
		wantFinding(t, found, "IOMMU", probe.Fallback, "CAP_SYS_RAWIO", "intel_iommu=on")
		wantFinding(t, found, "VFIO", probe.Refused, "needs an IOMMU", "IOMMU")
	case has["iommu=pt"]:
		wantFinding(t, found, "IOMMU", probe.Fallback, "through", "iommu=pt")
	default:
		wantFinding(t, found, "IOMMU", probe.Good, "translates", "")
	}
	if has["intel_iommu=on"] {
		if _, err := os.Stat(sysPCI + "drivers/vfio-pci"); err == nil {
			wantFinding(t, found, "VFIO", probe.Good, "without privilege", "")
		} else {
			wantFinding(t, found, "VFIO", probe.Fallback, "not loaded", "modprobe vfio-pci")
		}
	}
	verdict, mend := probe.Good, ""
	if has["swiotlb=force"] {
		verdict, mend = probe.Refused, "swiotlb=force"
	}
	wantFinding(t, found, "kernel", verdict, "release "+release, mend)
	for o := range has {
		if strings.Contains(o, "iommu=") && !strings.Contains(found["kernel"].Reason, o) {
			t.Errorf("the kernel's option %s is not told: %s", o, found["kernel"].Reason)
		}
	}
	if version, err := os.ReadFile("/sys/module/" + kdrv.Module + "/version"); err == nil {
		wantFinding(t, found, "module ugds", probe.Good, "version "+strings.TrimSpace(string(version)), "")
	} else {
		wantFinding(t, found, "module ugds", probe.Fallback, "not loaded", "docs/hardware.md")
	}
	wantFinding(t, found, "Secure Boot", probe.Good, "not there", "")
	wantFinding(t, found, "huge pages", probe.Good, textOf(t, "/proc/sys/vm/nr_hugepages")+" reserved", "")
	wantFinding(t, found, "locked memory", probe.Good, "superuser", "")
	wantFinding(t, found, "peer-to-peer", probe.Fallback, "tested with a pattern", "--pairs")
	checkControllers(t, found)
	checkNodes(t, found)
}

// checkControllers wants each controller with the driver that it has now.
func checkControllers(t *testing.T, found map[string]probe.Finding) {
	all := devicesOf(t, classNVMe)
	for _, address := range all {
		name := "controller " + address
		switch boundTo(address) {
		case probe.DriverModule:
			wantFinding(t, found, name, probe.Good, "kernel module", "")
		case probe.DriverVFIO:
			wantFinding(t, found, name, probe.Good, "VFIO", "")
		case probe.DriverKernel:
			wantFinding(t, found, name, probe.Fallback, "block device", "ugdsctl device bind "+address)
		case "":
			wantFinding(t, found, name, probe.Refused, "no driver", "ugdsctl device bind "+address)
		default:
			t.Errorf("%s is bound to %s", address, boundTo(address))
		}
	}
	n := 0
	for name := range found {
		if strings.HasPrefix(name, "controller ") {
			n++
		}
	}
	if n != len(all) {
		t.Errorf("%d of %d controllers", n, len(all))
	}
}

// checkNodes wants the node of each controller where there are several.
func checkNodes(t *testing.T, found map[string]probe.Finding) {
	nodes, _ := filepath.Glob("/sys/devices/system/node/node[0-9]*")
	if len(nodes) < 2 {
		wantFinding(t, found, "NUMA", probe.Good, "one node", "")
		return
	}
	far := false
	for _, address := range devicesOf(t, classNVMe) {
		node := textOf(t, sysPCI+"devices/"+address+"/numa_node")
		if node != "-1" && !strings.Contains(found["controller "+address].Reason, "NUMA node "+node) {
			t.Errorf("%s is on node %s: %+v", address, node, found["controller "+address])
		}
		far = far || node == "1"
	}
	if !far {
		t.Error("no controller is on node 1")
	}
	wantFinding(t, found, "NUMA", probe.Fallback, fmt.Sprint(len(nodes))+" nodes", "numactl")
}

// TestCheckChild prints what "ugdsctl check" says to a user with little memory to lock. It
// is nothing by itself.
func TestCheckChild(t *testing.T) {
	if err := unix.SetRlimit(unix.RlimitMemlock, unix.Rlimit{Soft: 64 * base.KiB, Hard: 64 * base.KiB}); err != nil {
		t.Fatal(err)
	}
	if err := ctl.Check(t.Context(), &ctl.Env{Stdin: strings.NewReader(""), Stdout: os.Stdout, Stderr: os.Stderr, JSON: true}, &ctl.Target{}, false); err != nil {
		t.Fatal(err)
	}
}

// TestCheckUnprivileged: anybody may ask, and is told of the own limits.
func TestCheckUnprivileged(t *testing.T) {
	c := exec.Command("/proc/self/exe", "-test.run=^TestCheckChild$")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, _, _ := bytes.Cut(out, []byte("PASS"))
	if at := bytes.IndexByte(text, '{'); at > 0 {
		text = text[at:]
	}
	found := findingsIn(t, text)
	wantFinding(t, found, "locked memory", probe.Fallback, "64.0 KiB may be locked", "ulimit -l")
	if len(found) != len(checked(t)) {
		t.Errorf("%d findings, the superuser sees %d", len(found), len(checked(t)))
	}
}
