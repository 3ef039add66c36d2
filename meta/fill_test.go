package meta

import (
	"bytes"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// newestLogFile gives the path and content of the log that is written.
func newestLogFile(t *testing.T, fs vfs.FS, o Options) (string, []byte) {
	t.Helper()
	var newest string
	names, err := fs.List(o.path(databaseName))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".log") && name > newest {
			newest = name
		}
	}
	path := fs.PathJoin(o.path(databaseName), newest)
	return path, readFile(t, fs, path)
}

// TestLogGrowsInSteps: a new log is zeros behind its records, its length changes
// once a step, and both a killed and an orderly ended one are read to their end.
func TestLogGrowsInSteps(t *testing.T) {
	fs := memFS()
	o := Options{Dir: "/m", FS: fs}
	d := newDB(t, o)
	_, short := newestLogFile(t, fs, o)
	gen := uint64(0)
	for ; d.Metrics().WALBytes < fillStep+fillStep/2; gen++ {
		put(t, d, 1, gen+1, strings.Repeat("k", 500), strings.Repeat("l", int(gen%1000)+1))
	}
	path, log := newestLogFile(t, fs, o)
	if len(short) > fillStep || len(log) != 2*fillStep {
		t.Errorf("%s has %d bytes, then %d", path, len(short), len(log))
	}
	if end := len(bytes.TrimRight(log, "\x00")); end > fillStep+fillStep*3/4 {
		t.Errorf("records up to %d", end)
	}
	killed := takeImage(t, fs, "/").fs(t)
	closeDB(t, d)
	for name, fs := range map[string]vfs.FS{"killed": killed, "closed": fs} {
		o.FS = fs
		d := openDB(t, o)
		if got := d.Header().LastGen; got != gen {
			t.Errorf("%s: generation %d of %d", name, got, gen)
		}
		if _, err := d.Get(1, []byte(strings.Repeat("k", 500))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		closeDB(t, d)
	}
}

// fillFails refuses to write anywhere but at the end of a file.
type fillFails struct{ vfs.FS }

func (f fillFails) Unwrap() vfs.FS { return f.FS }

func (f fillFails) Create(name string, cat vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, cat)
	return fillFailsFile{file}, err
}

type fillFailsFile struct{ vfs.File }

func (fillFailsFile) WriteAt([]byte, int64) (int, error) { return 0, syscall.ENOSPC }

// TestLogWithoutFilling: zeros that cannot be written harm nobody.
func TestLogWithoutFilling(t *testing.T) {
	mem := memFS()
	o := Options{Dir: "/m", FS: fillFails{mem}}
	d := newDB(t, o)
	for gen := range uint64(20) {
		put(t, d, 1, gen+1, "k")
	}
	if _, log := newestLogFile(t, mem, o); len(log) == 0 || len(log) >= fillStep {
		t.Errorf("the log has %d bytes", len(log))
	}
	closeDB(t, d)
	d = openDB(t, o)
	if got := d.Header().LastGen; got != 20 {
		t.Errorf("generation %d", got)
	}
	closeDB(t, d)
}
