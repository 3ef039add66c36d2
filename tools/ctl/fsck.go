package ctl

import (
	"context"
	"errors"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

type fsckDoc struct {
	header
	Clean      bool                  `json:"clean"`
	Layout     *store.Layout         `json:"layout"` // null if the superblocks do not tell
	LastGen    uint64                `json:"last_generation"`
	MarkGen    uint64                `json:"mark_generation"`
	Usage      store.Usage           `json:"usage"`
	FreeBytes  int64                 `json:"free_bytes"`
	Namespaces []store.NamespaceInfo `json:"namespaces"`
	Findings   []findingDoc          `json:"findings"`
}

type findingDoc struct {
	Severity  string  `json:"severity"` // "error", "warning" or "note"
	Area      string  `json:"area"`
	Target    string  `json:"target"`
	Namespace string  `json:"namespace"`
	Object    *keyDoc `json:"object"` // null if it is not about one
	Text      string  `json:"text"`
}

// Fsck checks a store that nobody has open, and changes nothing.
func Fsck(ctx context.Context, e *Env, t *Target) error {
	r, err := check(ctx, e, t)
	if err != nil {
		code := ExitNoCheck
		if c := ExitCode(err); c == ExitInterrupted || c == ExitPipe {
			code = c
		}
		return e.fail("fsck", &status{code, err})
	}
	if e.JSON {
		err = e.emit(docReport(r))
	} else {
		err = e.reportText(t, r)
	}
	if err != nil || r.Clean() {
		return err
	}
	return quietly(ExitFaultsLeft)
}

func check(ctx context.Context, e *Env, t *Target) (*store.Report, error) {
	p, err := t.parts("fsck")
	if err != nil {
		return nil, err
	}
	devs, err := e.openDevices(ctx, t, p, true)
	if err != nil {
		return nil, err
	}
	r, err := store.Check(ctx, store.Options{Devices: devs, ReadOnly: true,
		Meta: meta.Options{Dir: p.meta, ReadOnly: true}}, store.CheckOptions{})
	return r, errors.Join(err, closeDevices(devs))
}

func docReport(r *store.Report) fsckDoc {
	d := fsckDoc{head("fsck", nil), r.Clean(), r.Layout, r.LastGen, r.MarkGen, r.Usage, r.FreeBytes, r.Namespaces, []findingDoc{}}
	for _, f := range r.Findings {
		fd := findingDoc{string(f.Severity), f.Area, f.Target, f.Namespace, nil, f.Text}
		if f.Key != nil {
			k := docKey(f.Key)
			fd.Object = &k
		}
		d.Findings = append(d.Findings, fd)
	}
	return d
}

func (e *Env) reportText(t *Target, r *store.Report) error {
	for _, f := range r.Findings {
		what := f.Area
		if f.Target != "" {
			what += " " + f.Target
		}
		if f.Key != nil {
			what += " " + f.Namespace + " " + t.showKey(f.Key)
		}
		if err := e.say("%s: %s: %s", f.Severity, what, f.Text); err != nil {
			return err
		}
	}
	switch {
	case r.Clean():
		return e.say("%d objects of %s: clean", r.Usage.Objects, base.FormatBytes(r.Usage.Bytes))
	case r.Faults() > 0:
		return e.say("faults were found, nothing was changed")
	}
	return e.say("%d objects of %s: damage was found, nothing was changed", r.Usage.Objects, base.FormatBytes(r.Usage.Bytes))
}

// FsckArgs gives an error about arguments the exit status that fsck has for it.
func FsckArgs(err error) error {
	if err == nil {
		return nil
	}
	return &status{ExitNoCheck, err}
}
