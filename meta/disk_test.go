package meta

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/meta/metatest"
)

var child = flag.String("child", "", "what a child process of the tests does")

// TestChild is the other process of the tests below.
func TestChild(t *testing.T) {
	what, dir, _ := strings.Cut(*child, ":")
	switch o := (Options{Dir: dir, MemTableBytes: 24 << 10}); what {
	case "hold", "hold-read-only":
		o.ReadOnly = what != "hold"
		d := openDB(t, o)
		fmt.Println("\nready")
		_, _ = io.ReadAll(os.Stdin)
		closeDB(t, d)
	case "few files":
		d := newDB(t, o)
		for gen := range fewFilesPuts() {
			put(t, d, 1, gen+1, fmt.Sprintf("%040d", gen*7919%2000), fmt.Sprintf("%040d", gen))
		}
		for range 20 {
			scan(t, d)
		}
		closeDB(t, d)
		closeDB(t, openDB(t, o))
	}
}

// startChild runs TestChild in another process under a shell prefix.
func startChild(t *testing.T, prefix, what string) (*exec.Cmd, io.WriteCloser, *bufio.Scanner) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", prefix+`exec "$0" -test.run='^TestChild$' -child="$1"`, exe, what)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, in, bufio.NewScanner(out)
}

func TestLocks(t *testing.T) {
	for name, fs := range map[string]vfs.FS{"disk": nil, "memory": memFS()} {
		t.Run(name, func(t *testing.T) {
			o := Options{Dir: filepath.Join(t.TempDir(), "m"), FS: fs}
			ro := o
			ro.ReadOnly = true
			d := newDB(t, o)
			for _, other := range []Options{o, ro} {
				if _, err := Open(other); !errors.Is(err, base.ErrLocked) {
					t.Fatalf("second open: %v", err)
				}
			}
			if err := Create(o, testID); !errors.Is(err, base.ErrExists) {
				t.Fatal(err)
			}
			put(t, d, 1, 1, "a")
			closeDB(t, d)
			r1, r2 := openDB(t, ro), openDB(t, ro)
			if _, err := Open(o); !errors.Is(err, base.ErrLocked) {
				t.Fatalf("owner beside readers: %v", err)
			}
			if len(scan(t, r1)) != 1 || len(scan(t, r2)) != 1 {
				t.Fatal("readers do not see the record")
			}
			closeDB(t, r1)
			closeDB(t, r2)
			closeDB(t, openDB(t, o))
		})
	}
}

