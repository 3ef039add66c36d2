package file_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

var killRounds = flag.Int("kill-rounds", 3, "rounds of the kill test; 200 for the long form")

const (
	killWrites = 64
	killBytes  = killWrites * base.MiB
	killRate   = 40 * 1000 * 1000 // bytes a second that the disk is throttled to
	killMin    = 32 * base.MiB    // must not have landed at the kill
	killTries  = 3                // so many rounds at most for each that is wanted

	childCgroup = "UGDS_TEST_CGROUP"
	childSide   = "UGDS_TEST_SIDE"
)

// childWriter puts 64 writes of 1 MiB in flight and says so, then waits to be
// killed.
func childWriter() error {
	if err := os.WriteFile(os.Getenv(childCgroup)+"/cgroup.procs", []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		return err
	}
	ctx := context.Background()
	d, err := file.Open(ctx, file.Options{Path: os.Getenv(childPath), Engine: file.EngineURing,
		Hooks: file.Hooks{SideLock: os.Getenv(childSide) != ""}})
	if err != nil {
		return err
	}
	r, err := driver.AllocRegion(killBytes, "child")
	if err == nil {
		err = d.Attach(r)
	}
	if err != nil {
		return err
	}
	for i := range int64(killWrites) { // new bytes everywhere, and different ones each MiB
		m := r.Bytes(i*base.MiB, base.MiB)
		m[0] = byte(i + 1)
		for n := 1; n < len(m); n *= 2 {
			copy(m[n:], m[:n])
		}
	}
	b := driver.Batch{}
	for i := range int64(killWrites) {
		b.Reqs = append(b.Reqs, rw(driver.OpWrite, i*base.MiB, r.Seg(i*base.MiB, base.MiB)))
	}
	if err := d.Submit(ctx, &b); err != nil {
		return err
	}
	fmt.Println("in flight")
	return b.Wait(ctx)
}

// throttle makes a cgroup whose writes to the disk under dir are slow.
func throttle(t *testing.T, dir string) string {
	t.Helper()
	testenv.NeedRoot(t)
	const root = "/sys/fs/cgroup/blkio"
	st, err := unix.StatPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if unix.BlockQueue(st.Dev, "write_cache") == "" {
		testenv.Skip(t, "the test directory is not on one block device")
	}
	disk := st.Dev.String()
	if b, err := os.ReadFile("/sys/dev/block/" + disk + "/partition"); err == nil && len(b) > 0 {
		b, _ := os.ReadFile("/sys/dev/block/" + disk + "/../dev")
		disk = strings.TrimSpace(string(b)) // the throttle takes whole disks
	}
	cg := filepath.Join(root, fmt.Sprintf("ugds-test-%d", os.Getpid()))
	if err := os.Mkdir(cg, 0o755); err != nil {
		testenv.Skip(t, "blkio cgroup: "+err.Error())
	}
	t.Cleanup(func() {
		for range 500 { // busy until the last throttled write is done
			if os.Remove(cg) == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Error("the cgroup stays")
	})
	limit := fmt.Sprintf("%s %d", disk, killRate)
	if err := os.WriteFile(cg+"/blkio.throttle.write_bps_device", []byte(limit), 0o600); err != nil {
		testenv.Skip(t, "blkio throttle: "+err.Error())
	}
	return cg
}

// handed is how many written bytes the throttle was given so far.
func handed(t *testing.T, cg string) int64 {
	t.Helper()
	b, err := os.ReadFile(cg + "/blkio.throttle.io_service_bytes")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[1] == "Write" {
			n, _ := strconv.ParseInt(f[2], 10, 64)
			return n
		}
	}
	return 0
}

// TestI05Kill: a process dies with 64 MiB of writes in flight. The next owner
// waits for them, says why, and no byte changes after its Open returned.
func TestI05Kill(t *testing.T) {
	k := newKill(t)
	// On a busy disk much may have landed before the kill: such a round is made again.
	enough := 0
	for i := 0; enough < *killRounds; i++ {
		if i == killTries*(*killRounds) {
			t.Fatalf("only %d of %d rounds had %d MiB not landed", enough, i, killMin>>20)
		}
		r := k.round(t, false)
		t.Logf("round %d: %d MiB not landed at the kill; open took %v; %q", i, r.notLanded>>20, r.took, r.why)
		if r.changed > 0 {
			t.Errorf("round %d: %d bytes changed after the open", i, r.changed)
		}
		if r.notLanded >= killMin {
			enough++
			if !strings.Contains(r.why, "landing") || !strings.Contains(r.reasons, "waited") {
				t.Errorf("round %d: the wait was not explained: %q, %s", i, r.why, r.reasons)
			}
		}
	}
}

