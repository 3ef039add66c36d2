package probe

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/base"
)

func TestOpenAll(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "f")
	if err := file.Create(path, 64*base.MiB, true); err != nil {
		t.Fatal(err)
	}
	targets := []string{"sim:size=64MiB", path, "sim:size=64MiB,seed=2", "sim:size=64MiB,seed=3"}
	none := func(string) Options { return Options{} }
	devs, err := OpenAll(ctx, targets, none)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range devs {
		if d == nil || (d.Info().Transport == "sim") != (i != 1) || d.State() != driver.StateReady {
			t.Errorf("device %d: %+v", i, d)
		}
	}
	if err := closeAll(devs); err != nil {
		t.Error(err)
	}
	// One that fails leaves nothing open: the file's lock is free.
	for _, bad := range []string{"/does/not/exist", "sim:size=1", "nvme:x"} {
		if _, err := OpenAll(ctx, append([]string{path}, bad, targets[0]), none); err == nil {
			t.Errorf("%s: opened", bad)
		}
		devs, err := OpenAll(ctx, []string{path}, none)
		if err != nil {
			t.Fatalf("after %s: %v", bad, err)
		}
		if err := closeAll(devs); err != nil {
			t.Error(err)
		}
	}
}

// TestB12ControllersTogether: no controller waits for another, files keep their
// order, and the first failure in the order of the targets is told.
func TestB12ControllersTogether(t *testing.T) {
	var early sync.WaitGroup // opened beside the files
	early.Add(2)
	var files []string
	one, two := errors.New("one"), errors.New("two")
	_, err := openAll([]string{"sim:seed=1", "a", "sim:seed=2", "b", "sim:seed=3", "c"},
		func(target string) (driver.Device, error) {
			if len(target) == 1 {
				files = append(files, target)
				return nil, map[string]error{"b": one}[target]
			}
			if target == "sim:seed=3" { // it comes after the file that fails
				return nil, two
			}
			early.Done()
			early.Wait()
			return nil, nil
		})
	if !errors.Is(err, one) || len(files) != 2 || files[0] != "a" || files[1] != "b" {
		t.Errorf("%v, files %q", err, files)
	}
	var n sync.WaitGroup
	n.Add(3)
	if _, err := openAll([]string{"sim:seed=1", "sim:seed=2", "sim:seed=3"}, func(string) (driver.Device, error) {
		n.Done()
		n.Wait() // for all of them
		return nil, nil
	}); err != nil {
		t.Error(err)
	}
}
