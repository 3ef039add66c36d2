package unix_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/unix"
)

// TestSwapFile: a file that is swap is known by any of its names, and others are not.
func TestSwapFile(t *testing.T) {
	dir := t.TempDir()
	swap, other, plain := filepath.Join(dir, "a swap"), filepath.Join(dir, "other"), filepath.Join(dir, "plain")
	for _, path := range []string{swap, plain} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(swap, other); err != nil {
		t.Fatal(err)
	}
	text := "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/none                               partition\t1\t\t0\t\t-1\n" +
		strings.ReplaceAll(swap, " ", `\040`) + "                               file\t\t1048572\t\t0\t\t-2\n"
	if err := os.WriteFile(filepath.Join(dir, "swaps"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{swap: true, other: true, plain: false} {
		st, err := unix.StatPath(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(unix.LoopsOverIn(dir, st), "it is in use as swap"); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}
