package meta

import (
	"errors"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/base"
)

// TestNoLeaks opens good and damaged metadata many times on the disk: neither
// goroutines nor descriptors stay behind. (The check of the whole test binary
// does not see them once another test has abandoned a DB.)
func TestNoLeaks(t *testing.T) {
	img := scriptImage(t, scriptOptions(nil), true)
	bad := func(name string, at int) image {
		c := maps.Clone(img)
		c[name] = slices.Clone(img[name])
		c[name][at] ^= 0x10
		return c
	}
	tables, logs := img.find(isTable), img.find(isLog)
	noTable := maps.Clone(img)
	delete(noTable, tables[0])
	for what, img := range map[string]image{
		"good": img, "log": bad(logs[len(logs)-1], 100), "manifest": bad(img.current(t), 20),
		"table": bad(tables[0], 100), "end of table": bad(tables[0], len(img[tables[0]])-20), "table missing": noTable,
		"identity": bad("/d/m/IDENTITY", 5),
	} {
		dir := t.TempDir()
		counts := func() (int, int) {
			fds, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			return runtime.NumGoroutine(), len(fds)
		}
		opens := func() {
			for p, b := range img {
				if b != nil {
					_ = os.MkdirAll(dir+path.Dir(p), 0o700)
					if err := os.WriteFile(dir+p, b, 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, readOnly := range []bool{true, false} {
				d, err := Open(Options{Dir: dir + "/d/m", ReadOnly: readOnly, MemTableBytes: 24 << 10})
				if err != nil {
					if _, hint := base.Parts(err); !errors.Is(err, base.ErrCorrupt) || hint == "" {
						t.Fatal(what, err) // the hint tells what to do
					}
					continue
				}
				_ = d.Scan(ctx(), func(uint32, []byte, *Record) error { return nil })
				closeDB(t, d)
			}
		}
		opens()
		time.Sleep(20 * time.Millisecond)
		g0, f0 := counts()
		for range 15 {
			opens()
		}
		var g1, f1 int
		for range 2000 {
			if g1, f1 = counts(); g1 <= g0 && f1 <= f0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if g1 > g0+2 || f1 > f0 {
			buf := make([]byte, 1<<16)
			t.Errorf("%s: goroutines %d, then %d; descriptors %d, then %d\n%s", what, g0, g1, f0, f1, buf[:runtime.Stack(buf, true)])
		}
	}
}
