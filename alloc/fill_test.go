package alloc

import (
	"errors"
	"io/fs"
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

// TestFillLogUniform is the fill that the design promises: at least 85 % of the
// device, of which the slot table takes 1/64. The pool alone aims higher.
func TestFillLogUniform(t *testing.T) {
	rng := testenv.Seed(t)
	worst := 1.0
	for range 5 {
		p := newPool(t, 4*base.GiB, 1024)
		var value, extents, values int64
		for {
			n := int64(math.Exp(rng.Float64() * math.Log(16*base.MiB)))
			es, err := p.Alloc(nil, n)
			if errors.Is(err, base.ErrNoSpace) {
				t.Logf("%d values, %.3f extents a value: %v", values, float64(extents)/float64(values), err)
				break
			}
			value, extents, values = value+n, extents+int64(len(es)), values+1
		}
		s := p.Stats()
		fill := float64(value) / float64(4*base.GiB)
		t.Logf("fill %.2f %%, slots %.2f %%, rest %.2f %%", fill*100,
			float64(s.Allocated)/float64(s.Capacity)*100, float64(s.Rest)/float64(s.Capacity)*100)
		worst = min(worst, fill)
	}
	if worst < 0.88 {
		t.Errorf("filled to %.2f %%, want at least 88 %%", worst*100)
	}
}

// TestFillSourceTree stores files of the sizes of the Go source tree.
func TestFillSourceTree(t *testing.T) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	root := strings.TrimSpace(string(out))
	if err != nil || root == "" {
		testenv.Skip(t, "no Go source tree here")
	}
	p := newPool(t, 4*base.GiB, 1024)
	var files, bytes int64
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files, bytes = files+1, bytes+info.Size()
		_, err = p.Alloc(nil, info.Size())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s := p.Stats()
	slabs := s.Capacity - s.FreeSlab
	used := 0
	for _, c := range s.Classes {
		if c.Slabs > 0 {
			used++
		}
	}
	t.Logf("%d files, %s: %s of slots, %s of slabs, %d classes", files, base.FormatBytes(bytes),
		base.FormatBytes(s.Allocated), base.FormatBytes(slabs), used)
	// The limit was set for 222 MiB; a larger tree of another release may take
	// more, in proportion.
	limit := max(400*base.MiB, bytes*400/222)
	if slabs > limit || s.Allocated > limit {
		t.Errorf("want at most %s", base.FormatBytes(limit))
	}
}