// TestI05KillSideLock is the same with the lock in a side file, which is free as
// soon as the process is gone: the test must see the late writes.
func TestI05KillSideLock(t *testing.T) {
	k := newKill(t)
	for range killTries {
		r := k.round(t, true)
		t.Logf("%d MiB not landed at the kill; open took %v; %d bytes changed afterwards", r.notLanded>>20, r.took, r.changed)
		if r.changed > 0 {
			return
		}
	}
	t.Error("no late write was seen: the test proves nothing")
}

type kill struct {
	cg, path string
	mem      *driver.Region
}

type killResult struct {
	notLanded, changed int64
	took               time.Duration
	why, reasons       string
}

func newKill(t *testing.T) *kill {
	t.Helper()
	dir := t.TempDir()
	k := &kill{cg: throttle(t, dir), path: filepath.Join(dir, "data"), mem: mem(t, 2*killBytes)}
	if err := file.Create(k.path, killBytes, false); err != nil {
		t.Fatal(err)
	}
	d := open(t, file.Options{Path: k.path})
	if d.Info().Engine != file.EngineURing {
		testenv.Skip(t, "no io_uring: "+strings.Join(d.Info().Reasons, "; "))
	}
	closeDevice(t, d)
	return k
}

// round kills one writer and looks at what the next owner sees.
func (k *kill) round(t *testing.T, side bool) killResult {
	t.Helper()
	var r killResult
	k.wipe(t)
	before := handed(t, k.cg)
	cmd := self(t, "writer", k.path, 0)
	cmd.Env = append(cmd.Env, childCgroup+"="+k.cg)
	if side {
		cmd.Env = append(cmd.Env, childSide+"=1")
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	if line != "in flight\n" {
		rest, _ := io.ReadAll(out)
		_ = cmd.Wait()
		t.Fatalf("child: %s%s", line, rest)
	}
	if n := handed(t, k.cg) - before; n < killBytes {
		t.Logf("the throttle was given only %d MiB", n>>20)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	landed := make(chan int64, 1)
	go func() { landed <- k.sample() }() // at the same time: the reopen is not delayed
	start := time.Now()
	d, err := file.Open(context.Background(), file.Options{Path: k.path, Wait: 30 * time.Second,
		OnWait: func(s string) { r.why = s }, Hooks: file.Hooks{SideLock: side}})
	r.took = time.Since(start).Round(time.Millisecond)
	r.notLanded = killBytes - <-landed
	if err != nil {
		t.Fatal(err)
	}
	defer closeDevice(t, d)
	r.reasons = strings.Join(d.Info().Reasons, "\n")
	r.changed = k.watch(t, d, r.took)
	return r
}

// wipe sets the whole file to zeros, which no write of the child has.
func (k *kill) wipe(t *testing.T) {
	t.Helper()
	d := open(t, file.Options{Path: k.path, Wait: 30 * time.Second})
	clear(k.mem.CPU()[:killBytes])
	err := errors.Join(do(d, rw(driver.OpWrite, 0, k.mem.Seg(0, killBytes))), do(d, driver.Request{Op: driver.OpFlush}))
	if err != nil {
		t.Fatal(err)
	}
	closeDevice(t, d)
}

// sample estimates how many bytes of the child's writes are on the disk, from a
// block in each quarter of a MiB, read past every cache.
func (k *kill) sample() int64 {
	fd, err := unix.Open(k.path, unix.ReadOnly|unix.Direct, 0)
	if err != nil {
		return killBytes
	}
	defer func() { _ = fd.Close() }()
	m, err := driver.AllocRegion(base.StoreBlock, "sample")
	if err != nil {
		return killBytes
	}
	defer func() { _ = m.Close() }()
	const step = base.MiB / 4
	var landed int64
	for off := int64(step - base.StoreBlock); off < killBytes; off += step {
		if n, err := unix.Pread(fd, m.CPU(), off); n != len(m.CPU()) || err != nil || m.CPU()[0] != 0 {
			landed += step
		}
	}
	return landed
}

// watch reads the file right after the open and again when everything that the
// throttle holds must have passed it.
func (k *kill) watch(t *testing.T, d driver.Device, took time.Duration) (changed int64) {
	t.Helper()
	first, second := k.mem.Seg(0, killBytes), k.mem.Seg(killBytes, killBytes)
	if err := do(d, rw(driver.OpRead, 0, first)); err != nil {
		t.Fatal(err)
	}
	all := time.Duration(killBytes) * time.Second / killRate
	time.Sleep(max(all-took, 0) + 500*time.Millisecond)
	if err := do(d, rw(driver.OpRead, 0, second)); err != nil {
		t.Fatal(err)
	}
	a, b := k.mem.CPU()[:killBytes], k.mem.CPU()[killBytes:]
	for off := 0; off < killBytes; off += base.StoreBlock {
		if !bytes.Equal(a[off:off+base.StoreBlock], b[off:off+base.StoreBlock]) {
			changed += base.StoreBlock
		}
	}
	return changed
}
