//go:build ugds_lab

package guest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/kdrv"
	"github.com/ugds-store/ugds/internal/base"
)

const tracing = "/sys/kernel/tracing/"

// childFly keeps the controller busy until it is killed.
func childFly(t *testing.T, address string) {
	seam, err := kdrv.Open(soon(t), address)
	if err != nil {
		t.Fatal(err)
	}
	d, err := ctrl.Open(soon(t), seam, ctrl.Options{Queues: 2})
	if err != nil {
		t.Fatal(err)
	}
	r, err := driver.AllocRegion(32*base.MiB, "fly")
	if err != nil {
		t.Fatal(err)
	}
	batch := func() *driver.Batch {
		b := &driver.Batch{}
		for at := int64(0); at < r.Size(); at += 64 * base.KiB {
			b.Reqs = append(b.Reqs, move(driver.OpRead, at, r.Seg(at, 64*base.KiB)))
		}
		return b
	}
	for end, n := time.Now().Add(time.Minute), 0; time.Now().Before(end); n++ {
		if n == 2 {
			fmt.Println("flying")
		}
		a, b := batch(), batch()
		for _, b := range []*driver.Batch{a, b} {
			if err := d.Submit(soon(t), b); err != nil {
				t.Fatal(err)
			}
		}
		for _, b := range []*driver.Batch{a, b} {
			if err := b.Wait(soon(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// traceSteps makes the kernel trace what the module does, until the test ends. The names
// of processes are not recorded: for those the kernel would patch its scheduler's
// tracepoints while they run, and QEMU's translator does not always see that a
// breakpoint, by which the kernel patches, is gone again: the kernel then dies of it.
func traceSteps(t testing.TB) {
	t.Helper()
	if _, err := os.Stat(tracing + "events"); err != nil {
		if err := syscall.Mount("trace", tracing, "tracefs", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	writeSys(t, tracing+"options/record-cmd", "0")
	writeSys(t, tracing+"events/ugds/ugds_step/enable", "1")
	t.Cleanup(func() { writeSys(t, tracing+"events/ugds/ugds_step/enable", "0") })
}

// TestKdrvKilled: a process dies in full flight. The kernel's trace shows that its
// controller stopped before the first page was unmapped or unpinned, and the next
// owner finds everything in order.
func TestKdrvKilled(t *testing.T) {
	traceSteps(t)
	address := kdrvAddress(t, 0)
	for round := range 6 {
		c := another("fly", "UGDS_LAB_ADDRESS="+address)
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		waitFor(out, "flying")
		time.Sleep(time.Duration(round) * 7 * time.Millisecond)
		writeSys(t, tracing+"trace", "")
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		d, _ := openCtrl(t, 0, ctrl.Options{}) // waits for the kernel to be done
		steps := traced(t)
		checkOrder(t, steps)
		own := region(t, base.MiB, 1)
		do(t, d, move(driver.OpRead, 0, own.Seg(0, base.MiB)))
		if err := own.Close(); err != nil {
			t.Error(err)
		}
		if err := d.Close(soon(t)); err != nil {
			t.Error(err)
		}
		if round == 0 {
			t.Logf("%s", strings.Join(steps[:min(len(steps), 12)], "\n"))
		}
	}
}

// waitFor reads what a child prints up to a line.
func waitFor(out io.Reader, line string) {
	for in := bufio.NewScanner(out); in.Scan() && in.Text() != line; {
	}
}

// traced lists the steps in the kernel's trace.
func traced(t testing.TB) (steps []string) {
	t.Helper()
	text, err := os.ReadFile(tracing + "trace")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, step, ok := strings.Cut(line, "ugds_step: "); ok {
			steps = append(steps, strings.TrimSpace(step))
		}
	}
	return steps
}

// checkOrder wants: disabled, bus mastering off, stopped, and only then memory.
func checkOrder(t *testing.T, steps []string) {
	t.Helper()
	order := map[string]int{"disable": 1, "master-off": 2, "reset": 3, "stopped": 4, "unmap": 5, "unpin": 5, "start": 6}
	at, unpinned := 0, 0
	for _, s := range steps {
		f := strings.Fields(s)
		if len(f) != 3 {
			t.Fatalf("%q", s)
		}
		n := order[f[1]]
		if n == 0 || n < at {
			t.Errorf("%s comes at the wrong time:\n%s", s, strings.Join(steps, "\n"))
			return
		}
		if n == 6 {
			break // the next owner
		}
		at = n
		switch {
		case f[1] == "disable" && f[2] != "0", f[1] == "master-off" && f[2] != "1", f[1] == "stopped" && f[2] == "0":
			t.Errorf("%s", s)
		case f[1] == "unpin":
			unpinned++
		}
	}
	if at != 5 || unpinned == 0 {
		t.Errorf("the steps are not all there:\n%s", strings.Join(steps, "\n"))
	}
}
