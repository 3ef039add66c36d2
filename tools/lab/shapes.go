package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
)

// shape is one machine. It is booted once, for all of its suites.
type shape struct {
	name    string
	long    bool     // only with -full
	cuts    int      // how often the power is cut; see runCuts
	iommu   bool     // a translating IOMMU in front of all devices
	append  string   // for the kernel's command line
	modules []string // kernel modules to load, beside what they need
	kmod    bool     // and the repository's own, see kmod/
	bare    bool     // that without NVIDIA's driver
	memory  string   // of the machine, as QEMU takes it; empty: enough
	devices []string // arguments of QEMU; DIR stands for the folder of the shape
	images  []image
	suites  []suite
	out     *bytes.Buffer // what a person should see of it
}

// image is a disk: a sparse file of zeros in the folder of the shape.
type image struct {
	name string
	size int64 // bytes
}

// suite is one run of a test binary in the guest.
type suite struct {
	name string
	pkg  string   // package of the tests, relative to the module
	args []string // flags of the test binary
	next bool     // in a second kernel, which the last of the others starts and does not end
}

const (
	mib       = 1 << 20
	diskSize  = 256 * mib
	smallDisk = 64 * mib
	gpuSize   = 64 * mib
	badRead   = 8192 // blocks of 512 bytes
	badWrite  = 16384
	// replayRequests is how many requests of a trace are replayed at length.
	replayRequests = 2000
	// noKernelDriver keeps the kernel's own driver off: it is built in, and would
	// take the disks before a test can.
	noKernelDriver = "initcall_blacklist=nvme_init"
)

// skipped are cases of the device contract that are left out here. The first need
// what QEMU's controller cannot do, to fail a chosen command or to keep one while it
// is reset; TestDeviceHangs, TestDeviceMediaError and TestDeviceFailedFlush stand for them. The
// others have nothing to do with how completions are noticed, and run polled only.
const skipped = `^TestDeviceContract$/./^(IsolateInFlight|ResetBounded|FailedEntry|I10FailedPart|FailedFlushIsolates)$` +
	`|^TestDeviceContract$/^(interrupts|hybrid)$/^(Geometry|C[0-9].*|MixedBatch|BatchLimits|Fields|StaleGeneration|AttachDetach|WriteZeroes|` +
	`Discard|I10Counters|AfterClose)$|^Test.*Child$`

// ssd is an NVMe controller with one namespace on a disk image.
func ssd(n int, options string) []string {
	id := fmt.Sprintf("nvme%d", n)
	return []string{"-blockdev", fmt.Sprintf("driver=file,node-name=f%d,filename=DIR/ssd%d.raw,discard=unmap", n, n),
		"-blockdev", fmt.Sprintf("driver=raw,node-name=d%d,file=f%d", n, n),
		"-device", fmt.Sprintf("nvme,id=%s,serial=LAB%d,drive=d%d,max_ioqpairs=8%s", id, n, n, options)}
}

// badSSD is one whose block badRead cannot be read and whose block badWrite cannot be
// written, and that fails every flush.
func badSSD(n int) []string {
	inject := ""
	for i, what := range []string{fmt.Sprintf("iotype=read,sector=%d", badRead), fmt.Sprintf("iotype=write,sector=%d", badWrite), "iotype=flush"} {
		field, value, _ := strings.Cut(what, ",")
		for _, f := range []string{"event=none", "errno=5", field, value} {
			if f != "" {
				inject += fmt.Sprintf(",inject-error.%d.%s", i, f)
			}
		}
	}
	return []string{"-blockdev", fmt.Sprintf("driver=file,node-name=f%d,filename=DIR/ssd%d.raw", n, n),
		"-blockdev", fmt.Sprintf("driver=blkdebug,node-name=b%d,image=f%d%s", n, n, inject),
		"-blockdev", fmt.Sprintf("driver=raw,node-name=d%d,file=b%d", n, n),
		"-device", fmt.Sprintf("nvme,id=nvme%d,serial=LAB%d,drive=d%d", n, n, n)}
}

