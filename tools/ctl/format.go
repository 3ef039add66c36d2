package ctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// Names that format gives to the parts inside a store's directory.
const (
	dataName = "data.ugds"
	metaName = "meta"
)

// metaReserve is what must be free for the metadata of a new store, in bytes.
const metaReserve = 64 * base.MiB

// FormatOptions of Format.
type FormatOptions struct {
	Size   int64 // of each file that is created; 0 if none is
	Slab   int64 // size of a slab; 0 chooses by the size of the pool
	Sparse bool  // do not reserve the files' space, and give emptied slabs back
	Yes    bool  // do it; without it the verb only tells what it would do
}

// The things that format does to a device.
const (
	actCreate    = "create"
	actReplace   = "replace"
	actOverwrite = "overwrite"
)

// formatPart is what format does to one device.
type formatPart struct {
	Target string `json:"target"`
	Action string `json:"action"`
	Bytes  int64  `json:"bytes"`
	Holds  string `json:"holds"` // what would be lost, or ""
	path   string // of the file to create
}

type formatDoc struct {
	header
	Done    bool          `json:"done"` // false: this is what --yes would do
	Store   string        `json:"store"`
	Devices []formatPart  `json:"devices"`
	Meta    string        `json:"meta"`
	Holds   string        `json:"meta_holds"`
	Config  formatConfig  `json:"config"`
	Sparse  bool          `json:"sparse"`
	Layout  *store.Layout `json:"layout"` // null until done
}

// Format makes a store. Without Yes it tells what it would create and destroy,
// touches nothing and ends with ExitUsage.
func Format(ctx context.Context, e *Env, t *Target, o FormatOptions) error {
	return e.fail("format", format(ctx, e, t, o))
}

func format(ctx context.Context, e *Env, t *Target, o FormatOptions) error {
	doc, err := planFormat(ctx, e, t, o)
	if err != nil {
		return err
	}
	if !o.Yes {
		return e.showPlan(doc)
	}
	if err := e.doFormat(ctx, t, o, doc); err != nil {
		return err
	}
	forgetKilled(t.Dir)
	doc.Done = true
	if e.JSON {
		return e.emit(doc)
	}
	l := doc.Layout
	if err := e.say("made store %v: %s of space in slabs of %s on %s, metadata in %s",
		l.StoreID, base.FormatBytes(l.PoolBytes), base.FormatBytes(l.SlabBytes), count(int64(len(l.Devices)), "device"), doc.Meta); err != nil {
		return err
	}
	return e.showLost(doc)
}

// showLost tells what was overwritten.
func (e *Env) showLost(d *formatDoc) error {
	for _, p := range d.Devices {
		if p.Holds != "" {
			if err := e.say("lost: %s, which held %s", p.Target, p.Holds); err != nil {
				return err
			}
		}
	}
	if d.Holds != "" {
		if err := e.say("lost: %s, which held %s", d.Meta, d.Holds); err != nil {
			return err
		}
	}
	for _, target := range d.Config.Orphans {
		if err := e.say("orphan: %s, which no %s names any more", target, ConfigName); err != nil {
			return err
		}
	}
	return nil
}

// planFormat looks at everything that format would touch.
func planFormat(ctx context.Context, e *Env, t *Target, o FormatOptions) (doc *formatDoc, err error) {
	if t.Dir == "" && (len(t.Devices) == 0 || t.Meta == "") {
		return nil, usage("format", "where? --store DIR, or --device and --meta")
	}
	if o.Size != 0 && (o.Size < store.MinDeviceBytes || o.Size%base.StoreBlock != 0) {
		return nil, usage("format", "--size %s: at least %s, in multiples of %d bytes",
			FlagBytes(o.Size), base.FormatBytes(store.MinDeviceBytes), base.StoreBlock)
	}
	if s := o.Slab; s != 0 && (s < store.MinSlabBytes || s > store.MaxSlabBytes || s&(s-1) != 0) {
		return nil, usage("format", "--slab %s: a power of two from %s to %s", FlagBytes(s),
			base.FormatBytes(store.MinSlabBytes), base.FormatBytes(store.MaxSlabBytes))
	}
	doc = &formatDoc{header: head("format", nil), Store: t.Dir, Meta: t.Meta, Sparse: o.Sparse}
	if doc.Meta == "" {
		doc.Meta = filepath.Join(t.Dir, metaName)
	}
	targets := t.Devices
	if len(targets) == 0 {
		targets = []string{filepath.Join(t.Dir, dataName)}
	}
	if err := checkPlaces(t, targets, doc.Meta); err != nil {
		return nil, err
	}
	var spans []store.DeviceSpan
	for _, target := range targets {
		p, err := e.planDevice(ctx, t, target, o)
		if err != nil {
			return nil, err
		}
		doc.Devices = append(doc.Devices, p)
		spans = append(spans, store.DeviceSpan{Target: target, Capacity: p.Bytes})
	}
	if err := store.CheckSpans(spans, o.Slab); err != nil { // as --yes would
		return nil, err
	}
	if doc.Holds, err = metaHolds(doc.Meta); err != nil {
		return nil, err
	}
	if doc.Config, err = planConfig(t, targets, doc.Meta); err != nil {
		return nil, err
	}
	if err := doc.mayWrite(); err != nil || o.Sparse {
		return doc, err
	}
	return doc, doc.checkSpace()
}

