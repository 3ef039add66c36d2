//go:build ugds_lab

package guest

import (
	"bytes"
	"errors"
	"os"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ugds-store/ugds/driver/hw/kdrv"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/unix"
)

// kdrvNode is the node itself, without what driver/hw/kdrv makes of it.
func kdrvNode(t testing.TB) *unix.FD {
	t.Helper()
	path, _, err := kdrv.Node(kdrvAddress(t, 0))
	if err != nil {
		t.Fatal(err)
	}
	f, err := unix.Open(path, unix.ReadWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func wantErrno(t testing.TB, what string, err error, want unix.Errno) {
	t.Helper()
	if unix.ErrnoOf(err) != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// TestKdrvMapAbuse: whatever a caller asks to be mapped, the module answers with an
// error, says why, and leaves nothing behind.
func TestKdrvMapAbuse(t *testing.T) {
	f := kdrvNode(t)
	mem, err := dma.Alloc(64*base.KiB, "lab")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Free()
	at := uint64(reflect.ValueOf(mem.Bytes()).Pointer())
	status, err := unix.MmapReadOnly(f, unix.KdrvMmapStatus, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(status)
	bar, err := unix.MmapShared(f, 0, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(bar)
	for what, c := range map[string]struct {
		a    unix.KdrvMap
		want unix.Errno
	}{
		"nothing":              {unix.KdrvMap{Addr: at}, unix.EINVAL},
		"a misaligned address": {unix.KdrvMap{Addr: at + 512, Len: 4096}, unix.EINVAL},
		"a misaligned length":  {unix.KdrvMap{Addr: at, Len: 4095}, unix.EINVAL},
		"flags":                {unix.KdrvMap{Addr: at, Len: 4096, Flags: 1}, unix.EINVAL},
		"an end beyond 2^64":   {unix.KdrvMap{Addr: 1<<64 - 4096, Len: 8192}, unix.EINVAL},
		"an end at 2^64":       {unix.KdrvMap{Addr: 1<<64 - 4096, Len: 4096}, unix.EINVAL},
		"more than the limit":  {unix.KdrvMap{Addr: at, Len: unix.KdrvMapMax + 4096}, syscall.E2BIG},
		"memory of the kernel": {unix.KdrvMap{Addr: 0xffff888000000000, Len: 4096}, unix.EFAULT},
		"memory that is not":   {unix.KdrvMap{Addr: 4096, Len: 4096}, unix.EFAULT},
		"memory that ends":     {unix.KdrvMap{Addr: at, Len: 1 << 35}, unix.EFAULT},
		"memory to read":       {unix.KdrvMap{Addr: uint64(reflect.ValueOf(status).Pointer()), Len: 4096}, unix.EFAULT},
		"the device's own":     {unix.KdrvMap{Addr: uint64(reflect.ValueOf(bar).Pointer()), Len: 4096}, unix.EFAULT},
	} {
		a := c.a
		wantErrno(t, what, unix.KdrvDoMap(f, &a), c.want)
		if a.Region != 0 {
			t.Errorf("%s: region %d", what, a.Region)
		}
	}
	text, _ := os.ReadFile("/proc/self/status")
	if !bytes.Contains(text, []byte("VmPin:\t       0 kB")) {
		t.Errorf("pages are still pinned:\n%s", text)
	}
	a := unix.KdrvMap{Addr: at, Len: 8192}
	if err := unix.KdrvDoMap(f, &a); err != nil || a.Region == 0 || a.Segments == 0 {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestKdrvCallAbuse: the other requests.
func TestKdrvCallAbuse(t *testing.T) {
	f := kdrvNode(t)
	info, err := unix.KdrvGetInfo(f)
	if err != nil {
		t.Fatal(err)
	}
	const typ, rw = 0xC7 << 8, 3 << 30
	type unmap struct{ Region, Reserved uint32 }
	type segments struct {
		Region, First, Count, Reserved uint32
		List                           uint64
	}
	alloc := unix.KdrvAlloc{Len: 4096}
	if err := unix.KdrvDoAlloc(f, &alloc); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		err  error
		want unix.Errno
	}{
		"an unknown request":      {unix.Ioctl(f, rw|8<<16|typ|99, &unmap{}), unix.ENOTTY},
		"another type":            {unix.Ioctl(f, rw|8<<16|0xC6<<8|7, &unmap{}), unix.ENOTTY},
		"another size":            {unix.Ioctl(f, 1<<30|4<<16|typ|7, new(uint32)), unix.ENOTTY},
		"a huge size":             {unix.Ioctl(f, rw|0x3fff<<16|typ|3, new([0x3fff]byte)), unix.ENOTTY},
		"unmap of nothing":        {unix.KdrvUnmap(f, 12345), unix.ENOENT},
		"unmap with more":         {unix.Ioctl(f, 1<<30|8<<16|typ|7, &unmap{alloc.Region, 1}), unix.EINVAL},
		"segments of nothing":     {unix.Ioctl(f, rw|24<<16|typ|6, &segments{Region: 12345}), unix.ENOENT},
		"too many segments":       {unix.Ioctl(f, rw|24<<16|typ|6, &segments{Region: alloc.Region, Count: unix.KdrvSegmentsMax + 1}), unix.EINVAL},
		"segments into nowhere":   {unix.Ioctl(f, rw|24<<16|typ|6, &segments{Region: alloc.Region, Count: 1, List: 4096}), unix.EFAULT},
		"segments behind the end": {unix.Ioctl(f, rw|24<<16|typ|6, &segments{Region: alloc.Region, First: 1 << 31, Count: 7}), 0},
		"an allocation of none":   {unix.KdrvDoAlloc(f, &unix.KdrvAlloc{}), unix.EINVAL},
		"a large allocation":      {unix.KdrvDoAlloc(f, &unix.KdrvAlloc{Len: unix.KdrvAllocMax + 1}), syscall.E2BIG},
		"the largest one":         {unix.KdrvDoAlloc(f, &unix.KdrvAlloc{Len: 1 << 63}), syscall.E2BIG},
		"a vector too many":       {unix.KdrvSetVector(f, int(info.Vectors), -1), unix.EINVAL},
		"a vector of 2^32":        {unix.KdrvSetVector(f, 1<<32-1, -1), unix.EINVAL},
		"no eventfd":              {unix.KdrvSetVector(f, 0, f.Int()), unix.EINVAL},
		"a closed eventfd":        {unix.KdrvSetVector(f, 0, 9999), unix.EBADF},
		"events to no eventfd":    {unix.KdrvSetEvents(f, f.Int()), unix.EINVAL},
		"an unknown stop":         {unix.KdrvDoStop(f, &unix.KdrvStop{Flags: 2}), unix.EINVAL},
		"an endless stop":         {unix.KdrvDoStop(f, &unix.KdrvStop{TimeoutMs: unix.KdrvStopMsMax + 1}), unix.EINVAL},
		"an import with more":     {unix.KdrvDoImport(f, &unix.KdrvImport{FD: 0, Len: 4096, Flags: 2}), unix.EINVAL},
	} {
		wantErrno(t, what, c.err, c.want)
	}
}

// TestKdrvMmapAbuse: what may be mapped into the process, and how.
func TestKdrvMmapAbuse(t *testing.T) {
	f := kdrvNode(t)
	info, err := unix.KdrvGetInfo(f)
	if err != nil {
		t.Fatal(err)
	}
	a := unix.KdrvAlloc{Len: 8192}
	if err := unix.KdrvDoAlloc(f, &a); err != nil {
		t.Fatal(err)
	}
	rw := syscall.PROT_READ | syscall.PROT_WRITE
	cases := map[string]struct {
		off   uint64
		n     int
		prot  int
		flags int
		want  unix.Errno
	}{
		"all registers":        {0, 4096, rw, syscall.MAP_SHARED, 0},
		"behind the registers": {info.BARSize, 4096, rw, syscall.MAP_SHARED, unix.EINVAL},
		"over their end":       {info.BARSize - 4096, 8192, rw, syscall.MAP_SHARED, unix.EINVAL},
		"a private copy":       {0, 4096, rw, syscall.MAP_PRIVATE, unix.EINVAL},
		"to execute":           {0, 4096, rw | syscall.PROT_EXEC, syscall.MAP_SHARED, unix.EINVAL},
		"the status":           {unix.KdrvMmapStatus, 4096, syscall.PROT_READ, syscall.MAP_SHARED, 0},
		"the status to write":  {unix.KdrvMmapStatus, 4096, rw, syscall.MAP_SHARED, unix.EINVAL},
		"more than the status": {unix.KdrvMmapStatus, 8192, syscall.PROT_READ, syscall.MAP_SHARED, unix.EINVAL},
		"queue memory":         {a.MmapOffset, 8192, rw, syscall.MAP_SHARED, 0},
		"a part of it":         {a.MmapOffset, 4096, rw, syscall.MAP_SHARED, 0},
		"its second page":      {a.MmapOffset + 4096, 4096, rw, syscall.MAP_SHARED, unix.EINVAL},
		"more than it has":     {a.MmapOffset, 12288, rw, syscall.MAP_SHARED, unix.ENXIO},
		"that of nobody":       {uint64(a.Region+7) << 40, 4096, rw, syscall.MAP_SHARED, unix.EINVAL},
	}
	if info.TableStart < info.TableEnd {
		t.Logf("the MSI-X table is at %#x to %#x of %#x", info.TableStart, info.TableEnd, info.BARSize)
		cases["the interrupt table"] = cases["all registers"]
		for name, off := range map[string]uint64{"the interrupt table": info.TableStart, "up to the interrupt table": 0} {
			c := cases["all registers"]
			c.off, c.n, c.want = off, int(info.TableEnd-off), unix.EACCES
			cases[name] = c
		}
	}
	for what, c := range cases {
		mem, err := syscall.Mmap(f.Int(), int64(c.off), c.n, c.prot, c.flags)
		wantErrno(t, what, err, c.want)
		if err == nil {
			_ = mem[0] // it is there
			if c.prot == syscall.PROT_READ && syscall.Mprotect(mem, rw) == nil {
				t.Errorf("%s can be made writable", what)
			}
			_ = syscall.Munmap(mem)
		}
	}
	// Memory of a region that has ended stays with the process that maps it.
	mem, err := unix.MmapShared(f, int64(a.MmapOffset), 8192)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	mem[0], mem[8191] = 1, 2
	if err := unix.KdrvUnmap(f, a.Region); err != nil {
		t.Error(err)
	}
	for range 200 { // others get other pages
		b := unix.KdrvAlloc{Len: 8192}
		if err := unix.KdrvDoAlloc(f, &b); err != nil {
			t.Fatal(err)
		}
	}
	if mem[0] != 1 || mem[8191] != 2 {
		t.Error("the pages went to somebody else")
	}
}

// TestKdrvRegionsMax: one file has so many regions and not one more.
func TestKdrvRegionsMax(t *testing.T) {
	expectKernel(t, "kernel/dma/debug.c") // of one page it counts seven mappings, and warns of more
	f := kdrvNode(t)
	mem, err := dma.Alloc(4096, "lab")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Free()
	mem.Bytes()[0] = 1
	a := unix.KdrvMap{Addr: uint64(reflect.ValueOf(mem.Bytes()).Pointer()), Len: 4096}
	const most = 65536
	first := uint32(0)
	for i := range most {
		if err := unix.KdrvDoMap(f, &a); err != nil {
			t.Fatalf("region %d: %v", i, err)
		}
		if i == 0 {
			first = a.Region
		}
	}
	wantErrno(t, "one more", unix.KdrvDoMap(f, &a), unix.ENOSPC)
	if err := unix.KdrvUnmap(f, first); err != nil {
		t.Error(err)
	}
	wantErrno(t, "after one ended", unix.KdrvDoMap(f, &a), 0)
	if a.Region == first {
		t.Error("an identifier was used again at once")
	}
}

// TestKdrvBounces: memory that the kernel would copy is refused, with the reason. It
// does so on a machine that was told to.
func TestKdrvBounces(t *testing.T) {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	forced := bytes.Contains(line, []byte("swiotlb=force"))
	d := kdrvOpen(t, 0)
	for what, err := range map[string]error{"memory": mapError(d, make([]byte, 4096)), "a queue": allocError(d, 4096)} {
		if forced != (err != nil) || forced && !strings.Contains(err.Error(), "would copy") {
			t.Errorf("%s, forced %v: %v", what, forced, err)
		}
	}
}

// TestKdrvNeverStops: the controller of a dead owner cannot be seen to stop. Its memory
// stays pinned, nobody gets the controller, the module stays loaded; and when a later
// try succeeds all is given back.
func TestKdrvNeverStops(t *testing.T) {
	const fault = "/sys/module/" + kdrv.Module + "/parameters/never_stops"
	traceSteps(t)
	address := kdrvAddress(t, 0)
	d, err := kdrv.Open(soon(t), address)
	if err != nil {
		t.Fatal(err)
	}
	writeSys(t, fault, "1")
	defer writeSys(t, fault, "0")
	if err := d.Close(); !errors.Is(err, base.ErrTimeout) {
		t.Errorf("close: %v", err)
	}
	writeSys(t, fault, "0")
	if err := d.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	c := another("fly", "UGDS_LAB_ADDRESS="+address)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	waitFor(out, "flying")
	writeSys(t, fault, "1")
	writeSys(t, tracing+"trace", "")
	_ = c.Process.Kill()
	_ = c.Wait()
	if _, err := kdrv.Open(soon(t), address); !errors.Is(err, base.ErrBusy) {
		t.Errorf("open: %v", err)
	}
	steps := strings.Join(traced(t), "\n")
	if !strings.Contains(steps, " kept ") || strings.Contains(steps, " unpin ") || strings.Contains(steps, " unmap ") {
		t.Errorf("memory was given back:\n%s", steps)
	}
	if moduleUsers(t) == 0 {
		t.Error("the module can be unloaded")
	}
	writeSys(t, fault, "0")
	d, err = kdrv.Open(soon(t), address)
	if err != nil {
		t.Fatal(err)
	}
	if steps := strings.Join(traced(t), "\n"); !strings.Contains(steps, " unpin ") {
		t.Errorf("memory was not given back:\n%s", steps)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if n := moduleUsers(t); n != 0 {
		t.Errorf("%d users are left", n)
	}
}

// moduleUsers is how many hold the module.
func moduleUsers(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile("/sys/module/" + kdrv.Module + "/refcnt")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
