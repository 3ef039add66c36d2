package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kasanTools are what building a kernel takes.
var kasanTools = []tool{{program: "flex", pkg: "flex"}, {program: "bison", pkg: "bison"}, {program: "bc", pkg: "bc"}, {program: "perl", pkg: "perl"},
	{program: "/usr/include/libelf.h", pkg: "libelf-dev"}}

// kasanConfig is the kernel that watches what the module does: accesses to freed memory
// and out of bounds (KASAN), the order of locks (lockdep), the use of the DMA layer, and
// allocations that fail when a test asks for it. Everything that is not named is off, so
// that it is small; nothing is a module. It tells dynamic importers of a move, which
// Debian's kernels do not, and it gives devices out by iommufd alone, which those lack.
const kasanConfig = `CONFIG_64BIT=y
CONFIG_SMP=y
CONFIG_KERNEL_GZIP=y
CONFIG_LOCALVERSION="-ugds-kasan"
CONFIG_MULTIUSER=y
CONFIG_PRINTK=y
CONFIG_BUG=y
CONFIG_FUTEX=y
CONFIG_EPOLL=y
CONFIG_EVENTFD=y
CONFIG_SIGNALFD=y
CONFIG_TIMERFD=y
CONFIG_SHMEM=y
CONFIG_AIO=y
CONFIG_IO_URING=y
CONFIG_ADVISE_SYSCALLS=y
CONFIG_MEMBARRIER=y
CONFIG_POSIX_TIMERS=y
CONFIG_FILE_LOCKING=y
CONFIG_HIGH_RES_TIMERS=y
CONFIG_NO_HZ_IDLE=y
CONFIG_BINFMT_ELF=y
CONFIG_BINFMT_SCRIPT=y
CONFIG_BLK_DEV_INITRD=y
CONFIG_RD_GZIP=y
CONFIG_DEVTMPFS=y
CONFIG_TMPFS=y
CONFIG_PROC_FS=y
CONFIG_PROC_SYSCTL=y
CONFIG_SYSFS=y
CONFIG_DEBUG_FS=y
CONFIG_HUGETLBFS=y
CONFIG_TRANSPARENT_HUGEPAGE=y
CONFIG_COMPACTION=y
CONFIG_KALLSYMS=y
CONFIG_MODULES=y
CONFIG_MODULE_UNLOAD=y
CONFIG_TTY=y
CONFIG_SERIAL_8250=y
CONFIG_SERIAL_8250_PNP=y
CONFIG_SERIAL_8250_CONSOLE=y
CONFIG_UNIX=y
CONFIG_NET=y
CONFIG_ACPI=y
CONFIG_PNP=y
CONFIG_PM=y
CONFIG_SUSPEND=y
CONFIG_PM_DEBUG=y
CONFIG_PM_ADVANCED_DEBUG=y
CONFIG_KEXEC=y
CONFIG_HPET_TIMER=y
CONFIG_X86_X2APIC=y
CONFIG_PCI=y
CONFIG_PCI_MMCONFIG=y
CONFIG_PCI_MSI=y
CONFIG_PCI_QUIRKS=y
CONFIG_PCIEPORTBUS=y
CONFIG_PCIEAER=y
CONFIG_PCIEAER_INJECT=y
CONFIG_HOTPLUG_PCI=y
CONFIG_HOTPLUG_PCI_PCIE=y
CONFIG_IOMMU_SUPPORT=y
CONFIG_IOMMU_DEFAULT_DMA_STRICT=y
CONFIG_INTEL_IOMMU=y
CONFIG_IRQ_REMAP=y
CONFIG_IOMMUFD=y
CONFIG_VFIO=y
CONFIG_VFIO_DEVICE_CDEV=y
CONFIG_VFIO_PCI=y
CONFIG_BLOCK=y
CONFIG_BLK_DEV=y
CONFIG_BLK_DEV_NVME=y
CONFIG_EXT4_FS=y
CONFIG_DMADEVICES=y
CONFIG_UDMABUF=y
CONFIG_FTRACE=y
CONFIG_ENABLE_DEFAULT_TRACERS=y
CONFIG_UNWINDER_FRAME_POINTER=y
CONFIG_DEBUG_KERNEL=y
CONFIG_DEBUG_BUGVERBOSE=y
CONFIG_KASAN=y
CONFIG_KASAN_GENERIC=y
CONFIG_KASAN_OUTLINE=y
CONFIG_KASAN_VMALLOC=y
CONFIG_SLUB_DEBUG=y
CONFIG_PROVE_LOCKING=y
CONFIG_DEBUG_ATOMIC_SLEEP=y
CONFIG_DEBUG_LIST=y
CONFIG_DEBUG_SG=y
CONFIG_DEBUG_VM=y
CONFIG_DMA_API_DEBUG=y
CONFIG_DMA_API_DEBUG_SG=y
CONFIG_DETECT_HUNG_TASK=y
CONFIG_FAULT_INJECTION=y
CONFIG_FAILSLAB=y
CONFIG_FAIL_PAGE_ALLOC=y
CONFIG_FAULT_INJECTION_DEBUG_FS=y
CONFIG_SECURITY=y
CONFIG_SECURITYFS=y
CONFIG_SECURITY_LOCKDOWN_LSM=y
CONFIG_SYNC_FILE=y
CONFIG_DMABUF_MOVE_NOTIFY=y
CONFIG_DMABUF_DEBUG=y
CONFIG_IKCONFIG=y
CONFIG_IKCONFIG_PROC=y
`

// kasanPatience is how many times slower such a kernel may be.
const kasanPatience = 6

