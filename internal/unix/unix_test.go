package unix_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func temp(t *testing.T, size int64) *unix.FD {
	t.Helper()
	f, err := unix.Open(filepath.Join(t.TempDir(), "f"), unix.ReadWrite|unix.CreateNew, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := unix.Truncate(f, size); err != nil {
		t.Fatal(err)
	}
	return f
}

// Interruptions must not stretch a deadline (P14).
func TestRetryHasAnAbsoluteDeadline(t *testing.T) {
	n := 0
	err := unix.Retry(time.Time{}, func() error {
		if n++; n < 5 {
			return unix.EINTR
		}
		return unix.EIO
	})
	if err != unix.EIO || n != 5 {
		t.Errorf("%v after %d", err, n)
	}
	end := time.Now().Add(10 * time.Millisecond)
	err = unix.Retry(end, func() error { time.Sleep(time.Millisecond); return unix.EINTR })
	if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(end) > 30*time.Second {
		t.Errorf("%v, %v after the deadline", err, time.Since(end))
	}
}

func TestFDClosesOnce(t *testing.T) {
	f := temp(t, 0)
	if f.Int() < 0 {
		t.Error("not open")
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := f.Close(); !errors.Is(err, os.ErrClosed) || f.Int() != -1 {
		t.Errorf("%v, %d", err, f.Int())
	}
}

// Descriptors must not reach children: an inherited one keeps the lock.
func TestFDIsCloseOnExec(t *testing.T) {
	f := temp(t, 0)
	out, err := exec.Command("ls", "-l", "/proc/self/fd").Output()
	if err != nil {
		testenv.Skip(t, "ls: "+err.Error())
	}
	if strings.Contains(string(out), f.Path()) {
		t.Errorf("inherited:\n%s", out)
	}
}

func TestStat(t *testing.T) {
	f := temp(t, 12345)
	s, err := unix.FStat(f)
	if err != nil || s.Kind != unix.KindRegular || s.Size != 12345 || s.Mode != 0o600 {
		t.Errorf("%+v, %v", s, err)
	}
	p, err := unix.StatPath(f.Path())
	if err != nil || p.Ino != s.Ino || p.Dev != s.Dev {
		t.Errorf("%+v, %v", p, err)
	}
	for path, want := range map[string]unix.Kind{"/": unix.KindDir, "/dev/null": unix.KindChar} {
		if s, err := unix.StatPath(path); err != nil || s.Kind != want {
			t.Errorf("%s: %v, %v", path, s.Kind, err)
		}
	}
	if _, err := unix.StatPath(f.Path() + "x"); err != unix.ENOENT {
		t.Errorf("%v", err)
	}
}

// TestReadRegular: it ends for a FIFO too, which nobody writes to.
func TestReadRegular(t *testing.T) {
	dir := t.TempDir()
	file, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "fifo")
	if err := os.WriteFile(file, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := unix.ReadRegular(file, 5); string(b) != "hello" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := unix.ReadRegular(file, 4); err != syscall.EFBIG {
		t.Errorf("too large: %v", err)
	}
	if b, err := unix.ReadRegular("/proc/self/comm", 100); len(b) == 0 || err != nil { // has no size
		t.Errorf("%q, %v", b, err)
	}
	for path, want := range map[string]string{fifo: "it is a FIFO", dir: "it is a directory", "/dev/zero": "it is a character device"} {
		if _, err := unix.ReadRegular(path, 100); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestVectoredAt64BitOffsets(t *testing.T) {
	f := temp(t, 0)
	m, err := dma.Alloc(64, "unix test")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	b := m.Bytes()
	copy(b, "hello, world")
	iov := []unix.Iovec{{Base: unix.Addr(b), Len: 5}, {Base: unix.Addr(b[5:]), Len: 7}}
	const off = 5<<30 + 3
	if n, err := unix.Pwritev(f, iov, off, unix.DSync); n != 12 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	back := []unix.Iovec{{Base: unix.Addr(b[32:]), Len: 12}}
	if n, err := unix.Preadv(f, back, off); n != 12 || err != nil || string(b[32:44]) != "hello, world" {
		t.Errorf("%d, %v, %q", n, err, b[32:44])
	}
	if n, err := unix.Preadv(f, back, off+12); n != 0 || err != nil {
		t.Errorf("at the end: %d, %v", n, err)
	}
}

func TestFlockAndItsHolder(t *testing.T) {
	f := temp(t, 1)
	if err := unix.TryFlock(f, unix.LockExclusive); err != nil {
		t.Fatal(err)
	}
	other, err := unix.Open(f.Path(), unix.ReadWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if err := unix.TryFlock(other, unix.LockShared); err != unix.EAGAIN {
		t.Errorf("%v", err)
	}
	s, _ := unix.FStat(f)
	if pid := unix.LockOwner(s); pid != os.Getpid() {
		t.Errorf("owner %d, this is %d", pid, os.Getpid())
	}
	if pids := unix.LockHolders(s); len(pids) != 0 {
		t.Errorf("holders %v besides this process", pids)
	}
	if err := unix.Unflock(f); err != nil {
		t.Error(err)
	}
	if err := unix.TryFlock(other, unix.LockShared); err != nil {
		t.Errorf("after unlock: %v", err)
	}
}

// A child that has the descriptor keeps the lock, and can be named.
func TestInheritedLockNamesTheChild(t *testing.T) {
	f := temp(t, 1)
	if err := unix.TryFlock(f, unix.LockExclusive); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "100")
	cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(dupFD(t, f)), "locked")}
	if err := cmd.Start(); err != nil {
		testenv.Skip(t, "sleep: "+err.Error())
	}
	_ = cmd.ExtraFiles[0].Close()
	s, _ := unix.FStat(f)
	if pids := unix.LockHolders(s); len(pids) != 1 || pids[0] != cmd.Process.Pid {
		t.Errorf("holders %v, the child is %d", pids, cmd.Process.Pid)
	}
	if name := unix.ProcName(cmd.Process.Pid); name != "sleep" {
		t.Errorf("name %q", name)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if pids := unix.LockHolders(s); len(pids) != 0 {
		t.Errorf("holders %v after its end", pids)
	}
}

func TestAlive(t *testing.T) {
	me := unix.Self()
	if !me.Alive() || me.Start == 0 || me.Boot == "" {
		t.Errorf("%+v", me)
	}
	reused := me
	reused.Start++
	if reused.Alive() {
		t.Error("another process with the same pid counts as alive")
	}
	old := me
	old.Boot = "another boot"
	if old.Alive() || (unix.Proc{}).Alive() || (unix.Proc{PID: 1 << 30}).Alive() {
		t.Error("a dead process counts as alive")
	}
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		testenv.Skip(t, "sleep: "+err.Error())
	}
	child := unix.Proc{PID: cmd.Process.Pid}
	if !child.Alive() {
		t.Error("a running child counts as dead")
	}
	_ = cmd.Process.Kill()
	for end := time.Now().Add(time.Minute); child.Alive(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a zombie counts as alive")
		}
	}
	_ = cmd.Wait()
}

func TestFallocate(t *testing.T) {
	f := temp(t, 0)
	if err := unix.Fallocate(f, unix.Reserve, 0, 1<<20); err != nil {
		testenv.Skip(t, "fallocate: "+err.Error())
	}
	s, _ := unix.FStat(f)
	if s.Size != 1<<20 || s.Blocks*512 < 1<<20 {
		t.Errorf("%+v", s)
	}
	if err := unix.Fallocate(f, unix.PunchHole, 0, 1<<19); err != nil {
		t.Fatal(err)
	}
	if p, _ := unix.FStat(f); p.Size != s.Size || p.Blocks >= s.Blocks {
		t.Errorf("%+v", p)
	}
	if err := unix.Fallocate(f, unix.Reserve, -1, 1); err != unix.EINVAL {
		t.Errorf("%v", err)
	}
}

func TestXattr(t *testing.T) {
	f := temp(t, 0)
	if err := unix.SetXattr(f, "user.ugds.test", "text"); err != nil {
		testenv.Skip(t, "attributes: "+err.Error())
	}
	if s, err := unix.GetXattr(f, "user.ugds.test"); s != "text" || err != nil {
		t.Errorf("%q %v", s, err)
	}
	if err := unix.RemoveXattr(f, "user.ugds.test"); err != nil {
		t.Error(err)
	}
	if _, err := unix.GetXattr(f, "user.ugds.test"); err != unix.ENODATA {
		t.Errorf("%v", err)
	}
}

func TestStatFS(t *testing.T) {
	fs, err := unix.StatFS(t.TempDir())
	if err != nil || fs.TotalBytes <= 0 || fs.FreeBytes > fs.TotalBytes || fs.Type == "" {
		t.Errorf("%+v, %v", fs, err)
	}
}

// TestWritten: holes, and nothing but holes, do not count.
func TestWritten(t *testing.T) {
	f, err := unix.Open(filepath.Join(t.TempDir(), "f"), unix.ReadWrite|unix.Create, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size, part = 4 << 20, 64 << 10
	if err := unix.Truncate(f, size); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{0, part, 2 * part} {
		n, err := unix.Written(f, size)
		if err != nil || n < want || n > want*16 {
			t.Fatalf("after %d writes of %d bytes: %d, %v", i, part, n, err)
		}
		if _, err := unix.Pwrite(f, make([]byte, part), int64(i+1)*(1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := unix.Written(f, 1<<20+part/2); err != nil || n != part/2 {
		t.Fatalf("up to the middle of a write: %d, %v", n, err)
	}
}

// TestDelay: it never returns early, whether it sleeps or spins.
func TestDelay(t *testing.T) {
	for _, d := range []time.Duration{-1, 0, 1, 5 * time.Microsecond, 20 * time.Microsecond, 21 * time.Microsecond, 150 * time.Microsecond, 2 * time.Millisecond} {
		for range 20 {
			start := time.Now()
			unix.Delay(d)
			if took := time.Since(start); took < d {
				t.Errorf("a delay of %v took %v", d, took)
			}
		}
	}
}
