package ctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
	"github.com/ugds-store/ugds/tools/gputool"
)

// closeTimeout bounds the orderly end of a store: everything in flight has its
// own, shorter deadlines.
const closeTimeout = 3 * time.Minute

// parts are the places that a store consists of.
type parts struct {
	devices []string
	meta    string
	discard bool
}

// parts reads store.toml, if there is a directory, and applies what the user
// named instead.
func (t *Target) parts(verb string) (parts, error) {
	var p parts
	if t.Dir == "" && (len(t.Devices) == 0 || t.Meta == "") {
		return p, usage(verb, "which store? --store DIR, or --device and --meta")
	}
	if t.Dir != "" && (len(t.Devices) == 0 || t.Meta == "") {
		c, err := readConfig(t.Dir)
		if err != nil {
			return p, err
		}
		p.meta, p.discard = at(t.Dir, c.Meta), c.Discard
		for _, d := range c.Devices {
			p.devices = append(p.devices, targetAt(t.Dir, d))
		}
	}
	if len(t.Devices) > 0 {
		p.devices = t.Devices
	}
	if t.Meta != "" {
		p.meta = t.Meta
	}
	return p, nil
}

// openDevices opens and locks every device, or none.
func (e *Env) openDevices(ctx context.Context, t *Target, p parts, readOnly bool) ([]driver.Device, error) {
	if err := p.twice(); err != nil {
		return nil, err
	}
	devs, err := probe.OpenAll(ctx, p.devices, func(target string) probe.Options {
		return probe.Options{File: file.Options{
			ReadOnly: readOnly, Wait: t.Wait, Discard: p.discard, Owner: "ugdsctl",
			OnWait: func(why string) { fmt.Fprintf(e.Stderr, "ugdsctl: waiting for %s: %s\n", target, why) },
		}}
	})
	if len(t.Devices) == 0 {
		err = cutOff(err)
	}
	return devs, forbidden(err, p.devices...)
}

// cutOff gives err the class of a damage if a device is too small that store.toml names,
// and no argument.
func cutOff(err error) error {
	var small *base.TooSmall
	var at *base.Error
	if !errors.As(err, &small) || !errors.As(err, &at) {
		return err
	}
	return base.CutOff(at.Object, base.ErrCorrupt, small)
}

// forbidden says what helps when this process may not open one of the targets, which are
// block devices: that one is in use, if it is, counts more.
func forbidden(err error, targets ...string) error {
	var at *base.Error
	if !errors.Is(err, fs.ErrPermission) || !errors.As(err, &at) {
		return err
	}
	for _, target := range targets {
		path, _ := filePath(target)
		if st, serr := unix.StatPath(path); path != at.Object || serr != nil || st.Kind != unix.KindBlock {
			continue
		}
		if use := file.InUse(path); use != nil {
			return use
		}
		return base.WithHint(err, "be root or in the group that owns it; a container needs to be given the device")
	}
	return err
}

func closeDevices(devs []driver.Device) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	for _, d := range devs {
		errs = append(errs, d.Close(ctx))
	}
	return errors.Join(errs...)
}

// session is an open store and its devices.
type session struct {
	*store.Store
	devs []driver.Device
	gpu  *gputool.GPU // nil unless the target names one
	hide func()       // ends what stats --pid reads
}

func (e *Env) open(ctx context.Context, verb string, t *Target, readOnly bool) (*session, error) {
	p, err := t.parts(verb)
	if err != nil {
		return nil, err
	}
	gopt, err := e.gpuSettings(t)
	if err != nil {
		return nil, err
	}
	g, err := t.openGPU()
	if err != nil {
		return nil, err
	}
	devs, err := e.openDevices(ctx, t, p, readOnly)
	if err != nil {
		return nil, errors.Join(err, closeGPU(g))
	}
	s, err := store.Open(ctx, store.Options{
		Devices: devs, ReadOnly: readOnly, Discard: p.discard, GPU: gpuOptions(g, gopt),
		Meta: meta.Options{Dir: p.meta, ReadOnly: readOnly},
	})
	if err != nil {
		return nil, errors.Join(err, closeDevices(devs), closeGPU(g))
	}
	hide, err := s.Publish("ugdsctl", publishEvery)
	if err != nil { // nobody's work waits for statistics
		hide = func() {}
	}
	return &session{s, devs, g, hide}, nil
}

// publishEvery is how old the statistics of a running verb are at most.
const publishEvery = 250 * time.Millisecond

// close ends the store, then its devices, whatever became of the caller's
// context: what was put must not be lost to an interrupt.
func (s *session) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	s.hide()
	return errors.Join(s.Close(ctx), closeDevices(s.devs), closeGPU(s.gpu))
}

// with opens the store for one verb and closes it.
func (e *Env) with(ctx context.Context, verb string, t *Target, readOnly bool, do func(s *session) error) error {
	s, err := e.open(ctx, verb, t, readOnly)
	if err != nil {
		return err
	}
	err = do(s)
	if cerr := s.close(); cerr != nil && err == nil {
		err = base.Wrap("close", "store", cerr)
	}
	return err
}

// withNamespace is with, for verbs that work on keys. A missing default
// namespace is given as nil: nothing was put into it yet.
func (e *Env) withNamespace(ctx context.Context, verb string, t *Target, readOnly bool, do func(n *store.Namespace) error) error {
	return e.with(ctx, verb, t, readOnly, func(s *session) error {
		n, err := s.Namespace(ctx, t.namespace(), store.NamespaceOptions{Create: !readOnly})
		if err = t.mayBeAbsent(err); err != nil {
			return err
		}
		return do(n)
	})
}

// mayBeAbsent takes away err where it is that nothing was put into the default namespace
// yet.
func (t *Target) mayBeAbsent(err error) error {
	if errors.Is(err, store.ErrNotFound) && t.namespace() == DefaultNamespace {
		return nil
	}
	return err
}

// noKey is the answer for a key of a namespace that does not exist.
func noKey(verb string, t *Target, key []byte) error {
	return base.Errorf(verb, t.showKey(key), base.ErrNotFound, "namespace %q is empty", t.namespace())
}
