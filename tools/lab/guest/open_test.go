//go:build ugds_lab

package guest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/kdrv"
	"github.com/ugds-store/ugds/driver/hw/vfio"
)

// transport is how the tests reach the controllers of the machine.
var transport = flag.String("transport", "vfio", "how controllers are reached: vfio or kdrv")

const (
	sysPCI       = "/sys/bus/pci/"
	classNVMe    = "010802"
	classFakeGPU = "050000" // QEMU's shared memory device: a RAM controller
)

// devicesOf lists the PCI addresses of all functions of a class, in the order of
// QEMU's arguments.
func devicesOf(t testing.TB, class string) (out []string) {
	t.Helper()
	dirs, _ := filepath.Glob(sysPCI + "devices/*")
	for _, d := range dirs {
		if text, err := os.ReadFile(d + "/class"); err == nil && strings.TrimSpace(string(text)) == "0x"+class {
			out = append(out, filepath.Base(d))
		}
	}
	return out
}

// nth is the address of device n of a class.
func nth(t testing.TB, class string, n int) string {
	t.Helper()
	all := devicesOf(t, class)
	if n >= len(all) {
		t.Fatalf("the machine has %d devices of class %s, the test needs %d", len(all), class, n+1)
	}
	return all[n]
}

func writeSys(t testing.TB, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

// bind gives a device to a kernel driver, as an administrator would.
func bind(t testing.TB, address, driver string) {
	t.Helper()
	dir := sysPCI + "devices/" + address
	if now := boundTo(address); now == driver {
		return
	} else if now != "" {
		writeSys(t, dir+"/driver/unbind", address)
	}
	writeSys(t, dir+"/driver_override", driver)
	eventually(t, address+" is bound to "+driver, func() bool { // a device that was just plugged is not ready for it
		// Another thread of the kernel may be at it: then this waits for the end of that.
		err := os.WriteFile(sysPCI+"drivers/"+driver+"/bind", []byte(address), 0)
		return (err == nil || errors.Is(err, syscall.EBUSY)) && boundTo(address) == driver
	})
}

// boundTo is the driver that has a device, "" if none.
func boundTo(address string) string {
	to, err := os.Readlink(sysPCI + "devices/" + address + "/driver")
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// openHW opens a controller through the transport under test. Whoever opens it
// closes it.
func openHW(t testing.TB, address string) (d hw.Device) {
	t.Helper()
	var err error
	switch *transport {
	case "vfio":
		bind(t, address, "vfio-pci")
		d, err = asHW(vfio.Open(address))
	case "kdrv":
		bind(t, address, kdrv.Module)
		d, err = asHW(kdrv.Open(soon(t), address))
	default:
		t.Fatalf("unknown transport %q", *transport)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// asHW keeps a nil pointer from becoming an interface that is not nil.
func asHW[D hw.Device](d D, err error) (hw.Device, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// soon bounds a step of a test. The machine is emulated, and shares its processors.
func soon(t testing.TB) context.Context { t.Helper(); return within(t, time.Minute) }

// openCtrl brings controller n up and closes it at the end of the test. The hardware
// below it is for tests that disturb it.
func openCtrl(t testing.TB, n int, o ctrl.Options) (*ctrl.Device, hw.Device) {
	t.Helper()
	dev := openHW(t, nth(t, classNVMe, n))
	d, err := ctrl.Open(soon(t), dev, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(soon(t)); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return d, dev
}

// region is memory of n bytes that holds a pattern.
func region(t testing.TB, n int64, seed byte) *driver.Region {
	t.Helper()
	r, err := driver.AllocRegion(n, "lab")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("region: %v", err)
		}
	})
	pattern(r.CPU(), seed)
	return r
}

// pattern fills b with bytes of which no two blocks are the same.
func pattern(b []byte, seed byte) {
	rnd := rand.New(rand.NewPCG(uint64(seed), 7))
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
}

func write(off int64, r *driver.Region) driver.Request {
	return driver.Request{Op: driver.OpWrite, Off: off, Len: r.Size(), Segs: []driver.Seg{r.Seg(0, r.Size())}}
}

func read(off int64, r *driver.Region) driver.Request {
	return driver.Request{Op: driver.OpRead, Off: off, Len: r.Size(), Segs: []driver.Seg{r.Seg(0, r.Size())}}
}

func do(t testing.TB, d driver.Device, reqs ...driver.Request) {
	t.Helper()
	if err := driver.Do(soon(t), d, reqs...); err != nil {
		t.Fatal(err)
	}
}

// roundTrip writes a pattern, reads it back into other memory, and compares.
func roundTrip(t testing.TB, d driver.Device, off, n int64, seed byte) {
	t.Helper()
	from, to := region(t, n, seed), region(t, n, seed+1)
	do(t, d, write(off, from))
	do(t, d, read(off, to))
	if !bytes.Equal(from.CPU(), to.CPU()) {
		t.Errorf("%d bytes at %d came back changed", n, off)
	}
}

func wantErr(t testing.TB, what string, err, class error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Errorf("%s: got %v, want %v", what, err, class)
	}
}

// eventually waits for something that the machine outside brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

// kernelSays writes a line to the kernel's log.
func kernelSays(t testing.TB, line string) {
	t.Helper()
	f, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(line + "\n"); err != nil {
		t.Fatal(err)
	}
}

// expectFaults tells whoever reads the kernel's log that this test causes faults of
// the IOMMU; until the test ends they are not held against it.
func expectFaults(t testing.TB) { t.Helper(); expectKernel(t, "DMAR") }

// expectKernel is the same for lines of the kernel's log that match an expression.
func expectKernel(t testing.TB, lines string) {
	t.Helper()
	kernelSays(t, "ugds-lab: expect "+lines)
	t.Cleanup(func() {
		time.Sleep(200 * time.Millisecond) // the kernel tells from a thread of its own
		kernelSays(t, "ugds-lab: no more")
	})
}

// safeBuffer collects what a child writes while it is read.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
