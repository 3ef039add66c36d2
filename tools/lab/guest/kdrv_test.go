//go:build ugds_lab

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/kdrv"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/unix"
)

// taskVar names what a child of a test does.
const taskVar = "UGDS_LAB_TASK"

// another runs this program again, for the task of the given name, with arguments in
// its environment.
func another(task string, env ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", "-test.run", "^TestKdrvChild$", "-test.v")
	c.Env = append(append(os.Environ(), taskVar+"="+task), env...)
	return c
}

// TestKdrvChild is what children do. It is nothing by itself.
func TestKdrvChild(t *testing.T) {
	address := os.Getenv("UGDS_LAB_ADDRESS")
	switch os.Getenv(taskVar) {
	case "open":
		childOpen(t, address)
	case "limit":
		childLimit(t, address)
	case "inherit":
		_, err := unix.KdrvGetInfo(unix.NewFD(3, "inherited"))
		fmt.Println("inherited:", unix.ErrnoOf(err) == unix.EPERM, err)
	case "fly":
		childFly(t, address)
	case "hold":
		if _, err := kdrv.Open(soon(t), address); err == nil {
			fmt.Println("held")
			time.Sleep(time.Minute)
		}
	}
}

func childOpen(t *testing.T, address string) {
	d, err := kdrv.Open(soon(t), address)
	switch {
	case err == nil:
		fmt.Println("opened:", d.Close() == nil)
	case errors.Is(err, base.ErrLocked):
		fmt.Println("locked:", err)
	default:
		fmt.Println("refused:", errors.Is(err, unix.EPERM), err)
	}
}

// said runs a child and gives the line of its output that begins with a word.
func said(t testing.TB, c *exec.Cmd, word string) string {
	t.Helper()
	out, err := c.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutPrefix(line, word+": "); ok && err == nil {
			return strings.TrimSpace(text)
		}
	}
	t.Errorf("the child did not say %q: %v\n%s", word, err, out)
	return ""
}

func kdrvAddress(t testing.TB, n int) string {
	t.Helper()
	address := nth(t, classNVMe, n)
	bind(t, address, kdrv.Module)
	return address
}

