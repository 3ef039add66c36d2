// Package probe opens a device by the name that a user gives it, and explains
// which transport a name leads to.
package probe

import (
	"context"
	"fmt"
	"strings"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Options says how a target is opened. The zero value works; what a transport
// does not know it ignores.
type Options struct {
	File file.Options // for files and block devices; Path comes from the target
}

// Target is a device name, taken apart.
type Target struct {
	Scheme string // "file", "pci", "sim"; a bare path is "file"
	Rest   string // the path or address
}

// Parse takes a target apart: "file:/path", a bare path, "pci:0000:01:00.0",
// "sim:size=1GiB". A path that begins like a scheme is written with "./" or
// "file:". Unknown schemes give ErrInvalid.
func Parse(target string) (Target, error) {
	bad := func(why string) (Target, error) {
		return Target{}, base.WithHint(base.Errorf("open", fmt.Sprintf("%q", target), base.ErrInvalid, "%s", why),
			"name a path, file:PATH, a block device, pci:ADDRESS or sim:OPTIONS")
	}
	scheme, rest, found := strings.Cut(target, ":")
	switch {
	case target == "":
		return bad("the target is empty")
	case !found || strings.Contains(scheme, "/"):
		return Target{"file", target}, nil
	case rest == "":
		return bad("nothing follows the scheme")
	case scheme == "file" || scheme == "pci" || scheme == "sim":
		return Target{scheme, rest}, nil
	}
	return bad(fmt.Sprintf("unknown scheme %q", scheme))
}

// Open opens the device that target names, with its lock. ErrNotSupported for
// transports that this build does not have; otherwise the errors of the
// transport, see file.Open.
func Open(ctx context.Context, target string, o Options) (driver.Device, error) {
	t, err := Parse(target)
	if err != nil {
		return nil, err
	}
	if t.Scheme != "file" {
		return nil, unsupported(target, t)
	}
	o.File.Path = t.Rest
	d, err := file.Open(ctx, o.File)
	if err != nil {
		return nil, err // not a nil *file.Device in an interface
	}
	return d, nil
}

func unsupported(target string, t Target) error {
	what := map[string]string{"pci": "NVMe controllers are", "sim": "the simulated controller is"}[t.Scheme]
	return base.WithHint(base.Errorf("open", target, base.ErrNotSupported, "%s not built into this version", what),
		"use a file or a block device such as /dev/nvme1n1")
}

// Explain says in a few lines what target is and how it would be opened. It
// opens nothing for writing and takes no lock.
func Explain(target string) []string {
	t, err := Parse(target)
	if err != nil {
		return []string{err.Error()}
	}
	if t.Scheme != "file" {
		return []string{unsupported(target, t).Error()}
	}
	st, err := unix.StatPath(t.Rest)
	if err != nil {
		return []string{fmt.Sprintf("%s: %v; format makes it", t.Rest, err)}
	}
	out := []string{fmt.Sprintf("%s is a %s", t.Rest, st.Kind)}
	switch st.Kind {
	case unix.KindRegular:
		out = append(out, explainFile(t.Rest, st)...)
	case unix.KindBlock:
		out = append(out, explainBlock(st)...)
	default:
		out = append(out, "it cannot be a device: name a regular file or a block device")
	}
	return out
}

func explainFile(path string, st unix.Stat) []string {
	fs, _ := unix.StatFS(path)
	out := []string{fmt.Sprintf("%s on %s, %s of it allocated", base.FormatBytes(st.Size), fs.Type,
		base.FormatBytes(st.Blocks*512))}
	switch {
	case !st.DIOKnown:
		out = append(out, "the kernel does not say whether O_DIRECT works; it is tried")
	case st.DIOOffset == 0:
		out = append(out, "no O_DIRECT: bytes pass through the page cache")
	default:
		out = append(out, fmt.Sprintf("O_DIRECT works: offsets in units of %d bytes", st.DIOOffset))
	}
	return append(out, "io_uring if the kernel allows it, else preadv and pwritev")
}

func explainBlock(st unix.Stat) []string {
	out := []string{fmt.Sprintf("device %v, model %q, write cache %q", st.Rdev,
		unix.BlockAttr(st.Rdev, "device/model"), unix.BlockQueue(st.Rdev, "write_cache"))}
	if who := unix.BlockHolders(st.Rdev); len(who) > 0 {
		return append(out, "it cannot be opened: "+strings.Join(who, "; "))
	}
	return append(out, "nothing visible uses it; opening it claims it exclusively")
}
