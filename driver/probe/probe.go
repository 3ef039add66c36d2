// Package probe opens a device by the name that a user gives it, and explains
// which transport a name leads to.
package probe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Options says how a target is opened. The zero value works; what a transport
// does not know it ignores, but for File.ReadOnly.
type Options struct {
	File file.Options // for files and block devices; Path comes from the target
	Ctrl ctrl.Options // for controllers
}

// Target is a device name, taken apart.
type Target struct {
	Scheme string // "file", "pci", "sim"; a bare path is "file"
	Rest   string // the path, address or settings
}

// File gives the path of the file or block device behind t, and the size in bytes
// that t says it has, 0 if it says none; ok is false if there is no such file.
func (t Target) File() (path string, size int64, ok bool) {
	switch t.Scheme {
	case "file":
		return t.Rest, 0, true
	case "sim":
		c, err := sim.ParseTarget("sim:" + t.Rest)
		n := c.Namespaces
		if err != nil || c.Path == "" {
			return "", 0, false
		}
		return c.Path, int64(n[0].Blocks << n[0].BlockShift), true
	}
	return "", 0, false
}

// WithPath is target with another path, for one behind which there is a file. What
// else it says stays as it was.
func WithPath(target, path string) string {
	t, err := Parse(target)
	if err == nil && t.Scheme == "sim" {
		return sim.TargetWithPath(target, path)
	}
	return strings.TrimSuffix(target, t.Rest) + path
}

// Parse takes a target apart: "file:/path", a bare path, "pci:0000:01:00.0",
// "sim:size=1GiB". A path that begins like a scheme is written with "./" or
// "file:". Unknown schemes and settings, and addresses that are not written in full,
// give ErrInvalid.
func Parse(target string) (Target, error) {
	bad := func(why string) (Target, error) {
		return Target{}, base.WithHint(base.Errorf("open", fmt.Sprintf("%q", target), base.ErrInvalid, "%s", why),
			"name a path, file:PATH, a block device, pci:ADDRESS or sim:SETTINGS")
	}
	scheme, rest, found := strings.Cut(target, ":")
	switch {
	case target == "":
		return bad("the target is empty")
	case !found || strings.Contains(scheme, "/"):
		return Target{"file", target}, nil
	case scheme == "sim": // it needs no settings
		if _, err := sim.ParseTarget(target); err != nil {
			return Target{}, err
		}
		return Target{scheme, rest}, nil
	case rest == "":
		return bad("nothing follows the scheme")
	case scheme == "pci":
		return Target{scheme, rest}, checkAddress("open", rest)
	case scheme == "file":
		return Target{scheme, rest}, nil
	}
	if address := strings.ToLower(target); pciAddress.MatchString(address) {
		err := base.Errorf("open", fmt.Sprintf("%q", target), base.ErrInvalid, "a controller's address needs its scheme")
		return Target{}, base.WithHint(err, "write pci:%s", address)
	}
	return bad(fmt.Sprintf("unknown scheme %q", scheme))
}

// Open opens the device that target names, with its lock. The errors are those of the
// transport, see file.Open, sim.Open, Choose, kdrv.Open, vfio.Open and ctrl.Open.
func Open(ctx context.Context, target string, o Options) (driver.Device, error) {
	t, err := Parse(target)
	if err != nil {
		return nil, err
	}
	switch t.Scheme {
	case "file":
		o.File.Path = t.Rest
		d, err := file.Open(ctx, o.File)
		if err != nil {
			return nil, err // not a nil *file.Device in an interface
		}
		return d, nil
	case "sim":
		d, err := openSim(ctx, target, o)
		if err != nil {
			return nil, err
		}
		return d, nil
	}
	return openController(ctx, t.Rest, o)
}

// OpenAll opens several devices, or none. Controllers are brought up at the same
// time, which takes each up to seconds; files and block devices are opened in their
// order, so that of two programs that want the same ones one gets them all. options
// gives those of a target; it may be called from several goroutines. The error is
// that of the first target that failed.
func OpenAll(ctx context.Context, targets []string, options func(target string) Options) ([]driver.Device, error) {
	return openAll(targets, func(target string) (driver.Device, error) { return Open(ctx, target, options(target)) })
}

// openAll is OpenAll for whatever opens one.
func openAll(targets []string, open func(target string) (driver.Device, error)) ([]driver.Device, error) {
	devs, errs := make([]driver.Device, len(targets)), make([]error, len(targets))
	var wg sync.WaitGroup
	for i, target := range targets {
		if t, err := Parse(target); err == nil && t.Scheme != "file" {
			wg.Go(func() { devs[i], errs[i] = open(target) })
		} else if devs[i], errs[i] = open(target); errs[i] != nil {
			break
		}
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, errors.Join(err, closeAll(devs))
		}
	}
	return devs, nil
}

// closeLimit bounds the closing of devices that were opened in vain.
const closeLimit = 30 * time.Second

func closeAll(devs []driver.Device) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	var errs []error
	for _, d := range devs {
		if d != nil {
			errs = append(errs, d.Close(ctx))
		}
	}
	return errors.Join(errs...)
}

// openSim opens a controller model. Without a file behind it, it lives as long as
// the device is open.
func openSim(ctx context.Context, target string, o Options) (*ctrl.Device, error) {
	cfg, err := sim.ParseTarget(target)
	if err != nil {
		return nil, err
	}
	cfg.Namespaces[0].ReadOnly = o.File.ReadOnly
	if cfg.Path != "" {
		if _, err := unix.StatPath(cfg.Path); err == unix.ENOENT { // only format makes files
			return nil, file.NotFound(cfg.Path, err)
		}
		if err := file.InUse(cfg.Path); err != nil && !o.File.ReadOnly {
			return nil, err
		}
	}
	s, err := sim.Open(cfg)
	if err != nil {
		return nil, err
	}
	return ctrl.Open(ctx, s, o.Ctrl)
}

// ModelSettings explains, in a table for people, what may stand in a target of a
// controller model.
func ModelSettings() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, s := range sim.Settings() {
		fmt.Fprintf(w, "  %s\t%s; default %s\n  \t%s\n", s.Name, s.Values, s.Default, s.Meaning)
	}
	_ = w.Flush() // into memory
	return b.String()
}

// Explain says in a few lines what target is and how it would be opened. It
// opens nothing for writing and takes no lock.
func Explain(target string) []string {
	t, err := Parse(target)
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	switch t.Scheme {
	case "file":
	case "sim":
		out = append(out, "a model of an NVMe controller, in this process")
		path, _, ok := t.File()
		if !ok {
			return append(out, "in memory: it is gone when it is closed")
		}
		t.Rest = path
	default:
		return explainController(t.Rest)
	}
	st, err := unix.StatPath(t.Rest)
	if err != nil {
		return append(out, fmt.Sprintf("%s: %v; format makes it", t.Rest, err))
	}
	out = append(out, fmt.Sprintf("%s is a %s", t.Rest, st.Kind))
	switch {
	case t.Scheme == "sim" && st.Kind != unix.KindRegular:
		out = append(out, "it cannot be behind a model: name a regular file")
	case t.Scheme == "sim":
	case st.Kind == unix.KindRegular:
		out = append(out, explainFile(t.Rest, st)...)
	case st.Kind == unix.KindBlock:
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