func TestLocksBetweenProcesses(t *testing.T) {
	o := Options{Dir: filepath.Join(t.TempDir(), "m")}
	ro := o
	ro.ReadOnly = true
	closeDB(t, newDB(t, o))
	for _, c := range []struct {
		child    string
		writable bool
		readable bool
	}{{"hold", false, false}, {"hold-read-only", false, true}} {
		cmd, in, out := startChild(t, "", c.child+":"+o.Dir)
		for out.Scan() && out.Text() != "ready" {
		}
		for _, p := range []struct {
			o  Options
			ok bool
		}{{o, c.writable}, {ro, c.readable}} {
			d, err := Open(p.o)
			if p.ok && err != nil || !p.ok && !errors.Is(err, base.ErrLocked) {
				t.Errorf("child %s, read-only %v: %v", c.child, p.o.ReadOnly, err)
			}
			if d != nil {
				closeDB(t, d)
			}
		}
		if c.child == "hold" { // a killed owner leaves no lock
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		} else {
			_ = in.Close()
			for out.Scan() {
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		}
		closeDB(t, openDB(t, o))
	}
}

func fewFilesPuts() uint64 {
	if testenv.Race {
		return 500
	}
	return 2000
}

// TestFewFiles works with 64 descriptors.
func TestFewFiles(t *testing.T) {
	cmd, in, out := startChild(t, "ulimit -n 64; ", "few files:"+filepath.Join(t.TempDir(), "m"))
	_ = in.Close()
	var text strings.Builder
	for out.Scan() {
		text.WriteString(out.Text() + "\n")
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
}

// TestReadOnlyWritesNothing opens images with logs that were never written out,
// with and without a torn end, and leftovers of Pebble.
func TestReadOnlyWritesNothing(t *testing.T) {
	img := scriptImage(t, scriptOptions(nil), false)
	logs := img.find(isLog)
	newest := logs[len(logs)-1]
	leftovers := maps.Clone(img)
	leftovers["/d/m/db/000099.dbtmp"] = []byte("temporary")
	leftovers["/d/m/db/marker.manifest.000001.MANIFEST-000001"] = []byte{}
	torn := maps.Clone(img)
	_, end := lastRecord(t, newest, img[newest])
	torn[newest] = img[newest][:end-1]
	for name, img := range map[string]image{"whole": img, "leftovers": leftovers, "torn": torn} {
		fs := img.fs(t)
		o := scriptOptions(fs)
		o.ReadOnly = true
		before := fs.Changes()
		d1, d2 := openDB(t, o), openDB(t, o)
		want := uint64(scriptCommits)
		if name == "torn" {
			want--
		}
		checkState(t, d1, want, want)
		checkState(t, d2, want, want)
		if err := d1.Commit(ctx(), scriptBatch(99, map[string]Record{})); !errors.Is(err, base.ErrReadOnly) {
			t.Fatal(err)
		}
		if err := d1.RaiseEpoch(ctx(), 99); !errors.Is(err, base.ErrReadOnly) {
			t.Fatal(err)
		}
		if err := d1.WriteIdentity(testID); !errors.Is(err, base.ErrReadOnly) {
			t.Fatal(err)
		}
		if _, err := d1.Get(1, []byte("key 01")); ignore(err, base.ErrNotFound) != nil {
			t.Fatal(err)
		}
		closeDB(t, d1)
		closeDB(t, d2)
		if n := fs.Changes() - before; n != 0 {
			t.Errorf("%s: %d changes were tried", name, n)
		}
		if takeImage(t, fs, "/d").digest() != img.digest() {
			t.Errorf("%s: the directory has changed", name)
		}
		o.ReadOnly = false
		d := openDB(t, o)
		checkState(t, d, want, want)
		closeDB(t, d)
	}
}

func TestOpenNeverCreates(t *testing.T) {
	o := Options{Dir: filepath.Join(t.TempDir(), "m")}
	missing := func() {
		t.Helper()
		if _, err := Open(o); !errors.Is(err, base.ErrNotFound) {
			t.Fatal(err)
		}
	}
	missing()
	if _, err := os.Stat(o.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("Open made the directory: %v", err)
	}
	if err := os.Mkdir(o.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	missing()
	if err := os.WriteFile(filepath.Join(o.Dir, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Create(o, testID); !errors.Is(err, base.ErrExists) {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(o.Dir, "x")); err != nil {
		t.Fatal(err)
	}
	closeDB(t, newDB(t, o)) // an empty directory is fine
	db := filepath.Join(o.Dir, databaseName)
	if err := os.Rename(db, db+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(o); !errors.Is(err, base.ErrCorrupt) {
		t.Fatal(err)
	}
	if _, err := os.Stat(db); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("Open made the database: %v", err)
	}
}

// TestForeignDatabase swaps the databases of two stores.
func TestForeignDatabase(t *testing.T) {
	fs := memFS()
	other := testID
	other.Store[0]++
	a, b := Options{Dir: "/a", FS: fs}, Options{Dir: "/b", FS: fs}
	closeDB(t, newDB(t, a))
	if err := Create(b, other); err != nil {
		t.Fatal(err)
	}
	for _, mv := range [][2]string{{"/a/db", "/x"}, {"/b/db", "/a/db"}} {
		if err := fs.Rename(mv[0], mv[1]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(a); !errors.Is(err, base.ErrMismatch) {
		t.Fatal(err)
	}
}

// smallDisk mounts a file system of 16 MiB for one test.
func smallDisk(t *testing.T) (dir string) {
	t.Helper()
	testenv.NeedRoot(t)
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		testenv.Skip(t, "cannot mount a tmpfs: "+err.Error())
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestSmallDisk fills a real small file system, twice: while the DB runs, and so
// that only the ballast lets it open again.
func TestSmallDisk(t *testing.T) {
	disk := smallDisk(t)
	var ev events
	o := Options{Dir: filepath.Join(disk, "m"), MemTableBytes: 256 << 10, OnEvent: ev.add}
	d := newDB(t, o)
	if st, err := os.Stat(filepath.Join(o.Dir, ballastName)); err != nil || st.Sys().(*syscall.Stat_t).Blocks == 0 {
		t.Fatalf("no ballast: %v", err)
	}
	filler := filepath.Join(disk, "filler")
	fill := func() {
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		for n := 1 << 20; n >= 4096; n /= 2 {
			for err := error(nil); err == nil; {
				_, err = f.Write(make([]byte, n))
			}
		}
		_ = f.Close()
	}
	acked, err := runScript(d, 1)
	if err != nil {
		t.Fatal(err)
	}
	fill()
	for gen := acked + 1; err == nil; gen++ {
		b := NewBatch()
		b.Put(2, []byte("big"), testRecord(gen, 1<<30))
		b.SetLastGen(gen)
		if err = d.Commit(ctx(), b); err == nil {
			acked = gen
		}
	}
	if !errors.Is(err, base.ErrMetaFull) {
		t.Fatal(err)
	}
	if r, err := d.Get(1, []byte("key 01")); err != nil || !same(r, scriptModel(scriptCommits)["1/key 01"]) {
		t.Fatal(r, err)
	}
	scan(t, d)
	closeDB(t, d)
	d = openDB(t, o) // the disk is still full
	if ev.find(BallastRemoved) == nil {
		t.Log("the database opened without the ballast")
	}
	if gen := d.Header().LastGen; gen < acked || gen > acked+1 {
		t.Fatal(gen, acked)
	}
	closeDB(t, d)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	d = openDB(t, o)
	put(t, d, 1, acked+5, "z")
	closeDB(t, d)
	if _, err := os.Stat(filepath.Join(o.Dir, ballastName)); err != nil {
		t.Errorf("the ballast is not back: %v", err)
	}
}

// TestLostLockReadOnlyDisk: where the lock file cannot be made again the hint is another
// one, and helps.
func TestLostLockReadOnlyDisk(t *testing.T) {
	disk := smallDisk(t)
	o := Options{Dir: filepath.Join(disk, "m")}
	closeDB(t, newDB(t, o))
	if err := os.Remove(filepath.Join(o.Dir, lockName)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("", disk, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	o.ReadOnly = true
	if _, err := Open(o); !errors.Is(err, ErrLockLost) || !strings.Contains(err.Error(), "copy the directory") {
		t.Errorf("%v", err)
	}
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(o.Dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(to, lockName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o.Dir = to
	closeDB(t, openDB(t, o))
}

// TestBallast lets an open fail for lack of space until the ballast is gone.
func TestBallast(t *testing.T) {
	fs := metatest.Wrap(nil)
	var ev events
	o := Options{Dir: filepath.Join(t.TempDir(), "m"), FS: fs, OnEvent: ev.add}
	d := newDB(t, o)
	put(t, d, 1, 1, "a")
	closeDB(t, d)
	ballast := filepath.Join(o.Dir, ballastName)
	fs.FullAt(1)
	fs.Before(func(op metatest.Op) {
		if op.Name == "remove" && op.Path == ballast {
			fs.Clear()
		}
	})
	d = openDB(t, o)
	if ev.find(BallastRemoved) == nil || ev.find(BallastRestored) == nil || len(scan(t, d)) != 1 {
		t.Error("the ballast was not used")
	}
	closeDB(t, d)
	if _, err := os.Stat(ballast); err != nil {
		t.Error(err)
	}
}

// TestLockOutlivesNoFork: a child that has the open lock file, as one has that was
// forked and has not yet become another program, does not keep the lock.
func TestLockOutlivesNoFork(t *testing.T) {
	path := filepath.Join(t.TempDir(), lockName)
	take := func() (*os.File, *dirLock) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		l, err := flock(f, f.Fd(), path, false)
		if err != nil {
			t.Fatal(err)
		}
		return f, l
	}
	f, l := take()
	cmd := exec.Command("sleep", "60")
	cmd.ExtraFiles = []*os.File{f}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	}()
	if err := l.release(); err != nil {
		t.Fatal(err)
	}
	_, l = take()
	if err := l.release(); err != nil {
		t.Fatal(err)
	}
}