// kasanKernel gives that kernel: from the cache, or built from Debian's source. The
// first time takes half an hour on two cores, and 4 GB.
func kasanKernel(cache string, update bool) (*kernel, error) {
	key := fmt.Sprintf("%x", sha256.Sum256([]byte(kasanConfig)))[:12]
	dir := filepath.Join(cache, "kasan-"+key)
	if _, err := os.Stat(filepath.Join(dir, kasanDone)); err != nil || update {
		if err := need(kasanTools); err != nil {
			return nil, err
		}
		source, err := kernelSource(cache, update)
		if err != nil {
			return nil, err
		}
		if err := buildKernel(source, dir); err != nil {
			return nil, fmt.Errorf("build a kernel of %s in %s: %w", source, dir, err)
		}
	}
	release, err := os.ReadFile(filepath.Join(dir, "include/config/kernel.release"))
	if err != nil {
		return nil, err
	}
	return &kernel{Release: strings.TrimSpace(string(release)), Image: filepath.Join(dir, "arch/x86/boot/bzImage"),
		Modules: filepath.Join(dir, "usr"), Headers: dir}, nil // usr has no module: all is built in
}

// kasanDone is a file in the folder of a kernel that was built to the end.
const kasanDone = "ugds-lab-done"

// buildKernel configures and builds a kernel, or what of it is not yet built.
func buildKernel(source, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	fragment := filepath.Join(dir, "ugds-lab.config")
	if err := os.WriteFile(fragment, []byte(kasanConfig), 0o644); err != nil {
		return err
	}
	make := func(args ...string) error {
		log, err := os.Create(filepath.Join(dir, "ugds-lab.log"))
		if err != nil {
			return err
		}
		defer log.Close()
		cmd := exec.Command("nice", append([]string{"-n", "15", "make", "-C", source, "O=" + dir}, args...)...)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Run(); err != nil {
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("make %s: %w\n%s", strings.Join(args, " "), err, lastLines(string(text), shownLines))
		}
		return nil
	}
	if err := make("allnoconfig", "KCONFIG_ALLCONFIG="+fragment); err != nil {
		return err
	}
	config, err := os.ReadFile(filepath.Join(dir, ".config"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(kasanConfig) {
		if !strings.Contains("\n"+string(config), "\n"+line) {
			return fmt.Errorf("the kernel cannot be configured with %s", line)
		}
	}
	say("kernel with KASAN: build, half an hour the first time")
	if err := make("-j2", "bzImage", "modules"); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, kasanDone), nil, 0o644)
}

// kernelSource gives Debian's source of the kernel's series, unpacked.
func kernelSource(cache string, update bool) (string, error) {
	dir := filepath.Join(cache, "source-"+series)
	source := filepath.Join(dir, "linux-source-"+series)
	if _, err := os.Stat(source); err == nil && !update {
		return source, nil
	}
	archive, err := sourceArchive(cache, update)
	if err != nil {
		return "", err
	}
	say("kernel source: unpack")
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return source, unpack(archive, dir)
}

// sourceArchive gives the archive in Debian's package of the source, which has 150 MB.
func sourceArchive(cache string, update bool) (string, error) {
	dir := filepath.Join(cache, "source-deb-"+series)
	archive := filepath.Join(dir, "usr/src/linux-source-"+series+".tar.xz")
	if _, err := os.Stat(archive); err == nil && !update {
		return archive, nil
	}
	apt, err := newPrivateApt(filepath.Join(cache, "apt"))
	if err == nil {
		err = apt.run("update")
	}
	if err != nil {
		return "", err
	}
	say("kernel source: download")
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return archive, apt.fetch([]string{"linux-source-" + series}, dir)
}

// unpack unpacks an archive, or what of it is named, into a folder, which appears when
// it is whole.
func unpack(archive, dir string, names ...string) error {
	part := dir + ".part"
	if err := errors.Join(os.RemoveAll(part), os.MkdirAll(part, 0o755)); err != nil {
		return err
	}
	cmd := exec.Command("tar", append([]string{"-xJf", archive, "-C", part}, names...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("unpack %s: %w\n%s", archive, err, out)
	}
	return os.Rename(part, dir)
}

// kasanShapes are the shapes of the module and of iommufd under that kernel. Its shadow memory and its
// quarantine take room.
func kasanShapes() (out []shape) {
	for _, s := range shapes {
		switch s.name {
		case "plain", "translated", "identity":
			s.suites = []suite{{name: "kdrv", pkg: "tools/lab/guest",
				args: []string{"-transport", "kdrv", "-test.run", "^Test(Kdrv|Seam)", "-test.skip", skipped}},
				{name: "inject", pkg: "tools/lab/guest", args: []string{"-transport", "kdrv", "-test.run", "^Test(Inject|Suspend)$"}}}
		case "vfio": // by iommufd: this kernel has no groups of VFIO, unlike Debian's
			s.modules = nil
			s.suites = []suite{{name: "vfio", pkg: "tools/lab/guest", args: []string{"-transport", "vfio",
				"-test.run", "^Test(Check|Seam|VFIO|Device)", "-test.skip", skipped}},
				{name: "surprise", pkg: "tools/lab/guest", args: []string{"-transport", "vfio", "-test.run", "^TestLongSurprise$"}}}
		case "bind": // what else it tests needs drivers that this kernel lacks
			s.modules = nil
			s.suites = []suite{{name: "bind", pkg: "tools/lab/guest", args: []string{"-test.run", "^TestBindRounds"}}}
		default:
			continue
		}
		s.name, s.memory, s.long = "kasan-"+s.name, "2G", false
		out = append(out, s)
	}
	return out
}