// planDevice decides between making a file and taking over what is there.
func (e *Env) planDevice(ctx context.Context, t *Target, target string, o FormatOptions) (formatPart, error) {
	p := formatPart{Target: target, Bytes: o.Size}
	if err := keeps(target, &p.Bytes); err != nil {
		return p, err
	}
	path, isPath := filePath(target)
	st, err := os.Stat(path)
	switch {
	case isPath && errors.Is(err, fs.ErrNotExist):
		if err := file.MayCreate(path); err != nil {
			return p, err
		}
		if p.Bytes == 0 {
			return p, usage("format", "%s does not exist; --size says how large it shall be", path)
		}
		p.Action, p.path = actCreate, path
		return p, nil
	case isPath && err != nil:
		return p, base.Wrap("format", path, pathCause(err))
	}
	p.Action = actOverwrite
	if isPath {
		if err := file.InUse(path); err != nil {
			return p, err
		}
	}
	if p.Holds, p.Bytes, err = e.inspect(ctx, t, target); err != nil {
		return p, err
	}
	if o.Size == 0 || o.Size == p.Bytes {
		return p, nil
	}
	regular := isPath && st.Mode().IsRegular()
	switch {
	case regular && len(t.Devices) == 0:
	case p.Bytes < store.MinDeviceBytes:
		return p, nil // which is refused, whatever --size says
	case regular && st.Size() != p.Bytes:
		return p, usage("format", "%s has %d bytes already, of which %d can be used; leave out --size %s", target, st.Size(), p.Bytes, FlagBytes(o.Size))
	default:
		return p, usage("format", "%s has %d bytes already; leave out --size %s", target, p.Bytes, FlagBytes(o.Size))
	}
	p.Action, p.Bytes, p.path = actReplace, o.Size, path
	return p, nil
}

// keeps refuses a target that would forget the store, and one that says another
// size than *size, which becomes what it says.
func keeps(target string, size *int64) error {
	t, err := probe.Parse(target)
	if err != nil {
		return err
	}
	_, says, ok := t.File()
	if t.Scheme == "sim" && !ok {
		return usage("format", "%s is in memory and ends with this process: path=FILE puts a file behind it", target)
	}
	if says == 0 {
		return nil
	}
	if *size != 0 && *size != says {
		return usage("format", "%s has another size than --size %s", target, FlagBytes(*size))
	}
	if says < store.MinDeviceBytes || says%base.StoreBlock != 0 {
		return usage("format", "%s: the size is at least %s, in multiples of %d bytes", target,
			base.FormatBytes(store.MinDeviceBytes), base.StoreBlock)
	}
	*size = says
	return nil
}

// filePath gives the path of the file behind a target, if there is one.
func filePath(target string) (string, bool) {
	t, err := probe.Parse(target)
	if err != nil {
		return "", false
	}
	path, _, ok := t.File()
	return path, ok
}

// inspect opens a device for reading, which also finds out whether it is in use.
func (e *Env) inspect(ctx context.Context, t *Target, target string) (holds string, bytes int64, err error) {
	devs, err := e.openDevices(ctx, t, parts{devices: []string{target}}, true)
	if err != nil {
		return "", 0, err
	}
	label, err := store.Inspect(ctx, devs[0])
	bytes = devs[0].Info().Capacity
	if cerr := closeDevices(devs); err == nil {
		err = cerr
	}
	if err != nil || label.Blank {
		return "", bytes, err
	}
	return label.Text, bytes, nil
}

