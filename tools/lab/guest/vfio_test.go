//go:build ugds_lab

package guest

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/vfio"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// TestVFIOPeer: an SSD reads and writes the BAR of another device without any of it
// passing through memory of the host, in both directions and at odd places. By iommufd
// it cannot, and the window is refused.
func TestVFIOPeer(t *testing.T) {
	gpu := nth(t, classFakeGPU, 0)
	bind(t, gpu, "vfio-pci")
	peer, err := vfio.OpenPeer(gpu)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := peer.Close(); err != nil {
			t.Error(err)
		}
	}()
	_, err = peer.Window(6)
	wantErr(t, "BAR 6", err, base.ErrOutOfRange)
	w, err := peer.Window(2)
	if err != nil {
		t.Fatal(err)
	}
	d, dev := openCtrl(t, 0, ctrl.Options{})
	if vfio.NodeOf("/sys", "/dev", gpu).IOMMUFD {
		_, err := dev.MapFD(w.FD, w.Off, w.Size)
		wantErr(t, "a BAR by iommufd", err, base.ErrNotSupported)
		t.Log(err)
		return
	}
	bar := driver.NewWindowRegion(w.FD, w.Off, w.Size)
	defer func() {
		if err := bar.Close(); err != nil {
			t.Error(err)
		}
	}()
	const n = 4 * base.MiB
	from, to := region(t, n, 1), region(t, n, 2)
	for _, at := range []int64{0, 4096, 12345 * 512, w.Size - n} {
		pattern(from.CPU(), byte(at>>9)+3)
		piece := []driver.Seg{bar.Seg(at, n)}
		do(t, d, write(0, from))
		do(t, d, driver.Request{Op: driver.OpRead, Off: 0, Len: n, Segs: piece})         // SSD to BAR
		do(t, d, driver.Request{Op: driver.OpWrite, Off: 64 << 20, Len: n, Segs: piece}) // BAR to SSD
		do(t, d, read(64<<20, to))
		if !bytes.Equal(from.CPU(), to.CPU()) {
			t.Errorf("by way of the BAR at %#x the bytes changed", at)
		}
	}
	// Two halves of one value at different places of the BAR, in one request.
	do(t, d, driver.Request{Op: driver.OpRead, Off: 0, Len: n, Segs: []driver.Seg{bar.Seg(20<<20, n/2), bar.Seg(10<<20, n/2)}})
	do(t, d, driver.Request{Op: driver.OpWrite, Off: 96 << 20, Len: n, Segs: []driver.Seg{bar.Seg(20<<20, n/2), bar.Seg(10<<20, n/2)}})
	do(t, d, read(96<<20, to))
	if !bytes.Equal(from.CPU(), to.CPU()) {
		t.Error("in two pieces the bytes changed")
	}
}

// TestVFIOMemfd: memory behind a descriptor.
func TestVFIOMemfd(t *testing.T) {
	d, dev := openCtrl(t, 0, ctrl.Options{})
	f, err := os.CreateTemp(t.TempDir(), "memory") // of a tmpfs, as a memfd is
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	from := region(t, base.MiB, 4)
	if err := f.Truncate(2 * base.MiB); err != nil {
		t.Fatal(err)
	}
	r := driver.NewWindowRegion(int(f.Fd()), base.MiB, base.MiB)
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	do(t, d, write(0, from))
	do(t, d, read(0, r))
	got := make([]byte, base.MiB)
	if _, err := f.ReadAt(got, base.MiB); err != nil || !bytes.Equal(got, from.CPU()) {
		t.Errorf("what is behind the descriptor differs: %v", err)
	}
	for _, c := range [][2]int64{{0, 0}, {-4096, 4096}, {1, 4096}, {0, 1 << 62}} {
		_, err := dev.MapFD(int(f.Fd()), c[0], c[1])
		wantErr(t, fmt.Sprint(c), err, base.ErrInvalid)
	}
	_, err = dev.MapFD(-1, 0, 4096)
	if err == nil {
		t.Error("no descriptor was mapped")
	}
}

// TestVFIORefusals: what cannot be opened says why.
func TestVFIORefusals(t *testing.T) {
	for address, want := range map[string]error{"0000:7f:00.0": base.ErrNotFound, "../../x": base.ErrNotFound, "": base.ErrNotFound,
		"0000:00:00.0": base.ErrNotSupported} { // the host bridge: no driver, no group of VFIO
		d, err := vfio.Open(address)
		if d != nil || err == nil || !errors.Is(err, want) && !errors.Is(err, base.ErrInvalid) {
			t.Errorf("%q: %v", address, err)
		}
		t.Log(err)
	}
	address := nth(t, classNVMe, 1)
	bind(t, address, "vfio-pci")
	writeSys(t, sysPCI+"devices/"+address+"/driver/unbind", address)
	_, err := vfio.Open(address)
	wantErr(t, "not bound", err, base.ErrInvalid)
	t.Log(err)
}

var child = flag.String("child", "", "what a child process does with the controller at this address")

// nodes are the files that the owner of a device opens.
func nodes(address string) []string {
	n := vfio.NodeOf("/sys", "/dev", address)
	if n.IOMMUFD {
		return []string{n.Path, "/dev/iommu"}
	}
	return []string{n.Path}
}

