package ctl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pelletier/go-toml/v2"

	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// ConfigName is the file in a store's directory that names its parts.
const ConfigName = "store.toml"

// configLimit is how many bytes it may have: far more than devices can be in it.
const configLimit = 8 << 20

// configVersion is the version of its fields.
const configVersion = 1

// config is store.toml. Relative paths are relative to its directory, so that
// the directory can be moved.
type config struct {
	Version int      `toml:"version"`
	Devices []string `toml:"devices" comment:"targets, in the order of the pool"`
	Meta    string   `toml:"meta" comment:"directory of the metadata"`
	Discard bool     `toml:"discard" comment:"give emptied slabs back to the device"`

	GPU map[string]any `toml:"gpu,omitempty" comment:"settings of transfers to and from GPUs"`
}

// readConfig reads and checks DIR/store.toml; every fault is named at once.
func readConfig(dir string) (*config, error) {
	name := filepath.Join(dir, ConfigName)
	data, err := unix.ReadRegular(name, configLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noConfig(dir)
	}
	if errors.Is(err, syscall.ENOTDIR) {
		return nil, base.WithHint(base.Errorf("open", dir, base.ErrInvalid, "it is not a directory"),
			"--store names the directory with %s, --device and --meta its parts", ConfigName)
	}
	if err != nil {
		return nil, base.Wrap("read", name, pathCause(err))
	}
	return parseConfig(name, data)
}

// noConfig says what helps: the parts of a store may be there.
func noConfig(dir string) error {
	err := base.Errorf("open", dir, base.ErrNotFound, "there is no %s", ConfigName)
	data, metaDir := filepath.Join(dir, dataName), filepath.Join(dir, metaName)
	if _, derr := os.Stat(data); derr == nil {
		if _, merr := meta.ReadIdentity(meta.Options{Dir: metaDir, ReadOnly: true}); merr == nil {
			return base.WithHint(err, "but parts of a store: --device %s --meta %s opens them", data, metaDir)
		}
	}
	return base.WithHint(err, "`ugdsctl format --store %s --size SIZE --yes` makes a store", dir)
}

func parseConfig(name string, data []byte) (*config, error) {
	var c config
	dec := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return nil, base.Errorf("read", name, base.ErrInvalid, "%s", configFault(err))
	}
	var faults []string
	switch {
	case c.Version == 0 && !bytes.Contains(data, []byte("version")):
		faults = append(faults, "version is missing")
	case c.Version != configVersion:
		faults = append(faults, fmt.Sprintf("version is %d, this program knows %d", c.Version, configVersion))
	}
	if len(c.Devices) == 0 || len(c.Devices) > store.MaxStoreDevices {
		faults = append(faults, fmt.Sprintf("devices has %d entries, 1 to %d are possible", len(c.Devices), store.MaxStoreDevices))
	}
	for i, d := range c.Devices {
		if d == "" {
			faults = append(faults, fmt.Sprintf("devices: entry %d is empty", i+1))
		}
	}
	if c.Meta == "" {
		faults = append(faults, "meta is missing")
	}
	if len(faults) > 0 {
		return nil, base.Errorf("read", name, base.ErrInvalid, "%s", strings.Join(faults, "; "))
	}
	return &c, nil
}

// configFields are the fields and what each of them holds.
var configFields = []struct{ name, holds string }{
	{"version", "a number"}, {"devices", "a list of strings"}, {"meta", "a string"}, {"discard", "true or false"},
	{"gpu", "a table"},
}

// configFault names the fields that do not exist, with the nearest that does, or
// the one that holds something else than it should.
func configFault(err error) string {
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) {
		var names []string
		for _, e := range strict.Errors {
			line, _ := e.Position()
			name := strings.Join(e.Key(), ".")
			names = append(names, fmt.Sprintf("line %d: unknown field %q%s", line, name, nearest(name)))
		}
		return strings.Join(names, "; ")
	}
	var d *toml.DecodeError
	if !errors.As(err, &d) {
		return err.Error()
	}
	line, _ := d.Position()
	if strings.Contains(err.Error(), "already") { // not about its type
		return fmt.Sprintf("line %d: %s is there twice", line, strings.Join(d.Key(), "."))
	}
	for _, f := range configFields {
		if name := strings.Join(d.Key(), "."); name == f.name {
			return fmt.Sprintf("line %d: %s must be %s", line, name, f.holds)
		}
	}
	return fmt.Sprintf("line %d: %v", line, err)
}

// nearest suggests a field for a name that is none.
func nearest(name string) string {
	best, bestDist := "", 3
	var known []string
	for _, f := range configFields {
		known = append(known, f.name)
		if d := distance(strings.ToLower(name), f.name); d < bestDist {
			best, bestDist = f.name, d
		}
	}
	if best == "" {
		return " (known: " + strings.Join(known, ", ") + ")"
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// distance counts the insertions, deletions and changes between a and b.
func distance(a, b string) int {
	prev := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range len(a) {
		cur := make([]int, len(b)+1)
		cur[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			cur[j+1] = min(prev[j]+cost, prev[j+1]+1, cur[j]+1)
		}
		prev = cur
	}
	return prev[len(b)]
}

// write puts c into DIR/store.toml, which is to be the owner's, whole or not at all.
func (c *config) write(dir string, owner *unix.Owner) error {
	var b bytes.Buffer
	b.WriteString("# The parts of this store. Relative paths start at this directory.\n")
	if err := toml.NewEncoder(&b).Encode(c); err != nil {
		return base.Wrap("write", ConfigName, err)
	}
	return writeFileOf(owner, filepath.Join(dir, ConfigName), true, func(f io.Writer) error {
		_, err := f.Write(b.Bytes())
		return err
	})
}

// at gives path relative to dir unless it is absolute.
func at(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// targetAt does the same for the target of a device.
func targetAt(dir, target string) string {
	path, ok := filePath(target)
	if !ok {
		return target // has no path
	}
	return probe.WithPath(target, at(dir, path))
}