// metaHolds says what is in a metadata directory, or "" if it is empty. One that
// holds anything but metadata is refused: no --yes can mean those files.
func metaHolds(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0:
		return "", nil
	case err != nil:
		return "", base.Wrap("format", dir, pathCause(err))
	}
	for _, entry := range entries {
		if !meta.Owns(entry.Name()) {
			err := base.Errorf("format", dir, base.ErrExists, "it holds %q, which is no metadata of a store", entry.Name())
			return "", base.WithHint(err, "name an empty or new directory")
		}
	}
	if err := meta.Unowned(meta.Options{Dir: dir, ReadOnly: true}); err != nil {
		return "", err
	}
	id, err := meta.ReadIdentity(meta.Options{Dir: dir, ReadOnly: true})
	switch {
	case errors.Is(err, base.ErrNotFound) && meta.Unfinished(meta.Options{Dir: dir}):
		return "", nil // nothing was ever stored there
	case err != nil:
		return "metadata that was not finished or is damaged", nil
	}
	return fmt.Sprintf("the metadata of store %v", store.ID(id.Store)), nil
}

// mayWrite refuses what cannot be written: the same that --yes would meet.
func (d *formatDoc) mayWrite() error {
	dirs := []string{d.Meta}
	if d.Store != "" {
		dirs = append(dirs, d.Store)
	}
	for _, p := range d.Devices {
		path, isPath := filePath(p.Target)
		switch {
		case !isPath:
			continue
		case p.Action != actOverwrite:
			dirs = append(dirs, path)
		}
		if p.Action == actCreate {
			continue
		}
		if err := file.MayWrite(path); err != nil {
			return err
		}
	}
	for _, path := range dirs {
		if err := deadLink(path); err != nil {
			return err
		}
		dir := existing(path)
		if err := unix.MayWrite(dir); err != nil {
			return base.WithHint(base.Errorf("format", path, base.ErrReadOnly, "nothing can be made in %s: %w", dir, err), "go elsewhere")
		}
	}
	return nil
}

// checkSpace adds up what must be free on each file system.
func (d *formatDoc) checkSpace() error {
	data, metadata := map[unix.Dev]int64{}, map[unix.Dev]int64{}
	where := map[unix.Dev]string{}
	files := map[unix.Dev]int64{}
	add := func(need map[unix.Dev]int64, path string, n int64) error {
		dir := existing(path)
		st, err := unix.StatPath(dir)
		if err != nil {
			return base.Wrap("format", dir, err)
		}
		need[st.Dev] += n
		where[st.Dev] = dir
		return nil
	}
	for _, p := range d.Devices {
		if p.path == "" {
			continue
		}
		n := p.Bytes
		if st, err := unix.StatPath(p.path); err == nil {
			n -= st.Blocks * 512 // comes free when it is replaced
		}
		if err := add(data, p.path, n); err != nil {
			return err
		}
		if st, err := unix.StatPath(existing(p.path)); err == nil {
			files[st.Dev]++
		}
	}
	if d.Holds == "" {
		if err := add(metadata, d.Meta, metaReserve); err != nil {
			return err
		}
	}
	for dev, dir := range where {
		if err := checkSpace("format", dir, data[dev], metadata[dev]); err != nil {
			return d.smaller(err, dir, files[dev])
		}
	}
	return nil
}

// smaller says what helps against too little space where n files shall be.
func (d *formatDoc) smaller(err error, dir string, n int64) error {
	if fs, ferr := unix.StatFS(dir); ferr == nil && n > 0 {
		fits := (fs.FreeBytes - metaReserve) / n / base.MiB * base.MiB
		if fits >= store.MinDeviceBytes {
			return base.WithHint(err, "--size %s fits, --sparse reserves nothing", FlagBytes(fits))
		}
	}
	return base.WithHint(err, "free space or go elsewhere; --sparse reserves nothing")
}

// FlagBytes writes n bytes as a flag takes them.
func FlagBytes(n int64) string {
	switch {
	case n == 0:
	case n%base.TiB == 0:
		return fmt.Sprintf("%dTiB", n/base.TiB)
	case n%base.GiB == 0:
		return fmt.Sprintf("%dGiB", n/base.GiB)
	case n%base.MiB == 0:
		return fmt.Sprintf("%dMiB", n/base.MiB)
	case n%base.KiB == 0:
		return fmt.Sprintf("%dKiB", n/base.KiB)
	}
	return strconv.FormatInt(n, 10)
}

// checkSpace refuses when fewer bytes are free where path will be than the data and the
// metadata that go there need.
func checkSpace(verb, path string, data, metadata int64) error {
	dir := existing(path)
	f, err := unix.StatFS(dir)
	if err != nil {
		return base.Wrap("check the space of", dir, err)
	}
	if f.FreeBytes >= data+metadata {
		return nil
	}
	part := ""
	if metadata > 0 {
		part = " (" + base.FormatBytes(metadata) + " of it for the metadata, which grows)"
	}
	return base.Errorf(verb, path, base.ErrNoSpace, "%s needed%s, %s free", base.FormatBytes(data+metadata), part, base.FormatBytes(f.FreeBytes))
}

