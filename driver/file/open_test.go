package file_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

func mustFail(t *testing.T, what string, o file.Options, class error, words ...string) {
	t.Helper()
	d, err := file.Open(context.Background(), o)
	if err == nil {
		closeDevice(t, d)
		t.Errorf("%s: opened", what)
		return
	}
	if !errors.Is(err, class) {
		t.Errorf("%s: %v, want %v", what, err, class)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %q lacks %q", what, err, w)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, size := range map[string]int64{"empty": 0, "short": 4095, "good": base.MiB} {
		if err := os.WriteFile(path(name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustFail(t, "no path", file.Options{}, base.ErrInvalid)
	mustFail(t, "missing", file.Options{Path: path("missing")}, base.ErrNotFound, "format")
	mustFail(t, "directory", file.Options{Path: dir}, base.ErrInvalid, "directory")
	mustFail(t, "char device", file.Options{Path: "/dev/null"}, base.ErrInvalid, "character device")
	mustFail(t, "fifo", file.Options{Path: path("fifo")}, base.ErrInvalid, "FIFO")
	mustFail(t, "empty", file.Options{Path: path("empty")}, base.ErrInvalid, "0 bytes")
	mustFail(t, "short", file.Options{Path: path("short")}, base.ErrInvalid, "4095 bytes")
	for what, o := range map[string]file.Options{
		"engine":       {Engine: "aio"},
		"depth":        {Depth: file.MaxDepth + 1},
		"no depth":     {Depth: -1},
		"transfer":     {MaxTransfer: 4097},
		"big transfer": {MaxTransfer: file.MaxTransferLimit + base.StoreBlock},
		"wait":         {Wait: -1},
		"long wait":    {Wait: file.MaxWait + 1},
	} {
		o.Path = path("good")
		mustFail(t, what, o, base.ErrInvalid)
	}
	for _, o := range []file.Options{{Depth: 1}, {Depth: file.MaxDepth}, {MaxTransfer: base.StoreBlock}, {MaxTransfer: file.MaxTransferLimit}, {Wait: file.MaxWait}} {
		o.Path = path("good")
		closeDevice(t, open(t, o))
	}
}

func TestReadOnly(t *testing.T) {
	for _, e := range engines {
		t.Run(e, func(t *testing.T) {
			p := create(t, t.TempDir(), base.MiB)
			a := open(t, file.Options{Path: p, ReadOnly: true, Engine: e})
			b := open(t, file.Options{Path: p, ReadOnly: true, Engine: e}) // readers share
			mustFail(t, "writer beside readers", file.Options{Path: p}, base.ErrLocked)
			r := mem(t, base.StoreBlock)
			if err := errors.Join(do(a, rw(driver.OpRead, 0, r.Seg(0, 4096))), do(b, driver.Request{Op: driver.OpFlush})); err != nil {
				t.Error(err)
			}
			for _, q := range []driver.Request{rw(driver.OpWrite, 0, r.Seg(0, 4096)),
				{Op: driver.OpWriteZeroes, Len: 4096}, {Op: driver.OpDiscard, Len: 4096}} {
				if err := do(a, q); !errors.Is(err, base.ErrReadOnly) {
					t.Errorf("%v: %v", q.Op, err)
				}
			}
		})
	}
}

// TestJ05SecondOpener: a living owner is named at once, whatever Wait says.
func TestJ05SecondOpener(t *testing.T) {
	for _, dir := range []string{t.TempDir(), shm(t)} {
		p := create(t, dir, base.MiB)
		d := open(t, file.Options{Path: p, Owner: "the first"})
		start := time.Now()
		for _, ro := range []bool{false, true} {
			mustFail(t, "second", file.Options{Path: p, Wait: time.Minute, ReadOnly: ro}, base.ErrLocked, "pid ", "the first", "it is this process")
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		closeDevice(t, d)
		closeDevice(t, open(t, file.Options{Path: p})) // the lock is free at once
	}
}

// The record is text only: what it says never locks anybody out.
func TestRecordIsOnlyText(t *testing.T) {
	p := create(t, t.TempDir(), base.MiB)
	fd, err := unix.Open(p, unix.ReadWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = fd.Close() }()
	for _, text := range []string{"1 0 - init", "garbage", "", "-5 x y", "99999999999999999999 1 1 1", "1 0 - \x1b[31m\n"} {
		if err := unix.SetXattr(fd, "user.ugds.owner", text); err != nil {
			testenv.Skip(t, "attributes: "+err.Error())
		}
		closeDevice(t, open(t, file.Options{Path: p}))
	}
	if s, err := unix.GetXattr(fd, "user.ugds.owner"); err != unix.ENODATA {
		t.Errorf("the record stays after close: %q, %v", s, err)
	}
}

// TestJ05InheritedLock: the owner is dead but a child of it has the
// description: it is named, and not waited for.
func TestJ05InheritedLock(t *testing.T) {
	p := create(t, t.TempDir(), base.MiB)
	f, err := os.OpenFile(p, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "100")
	cmd.ExtraFiles = []*os.File{f}
	if err := cmd.Start(); err != nil {
		testenv.Skip(t, "sleep: "+err.Error())
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	fd, _ := unix.Open(p, unix.ReadWrite, 0)
	err = unix.SetXattr(fd, "user.ugds.owner", "999999999 1 - gone")
	_ = fd.Close()
	_ = f.Close()
	if err != nil {
		testenv.Skip(t, "attributes: "+err.Error())
	}
	start := time.Now()
	mustFail(t, "inherited", file.Options{Path: p, Wait: time.Minute}, base.ErrLocked, "(sleep)", "inherited", "999999999 (gone)")
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

// A dead owner's lock is awaited up to Wait, with a word why. The lock is kept
// here by this very process, which does not count as a living stranger.
func TestWaitsForADeadOwner(t *testing.T) {
	p := create(t, t.TempDir(), base.MiB)
	fd, err := unix.Open(p, unix.ReadWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = fd.Close() }()
	if err := unix.TryFlock(fd, unix.LockExclusive); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetXattr(fd, "user.ugds.owner", "999999999 1 - gone"); err != nil {
		testenv.Skip(t, "attributes: "+err.Error())
	}
	mustFail(t, "no wait", file.Options{Path: p}, base.ErrLocked, "999999999 (gone)", "dead")
	start := time.Now()
	mustFail(t, "short wait", file.Options{Path: p, Wait: 30 * time.Millisecond}, base.ErrLocked, "waited")
	if took := time.Since(start); took < 30*time.Millisecond || took > 20*time.Second {
		t.Errorf("waited %v", took)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if _, err := file.Open(ctx, file.Options{Path: p, Wait: time.Minute}); !errors.Is(err, base.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	var why string
	free := func(s string) {
		why = s
		_ = unix.Unflock(fd)
	}
	d := open(t, file.Options{Path: p, Wait: time.Minute, OnWait: free})
	if !strings.Contains(why, "landing") || !strings.Contains(strings.Join(d.Info().Reasons, "\n"), "waited") {
		t.Errorf("%q, %v", why, d.Info().Reasons)
	}
}

func TestCreate(t *testing.T) {
	dir := t.TempDir()
	p := filepath.Join(dir, "a")
	for _, n := range []int64{0, -4096, 4095, 4097} {
		if err := file.Create(p, n, false); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for _, sparse := range []bool{true, false} {
		if err := file.Create(p, 8*base.MiB, sparse); err != nil {
			t.Fatal(err)
		}
		st, err := unix.StatPath(p)
		if err != nil || st.Size != 8*base.MiB || st.Mode != 0o600 || sparse == (st.Blocks*512 >= st.Size) {
			t.Errorf("sparse %v: %+v, %v", sparse, st, err)
		}
		if err := file.Create(p, 4096, sparse); !errors.Is(err, base.ErrExists) {
			t.Errorf("%v", err)
		}
		if st, _ := unix.StatPath(p); st.Size != 8*base.MiB {
			t.Error("an existing file was changed")
		}
		_ = os.Remove(p)
	}
	if err := file.Create(filepath.Join(dir, "no", "dir"), 4096, false); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v", err)
	}
	fs, _ := unix.StatFS(dir)
	if err := file.Create(p, base.AlignUp(fs.TotalBytes, 4096)+base.GiB, false); !errors.Is(err, base.ErrNoSpace) {
		t.Errorf("more than the disk: %v", err)
	}
	if _, err := os.Stat(p); err == nil {
		t.Error("a failed create left its file")
	}
}

// TestCreateGivesAway: what root makes in somebody's directory is that one's.
func TestCreateGivesAway(t *testing.T) {
	testenv.NeedRoot(t)
	const user, group = 65534, 65533
	dir := t.TempDir()
	if err := os.Chown(dir, user, group); err != nil {
		t.Fatal(err)
	}
	p := create(t, dir, base.MiB)
	st, err := os.Stat(p)
	if err != nil {
		t.Fatal(err)
	}
	if sys := st.Sys().(*syscall.Stat_t); sys.Uid != user || sys.Gid != group || st.Mode().Perm() != 0o600 {
		t.Errorf("it is of %d:%d, mode %o", sys.Uid, sys.Gid, st.Mode().Perm())
	}
}

// TestCreateTakesNothing: a file that does not fit takes no block of the disk, not even
// for as long as its creation takes to fail: others would find the disk full.
func TestCreateTakesNothing(t *testing.T) {
	dir := t.TempDir()
	f, err := unix.OpenUnnamed(dir, 0o600)
	if err != nil {
		testenv.Skip(t, "a file without a name: "+err.Error())
	}
	defer f.Close()
	fs, err := unix.StatFS(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Allocate(f, dir, base.AlignUp(fs.TotalBytes, base.StoreBlock)+base.GiB, false); err != unix.ENOSPC {
		t.Errorf("%v", err)
	}
	if st, err := unix.FStat(f); err != nil || st.Blocks != 0 {
		t.Errorf("%d sectors taken, %v", st.Blocks, err)
	}
}

// mountTmpfs mounts a file system of n bytes.
func mountTmpfs(t *testing.T, size string) string {
	t.Helper()
	testenv.NeedRoot(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		testenv.Skip(t, "mount: "+err.Error())
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// A full host disk under a sparse file fails that put only.
func TestSparseFileOnAFullDisk(t *testing.T) {
	for _, e := range engines {
		t.Run(e, func(t *testing.T) {
			p := create(t, mountTmpfs(t, "4m"), 16*base.MiB)
			d := open(t, file.Options{Path: p, Engine: e, Discard: true})
			r := mem(t, 8*base.MiB)
			if err := do(d, rw(driver.OpWrite, 0, r.Seg(0, 8*base.MiB))); !errors.Is(err, base.ErrNoSpace) {
				t.Errorf("%v", err)
			}
			if err := errors.Join(do(d, driver.Request{Op: driver.OpDiscard, Len: 16 * base.MiB}),
				do(d, rw(driver.OpWrite, 0, r.Seg(0, base.MiB)))); err != nil {
				t.Errorf("after the discard: %v", err)
			}
			if h, _ := d.Health(context.Background()); !h.OK || d.State() != driver.StateReady {
				t.Errorf("%+v", h)
			}
		})
	}
}

func TestBlockDeviceInUse(t *testing.T) {
	testenv.NeedRoot(t)
	dev := loopDevice(t, 64*base.MiB)
	if out, err := exec.Command("mkfs.ext4", "-q", dev).CombinedOutput(); err != nil {
		testenv.Skip(t, "mkfs: "+string(out))
	}
	dir := t.TempDir()
	if err := syscall.Mount(dev, dir, "ext4", 0, ""); err != nil {
		testenv.Skip(t, "mount: "+err.Error())
	}
	mustFail(t, "mounted", file.Options{Path: dev}, base.ErrInUse, dir)
	if err := syscall.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(dev, unix.ReadWrite|unix.Excl, 0)
	if err != nil {
		t.Fatal(err)
	}
	mustFail(t, "exclusive", file.Options{Path: dev}, base.ErrInUse)
	_ = fd.Close()
	d := open(t, file.Options{Path: dev, Owner: "me"})
	mustFail(t, "second", file.Options{Path: dev}, base.ErrLocked, "pid ", "me")
	closeDevice(t, d)
	for range 20 { // the exclusive claim ends with Close, not some time later
		closeDevice(t, open(t, file.Options{Path: dev, Engine: file.EngineURing}))
	}
	if in := d.Info(); in.Transport != "block" || in.BlockSize != 512 {
		t.Errorf("%+v", in)
	}
}

// TestNoFileAmongDevices: no file is made in /dev, under whatever path; /dev/shm is fine,
// which other tests use.
func TestNoFileAmongDevices(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/dev", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/dev/ugds-no-disk", "/dev/../dev/ugds-no-disk", filepath.Join(link, "ugds-no-disk")} {
		if err := file.Create(path, base.MiB, true); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("%s: %v", path, err)
			_ = os.Remove(path)
		}
	}
	if err := file.MayCreate("/dev/ugds-no-dir/x"); !errors.Is(err, base.ErrNotFound) {
		t.Errorf("a new folder: %v", err)
	}
	for _, path := range []string{"/dev/shm/x/y", "/devx/y", filepath.Join(t.TempDir(), "x")} {
		if err := file.MayCreate(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestBehindLoopDevice: a file behind a loop device is in use, under any of its names; a
// store on the loop device is fine, unless somebody has the file itself.
func TestBehindLoopDevice(t *testing.T) {
	testenv.NeedRoot(t)
	p := create(t, t.TempDir(), base.MiB)
	other := p + ".other"
	if err := os.Link(p, other); err != nil {
		t.Fatal(err)
	}
	below := open(t, file.Options{Path: p, Owner: "below"})
	dev := attachLoop(t, p)
	mustFail(t, "the file is open", file.Options{Path: dev}, base.ErrLocked, "below", p)
	closeDevice(t, below)
	closeDevice(t, open(t, file.Options{Path: dev}))
	closeDevice(t, open(t, file.Options{Path: p, ReadOnly: true}))
	for _, path := range []string{p, other} {
		mustFail(t, "attached", file.Options{Path: path}, base.ErrInUse, dev)
		if err := file.InUse(path); !errors.Is(err, base.ErrInUse) {
			t.Errorf("%s: %v", path, err)
		}
	}
	second := attachLoop(t, dev)
	mustFail(t, "a loop device behind one", file.Options{Path: dev}, base.ErrInUse, second)
	if err := os.Remove(p); err != nil { // the kernel knows its inode
		t.Fatal(err)
	}
	mustFail(t, "attached by a name that is gone", file.Options{Path: other}, base.ErrInUse, dev)
}

// TestUsedBehindLoopDevice: a loop device is in use when what is behind it is, at the end
// of a chain as well, or when another one sees the same bytes and is; and a partition when
// its disk is behind one, and the other way round.
func TestUsedBehindLoopDevice(t *testing.T) {
	testenv.NeedRoot(t)
	const half = 32 * base.MiB
	p := create(t, t.TempDir(), 2*half)
	limit := strconv.Itoa(half)
	mounted := attachLoop(t, p, "--sizelimit", limit)
	if out, err := exec.Command("mkfs.ext4", "-q", mounted).CombinedOutput(); err != nil {
		testenv.Skip(t, "mkfs: "+string(out))
	}
	over, same, beside := attachLoop(t, mounted), attachLoop(t, p), attachLoop(t, p, "--offset", limit)
	second := attachLoop(t, over)
	for _, dev := range []string{second, same, beside} {
		closeDevice(t, open(t, file.Options{Path: dev}))
	}
	dir := t.TempDir()
	if err := syscall.Mount(mounted, dir, "ext4", 0, ""); err != nil {
		testenv.Skip(t, "mount: "+err.Error())
	}
	defer func() { _ = syscall.Unmount(dir, 0) }()
	for _, dev := range []string{second, same} {
		mustFail(t, "mounted behind it", file.Options{Path: dev}, base.ErrInUse, dir, "is behind it")
	}
	closeDevice(t, open(t, file.Options{Path: beside}))

	disk := create(t, t.TempDir(), 8*base.MiB)
	whole := attachLoop(t, disk, "--partscan")
	part := whole + "p1"
	// By hand: a kernel may know no table of partitions.
	if out, err := exec.Command("addpart", whole, "1", "2048", "4096").CombinedOutput(); err != nil {
		testenv.Skip(t, "addpart: "+string(out))
	}
	t.Run("partition", func(t *testing.T) {
		mustFail(t, "the disk", file.Options{Path: whole}, base.ErrInUse, attachLoop(t, part))
	})
	mustFail(t, "a partition", file.Options{Path: part}, base.ErrInUse, attachLoop(t, whole))
}

// TestOthersBehindLoopDevice: a loop device is not opened for writing while somebody has what
// is behind it, if only to read, or another loop device over the same bytes.
func TestOthersBehindLoopDevice(t *testing.T) {
	testenv.NeedRoot(t)
	const half = base.MiB
	p := create(t, t.TempDir(), 2*half)
	limit := strconv.Itoa(half)
	dev, same := attachLoop(t, p, "--sizelimit", limit), attachLoop(t, p)
	over, beside := attachLoop(t, attachLoop(t, p)), attachLoop(t, p, "--offset", limit)
	for name, other := range map[string]file.Options{
		"a reader of the file":        {Path: p, ReadOnly: true},
		"another loop device":         {Path: same},
		"a reader of another of them": {Path: same, ReadOnly: true},
	} {
		d := open(t, other)
		for _, path := range []string{dev, over} {
			mustFail(t, name, file.Options{Path: path}, base.ErrLocked, "it is this process", other.Path+" is ")
			if err := file.InUse(path); !errors.Is(err, base.ErrLocked) {
				t.Errorf("%s: %v", name, err)
			}
			closeDevice(t, open(t, file.Options{Path: path, ReadOnly: true}))
		}
		closeDevice(t, d)
	}
	d := open(t, file.Options{Path: beside})
	closeDevice(t, open(t, file.Options{Path: dev}))
	closeDevice(t, d)
}

func TestReadOnlyBlockDevice(t *testing.T) {
	testenv.NeedRoot(t)
	dev := loopDevice(t, base.MiB)
	if out, err := exec.Command("blockdev", "--setro", dev).CombinedOutput(); err != nil {
		testenv.Skip(t, "blockdev: "+string(out))
	}
	t.Cleanup(func() { // the flag outlives the loop device's file
		if out, err := exec.Command("blockdev", "--setrw", dev).CombinedOutput(); err != nil {
			t.Errorf("blockdev: %v %s", err, out)
		}
	})
	mustFail(t, "read-only device", file.Options{Path: dev}, base.ErrReadOnly)
	closeDevice(t, open(t, file.Options{Path: dev, ReadOnly: true}))
}

// TestJ05NoLeakOnFailure: failed opens leave no descriptor; Main checks the
// rest.
func TestJ05NoLeakOnFailure(t *testing.T) {
	count := func() int { d, _ := os.ReadDir("/proc/self/fd"); return len(d) }
	p := create(t, t.TempDir(), base.MiB)
	d := open(t, file.Options{Path: p})
	before := count()
	for range 20 {
		mustFail(t, "locked", file.Options{Path: p}, base.ErrLocked)
		mustFail(t, "directory", file.Options{Path: filepath.Dir(p)}, base.ErrInvalid)
	}
	if n := count(); n > before+2 {
		t.Errorf("%d descriptors, before %d", n, before)
	}
	closeDevice(t, d)
}

// TestJ05TwoProcesses: another process owns the device: refused while it lives,
// free or awaited once it was killed. On block devices too, whose exclusive
// claim the kernel drops a little later.
func TestJ05TwoProcesses(t *testing.T) {
	paths := map[string]string{"disk": create(t, t.TempDir(), base.MiB), "tmpfs": create(t, shm(t), base.MiB)}
	if os.Geteuid() == 0 {
		paths["loop"] = loopDevice(t, base.MiB)
	}
	for name, p := range paths {
		t.Run(name, func(t *testing.T) {
			for range 5 {
				cmd := self(t, "holder", p, 0)
				out, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				if line, _ := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
					t.Fatalf("child: %q", line)
				}
				mustFail(t, "living owner", file.Options{Path: p, Wait: time.Minute}, base.ErrLocked,
					"pid "+strconv.Itoa(cmd.Process.Pid), "holder")
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				closeDevice(t, open(t, file.Options{Path: p, Wait: 30 * time.Second}))
			}
		})
	}
	if left, _ := filepath.Glob("/run/ugds/block-7-*.owner"); len(left) > 0 {
		t.Errorf("records stay: %v", left)
	}
}

// A record file that somebody else put in place is not followed.
func TestSideRecordIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	file.SideRecord(t, filepath.Join(dir, "data"), victim)
	if b, _ := os.ReadFile(victim); string(b) != "precious" {
		t.Errorf("the victim is now %q", b)
	}
}

// TestDeniedSaysWhose: who may not read a device's file is told whose it is.
func TestDeniedSaysWhose(t *testing.T) {
	p := create(t, t.TempDir(), base.MiB)
	err := file.OpenError(file.Options{Path: p, ReadOnly: true}, unix.EACCES)
	if want := " is of user " + strconv.Itoa(os.Geteuid()) + ", mode 0600"; !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), p+want) {
		t.Error(err)
	}
}
