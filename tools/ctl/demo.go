package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/store"
)

// Bounds of the demo's workload, in bytes of values.
const (
	DemoDefaultSize = base.GiB
	DemoMinSize     = 16 * base.MiB
	DemoMaxSize     = base.TiB
)

// DemoOptions of Demo and DemoVerify.
type DemoOptions struct {
	Size    int64  // bytes of values
	Seed    uint64 // of keys, sizes and values
	TempDir string // where the store is made if the target names no directory
	Keep    bool   // leave the store for a look
	GPU     string // of the target, for the second process
	GPUSet  []string
	// Restart runs DemoVerify with these options in a new process and gives what
	// it wrote.
	Restart func(ctx context.Context, dir string, o DemoOptions) ([]byte, error)
}

type demoDoc struct {
	header
	Seed          uint64     `json:"seed"`
	Store         string     `json:"store"`
	FormatSeconds float64    `json:"format_seconds"`
	Put           phase      `json:"put"`
	Change        phase      `json:"replace_delete"`
	CloseSeconds  float64    `json:"close_seconds"`
	PutPaths      []pathDoc  `json:"put_paths"`
	GPU           *gpuDoc    `json:"gpu,omitempty"`
	Verify        *verifyDoc `json:"verify"`
	FsckSeconds   float64    `json:"fsck_seconds"`
	FsckFindings  int        `json:"fsck_findings"`
	Seconds       float64    `json:"seconds"`
}

// Demo makes a store, puts a workload shaped like the cache of a language model
// into it, closes it, verifies every byte in a new process, checks the store and
// tells how fast it was.
func Demo(ctx context.Context, e *Env, t *Target, o DemoOptions) error {
	return e.fail("demo", demo(ctx, e, t, o))
}

func demo(ctx context.Context, e *Env, t *Target, o DemoOptions) (err error) {
	var doc demoDoc
	if o.Size < DemoMinSize || o.Size > DemoMaxSize {
		return usage("demo", "--size %s: %s to %s are possible", FlagBytes(o.Size),
			base.FormatBytes(DemoMinSize), base.FormatBytes(DemoMaxSize))
	}
	if err := demoDevices(t); err != nil {
		return err
	}
	if err := t.heedsGPUSet("demo"); err != nil {
		return err
	}
	if _, err := e.gpuSettings(&Target{GPUSet: t.GPUSet}); err != nil {
		return err
	}
	if g, err := t.openGPU(); err != nil || closeGPU(g) != nil { // before anything is made
		return err
	}
	o.GPU, o.GPUSet = t.GPU, t.GPUSet
	w, err := e.workDir("demo", t.Dir, o.TempDir, "ugds-demo-", func(dir string) error { return demoClean(t, dir) })
	if err != nil {
		return err
	}
	dir := w.path
	defer func() {
		kept := o.Keep && doc.FormatSeconds > 0 // else it was not even begun
		err = errors.Join(err, w.close(kept))
	}()
	begin := time.Now()
	doc.header, doc.Seed, doc.Store = head("demo", nil), o.Seed, dir
	at := &Target{Dir: dir, Namespace: t.Namespace, Wait: t.Wait, GPU: t.GPU, GPUSet: t.GPUSet}
	for _, step := range []func() error{
		func() error { return demoFormat(ctx, e, at, t.Devices, o, &doc) },
		func() error { return demoLoad(ctx, e, at, o, &doc) },
		func() error { return demoRestart(ctx, e, dir, o, &doc) },
		func() error { return demoCheck(ctx, e, at, &doc) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	doc.Seconds = time.Since(begin).Seconds()
	if e.JSON {
		return e.emit(doc)
	}
	return demoText(e, &doc, o)
}

// demoDevices refuses devices that the demo would not make, and so must not remove.
func demoDevices(t *Target) error {
	for _, target := range t.Devices {
		var size int64
		if err := keeps(target, &size); err != nil {
			return err
		}
		path, ok := filePath(target)
		if !ok {
			return usage("demo", "%s: the demo makes files, and removes them; it takes no device", target)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return base.WithHint(base.Errorf("demo", path, base.ErrExists, "the demo makes its devices"), "name a new file")
		}
	}
	return nil
}

// demoClean removes what the demo made.
func demoClean(t *Target, dir string) error {
	for _, target := range t.Devices {
		if path, ok := filePath(target); ok {
			if err := os.RemoveAll(path); err != nil {
				return base.Wrap("remove", path, err)
			}
		}
	}
	for _, name := range []string{ConfigName, dataName, metaName} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return base.Wrap("remove", filepath.Join(dir, name), err)
		}
	}
	return nil
}

// demoStoreBytes is the size of a device that takes the workload, with room for
// the larger slots of some values and for replacements.
func demoStoreBytes(size int64) int64 {
	return base.AlignUp(max(size+size/4+64*base.MiB, store.MinDeviceBytes), base.MiB)
}

// demoFits is the largest workload for what is free where dir is, with a reserve
// for others; 0 if nothing fits.
func demoFits(dir string) int64 {
	fs, err := unix.StatFS(existing(dir))
	if err != nil {
		return 0
	}
	fits := (fs.FreeBytes - fs.FreeBytes/16 - metaReserve - 64*base.MiB) / 5 * 4 / base.MiB * base.MiB
	if fits < DemoMinSize || demoStoreBytes(fits)+metaReserve > fs.FreeBytes {
		return 0
	}
	return min(fits, DemoMaxSize)
}

