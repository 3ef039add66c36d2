package ctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// FsckOptions of Fsck.
type FsckOptions struct {
	VerifyData bool // read every value and compare its checksum too
	Repair     bool // remove what is faulty
	Yes        bool // do it; without it Repair only tells what it would remove
}

type fsckDoc struct {
	header
	Clean      bool              `json:"clean"`    // nothing is wrong now
	Repaired   bool              `json:"repaired"` // something was, before
	Verified   bool              `json:"verified"` // every value was read
	Layout     *store.Layout     `json:"layout"`   // null if the superblocks do not tell
	LastGen    uint64            `json:"last_generation"`
	MarkGen    uint64            `json:"mark_generation"`
	Usage      store.Usage       `json:"usage"`
	FreeBytes  int64             `json:"free_bytes"`
	Namespaces []namespaceDoc    `json:"namespaces"`
	Findings   []findingDoc      `json:"findings"`
	Removed    []removedDoc      `json:"removed"`
	Rewritten  []store.Rewritten `json:"rewritten"`
}

type findingDoc struct {
	Severity string `json:"severity"` // "error", "warning" or "note"
	Area     string `json:"area"`
	Target   string `json:"target"`
	nameDoc
	Object *keyDoc `json:"object"` // null if it is not about one
	Text   string  `json:"text"`
	Hint   string  `json:"hint"`  // what can be done, or ""
	Mends  string  `json:"mends"` // what a repair writes anew because of it, or ""
}

type removedDoc struct {
	nameDoc
	keyDoc
	Text string `json:"text"` // what was wrong with it
}

// Fsck checks a store that nobody has open. It changes nothing unless it is told
// to repair, and then it only removes objects that are not what was put, and
// writes damaged superblock copies and labels, and what of the metadata holds nothing,
// anew.
func Fsck(ctx context.Context, e *Env, t *Target, o FsckOptions) error {
	if o.Yes && !o.Repair {
		return FsckArgs(usage("fsck", "--yes without --repair: a check alone changes nothing"))
	}
	r, repaired, err := fsck(ctx, e, t, o)
	if err != nil {
		return e.fail("fsck", couldNotRun(err))
	}
	if e.JSON {
		err = e.emit(docReport(r, repaired))
	} else {
		err = e.reportText(t, r, o, repaired)
	}
	switch {
	case err != nil:
		return couldNotRun(err) // 1 would mean that faults were repaired
	case !r.Clean():
		return quietly(ExitFaultsLeft)
	case repaired:
		return quietly(ExitRepaired)
	}
	return nil
}

// couldNotRun gives an error the exit status that fsck has for it.
func couldNotRun(err error) error {
	code := ExitNoCheck
	if c := ExitCode(err); c == ExitInterrupted || c == ExitPipe {
		code = c
	}
	return &status{code, err}
}

// fsck checks, repairs if it shall and must, and checks again. The report is
// that of the last check, with what was removed.
func fsck(ctx context.Context, e *Env, t *Target, o FsckOptions) (r *store.Report, repaired bool, err error) {
	r, err = check(ctx, e, t, o, store.Check)
	if err != nil || r.Clean() || !o.Repair || !o.Yes {
		return r, false, err
	}
	done, err := check(ctx, e, t, o, store.Repair)
	if err != nil {
		return nil, false, err
	}
	if r, err = check(ctx, e, t, o, store.Check); err != nil {
		return nil, false, err
	}
	r.Removed, r.Rewritten = done.Removed, done.Rewritten
	return r, r.Clean(), nil
}

type checker func(context.Context, store.Options, store.CheckOptions) (*store.Report, error)

func check(ctx context.Context, e *Env, t *Target, o FsckOptions, do checker) (*store.Report, error) {
	p, err := t.parts("fsck")
	if err != nil {
		return nil, err
	}
	readOnly := !o.Repair || !o.Yes
	devs, err := e.openDevices(ctx, t, p, readOnly)
	var small *base.TooSmall
	var at *base.Error
	if errors.As(err, &small) && errors.As(err, &at) {
		return store.Unopened(at.Object, err), nil // as one that was cut off elsewhere
	}
	if err != nil {
		return nil, err
	}
	co := store.CheckOptions{VerifyData: o.VerifyData, Removing: func(x store.Removed) error { return e.tellRemoved(t, x) }}
	var bar Bar
	if o.VerifyData {
		last := int64(0)
		co.Progress = func(done, total int64) {
			if bar == nil {
				bar = e.progress("verify", total)
			}
			bar.Add(done - last)
			last = done
		}
	}
	r, err := do(ctx, store.Options{Devices: devs, ReadOnly: readOnly,
		Meta: meta.Options{Dir: p.meta, ReadOnly: readOnly}}, co)
	if bar != nil {
		bar.Done()
	}
	return r, errors.Join(err, closeDevices(devs))
}

