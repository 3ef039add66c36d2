package ctl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

// Bounds of one batch of Verify.
const (
	verifyKeys  = 1024
	verifyBytes = 64 * base.MiB
)

// VerifyOptions of Verify.
type VerifyOptions struct {
	Prefix string // "" is every key
	All    bool   // of every namespace, not of the target's alone
}

type verifyAnswer struct {
	header
	Namespaces []string   `json:"namespaces"`     // names, as in nameDoc
	NamesHex   []string   `json:"namespaces_hex"` // their bytes
	Objects    int64      `json:"objects"`        // read
	Bytes      int64      `json:"bytes"`
	NoChecksum int64      `json:"no_checksum"` // objects that can be read but not compared
	Wrong      []wrongDoc `json:"wrong"`
	Seconds    float64    `json:"seconds"`
}

// wrongDoc is an object that is not what was put.
type wrongDoc struct {
	nameDoc
	keyDoc
	errorDoc
	Hint string `json:"hint"` // what can be done, or ""

	key []byte
}

// Verify reads every value of a namespace, or of all, and compares its checksum.
// It lists each key that is wrong and changes nothing. An interrupt ends it with
// what was seen so far.
func Verify(ctx context.Context, e *Env, t *Target, o VerifyOptions) error {
	prefix, err := t.parsePrefix("verify", o.Prefix)
	if err != nil {
		return e.fail("verify", err)
	}
	v := &verify{e: e, t: t, prefix: prefix, all: o.All, doc: verifyAnswer{Namespaces: []string{}, NamesHex: []string{}, Wrong: []wrongDoc{}}}
	err = e.with(ctx, "verify", t, true, func(s *session) error { return v.run(ctx, s) })
	if !v.begun {
		return e.fail("verify", err)
	}
	return v.report(err)
}

// verify is a verification under way.
type verify struct {
	e      *Env
	t      *Target
	prefix []byte
	doc    verifyAnswer
	all    bool  // of every namespace
	others int64 // objects of the namespaces that are not read
	begun  bool
	bar    Bar

	// The batch.
	keys       [][]byte
	bytes      int64
	noChecksum int64
}

func (v *verify) run(ctx context.Context, s *session) error {
	names, total, err := v.names(ctx, s)
	if err != nil {
		return err
	}
	v.begun = true
	begin := time.Now()
	if v.prefix != nil {
		total = 0 // nobody knows
	}
	v.bar = v.e.progress("verify", total)
	defer func() {
		v.bar.Done()
		v.doc.Seconds = time.Since(begin).Seconds()
	}()
	for _, name := range names {
		n, err := s.Namespace(ctx, name, store.NamespaceOptions{})
		if err != nil {
			return err
		}
		at := docName(name)
		v.doc.Namespaces, v.doc.NamesHex = append(v.doc.Namespaces, at.Namespace), append(v.doc.NamesHex, at.NamespaceHex)
		if err := v.namespace(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// names gives the namespaces to read and the bytes of their values.
func (v *verify) names(ctx context.Context, s *session) (names []string, total int64, err error) {
	known, err := s.Namespaces(ctx)
	if err != nil {
		return nil, 0, err
	}
	for _, n := range known {
		if !v.all && n.Name != v.t.namespace() {
			v.others += n.Usage.Objects
			continue
		}
		names = append(names, n.Name)
		total += n.Usage.Bytes
	}
	if len(names) == 0 && !v.all && v.t.namespace() != DefaultNamespace {
		return nil, 0, base.Wrap("open namespace", v.t.namespace(), base.ErrNotFound)
	}
	return names, total, nil
}

// namespace reads the values of one namespace in batches.
func (v *verify) namespace(ctx context.Context, n *store.Namespace) error {
	for info, err := range n.List(ctx, store.ListOptions{Prefix: v.prefix}) {
		if err != nil {
			return err
		}
		v.keys = append(v.keys, info.Key)
		v.bytes += info.Size
		if !info.HasCRC {
			v.noChecksum++
		}
		if len(v.keys) == verifyKeys || v.bytes >= verifyBytes {
			if err := v.flush(ctx, n); err != nil {
				return err
			}
		}
	}
	return v.flush(ctx, n)
}

// flush reads one batch.
func (v *verify) flush(ctx context.Context, n *store.Namespace) error {
	errs := n.Verify(ctx, v.keys)
	if ctx.Err() != nil {
		return interrupted{}
	}
	for i, err := range errs {
		switch {
		case err == nil:
		case errors.Is(err, store.ErrDeviceGone) || errors.Is(err, store.ErrIsolated) || errors.Is(err, store.ErrClosed):
			return err // says nothing about this object
		default:
			class, _ := classify(err)
			cause, hint := base.Parts(err)
			v.doc.Wrong = append(v.doc.Wrong, wrongDoc{docName(n.Name()), docKey(v.keys[i]), errorDoc{class, cause}, hint, v.keys[i]})
		}
	}
	v.doc.Objects += int64(len(v.keys))
	v.doc.Bytes += v.bytes
	v.doc.NoChecksum += v.noChecksum
	v.bar.Add(v.bytes)
	v.keys, v.bytes, v.noChecksum = v.keys[:0], 0, 0
	return nil
}

// text lists what is wrong. It waits for the end: a bar would erase it.
func (v *verify) text(cut bool) error {
	var h hints
	for _, w := range v.doc.Wrong {
		if err := v.e.say("wrong: %s %s: %s", showName(w.Namespace), v.t.showKey(w.key), w.Text); err != nil {
			return err
		}
		h.add(w.Hint)
	}
	if err := h.say(v.e); err != nil {
		return err
	}
	if v.doc.Objects == 0 && !cut {
		return v.e.say("%s", v.nothing())
	}
	return v.e.say("%s", v.doc.verdict(cut))
}

func (v *verify) report(err error) error {
	d := &v.doc
	d.header = head("verify", err)
	var werr error
	if v.e.JSON {
		werr = v.e.emit(d)
	} else {
		werr = v.text(err != nil)
	}
	switch {
	case err != nil:
		return err
	case werr != nil:
		return werr
	case len(d.Wrong) > 0:
		return quietly(ExitFailure)
	}
	return nil
}

// nothing is the last line when no value was read: nobody shall take it for a proof.
func (v *verify) nothing() string {
	where := "in any namespace"
	if !v.all {
		where = "in namespace " + showName(v.t.namespace())
	}
	what := "there is no key " + where
	if v.prefix != nil {
		what = fmt.Sprintf("no key %s begins with %s", where, v.t.showKey(v.prefix))
	}
	text := "nothing was read: " + what
	if v.others > 0 {
		text += fmt.Sprintf(" (others hold %s: --namespace names one, --all-namespaces reads all)", count(v.others, "object"))
	}
	return text
}

// verdict is the last line when values were read.
func (d *verifyAnswer) verdict(cut bool) string {
	read := count(d.Objects, "object") + " of " + base.FormatBytes(d.Bytes)
	if d.NoChecksum > 0 {
		read += fmt.Sprintf(", %d of them stored without a checksum", d.NoChecksum)
	}
	switch n := len(d.Wrong); {
	case n > 0:
		return fmt.Sprintf("%s: %d wrong", read, n)
	case cut:
		return read + ": right so far"
	}
	return read + ": every byte is right"
}
