package file_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/drivertest"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

func TestMain(m *testing.M) {
	child()
	testenv.Main(m)
}

var engines = []string{file.EngineURing, file.EnginePool}

// faults is what the hooks of one device read.
type faults struct {
	mu   sync.Mutex
	hold bool
	fail map[driver.Op]int
	// script, if set, replaces every result.
	script func(op driver.Op, off, n, res int64) int64
}

func (f *faults) hooks() file.Hooks {
	return file.Hooks{
		Hold: func(driver.Op, int64) bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.hold
		},
		Result: func(op driver.Op, off, n, res int64) int64 {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.fail[op] > 0 {
				f.fail[op]--
				return -int64(unix.EIO)
			}
			if f.script != nil {
				return f.script(op, off, n, res)
			}
			return res
		},
	}
}

func (f *faults) failNext(op driver.Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail == nil {
		f.fail = make(map[driver.Op]int)
	}
	f.fail[op]++
}

func open(t *testing.T, o file.Options) *file.Device {
	t.Helper()
	d, err := file.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeDevice(t, d) })
	return d
}

func closeDevice(t *testing.T, d driver.Device) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

func create(t *testing.T, dir string, size int64) string {
	t.Helper()
	p := filepath.Join(dir, "data")
	if err := file.Create(p, size, true); err != nil {
		t.Fatal(err)
	}
	return p
}

// harness makes the suite's harness for a path.
func harness(t *testing.T, o file.Options) drivertest.Harness {
	f := new(faults)
	o.Hooks = f.hooks()
	d := open(t, o)
	hold := func(on bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.hold = on
	}
	t.Cleanup(func() { hold(false) })
	return drivertest.Harness{Dev: d, Hold: hold, Fail: f.failNext, Isolate: func() { file.Isolate(d) }}
}

func TestConformance(t *testing.T) {
	for _, e := range engines {
		t.Run(e, func(t *testing.T) {
			t.Run("disk", func(t *testing.T) {
				drivertest.Run(t, func(t *testing.T) drivertest.Harness {
					return harness(t, file.Options{Path: create(t, t.TempDir(), drivertest.MinCapacity), Engine: e})
				})
			})
			t.Run("sparse", func(t *testing.T) { // with discard, a small depth and odd cuts
				drivertest.Run(t, func(t *testing.T) drivertest.Harness {
					return harness(t, file.Options{Path: create(t, t.TempDir(), drivertest.MinCapacity),
						Engine: e, Discard: true, Depth: 16, MaxTransfer: 76 * base.KiB})
				})
			})
			t.Run("tmpfs", func(t *testing.T) {
				drivertest.Run(t, func(t *testing.T) drivertest.Harness {
					return harness(t, file.Options{Path: create(t, shm(t), drivertest.MinCapacity), Engine: e})
				})
			})
			t.Run("buffered", func(t *testing.T) {
				drivertest.Run(t, func(t *testing.T) drivertest.Harness {
					return harness(t, file.Options{Path: create(t, t.TempDir(), drivertest.MinCapacity), Engine: e, Buffered: true})
				})
			})
			t.Run("loop", func(t *testing.T) {
				testenv.NeedRoot(t)
				drivertest.Run(t, func(t *testing.T) drivertest.Harness {
					return harness(t, file.Options{Path: loopDevice(t, drivertest.MinCapacity), Engine: e})
				})
			})
		})
	}
}

func shm(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "ugds-test-")
	if err != nil {
		testenv.Skip(t, "tmpfs: "+err.Error())
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// loopDevice makes a block device over a sparse file.
func loopDevice(t *testing.T, size int64) string {
	t.Helper()
	return attachLoop(t, create(t, t.TempDir(), size))
}

// attachLoop makes a block device over what path names.
func attachLoop(t *testing.T, path string, flags ...string) string {
	t.Helper()
	out, err := exec.Command("losetup", append(flags, "-f", "--show", path)...).Output()
	if err != nil {
		testenv.Skip(t, "losetup: "+err.Error())
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "-d", dev).CombinedOutput(); err != nil {
			t.Errorf("losetup -d: %v %s", err, out)
		}
	})
	return dev
}
