package crashtest

import (
	"bufio"
	"context"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/ugds-store/ugds/meta/metatest"
)

// savedImage is a drawn image as it was before anything opened it.
type savedImage struct {
	meta  *metatest.FS
	disks []savedDisk
	facts facts
}

type savedDisk struct {
	opts    DiskOptions
	content *media
}

// Files of an artifact.
const (
	factsFile   = "facts.json"
	historyFile = "history.json"
	logFile     = "log.txt"
	disksFile   = "disks.gob"
	metaFolder  = "meta"
)

// diskFile is a disk in an artifact.
type diskFile struct {
	Opts   DiskOptions
	Blocks map[int64]string
}

// save keeps the log of a world and, if there is one, the failing image. The
// answer is the folder.
func (w *world) save(root string, sh *shot, im *savedImage, text string) (string, error) {
	name := fmt.Sprintf("seed-%d", w.set.Seed)
	if sh != nil {
		name += fmt.Sprintf("-index-%d", sh.step)
	}
	dir, err := filepath.Abs(filepath.Join(root, name))
	if err != nil {
		return "", err
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := w.saveLog(filepath.Join(dir, logFile), sh, text); err != nil || im == nil {
		return dir, err
	}
	if err := saveJSON(filepath.Join(dir, historyFile), w.hist); err != nil {
		return "", err
	}
	if err := saveJSON(filepath.Join(dir, factsFile), im.facts); err != nil {
		return "", err
	}
	if err := saveDisks(filepath.Join(dir, disksFile), im.disks); err != nil {
		return "", err
	}
	return dir, copyTree(im.meta, metaDir, filepath.Join(dir, metaFolder))
}

func (w *world) saveLog(path string, sh *shot, text string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	b := bufio.NewWriter(f)
	fmt.Fprintf(b, "%s\n\nsetup: %+v\n\noperations:\n", text, w.set)
	last := int64(1 << 62)
	if sh != nil {
		last = sh.step
	}
	for _, o := range w.hist.Ops {
		fmt.Fprintln(b, o)
	}
	fmt.Fprintln(b, "\nsteps:")
	if err := w.trace.print(b, last); err != nil {
		return err
	}
	if err := b.Flush(); err != nil {
		return err
	}
	return f.Close()
}

func saveJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

func saveDisks(path string, disks []savedDisk) error {
	var out []diskFile
	for _, d := range disks {
		f := diskFile{d.opts, map[int64]string{}}
		for lba := range d.opts.Capacity / d.opts.BlockSize {
			if b := d.content.get(lba); b != "" {
				f.Blocks[lba] = b
			}
		}
		out = append(out, f)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := gob.NewEncoder(f).Encode(out); err != nil {
		return err
	}
	return f.Close()
}

// copyTree copies a folder of the metadata file system to the disk.
func copyTree(fs *metatest.FS, from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	names, err := fs.List(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		src, dst := from+"/"+name, filepath.Join(to, name)
		st, err := fs.Stat(src)
		if err != nil {
			return err
		}
		if st.IsDir() {
			err = copyTree(fs, src, dst)
		} else {
			err = copyOut(fs, src, dst)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func copyOut(fs *metatest.FS, from, to string) error {
	f, err := fs.Open(from)
	if err != nil {
		return err
	}
	b, err := io.ReadAll(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}

// loadTree undoes copyTree.
func loadTree(fs *metatest.FS, from, to string) error {
	if err := fs.MkdirAll(to, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		src, dst := filepath.Join(from, e.Name()), to+"/"+e.Name()
		if e.IsDir() {
			err = loadTree(fs, src, dst)
		} else {
			err = copyIn(fs, src, dst)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func copyIn(fs *metatest.FS, from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	f, err := fs.Create(to, "")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// Replay opens the image that a failed campaign kept in dir and checks it
// again. The error says that dir cannot be read.
func Replay(ctx context.Context, dir string) (violations []string, err error) {
	h, im := new(History), &image{lab: new(Lab), meta: metatest.NewCrashFS()}
	for name, v := range map[string]any{historyFile: h, factsFile: &im.facts} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = json.Unmarshal(b, v)
		}
		if err != nil {
			return nil, err
		}
	}
	f, err := os.Open(filepath.Join(dir, disksFile))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var disks []diskFile
	if err := gob.NewDecoder(f).Decode(&disks); err != nil {
		return nil, err
	}
	if err := loadTree(im.meta, filepath.Join(dir, metaFolder), metaDir); err != nil {
		return nil, err
	}
	for _, d := range disks {
		m := newMedia(d.Opts.Capacity, d.Opts.BlockSize)
		for lba, b := range d.Blocks {
			m.set(lba, b)
		}
		disk, err := loadDevice(im.lab, d.Opts, m)
		if err != nil {
			return nil, err
		}
		im.disks = append(im.disks, disk)
	}
	im.meta = im.meta.Clone(rand.New(rand.NewPCG(0, 0)), 100)
	_, violations = im.verify(ctx, h, im.facts)
	return append(violations, im.close()...), nil
}
