package probe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/unix"
)

// picture is a machine that a test draws: file → text.
func picture(t *testing.T, files map[string]string) machine {
	t.Helper()
	m := machine{root: t.TempDir(), memlock: unix.Rlimit{Soft: unix.Unlimited}, release: "6.12"}
	for name, text := range files {
		path := filepath.Join(m.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// TestMachineFindings: each state of each thing has its verdict, and one that is not
// good says what to do or why nothing helps.
func TestMachineFindings(t *testing.T) {
	iommu := map[string]string{"sys/class/iommu/dmar0/x": ""}
	with := func(more ...string) map[string]string {
		out := map[string]string{"sys/class/iommu/dmar0/x": ""}
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	numa := func(controller, memory string) map[string]string {
		return map[string]string{"sys/devices/system/node/node0/x": "", "sys/devices/system/node/node1/x": "",
			"sys/bus/pci/devices/0000:01:00.0/class": nvmeClass, "sys/bus/pci/devices/0000:01:00.0/numa_node": controller,
			"proc/self/status": "VmPin: 0 kB\nMems_allowed_list:\t" + memory + "\n"}
	}
	const efi = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
	for _, c := range []struct {
		name, verdict, says string
		files               map[string]string
	}{
		{"IOMMU", Fallback, "CAP_SYS_RAWIO", nil},
		{"IOMMU", Good, "strictly", with("sys/kernel/iommu_groups/1/type", "DMA\n")},
		{"IOMMU", Good, "lazily", with("sys/kernel/iommu_groups/1/type", "DMA-FQ\n")},
		{"IOMMU", Fallback, "through: by the kernel module", with("sys/kernel/iommu_groups/1/type", "identity\n")},
		{"kernel", Good, "6.12, no options", nil},
		{"kernel", Good, "iommu=pt intel_iommu=on", map[string]string{"proc/cmdline": "quiet iommu=pt intel_iommu=on x=y"}},
		{"kernel", Refused, "swiotlb=force", map[string]string{"proc/cmdline": "swiotlb=force"}},
		{"kernel", Refused, "mem_encrypt=on", map[string]string{"proc/cmdline": "mem_encrypt=on"}},
		{"module ugds", Refused, "loads no modules", nil},
		{"module ugds", Fallback, "install the headers of kernel 6.12", map[string]string{"proc/modules": ""}},
		{"module ugds", Fallback, "make kmod", map[string]string{"proc/modules": "", "lib/modules/6.12/build/x": ""}},
		{"module ugds", Fallback, "modprobe ugds", map[string]string{"proc/modules": "", "lib/modules/6.12/updates/ugds.ko": ""}},
		{"module ugds", Good, "version 1.0", map[string]string{"sys/module/ugds/version": "1.0\n"}},
		{"VFIO", Refused, "IOMMU", nil},
		{"VFIO", Fallback, "not loaded", iommu},
		{"VFIO", Good, "loaded: ", with("sys/bus/pci/drivers/vfio-pci/bind", "", "dev/vfio/vfio", "")},
		{"VFIO", Refused, "modprobe iommufd", with("sys/bus/pci/drivers/vfio-pci/bind", "")},
		{"VFIO", Good, "by iommufd", with("sys/bus/pci/drivers/vfio-pci/bind", "", "dev/iommu", "")},
		{"Secure Boot", Good, "not there", nil},
		{"Secure Boot", Good, "off", map[string]string{efi: "\x06\x00\x00\x00\x00"}},
		{"Secure Boot", Fallback, "on", map[string]string{efi: "\x06\x00\x00\x00\x01"}},
		{"Secure Boot", Fallback, "cannot be read", map[string]string{efi: "x"}},
		{"lockdown", Good, "none", nil},
		{"lockdown", Good, "off", map[string]string{"sys/kernel/security/lockdown": "[none] integrity confidentiality\n"}},
		{"lockdown", Fallback, "integrity", map[string]string{"sys/kernel/security/lockdown": "none [integrity] confidentiality\n"}},
		{"huge pages", Fallback, "none", nil},
		{"huge pages", Good, "madvise; 8 reserved, 3 of them free", map[string]string{
			"proc/meminfo": "MemTotal: 1 kB\nHugePages_Total:       8\nHugePages_Free:        3\n",
			"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"}},
		{"locked memory", Good, "not limited", nil},
		{"controllers", Fallback, "no NVMe controller", nil},
		{"controller 0000:01:00.0", Refused, "no driver has it", map[string]string{"sys/bus/pci/devices/0000:01:00.0/class": nvmeClass}},
		{"controller 0000:01:00.0", Fallback, "as a block device", map[string]string{"sys/bus/pci/devices/0000:01:00.0/class": nvmeClass,
			"sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/x": "", "sys/class/nvme/nvme0/nvme0n1/x": ""}},
		{"controller 0000:01:00.0", Refused, "NUMA node 1", map[string]string{"sys/bus/pci/devices/0000:01:00.0/class": nvmeClass,
			"sys/bus/pci/devices/0000:01:00.0/numa_node": "1", "sys/devices/system/node/node0/x": "", "sys/devices/system/node/node1/x": ""}},
		{"controller 0000:01:00.0", Refused, "ugdsctl device bind", map[string]string{"sys/bus/pci/devices/0000:01:00.0/class": nvmeClass}},
		{"NUMA", Good, "one node", nil},
		{"NUMA", Good, "controllers are on none", numa("-1", "0-1")},
		{"NUMA", Good, "controllers are on 1", numa("1", "1")},
		{"NUMA", Fallback, "numactl --cpunodebind=1", numa("1", "0-1")},
		{"peer-to-peer", Fallback, "not tried", nil},
	} {
		got := Finding{}
		for _, f := range picture(t, c.files).findings() {
			if f.Name == c.name {
				got = f
			}
		}
		if got.Verdict != c.verdict || !strings.Contains(got.Reason+got.Mend, c.says) {
			t.Errorf("%s of %v: %+v, want %s and %q", c.name, c.files, got, c.verdict, c.says)
		}
		if got.Verdict != Good && got.Mend == "" && got.Name != "controllers" {
			t.Errorf("%s is %s, and nothing is said to mend it", got.Name, got.Verdict)
		}
	}
	m := picture(t, nil)
	for limit, verdict := range map[uint64]string{64 << 10: Fallback, enoughMemlock - 1: Fallback, enoughMemlock: Good} {
		m.memlock.Soft = limit
		if f := m.lockedMemory(); f.Verdict != verdict || (f.Mend == "") != (verdict == Good) {
			t.Errorf("%d: %+v", limit, f)
		}
	}
	m.memlock.Soft, m.may = 0, true
	if f := m.lockedMemory(); f.Verdict != Good {
		t.Errorf("%+v", f)
	}
}

// TestMachine: this one can be looked at.
func TestMachine(t *testing.T) {
	if found := Machine(); len(found) < 10 {
		t.Errorf("%+v", found)
	}
}