// pluggedSSD is one in a slot, from which it can be pulled. Its disk may have two owners:
// QEMU 7.2 never lets go of a controller that was disabled in the instant between the end
// of a command and its completion entry, and so of its disk.
func pluggedSSD(n int) []string {
	return join([]string{"-device", "pcie-root-port,id=slot0,slot=1,chassis=1"}, ssd(n, ",bus=slot0,share-rw=on"))
}

// portSSD is one below a port that can report errors of the bus. It says to be a slow one:
// of a fast one the kernel expects that it tells when its link works again after a reset of
// the bus, and QEMU's does not.
func portSSD(n int) []string {
	return join([]string{"-device", "pcie-root-port,id=port0,slot=2,chassis=2,x-speed=5,x-width=1"}, ssd(n, ",bus=port0"))
}

// ns is a namespace on a disk image, of the controller that comes before it.
func ns(image int, bus, options string) []string {
	return []string{"-blockdev", fmt.Sprintf("driver=file,node-name=f%d,filename=DIR/ssd%d.raw,discard=unmap", image, image),
		"-blockdev", fmt.Sprintf("driver=raw,node-name=d%d,file=f%d", image, image),
		"-device", fmt.Sprintf("nvme-ns,id=ns%d,drive=d%d,bus=%s%s", image, image, bus, options)}
}

// controller is one without a namespace yet.
func controller(n int, options string) []string {
	return []string{"-device", fmt.Sprintf("nvme,id=nvme%d,serial=LAB%s", n, options)}
}

// fakeGPU is a device whose BAR 2 is memory that nothing else uses.
func fakeGPU() []string {
	return []string{"-object", fmt.Sprintf("memory-backend-file,id=gpumem,mem-path=DIR/gpu.mem,size=%d,share=on", gpuSize),
		"-device", "ivshmem-plain,id=gpu0,memdev=gpumem"}
}

// farSSD is one on the second node of a machine with two.
func farSSD(n int) []string {
	return join([]string{"-object", "memory-backend-ram,id=near,size=384M", "-object", "memory-backend-ram,id=far,size=384M",
		"-numa", "node,nodeid=0,cpus=0-1,memdev=near", "-numa", "node,nodeid=1,memdev=far",
		"-device", "pxb-pcie,id=farbus,bus_nr=64,numa_node=1", "-device", "pcie-root-port,id=farslot,bus=farbus,chassis=9"},
		ssd(n, ",bus=farslot"))
}

func join(parts ...[]string) (out []string) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// devices are those of most shapes. The guest sorts by address, so that those behind ports
// are the last controllers.
var devices = join(ssd(0, ",mdts=7"), ssd(1, ",mdts=5"), fakeGPU(), badSSD(2), pluggedSSD(3), portSSD(4))

var images = []image{{"ssd0.raw", diskSize}, {"ssd1.raw", diskSize}, {"ssd2.raw", smallDisk}, {"ssd3.raw", smallDisk},
	{"ssd4.raw", smallDisk}}

// bindDevices are controllers that go from driver to driver. The last has two namespaces.
var bindDevices = join(ssd(0, ""), ssd(1, ""), controller(2, ""), ns(2, "nvme2", ",nsid=1"), ns(3, "nvme2", ",nsid=2"))

var bindImages = []image{{"ssd0.raw", diskSize}, {"ssd1.raw", smallDisk}, {"ssd2.raw", smallDisk}, {"ssd3.raw", smallDisk}}

// kdrvSuites run through the repository's kernel module.
var kdrvSuites = []suite{{name: "kdrv", pkg: "tools/lab/guest",
	args: []string{"-transport", "kdrv", "-test.run", "^Test(Check|Kdrv|Seam|Device|Store)", "-test.skip", skipped}}}

