//go:build ugds_lab

package guest

import (
	"errors"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/kdrv"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/unix"
)

// mostAllocations bounds what one request may allocate in the kernel.
const mostAllocations = 2000

// TestInject has each allocation that the module makes fail once, in turn: every
// request fails cleanly or does without, and nothing is left of it. The kernel must
// have been built for it.
func TestInject(t *testing.T) {
	// The kernel's own part in allocating interrupts warns when it fails half-way.
	expectKernel(t, "iounmap|remove_proc_entry")
	for _, kind := range []string{"failslab", "fail_page_alloc"} {
		dir := "/sys/kernel/debug/" + kind
		writeSys(t, dir+"/ignore-gfp-wait", "N")
		writeSys(t, dir+"/verbose", "0")
	}
	writeSys(t, "/sys/kernel/debug/fail_page_alloc/min-order", "0")
	path, _, err := kdrv.Node(kdrvAddress(t, 0))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := dma.Alloc(4*base.MiB, "inject")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Free()
	for i := range mem.Bytes() {
		mem.Bytes()[i] = 1
	}
	buf, _ := gpuMemory(t, 0, base.MiB, 0)
	addr, _ := nvMemory(t, 8*base.MiB, base.MiB)
	event, err := unix.NewEvent("inject")
	if err != nil {
		t.Fatal(err)
	}
	defer event.Close()
	var f *unix.FD
	end := func(region uint32, err error) error {
		if err != nil {
			return err
		}
		return unix.KdrvUnmap(f, region)
	}
	requests := []struct {
		name string
		do   func() error
	}{
		{"map", func() error {
			a := unix.KdrvMap{Addr: uint64(reflect.ValueOf(mem.Bytes()).Pointer()), Len: 4 * base.MiB}
			err := unix.KdrvDoMap(f, &a)
			return end(a.Region, err)
		}},
		{"import", func() error {
			a := unix.KdrvImport{FD: int32(buf.Int()), Len: base.MiB}
			err := unix.KdrvDoImport(f, &a)
			return end(a.Region, err)
		}},
		{"allocate", func() error {
			a := unix.KdrvAlloc{Len: 64 * base.KiB}
			err := unix.KdrvDoAlloc(f, &a)
			return end(a.Region, err)
		}},
		{"NVIDIA", func() error {
			a := unix.KdrvNVIDIA{Addr: addr, Len: base.MiB}
			err := unix.KdrvDoNVIDIA(f, &a)
			return end(a.Region, err)
		}},
		{"vector", func() error {
			if err := unix.KdrvSetVector(f, 0, event.FD()); err != nil {
				return err
			}
			return unix.KdrvSetVector(f, 0, -1)
		}},
	}
	inject(t, "open", func() error {
		f, err := unix.Open(path, unix.ReadWrite, 0)
		if err == nil {
			err = f.Close()
		}
		return err
	})
	if f, err = unix.Open(path, unix.ReadWrite, 0); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, r := range requests {
		inject(t, r.name, r.do)
	}
	text, _ := os.ReadFile("/proc/self/status")
	if !strings.Contains(string(text), "VmPin:\t       0 kB") {
		t.Errorf("pages are still pinned:\n%s", text)
	}
}

// inject does something again and again, on one thread, and has its first allocation in
// the kernel fail, then its second, until there are no more. Of many it takes a sample: most
// of those are behind the first.
func inject(t *testing.T, name string, do func() error) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	nth, err := os.OpenFile("/proc/thread-self/fail-nth", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer nth.Close()
	tried, failed := 0, 0
	for n := 1; n < mostAllocations; n += 1 + n/8 {
		if _, err := nth.WriteAt([]byte(strconv.Itoa(n)), 0); err != nil {
			t.Fatal(err)
		}
		err := do()
		var left [16]byte
		k, err2 := nth.ReadAt(left[:], 0)
		_, err3 := nth.WriteAt([]byte("0"), 0)
		if err3 != nil || k == 0 {
			t.Fatal(errors.Join(err2, err3))
		}
		if text := strings.TrimSpace(string(left[:k])); text != "0" { // it has fewer
			if err != nil {
				t.Errorf("%s: %v, and nothing failed", name, err)
			}
			if t.Logf("%s: has less than %d allocations; of %d that failed, it failed with %d", name, n, tried, failed); failed == 0 {
				t.Errorf("%s: nothing failed", name)
			}
			return
		}
		tried++
		if errno := unix.ErrnoOf(err); err != nil {
			if failed++; errno != unix.ENOMEM && errno != unix.EIO {
				t.Errorf("%s: allocation %d: %v", name, n, err)
			}
		}
	}
	t.Errorf("%s: there is no end", name)
}

// TestSuspend: with nobody at a controller the machine's devices go to sleep and wake up, and
// the next owner finds the controller as usual. The kernel must have been built so that it
// wakes up by itself.
func TestSuspend(t *testing.T) {
	address := kdrvAddress(t, 0)
	d := kdrvOpen(t, 0)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	writeSys(t, "/sys/power/pm_test", "devices")
	defer writeSys(t, "/sys/power/pm_test", "none")
	writeSys(t, "/sys/power/state", "freeze")
	config, err := os.ReadFile(sysPCI + "devices/" + address + "/config")
	if err != nil || config[pciCommand]&busMaster != 0 {
		t.Errorf("bus mastering is on, %v", err)
	}
	c, _ := openCtrl(t, 0, ctrl.Options{})
	roundTrip(t, c, 0, base.MiB, 5)
}