func kdrvOpen(t testing.TB, n int) *kdrv.Device {
	t.Helper()
	d, err := kdrv.Open(soon(t), kdrvAddress(t, n))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestKdrvOneOwner: a controller has one owner, others learn who it is.
func TestKdrvOneOwner(t *testing.T) {
	address := kdrvAddress(t, 0)
	d := kdrvOpen(t, 0)
	me := "process " + strconv.Itoa(os.Getpid()) + " "
	if _, err := kdrv.Open(soon(t), address); !errors.Is(err, base.ErrLocked) || !strings.Contains(err.Error(), me) {
		t.Errorf("opened again: %v", err)
	}
	if got := said(t, another("open", "UGDS_LAB_ADDRESS="+address), "locked"); !strings.Contains(got, me) {
		t.Errorf("another process: %s", got)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if got := said(t, another("open", "UGDS_LAB_ADDRESS="+address), "opened"); got != "true" {
		t.Error(got)
	}
	for range 20 { // and a race has one winner
		var wg sync.WaitGroup
		var mu sync.Mutex
		var won []*kdrv.Device
		for range 6 {
			wg.Go(func() {
				d, err := kdrv.Open(context.Background(), address)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won = append(won, d)
				} else if !errors.Is(err, base.ErrLocked) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(won) != 1 {
			t.Errorf("%d owners", len(won))
		}
		for _, d := range won {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// nobody is a user without any capability.
const nobody = 65534

func asNobody(t testing.TB, c *exec.Cmd, address string) *exec.Cmd {
	t.Helper()
	path, _, err := kdrv.Node(address)
	if err == nil {
		err = os.Chown(path, nobody, nobody)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chown(path, 0, 0) })
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return c
}

// TestKdrvWhoMayOpen: without an IOMMU only CAP_SYS_RAWIO, with a translating one
// whoever may open the node, within the limit of locked memory.
func TestKdrvWhoMayOpen(t *testing.T) {
	d := kdrvOpen(t, 0)
	translated := d.ID().IOMMU
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	address := nth(t, classNVMe, 0)
	at := "UGDS_LAB_ADDRESS=" + address
	if !translated {
		if got := said(t, asNobody(t, another("open", at), address), "refused"); !strings.HasPrefix(got, "true") {
			t.Error(got)
		}
		return
	}
	if got := said(t, asNobody(t, another("open", at), address), "opened"); got != "true" {
		t.Error(got)
	}
	if got := said(t, asNobody(t, another("limit", at), address), "limit"); got != "kept" {
		t.Error(got)
	}
}

// childLimit pins memory up to the limit of locked memory and over it.
func childLimit(t *testing.T, address string) {
	const limit = 256 * base.KiB
	if err := unix.SetRlimit(unix.RlimitMemlock, unix.Rlimit{Soft: limit, Hard: limit}); err != nil {
		t.Fatal(err)
	}
	d, err := kdrv.Open(soon(t), address)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	mem, err := dma.Alloc(2*limit, "limit")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Free()
	want := func(what string, kb int) {
		status, _ := os.ReadFile("/proc/self/status")
		if !strings.Contains(string(status), fmt.Sprintf("VmPin:\t%8d kB", kb)) {
			t.Errorf("%s: not %d kB in\n%s", what, kb, status)
		}
	}
	queue, err := d.Alloc(4096, "limit")
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.Map(mem.Bytes()[:limit-4096])
	if err != nil {
		t.Fatal(err)
	}
	want("at the limit", limit>>10)
	for what, err := range map[string]error{"a page": mapError(d, mem.Bytes()[limit:limit+1]), "much": mapError(d, mem.Bytes()),
		"a queue": allocError(d, 4096)} {
		if unix.ErrnoOf(err) != unix.ENOMEM || !strings.Contains(err.Error(), "limit of locked memory") {
			t.Errorf("%s over the limit: %v", what, err)
		}
	}
	want("after refusals", limit>>10)
	if err := m.Unmap(); err != nil {
		t.Error(err)
	}
	want("after unmap", 4)
	queue.Free()
	want("after free", 0)
	if !t.Failed() {
		fmt.Println("limit: kept")
	}
}

func mapError(d hw.Device, mem []byte) error {
	m, err := d.Map(mem)
	if err == nil {
		_ = m.Unmap()
	}
	return err
}

func allocError(d hw.Device, n int64) error {
	b, err := d.Alloc(n, "limit")
	if err == nil {
		b.Free()
	}
	return err
}

// TestKdrvForked: whoever inherits the descriptor has another address space, and the
// device is none of his.
func TestKdrvForked(t *testing.T) {
	path, _, err := kdrv.Node(kdrvAddress(t, 0))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.KdrvGetInfo(unix.NewFD(int(f.Fd()), path)); err != nil {
		t.Errorf("the opener: %v", err)
	}
	c := another("inherit")
	c.ExtraFiles = []*os.File{f}
	if got := said(t, c, "inherited"); !strings.HasPrefix(got, "true") {
		t.Error(got)
	}
}

// TestKdrvResetBySomeoneElse: the owner notices, and goes on after a reset of its own.
func TestKdrvResetBySomeoneElse(t *testing.T) {
	d, _ := openCtrl(t, 0, ctrl.Options{Watch: 2 * time.Millisecond})
	own := region(t, base.MiB, 1)
	do(t, d, move(driver.OpRead, 0, own.Seg(0, base.MiB)))
	writeSys(t, sysPCI+"devices/"+nth(t, classNVMe, 0)+"/reset", "1")
	eventually(t, "isolated", func() bool { return d.State() == driver.StateIsolated })
	if err := d.Reset(soon(t)); err != nil {
		t.Fatal(err)
	}
	do(t, d, move(driver.OpRead, 0, own.Seg(0, base.MiB)))
}

// TestKdrvNotices: whoever has the seam itself is told.
func TestKdrvNotices(t *testing.T) {
	d := kdrvOpen(t, 0)
	if err := d.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	writeSys(t, sysPCI+"devices/"+nth(t, classNVMe, 0)+"/reset", "1")
	if n := notice(t, d); n != hw.NoticeStopped {
		t.Errorf("after a reset: %v", n)
	}
	if _, err := d.Load32(nvme.RegCSTS); !errors.Is(err, base.ErrIsolated) || !strings.Contains(err.Error(), "somebody else") {
		t.Errorf("load: %v", err)
	}
	if err := d.Start(soon(t)); err != nil {
		t.Error(err)
	}
	writeSys(t, sysPCI+"drivers/"+kdrv.Module+"/unbind", nth(t, classNVMe, 0))
	if n := notice(t, d); n != hw.NoticeGone {
		t.Errorf("after unbinding: %v", n)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if n, open := <-d.Notices(); open {
		t.Errorf("after close: %v", n)
	}
}

// notice waits for what the system says next.
func notice(t testing.TB, d hw.Notifier) hw.Notice {
	t.Helper()
	select {
	case n := <-d.Notices():
		return n
	case <-soon(t).Done():
		return 0
	}
}

// TestKdrvRemoved: the device is pulled out, or its driver unbound, under I/O. The
// owner notices, its registers fail, and everything can be given back.
func TestKdrvRemoved(t *testing.T) {
	for name, how := range map[string]func(address string){
		"removed": func(address string) {
			writeSys(t, sysPCI+"devices/"+address+"/remove", "1")
			t.Cleanup(func() { writeSys(t, sysPCI+"rescan", "1") })
		},
		"unbound": func(address string) { writeSys(t, sysPCI+"drivers/"+kdrv.Module+"/unbind", address) },
	} {
		t.Run(name, func(t *testing.T) {
			d, seam := openCtrl(t, 0, ctrl.Options{Watch: 2 * time.Millisecond})
			address := nth(t, classNVMe, 0)
			own := region(t, base.MiB, 1)
			stop := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				for d.State() == driver.StateReady {
					_ = driver.Do(soon(t), d, move(driver.OpRead, 0, own.Seg(0, base.MiB)))
				}
				close(stop)
			})
			how(address)
			<-stop
			wg.Wait()
			eventually(t, "the state is removed", func() bool { return d.State() == driver.StateRemoved })
			if _, err := seam.Load32(nvme.RegCSTS); !errors.Is(err, base.ErrDeviceGone) {
				t.Errorf("load: %v", err)
			}
			if err := mapError(seam, make([]byte, 4096)); !errors.Is(err, base.ErrDeviceGone) {
				t.Errorf("map: %v", err)
			}
			if err := driver.Do(soon(t), d, move(driver.OpRead, 0, own.Seg(0, 4096))); !errors.Is(err, base.ErrDeviceGone) {
				t.Errorf("read: %v", err)
			}
		})
	}
}

// TestKdrvRounds: bound and unbound many times, with an owner in between.
func TestKdrvRounds(t *testing.T) {
	address := kdrvAddress(t, 1)
	for range 20 {
		d := kdrvOpen(t, 1)
		if v, err := d.Load64(nvme.RegCAP); err != nil || v == 0 || v == ^uint64(0) {
			t.Fatalf("%#x, %v", v, err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		writeSys(t, sysPCI+"drivers/"+kdrv.Module+"/unbind", address)
		if _, err := kdrv.Open(soon(t), address); !errors.Is(err, base.ErrNotFound) {
			t.Fatal(err)
		}
		bind(t, address, kdrv.Module)
	}
}