// tellRemoved lists an object before it is removed, so that the list survives an
// interrupt; beside a document, on standard error.
func (e *Env) tellRemoved(t *Target, x store.Removed) error {
	w := e.Stdout
	if e.JSON {
		w = e.Stderr
	}
	_, err := fmt.Fprintf(w, "removed: %s %s: %s\n", showName(x.Namespace), t.showKey(x.Key), x.Text)
	return base.Wrap("write", "the list of what is removed", err)
}

func docReport(r *store.Report, repaired bool) fsckDoc {
	d := fsckDoc{head("fsck", nil), r.Clean(), repaired, r.Verified, r.Layout, r.LastGen, r.MarkGen,
		r.Usage, r.FreeBytes, docNamespaces(r.Namespaces), []findingDoc{}, []removedDoc{}, r.Rewritten}
	for _, f := range r.Findings {
		fd := findingDoc{string(f.Severity), f.Area, f.Target, docName(f.Namespace), nil, f.Text, f.Hint, f.Mends}
		if f.Key != nil {
			k := docKey(f.Key)
			fd.Object = &k
		}
		d.Findings = append(d.Findings, fd)
	}
	for _, x := range r.Removed {
		d.Removed = append(d.Removed, removedDoc{docName(x.Namespace), docKey(x.Key), x.Text})
	}
	return d
}

func (e *Env) reportText(t *Target, r *store.Report, o FsckOptions, repaired bool) error {
	var h hints
	for _, f := range r.Findings {
		what := f.Area
		if f.Target != "" {
			what += " " + f.Target
		}
		if f.Key != nil {
			what += " " + showName(f.Namespace) + " " + t.showKey(f.Key)
		}
		if err := e.say("%s: %s: %s", f.Severity, what, f.Text); err != nil {
			return err
		}
		h.add(f.Hint)
	}
	if err := h.say(e); err != nil {
		return err
	}
	for _, w := range r.Rewritten {
		if err := e.say("written anew: %s of %s", w.What, w.Target); err != nil {
			return err
		}
	}
	return e.say("%s", verdict(r, o, repaired))
}

// verdict is the last line of fsck.
func verdict(r *store.Report, o FsckOptions, repaired bool) string {
	checked := count(r.Usage.Objects, "object") + " of " + base.FormatBytes(r.Usage.Bytes)
	if r.Verified {
		checked += ", every byte read"
	}
	checked += ": "
	if lost(r) {
		checked = "" // nobody could count them
	}
	faults := r.Faults()
	found := count(int64(faults), "error")
	if n := warnings(r); n > 0 && faults > 0 {
		found += " and " + count(int64(n), "warning")
	} else if n > 0 {
		found = count(int64(n), "warning")
	}
	switch {
	case repaired:
		return checked + "repaired"
	case r.Clean():
		return checked + "clean"
	case o.Repair && o.Yes:
		return checked + found + " left, which a repair cannot remove"
	case o.Repair && r.BeyondRepair() && faults == 0:
		return checked + found + "; nothing was changed, and a repair cannot help: get what can be read, and put it into a new store"
	case o.Repair && r.BeyondRepair():
		return checked + found + "; nothing was changed, and a repair cannot help: bring the missing parts back"
	case o.Repair:
		return checked + found + "; nothing was changed; with --yes, " + plan(r)
	}
	return checked + found + "; nothing was changed"
}

func warnings(r *store.Report) (n int) {
	for _, f := range r.Findings {
		if f.Severity == store.SevWarning {
			n++
		}
	}
	return n
}

// plan says what a repair would do.
func plan(r *store.Report) string {
	var does, mends []string
	if n := int64(len(r.Doomed())); n > 0 {
		does = append(does, count(n, "object")+" would be removed")
	}
	for _, f := range r.Findings {
		if f.Mends != "" {
			mends = append(mends, f.Mends+" of "+f.Target)
		}
	}
	if len(mends) > 0 {
		does = append(does, "this would be written anew: "+strings.Join(mends, ", "))
	}
	if len(does) == 0 {
		return "the store would be opened and closed, which mends what the warnings are about"
	}
	return strings.Join(does, " and ")
}

// lost tells whether a fault hides all objects.
func lost(r *store.Report) bool {
	return slices.ContainsFunc(r.Findings, func(f store.Finding) bool { return f.Key == nil && f.Severity == store.SevError })
}

// FsckArgs gives an error about arguments the exit status that fsck has for it.
func FsckArgs(err error) error {
	if err == nil {
		return nil
	}
	return &status{ExitNoCheck, err}
}