func demoFormat(ctx context.Context, e *Env, t *Target, devices []string, o DemoOptions, doc *demoDoc) error {
	bytes := demoStoreBytes(o.Size)
	for _, target := range devices {
		said := int64(0)
		if err := keeps(target, &said); err != nil {
			return err
		}
		if said != 0 {
			bytes = 0 // the devices say how large they are
		}
	}
	if err := checkSpace("demo", t.Dir, bytes, metaReserve); err != nil && len(devices) == 0 {
		if fits := demoFits(t.Dir); fits >= DemoMinSize {
			return base.WithHint(err, "--size %s fits, --store DIR goes elsewhere", FlagBytes(fits))
		}
		return base.WithHint(err, "--store DIR goes elsewhere")
	}
	if err := e.say("demo: %s of values between %s and %s, seed %d, in %s", base.FormatBytes(o.Size),
		base.FormatBytes(demoMinValue), base.FormatBytes(demoMaxValue), o.Seed, t.Dir); err != nil {
		return err
	}
	begin := time.Now()
	quiet := *e
	quiet.Stdout, quiet.JSON = discard{}, false
	at := *t
	at.Devices = devices
	err := format(ctx, &quiet, &at, FormatOptions{Size: bytes, Yes: true})
	doc.FormatSeconds = time.Since(begin).Seconds()
	return err
}

func demoLoad(ctx context.Context, e *Env, t *Target, o DemoOptions, doc *demoDoc) error {
	w := newDemoWork(o.Seed, o.Size)
	var closing time.Time
	err := e.with(ctx, "demo", t, false, func(s *session) error {
		n, err := s.Namespace(ctx, t.namespace(), store.NamespaceOptions{Create: true})
		if err != nil {
			return err
		}
		bar := e.progress("put", w.bytes)
		doc.Put, doc.Change, err = w.load(ctx, s, n, bar)
		bar.Done()
		doc.PutPaths, doc.GPU = docPaths(s.Stats().Paths), s.gpuDoc()
		closing = time.Now()
		return err
	})
	doc.CloseSeconds = time.Since(closing).Seconds()
	if t.GPU != "" && errors.Is(err, base.ErrNotSupported) { // the settings want what a file cannot do
		err = base.WithHint(err, "--device sim:path=FILE,size=%s is a model that GPU memory reaches; or leave the settings out", FlagBytes(demoStoreBytes(o.Size)))
	}
	return err
}

func demoRestart(ctx context.Context, e *Env, dir string, o DemoOptions, doc *demoDoc) error {
	if err := e.say("closed; opening again in a new process"); err != nil {
		return err
	}
	out, err := o.Restart(ctx, dir, o)
	if ctx.Err() != nil {
		return interrupted{}
	}
	var v verifyDoc
	if jerr := json.Unmarshal(out, &v); jerr != nil {
		return errors.Join(base.Wrap("demo", "second process", jerr), err)
	}
	if v.Error != nil {
		return base.Wrap("demo", "second process", errors.New(v.Error.Text))
	}
	doc.Verify = &v
	return err
}

func demoCheck(ctx context.Context, e *Env, t *Target, doc *demoDoc) error {
	begin := time.Now()
	report, err := check(ctx, e, t, FsckOptions{}, store.Check)
	if err != nil {
		return err
	}
	doc.FsckSeconds, doc.FsckFindings = time.Since(begin).Seconds(), len(report.Findings)
	if !report.Clean() {
		return base.Errorf("fsck", t.Dir, base.ErrCorrupt, "%d findings", len(report.Findings))
	}
	return nil
}

func (p phase) text() string {
	return fmt.Sprintf("%s in %d values, %.1f s, %.0f MB/s", base.FormatBytes(p.Bytes), p.Objects, p.Seconds, p.MBPerS)
}

func demoText(e *Env, d *demoDoc, o DemoOptions) error {
	v := d.Verify
	rows := [][2]string{
		row("put", "%s", d.Put.text()),
		row("", "durable when each call returned"),
		row("replace, delete", "%d keys, %.1f s", d.Change.Objects, d.Change.Seconds),
		row("open again", "%.2f s", v.OpenSeconds),
		row("look up", "%d keys in %.0f ms", v.Lookup.Objects, v.Lookup.Seconds*1000),
		row("get and compare", "%s", v.Get.text()),
		row("", "every byte as it was put"),
		row("deleted", "%d keys, all absent", v.Absent),
		row("fsck", "clean, %.1f s", d.FsckSeconds),
		row("all", "%.1f s", d.Seconds),
	}
	for _, dev := range v.Devices {
		rows = append(rows, dev.rows("device")...)
	}
	rows = append(rows, d.GPU.rows(v.GPU)...)
	for _, p := range append(d.PutPaths, v.Paths...) {
		rows = append(rows, row("path", "%s", pathText(p)))
	}
	if err := e.table(rows...); err != nil {
		return err
	}
	if o.Keep {
		return e.say("\nThe store is left in %s. Look at it:\n  ugdsctl stat --store %s\n  ugdsctl ls --store %s --long", d.Store, d.Store, d.Store)
	}
	return e.say("\nTry next:\n  ugdsctl demo --keep --store DIR    keep the store and look at it with stat, ls and get\n" +
		"  ugdsctl format --store DIR --size 4GiB --yes    make a store of your own\n" +
		"  make test    run every test")
}

// discard takes the text of verbs that the demo runs on the way.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// VerifyArgs are the arguments of the hidden command that runs DemoVerify.
func (o *DemoOptions) VerifyArgs(dir string) []string {
	args := []string{"demo-verify", "--store", dir, "--size", strconv.FormatInt(o.Size, 10), "--seed", strconv.FormatUint(o.Seed, 10)}
	if o.GPU != "" {
		args = append(args, "--gpu="+o.GPU)
		for _, set := range o.GPUSet {
			args = append(args, "--gpu-set="+set)
		}
	}
	return args
}
