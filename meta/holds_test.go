package meta

import (
	"os"
	"path/filepath"
	"testing"
)

// TestHolds: a metadata directory is known, also a damaged one, and others are not.
func TestHolds(t *testing.T) {
	o := Options{Dir: filepath.Join(t.TempDir(), "m")}
	closeDB(t, newDB(t, o))
	holds := func(what string, want bool) {
		t.Helper()
		if got := Holds(o.Dir); got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	holds("whole", true)
	id := filepath.Join(o.Dir, identityName)
	if err := os.WriteFile(id, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	holds("damaged", true)
	if err := os.Remove(id); err != nil {
		t.Fatal(err)
	}
	holds("without an identity", true)
	if err := os.Remove(filepath.Join(o.Dir, lockName)); err != nil {
		t.Fatal(err)
	}
	holds("a directory named db alone", false)
	o.Dir = t.TempDir()
	holds("empty", false)
	if err := os.WriteFile(filepath.Join(o.Dir, identityName), []byte("of another program"), 0o600); err != nil {
		t.Fatal(err)
	}
	holds("another program's", false)
}
