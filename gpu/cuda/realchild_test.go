//go:build !nogpu

package cuda

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/testenv"
)

// role tells a process that the tests start what it is there for.
const role = "UGDS_GPU_TEST_ROLE"

// child starts this test binary again in a role.
func child(t *testing.T, what string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(os.Args[0], "-gpu", "-test.run", "^TestRealChild$")
	c.Env = append(os.Environ(), role+"="+what+" "+strings.Join(args, " "))
	return c
}

// TestRealChild does what a parent asks for; by itself it does nothing.
func TestRealChild(t *testing.T) {
	what := strings.Fields(os.Getenv(role))
	if len(what) == 0 {
		return
	}
	if what[0] == "descriptors" { // those that it was started with
		fmt.Println("descriptors:", descriptors())
		return
	}
	b, d := realDevice(t)
	if b == nil {
		return
	}
	_, h, s := use(t, d, 1<<20)
	switch what[0] {
	case "use":
		m, _, _ := use(t, d, 1<<20)
		if err := errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: h.Bytes()}), finish(t, s)); err != nil {
			t.Fatal(err)
		}
	case "wait": // until the parent kills it
		var all []gpu.Stream
		for range 512 {
			w, err := d.NewStream()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, w)
		}
		for _, w := range all {
			if err := w.AwaitCell(h.Ptr(), 1); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Println("waiting")
		time.Sleep(time.Minute)
	case "ipc":
		var handle [64]byte
		if _, err := hex.Decode(handle[:], []byte(what[1])); err != nil {
			t.Fatal(err)
		}
		m, err := d.OpenIPC(handle)
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: h.Bytes(), ToHost: true}), finish(t, s), m.Close())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("crc %08x\n", crc32.ChecksumIEEE(h.Bytes()))
	}
}

// TestRealIPC: another process sees the bytes of an allocation.
func TestRealIPC(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	m, h, s := use(t, d, 1<<20)
	rng := testenv.Seed(t)
	for i := range h.Bytes() {
		h.Bytes()[i] = byte(rng.Uint32())
	}
	if err := errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: h.Bytes()}), finish(t, s)); err != nil {
		t.Fatal(err)
	}
	handle, err := d.IPCHandle(m.Ptr())
	if err != nil {
		t.Fatal(err)
	}
	out, err := child(t, "ipc", hex.EncodeToString(handle[:])).Output()
	if want := fmt.Sprintf("crc %08x", crc32.ChecksumIEEE(h.Bytes())); err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%v: %s, want %s", err, out, want)
	}
}

// TestRealKill: a process that is killed while its streams wait leaves the GPU
// usable for others within 10 s.
func TestRealKill(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	c := child(t, "wait")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "waiting"; {
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	c.Wait()
	gone := time.Since(killed)
	if out, err := child(t, "use").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	took := time.Since(killed)
	m, h, s := use(t, d, 4096)
	if err := errors.Join(s.Copy(gpu.Copy{Dev: m.Ptr(), Host: h.Bytes()}), finish(t, s)); err != nil {
		t.Error(err)
	}
	fmt.Printf("killed with waiting streams: gone after %v, another process had used the GPU after %v\n", gone, took)
	if took > 10*time.Second {
		t.Error("too late")
	}
}