// replaySuite replays a long trace on a store, with values in the memory of a peer.
func replaySuite(transport string) []suite {
	return []suite{{name: "replay", pkg: "tools/lab/guest",
		args: []string{"-transport", transport, "-test.run", "^TestStoreReplay$", "-replay", fmt.Sprint(replayRequests)}}}
}

// shapes are the machines of the lab.
var shapes = []shape{
	{
		name: "plain", append: noKernelDriver, kmod: true,
		devices: devices, images: images,
		suites: kdrvSuites,
	},
	{
		name: "translated", iommu: true, append: noKernelDriver, kmod: true,
		devices: devices, images: images,
		suites: kdrvSuites,
	},
	{
		name: "vfio", iommu: true, append: noKernelDriver,
		modules: []string{"vfio-pci", "vfio_iommu_type1"},
		devices: devices, images: images,
		suites: []suite{{name: "vfio", pkg: "tools/lab/guest",
			args: []string{"-transport", "vfio", "-test.skip", skipped + "|^Test(Kdrv|Format|Bind|Long|Cut|Lockdown|Kexec|NextKernel|Inject|Suspend)"}}},
	},
	{
		name: "identity", long: true, iommu: true, append: noKernelDriver + " iommu=pt", kmod: true,
		devices: devices, images: images,
		suites: []suite{{name: "kdrv", pkg: "tools/lab/guest",
			args: []string{"-transport", "kdrv", "-test.run", "^Test(Check|Kdrv|Seam|Lockdown)", "-test.skip", skipped}}},
	},
	{
		name: "bounce", long: true, append: noKernelDriver + " swiotlb=force", kmod: true, bare: true,
		devices: join(ssd(0, ""), farSSD(1)), images: []image{{"ssd0.raw", smallDisk}, {"ssd1.raw", smallDisk}},
		suites: []suite{{name: "kdrv", pkg: "tools/lab/guest",
			args: []string{"-transport", "kdrv", "-test.run", "^TestKdrv(Bounces|NVIDIA)|^TestCheck", "-test.skip", skipped}}},
	},
	{
		name: "kexec", long: true, append: noKernelDriver, kmod: true,
		devices: devices, images: images,
		suites: []suite{{name: "kdrv", pkg: "tools/lab/guest", args: []string{"-transport", "kdrv", "-test.run", "^TestKexec$"}},
			{name: "next", pkg: "tools/lab/guest", args: []string{"-test.run", "^TestNextKernel$"}, next: true}},
	},
	{ // the kernel's own driver has the disks when it starts
		name: "bind", kmod: true, modules: []string{"ext4", "dm-mod", "raid1"},
		devices: bindDevices, images: bindImages,
		suites: []suite{{name: "bind", pkg: "tools/lab/guest", args: []string{"-test.run", "^Test(Bind|Check)", "-test.skip", skipped}}},
	},
	{
		name: "bind-long", long: true, kmod: true,
		devices: bindDevices, images: bindImages,
		suites: []suite{{name: "bind", pkg: "tools/lab/guest", args: []string{"-test.run", "^TestBindRounds", "-bind-rounds", "200"}}},
	},
	{
		name: "replay", long: true, append: noKernelDriver, kmod: true,
		devices: devices, images: images, suites: replaySuite("kdrv"),
	},
	{
		name: "replay-translated", long: true, iommu: true, append: noKernelDriver, kmod: true,
		devices: devices, images: images, suites: replaySuite("kdrv"),
	},
	{
		name: "replay-vfio", long: true, iommu: true, append: noKernelDriver,
		modules: []string{"vfio-pci", "vfio_iommu_type1"},
		devices: devices, images: images, suites: replaySuite("vfio"),
	},
	{
		name: "cuts-long", long: true, cuts: 10, iommu: true, append: noKernelDriver,
		modules: []string{"vfio-pci", "vfio_iommu_type1", "virtio_blk", "ext4"},
		devices: cutDevices(),
		suites:  []suite{{name: "cut", pkg: "tools/lab/guest", args: []string{"-transport", "vfio", "-test.run", "^TestCut$"}}},
	},
	{
		name: "surprise", long: true, iommu: true, append: noKernelDriver,
		modules: []string{"vfio-pci", "vfio_iommu_type1"},
		devices: devices, images: images,
		suites: []suite{{name: "surprise", pkg: "tools/lab/guest", args: []string{"-transport", "vfio", "-test.run", "^TestLong"}}},
	},
	{
		name: "surprise-kdrv", long: true, append: noKernelDriver, kmod: true,
		devices: devices, images: images,
		suites: []suite{{name: "kdrv", pkg: "tools/lab/guest", args: []string{"-transport", "kdrv", "-test.run", "^TestLong"}}},
	},
	{
		name: "cuts", cuts: 3, iommu: true, append: noKernelDriver,
		modules: []string{"vfio-pci", "vfio_iommu_type1", "virtio_blk", "ext4"},
		devices: cutDevices(),
		suites:  []suite{{name: "cut", pkg: "tools/lab/guest", args: []string{"-transport", "vfio", "-test.run", "^TestCut$"}}},
	},
	{
		name: "formats", iommu: true, append: noKernelDriver,
		modules: []string{"vfio-pci", "vfio_iommu_type1"},
		devices: join(
			controller(0, ""), ns(0, "nvme0", ",logical_block_size=4096,physical_block_size=4096"),
			controller(1, ""), ns(1, "nvme1", ",ms=8"),
			controller(2, ""), ns(2, "nvme2", ",ms=8,pi=1"),
			controller(3, ""), ns(3, "nvme3", ",nsid=1"), ns(4, "nvme3", ",nsid=2,logical_block_size=4096,physical_block_size=4096"), ns(5, "nvme3", ",nsid=7"),
			[]string{"-device", "nvme-subsys,id=both,nqn=both"}, controller(4, ",subsys=both"), controller(5, ",subsys=both"), ns(6, "nvme5", ",nsid=1,shared=on"),
			controller(6, ""), ns(7, "nvme6", ",zoned=on,zoned.zone_size=8M"),
			controller(7, ",max_ioqpairs=1,msix_qsize=1,mdts=0"), ns(8, "nvme7", "")),
		images: []image{{"ssd0.raw", diskSize}, {"ssd1.raw", smallDisk}, {"ssd2.raw", smallDisk}, {"ssd3.raw", smallDisk}, {"ssd4.raw", smallDisk},
			{"ssd5.raw", smallDisk}, {"ssd6.raw", smallDisk}, {"ssd7.raw", smallDisk}, {"ssd8.raw", smallDisk}},
		suites: []suite{{name: "formats", pkg: "tools/lab/guest",
			args: []string{"-transport", "vfio", "-test.run", "^TestFormat|^TestCheck|^TestDeviceContract$/^polled$/^(Geometry|ReadBackShapes|C[0-9].*|FlushAndFUA|WriteZeroes|Discard)$", "-test.skip", skipped}}},
	},
}

// args are QEMU's arguments for the devices, with paths in dir. The IOMMU comes
// before the devices that it translates for.
func (s *shape) args(dir string) []string {
	var out []string
	if s.iommu {
		out = append(out, "-device", "intel-iommu,intremap=on,caching-mode=on")
	}
	for _, a := range s.devices {
		out = append(out, strings.ReplaceAll(a, "DIR", filepath.ToSlash(dir)))
	}
	return out
}

func (s *shape) cmdline() string {
	// A busy machine is too slow for the kernel's check of its timer, and may let a
	// processor of the guest stand still for many seconds: a lockup is one of a minute, and
	// then all processors say where they are, with stacks, which the kernel prints as
	// warnings. What hangs for good misses a deadline.
	out := "console=ttyS0 panic=-1 loglevel=5 no_timer_check watchdog_thresh=30 softlockup_all_cpu_backtrace=1 " + s.append
	if s.iommu {
		out += " intel_iommu=on"
	}
	return out
}