// existing is the nearest folder of path that is there.
func existing(path string) string {
	for {
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			return path
		}
		up := filepath.Dir(path)
		if up == path {
			return path
		}
		path = up
	}
}

// showPlan tells what --yes would do.
func (e *Env) showPlan(d *formatDoc) error {
	if e.JSON {
		if err := e.emit(d); err != nil {
			return err
		}
		return quietly(ExitUsage)
	}
	var b strings.Builder
	lost := false
	for _, p := range d.Devices {
		fmt.Fprintf(&b, "  %-9s  %s, %s%s\n", p.Action, p.Target, base.FormatBytes(p.Bytes), holds(p.Holds, &lost))
	}
	act := actCreate
	if d.Holds != "" {
		act = actOverwrite
	}
	fmt.Fprintf(&b, "  %-9s  %s%s\n", act, d.Meta, holds(d.Holds, &lost))
	if d.Config.Path != "" {
		fmt.Fprintf(&b, "  %-9s  %s%s\n", d.Config.Action, d.Config.Path, holds(d.Config.Holds, &lost))
	}
	for _, target := range d.Config.Orphans {
		lost = true
		fmt.Fprintf(&b, "  %-9s  %s, which no %s names then\n", "orphan", target, ConfigName)
	}
	end := "Nothing was changed. Add --yes to do it."
	if lost {
		end = "Nothing was changed. Add --yes to do it; what these hold will be lost."
	}
	if err := e.say("format would\n%s%s", b.String(), end); err != nil {
		return err
	}
	return quietly(ExitUsage)
}

func holds(text string, lost *bool) string {
	if text == "" {
		return ""
	}
	*lost = true
	return ", which holds " + text
}

// doFormat carries the plan out. Until every device that exists was opened for
// writing nothing is touched. store.toml comes last: without it the directory is
// no store, and format can be run again.
func (e *Env) doFormat(ctx context.Context, t *Target, o FormatOptions, doc *formatDoc) (err error) {
	var owner *unix.Owner // of store.toml, which is away soon
	if t.Dir != "" {
		if owner, err = unix.OwnerFor(filepath.Join(t.Dir, ConfigName)); err != nil {
			return base.Wrap("format", t.Dir, err)
		}
	}
	if err := meta.Unowned(meta.Options{Dir: doc.Meta}); err != nil {
		return err
	}
	if err := e.clearAway(ctx, t, doc); err != nil {
		return err
	}
	var targets, made []string
	if t.Dir != "" {
		there := existing(t.Dir)
		defer func() {
			if err != nil {
				removeMade(t.Dir, there)
			}
		}()
		if err := os.MkdirAll(t.Dir, 0o755); err != nil {
			return base.Wrap("format", t.Dir, pathCause(err))
		}
	}
	defer func() {
		if err != nil { // leave no half-made store behind
			for _, path := range made {
				_ = os.Remove(path)
			}
		}
	}()
	for _, p := range doc.Devices {
		if p.path != "" {
			if err := file.Create(p.path, p.Bytes, o.Sparse); err != nil {
				return err
			}
			made = append(made, p.path)
		}
		targets = append(targets, p.Target)
	}
	devs, err := e.openDevices(ctx, t, parts{devices: targets, discard: o.Sparse}, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDevices(devs)) }()
	doc.Layout, err = store.Format(ctx, store.FormatOptions{
		Devices: devs, Meta: meta.Options{Dir: doc.Meta}, SlabBytes: o.Slab, Overwrite: true})
	if err != nil || t.Dir == "" {
		return err
	}
	return newConfig(t, targets, doc.Meta, o.Sparse).write(t.Dir, owner)
}

// clearAway takes the devices that exist away from what uses them now, which
// fails if that is alive: then everything stays as it is. It removes store.toml
// and the files that get another size.
func (e *Env) clearAway(ctx context.Context, t *Target, doc *formatDoc) (err error) {
	var there []string
	for _, p := range doc.Devices {
		if p.Action != actCreate {
			there = append(there, p.Target)
		}
	}
	devs, err := e.openDevices(ctx, t, parts{devices: there}, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDevices(devs)) }()
	remove := func(path string) error {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return base.Wrap("format", path, pathCause(err))
		}
		return nil
	}
	if t.Dir != "" {
		if err := remove(filepath.Join(t.Dir, ConfigName)); err != nil {
			return err
		}
	}
	for _, p := range doc.Devices {
		if p.Action == actReplace {
			if err := remove(p.path); err != nil {
				return err
			}
		}
	}
	return nil
}
