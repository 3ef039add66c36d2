package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// Names inside the directory of a bench.
const (
	dataName    = "store.ugds"
	metaName    = "meta"
	rawName     = "raw.slots"
	filesName   = "files"
	pebbleName  = "pebble"
	recordsName = "pebble-records"
	loopName    = "pebble-loop"
)

func (p *Place) storeDevices() []string {
	if len(p.Devices) > 0 {
		return p.Devices
	}
	return []string{"file:" + filepath.Join(p.Dir, dataName)}
}

func (p *Place) storeMeta() string {
	if p.Meta != "" {
		return p.Meta
	}
	return filepath.Join(p.Dir, metaName)
}

func (p *Place) rawPath() string {
	if p.Raw != "" {
		return p.Raw
	}
	return filepath.Join(p.Dir, rawName)
}

// Names are what Prepare and the cases make in a directory.
func Names() []string {
	return []string{dataName, metaName, rawName, filesName, pebbleName, recordsName, loopName}
}

// poolFactor is how many times the values of a case fit into the store that
// Prepare makes: replacements and slots that wait for a commit mark need room.
const poolFactor = 4

// minPool is the smallest store that Prepare makes, bytes.
const minPool = 128 * base.MiB

// NeedBytes is what Prepare and the cases take of the directory's disk at most.
func NeedBytes(payload int64) int64 { return poolBytes(payload) + 4*payload + 512*base.MiB }

func poolBytes(payload int64) int64 {
	return base.AlignUp(max(poolFactor*payload, minPool), 64*base.MiB)
}

// Prepare makes the files of a bench whose cases move at most payload bytes:
// reserved, and written once from end to end, so that no contestant pays for the
// first write of its blocks. progress hears of bytes written.
func Prepare(ctx context.Context, p Place, payload int64, progress func(int64)) error {
	if p.Raw == "" {
		if err := makeWritten(ctx, p.rawPath(), base.AlignUp(payload, base.MiB), progress); err != nil {
			return err
		}
	}
	if len(p.Devices) > 0 {
		return nil
	}
	return PrepareStore(ctx, p, payload, progress)
}

// PrepareStore makes only the store.
func PrepareStore(ctx context.Context, p Place, payload int64, progress func(int64)) error {
	path := filepath.Join(p.Dir, dataName)
	if err := makeWritten(ctx, path, poolBytes(payload), progress); err != nil {
		return err
	}
	dev, err := file.Open(ctx, file.Options{Path: path, Owner: "ugdsctl bench"})
	if err != nil {
		return err
	}
	_, err = store.Format(ctx, store.FormatOptions{Devices: []driver.Device{dev},
		Meta: meta.Options{Dir: p.storeMeta()}, Overwrite: true})
	return errors.Join(err, dev.Close(ctx))
}

// PrepareBytes is what Prepare writes.
func PrepareBytes(p Place, payload int64) (n int64) {
	if p.Raw == "" {
		n += base.AlignUp(payload, base.MiB)
	}
	if len(p.Devices) == 0 {
		n += poolBytes(payload)
	}
	return n
}

func makeWritten(ctx context.Context, path string, size int64, progress func(int64)) error {
	if err := file.Create(path, size, false); err != nil {
		return err
	}
	r, err := driver.AllocRegion(4*base.MiB, "bench prepare")
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := unix.Open(path, unix.ReadWrite|unix.Direct, 0)
	if err != nil {
		return base.Wrap("open", path, err)
	}
	for off := int64(0); off < size && err == nil; off += r.Size() {
		n := min(r.Size(), size-off)
		if err = ctx.Err(); err == nil {
			err = whole(unix.Pwrite, f, r.Bytes(0, n), off)
		}
		progress(n)
	}
	if err == nil {
		err = unix.Fdatasync(f)
	}
	return errors.Join(err, f.Close())
}

// CheckRaw refuses a device that is too small, or that carries a store (base.ErrExists:
// no leave to overwrite means that). It tells what else is on it, "" if it is blank.
func CheckRaw(ctx context.Context, target string, payload int64) (holds string, err error) {
	dev, err := probe.Open(ctx, target, probe.Options{File: file.Options{Owner: "ugdsctl bench"}})
	if err != nil {
		return "", err
	}
	label, err := store.Inspect(ctx, dev)
	capacity := dev.Info().Capacity
	if err = errors.Join(err, dev.Close(ctx)); err != nil {
		return "", err
	}
	switch {
	case label.Ours:
		return "", base.WithHint(base.Errorf("bench", target, base.ErrExists, "it holds %s", label.Text),
			"name the store with --store, or another device")
	case capacity < payload:
		return "", base.Errorf("bench", target, base.ErrNoSpace, "it has %s, the bench needs %s",
			base.FormatBytes(capacity), base.FormatBytes(payload))
	case label.Blank:
		return "", nil
	}
	return label.Text, nil
}

// Clean takes away what Prepare and the cases made, and nothing else.
func Clean(dir string) error {
	var errs []error
	for _, name := range Names() {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}
