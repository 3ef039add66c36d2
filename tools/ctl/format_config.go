package ctl

import (
	"errors"
	"os"
	"path/filepath"
	"unicode/utf8"

	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
)

// formatConfig is what format does to store.toml.
type formatConfig struct {
	Path    string   `json:"path"` // "" without a directory
	Action  string   `json:"action"`
	Holds   string   `json:"holds"`   // what would be lost, or ""
	Orphans []string `json:"orphans"` // parts of a store that it names now
}

// planConfig looks at store.toml: what it names and the new store does not take
// is left behind.
func planConfig(t *Target, targets []string, metaDir string) (formatConfig, error) {
	c := formatConfig{Orphans: []string{}}
	if t.Dir == "" {
		return c, nil
	}
	c.Path, c.Action = filepath.Join(t.Dir, ConfigName), actCreate
	old, err := readConfig(t.Dir)
	switch {
	case errors.Is(err, base.ErrNotFound):
		return c, nil
	case errors.Is(err, base.ErrInvalid):
		c.Action, c.Holds = actOverwrite, "something else than a store's description"
		return c, nil
	case err != nil:
		return c, err
	}
	c.Action = actOverwrite
	now := parts{devices: targets}
	for _, d := range old.Devices {
		d = targetAt(t.Dir, d)
		if path, ok := filePath(d); ok && now.isDevice(path) {
			continue
		}
		c.Orphans = append(c.Orphans, d)
	}
	if m := at(t.Dir, old.Meta); !same(m, metaDir) {
		c.Orphans = append(c.Orphans, m)
	}
	return c, nil
}

// checkPlaces refuses parts of a new store that are each other, and names that
// store.toml cannot hold.
func checkPlaces(t *Target, targets []string, metaDir string) error {
	p := parts{devices: targets, meta: metaDir}
	if err := p.twice(); err != nil {
		return err
	}
	p.devices = nil
	for _, target := range targets {
		if path, ok := filePath(target); ok {
			if err := p.guard("format", t.Dir, path); err != nil {
				return err
			}
			if err := spareParts("format", path); err != nil {
				return err
			}
		}
	}
	if err := file.MayCreate(metaDir); err != nil {
		return err
	}
	if err := spareParts("format", metaDir); err != nil {
		return err
	}
	if t.Dir == "" {
		return nil
	}
	if err := mayFill("format", t.Dir); err != nil {
		return err
	}
	if taken := (&parts{meta: filepath.Join(t.Dir, ConfigName)}); taken.isMeta(metaDir) {
		err := base.Errorf("format", metaDir, base.ErrInvalid, "it is the place of the store's %s", ConfigName)
		return base.WithHint(err, "name another directory")
	}
	for _, name := range append([]string{metaDir}, targets...) {
		if !utf8.ValidString(name) {
			return usage("format", "%q: %s cannot hold a name that is not UTF-8", name, ConfigName)
		}
	}
	return nil
}

// deadLink refuses a path through a link to nothing: it seems free, but nothing can be
// made there.
func deadLink(path string) error {
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); err == nil || at == filepath.Dir(at) {
			return nil
		}
		if _, err := os.Lstat(at); err == nil {
			err := base.Errorf("format", path, base.ErrExists, "%s is a link to what does not exist", at)
			return base.WithHint(err, "remove it or choose another path")
		}
	}
}

// removeMade removes the empty directories from path up to one that was there.
func removeMade(path, there string) {
	for d := filepath.Clean(path); d != filepath.Clean(there) && os.Remove(d) == nil; {
		d = filepath.Dir(d)
	}
}

// newConfig describes the store with paths relative to its directory where they
// are inside it.
func newConfig(t *Target, targets []string, metaDir string, discard bool) *config {
	c := &config{Version: configVersion, Meta: inside(t.Dir, metaDir), Discard: discard}
	for _, target := range targets {
		if path, ok := filePath(target); ok {
			target = probe.WithPath(target, inside(t.Dir, path))
		}
		c.Devices = append(c.Devices, target)
	}
	return c
}

// inside gives path relative to dir if it lies below it, else absolute.
func inside(dir, path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	base, err := filepath.Abs(dir)
	if err != nil {
		return abs
	}
	if rel, err := filepath.Rel(base, abs); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return abs
}