// startChild runs TestVFIOChild as another user in a process of its own. What it
// prints can be read; it ends when its input does.
func startChild(t testing.TB, address string) (cmd *exec.Cmd, out *bufio.Scanner) {
	t.Helper()
	const nobody = 65534
	for _, node := range nodes(address) {
		if err := os.Chown(node, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	cmd = exec.Command("/proc/self/exe", "-test.run=^TestVFIOChild$", "-test.v", "-child", address)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody, NoSetGroups: true}}
	cmd.Stderr = os.Stderr
	text, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(text)
}

// await reads what a child prints up to a line that contains want.
func await(t testing.TB, out *bufio.Scanner, want string) {
	t.Helper()
	for out.Scan() {
		t.Log("child:", out.Text())
		if strings.Contains(out.Text(), want) {
			return
		}
	}
	t.Fatalf("the child did not say %q: %v", want, out.Err())
}

// TestVFIOChild is the child of other tests: it uses a controller without privilege.
func TestVFIOChild(t *testing.T) {
	caps, err := os.ReadFile("/proc/self/status")
	if err != nil || os.Geteuid() == 0 || !bytes.Contains(caps, []byte("CapEff:\t0000000000000000")) {
		t.Fatalf("it has privileges, user %d: %v", os.Geteuid(), err)
	}
	dev, err := vfio.Open(*child)
	if err != nil {
		t.Fatal(err)
	}
	d, err := ctrl.Open(soon(t), dev, ctrl.Options{Mode: ctrl.Hybrid, Queues: 1, Depth: 63})
	if err != nil {
		t.Fatal(err)
	}
	roundTrip(t, d, 0, base.MiB, 1)
	_, err = dev.Alloc(2*lockable, "more than may be locked")
	wantErr(t, "beyond the limit", err, unix.ENOMEM)
	if err == nil || !strings.Contains(err.Error(), "ulimit -l") {
		t.Errorf("the error does not say what to do: %v", err)
	}
	if t.Failed() {
		return
	}
	fmt.Println("child is at work")
	r, ended := region(t, base.MiB, 2), make(chan struct{})
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		close(ended)
	}()
	for i := int64(0); ; i++ {
		select {
		case <-ended:
			if err := d.Close(soon(t)); err != nil {
				t.Error(err)
			}
			return
		default:
			do(t, d, write(i%16*base.MiB, r))
		}
	}
}

// lockable is how much memory a child may lock, bytes: queues and a few MiB.
const lockable = 64 * base.MiB

// TestVFIOUnprivileged: once it is bound and its nodes given away, a controller needs
// no privilege, only memory that may be locked.
func TestVFIOUnprivileged(t *testing.T) {
	old, err := unix.GetRlimit(unix.RlimitMemlock)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetRlimit(unix.RlimitMemlock, unix.Rlimit{Soft: lockable, Hard: lockable}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.SetRlimit(unix.RlimitMemlock, old) }()
	address := nth(t, classNVMe, 1)
	bind(t, address, "vfio-pci")
	cmd, out := startChild(t, address)
	await(t, out, "at work")

	// Meanwhile it is nobody else's, and the error names the owner.
	_, err = vfio.Open(address)
	wantErr(t, "open of somebody's device", err, base.ErrLocked)
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(cmd.Process.Pid)) {
		t.Errorf("the error does not name process %d: %v", cmd.Process.Pid, err)
	}

	// Killed in full flight: the kernel stops the device before it gives its memory
	// to others, and then it can be opened again.
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	var d hw.Device
	eventually(t, "the device is free", func() bool {
		v, err := vfio.Open(address)
		if err != nil && !errors.Is(err, base.ErrLocked) {
			t.Fatal(err)
		}
		d = v
		return err == nil
	})
	c, err := ctrl.Open(soon(t), d, ctrl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	roundTrip(t, c, 0, base.MiB, 3)
	if err := c.Close(soon(t)); err != nil {
		t.Error(err)
	}
}

// TestVFIORelease: who asks the kernel for the device waits until its owner, who is told,
// has closed it.
func TestVFIORelease(t *testing.T) {
	address := nth(t, classNVMe, 1)
	bind(t, address, "vfio-pci")
	d, err := vfio.Open(address)
	if err != nil {
		t.Fatal(err)
	}
	taken := make(chan error, 1)
	go func() {
		taken <- os.WriteFile(sysPCI+"devices/"+address+"/driver/unbind", []byte(address), 0)
	}()
	select {
	case n := <-d.Notices():
		if n != hw.NoticeRelease {
			t.Errorf("notice %v", n)
		}
	case err := <-taken:
		t.Errorf("it was taken away from its owner: %v", err)
	case <-time.After(time.Minute):
		t.Error("the owner is not told")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-taken:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("it is not given back")
	}
}

// TestVFIOManyMaps: far more mappings than queues need, and none is left over.
func TestVFIOManyMaps(t *testing.T) {
	dev := openHW(t, nth(t, classNVMe, 0))
	defer func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}()
	r := region(t, 16*base.MiB, 1)
	begin := time.Now()
	for range 3 {
		var maps []hw.Mapping
		for at := int64(0); at < r.Size(); at += 8192 {
			m, err := dev.Map(r.Bytes(at, 4096))
			if err != nil {
				t.Fatal(err)
			}
			maps = append(maps, m)
		}
		for _, m := range maps {
			if err := m.Unmap(); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%v for each of 6144", time.Since(begin)/6144)
}
