package main

import (
	"fmt"
	"path/filepath"
	"strings"
)

// shape is one machine. It is booted once, for all of its suites.
type shape struct {
	name    string
	long    bool     // only with -full
	iommu   bool     // a translating IOMMU in front of all devices
	append  string   // for the kernel's command line
	modules []string // kernel modules to load, beside what they need
	kmod    bool     // and the repository's own, see kmod/
	devices []string // arguments of QEMU; DIR stands for the folder of the shape
	images  []image
	suites  []suite
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
}

const (
	mib      = 1 << 20
	diskSize = 256 * mib
	gpuSize  = 64 * mib
	// noKernelDriver keeps the kernel's own driver off: it is built in, and would
	// take the disks before a test can.
	noKernelDriver = "initcall_blacklist=nvme_init"
)

// skipped are cases of the device contract that are left out here. The first need
// what QEMU's controller cannot do, to fail a chosen command or to keep one while it
// is reset; TestHungCommand, TestMediaError and TestFailedFlush stand for them. The
// others have nothing to do with how completions are noticed, and run polled only.
const skipped = `^TestDevice$/./^(I04ContextEndsWait|CloseInFlight|IsolateInFlight|ResetBounded|FailedEntry|FailedFlushIsolates)$` +
	`|^TestDevice$/^(interrupts|hybrid)$/^(Geometry|C[0-9].*|MixedBatch|BatchLimits|Fields|StaleGeneration|AttachDetach|WriteZeroes|` +
	`Discard|I10Counters|AfterClose)$`

// ssd is an NVMe controller with one namespace on a disk image.
func ssd(n int, options string) []string {
	id := fmt.Sprintf("nvme%d", n)
	return []string{"-blockdev", fmt.Sprintf("driver=file,node-name=f%d,filename=DIR/ssd%d.raw,discard=unmap", n, n),
		"-blockdev", fmt.Sprintf("driver=raw,node-name=d%d,file=f%d", n, n),
		"-device", fmt.Sprintf("nvme,id=%s,serial=LAB%d,drive=d%d,max_ioqpairs=8%s", id, n, n, options)}
}

// fakeGPU is a device whose BAR 2 is memory that nothing else uses.
func fakeGPU() []string {
	return []string{"-object", fmt.Sprintf("memory-backend-file,id=gpumem,mem-path=DIR/gpu.mem,size=%d,share=on", gpuSize),
		"-device", "ivshmem-plain,id=gpu0,memdev=gpumem"}
}

func join(parts ...[]string) (out []string) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// twoDisks are the devices of most shapes.
var twoDisks = join(ssd(0, ",mdts=7"), ssd(1, ",mdts=5"), fakeGPU())

var twoImages = []image{{"ssd0.raw", diskSize}, {"ssd1.raw", diskSize}}

// kdrvSuites run through the repository's kernel module.
var kdrvSuites = []suite{{name: "kdrv", pkg: "tools/lab/guest",
	args: []string{"-transport", "kdrv", "-test.run", "^Test(Kdrv|Conformance$|Device$)", "-test.skip", skipped}}}

// shapes are the machines of the lab. One without suites is not booted.
var shapes = []shape{
	{
		name: "plain", append: noKernelDriver, kmod: true,
		devices: twoDisks, images: twoImages,
		suites: kdrvSuites,
	},
	{
		name: "translated", iommu: true, append: noKernelDriver, kmod: true,
		devices: twoDisks, images: twoImages,
		suites: kdrvSuites,
	},
	{
		name: "vfio", iommu: true, append: noKernelDriver,
		modules: []string{"vfio-pci", "vfio_iommu_type1"},
		devices: twoDisks, images: twoImages,
		suites: []suite{{name: "guest", pkg: "tools/lab/guest", args: []string{"-transport", "vfio", "-test.skip", skipped + "|^TestKdrv"}}},
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
	out := "console=ttyS0 panic=-1 quiet " + s.append
	if s.iommu {
		out += " intel_iommu=on"
	}
	return out
}
