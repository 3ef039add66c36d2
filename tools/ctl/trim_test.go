package ctl

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
)

// TestTrim: the file of a sparse store takes little space after what it held was
// removed and trimmed; an interrupted trim says how far it came.
func TestTrim(t *testing.T) {
	l := newLab(t)
	l.target = &Target{Dir: filepath.Join(t.TempDir(), "sparse")}
	if err := Format(t.Context(), l.Env, l.target, FormatOptions{Size: 64 * base.MiB, Sparse: true, Yes: true}); err != nil {
		t.Fatal(err)
	}
	l.put(t, "k", bytes.Repeat([]byte("x"), 20*base.MiB))
	if err := Rm(t.Context(), l.Env, l.target, RmOptions{Keys: []string{"k"}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l.Progress = func(string, int64, bool) Bar { return barFunc(func(int64) { cancel() }) }
	l.out.Reset()
	if err := Trim(ctx, l.Env, l.target); ExitCode(err) != ExitInterrupted || !strings.HasPrefix(l.out.String(), "1.0 MiB of free space") {
		t.Errorf("interrupted: %v, %q", err, l.out)
	}
	var moved, total int64
	l.Progress = func(_ string, n int64, _ bool) Bar { total = n; return barFunc(func(n int64) { moved += n }) }
	l.out.Reset()
	if err := Trim(t.Context(), l.Env, l.target); err != nil || l.out.String() != "61.0 MiB of free space given back to the devices\n" {
		t.Errorf("%v, %q", err, l.out)
	}
	if want := int64(61 * base.MiB); moved != want || total != want {
		t.Errorf("the bar moved %d of %d, want %d", moved, total, want)
	}
	st, err := os.Stat(filepath.Join(l.target.Dir, dataName))
	if err != nil {
		t.Fatal(err)
	}
	if got := st.Sys().(*syscall.Stat_t).Blocks * 512; got > 8*base.MiB {
		t.Errorf("the file still takes %s", base.FormatBytes(got))
	}
}
