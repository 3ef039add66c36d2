package file

import (
	"errors"
	"os"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Allocate is allocate.
var Allocate = allocate

// Isolate makes d stop as if a deadline had passed.
func Isolate(d *Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.isolate(base.Wrap("test", d.h.info.Target, errors.New("stopped by the test")))
}

// Unled keeps everybody from reaping until led is called; waiting tells how many
// completions are in the ring of d, and how many entries that the kernel has not taken.
func Unled(d *Device) (led func(), waiting func() int) {
	e := d.eng.(*ringEngine)
	e.lead <- struct{}{}
	return func() { <-e.lead }, func() int { return e.ring.Ready() + e.ring.Unsubmitted() }
}

// SideRecord writes and reads a record beside path, where a link to victim was
// put before.
func SideRecord(t *testing.T, path, victim string) {
	t.Helper()
	if err := os.Symlink(victim, path+".owner"); err != nil {
		t.Fatal(err)
	}
	fd := unix.NewFD(-1, path) // attributes fail on it
	r, err := writeRecord(fd, unix.Stat{Kind: unix.KindRegular}, "text")
	if err != nil {
		t.Fatal(err)
	}
	back, ok := readRecord(path, unix.Stat{Kind: unix.KindRegular})
	if !ok || back.PID != r.PID || back.name != r.name || !back.Alive() {
		t.Errorf("%+v, wrote %+v", back, r)
	}
	r.clear(fd)
	if _, ok := readRecord(path, unix.Stat{Kind: unix.KindRegular}); ok {
		t.Error("the record stays")
	}
}

// SetHook replaces what the kernel answers to the calls of f: how many bytes a call
// may move, or its error.
func (f *File) SetHook(fn func(op driver.Op, off, n int64, direct bool) (int64, error)) { f.hook = fn }

// OpenError is what an open gets that the system answered with err.
func OpenError(o Options, err error) error { return openError(&o, err) }

// Places is how many more regions can be registered with the ring of d.
func Places(d *Device) int {
	e := d.eng.(*ringEngine)
	e.regMu.Lock()
	defer e.regMu.Unlock()
	return len(e.freeBuf)
}
