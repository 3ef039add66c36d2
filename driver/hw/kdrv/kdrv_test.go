package kdrv

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

// What needs the module runs in the lab: tools/lab/guest.

func TestMain(m *testing.M) { testenv.Main(m) }

// TestTrim: of whole pages the bytes of the caller are left, however the pages lie.
func TestTrim(t *testing.T) {
	for _, c := range []struct {
		segs    []hw.Seg
		skip, n uint64
		want    []hw.Seg
	}{
		{[]hw.Seg{{Addr: 0x1000, Len: 0x1000}}, 0, 0x1000, []hw.Seg{{Addr: 0x1000, Len: 0x1000}}},
		{[]hw.Seg{{Addr: 0x1000, Len: 0x1000}}, 4, 4, []hw.Seg{{Addr: 0x1004, Len: 4}}},
		{[]hw.Seg{{Addr: 0x1000, Len: 0x3000}}, 0x800, 0x1801, []hw.Seg{{Addr: 0x1800, Len: 0x1801}}},
		{[]hw.Seg{{Addr: 0x9000, Len: 0x1000}, {Addr: 0x2000, Len: 0x2000}}, 0xffc, 8,
			[]hw.Seg{{Addr: 0x9ffc, Len: 4}, {Addr: 0x2000, Len: 4}}},
		{[]hw.Seg{{Addr: 0x9000, Len: 0x1000}, {Addr: 0x2000, Len: 0x1000}}, 1, 0xfff, []hw.Seg{{Addr: 0x9001, Len: 0xfff}}},
	} {
		m := &mapping{segs: append([]hw.Seg{}, c.segs...)}
		m.trim(c.skip, c.n)
		if !reflect.DeepEqual(m.segs, c.want) {
			t.Errorf("%x from %d, %d bytes: %x", c.segs, c.skip, c.n, m.segs)
		}
	}
}

// TestRefusals: every errno of an open becomes an error that says what to do.
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"iommu": "none\n", "refusal": "memory encryption is active\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for errno, c := range map[unix.Errno]struct {
		class error
		says  string
	}{
		unix.EBUSY:      {base.ErrLocked, "stats --pid 1`"},
		unix.EPERM:      {base.ErrNotSupported, "(none)"},
		unix.EACCES:     {unix.EACCES, "chown $USER /dev/ugds_drv7; no IOMMU"},
		unix.EOPNOTSUPP: {base.ErrNotSupported, "memory encryption is active"},
		unix.EIO:        {base.ErrBusy, "did not stop"},
		unix.ENODEV:     {base.ErrDeviceGone, ""},
		unix.ENOENT:     {base.ErrNotFound, "container"},
		unix.EMFILE:     {unix.EMFILE, ""},
	} {
		err := refusal("/dev/ugds_drv7", dir, 1, errno)
		if !errors.Is(err, c.class) || !errors.Is(err, errno) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	if err := refusal(dir, dir, 0, unix.EACCES); !strings.Contains(err.Error(), "lockdown") { // a node that may be written
		t.Error(err)
	}
}

// TestNotBound: an address without a node is an error, not a pattern.
func TestNotBound(t *testing.T) {
	for _, address := range []string{"", "*", "0000:ff:1f.7", "../0000:00:00.0", "[0-9]*"} {
		if _, err := Open(context.Background(), address); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// TestB14LargestPiece: more than the module gives in one piece is ErrNoSpace, so that
// the driver asks for less.
func TestB14LargestPiece(t *testing.T) {
	for size, want := range map[int64]error{unix.KdrvAllocMax + 1: base.ErrNoSpace, 1 << 62: base.ErrNoSpace, 0: base.ErrInvalid, -1: base.ErrInvalid} {
		if _, err := new(Device).Alloc(size, "test"); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v, want %v", size, err, want)
		}
	}
}
