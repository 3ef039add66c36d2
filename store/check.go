package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
)

// Severity of a finding.
type Severity string

const (
	// SevError is a fault: the store refuses to open, or an object cannot be read.
	SevError Severity = "error"
	// SevWarning is damage that the store repairs or lives with.
	SevWarning Severity = "warning"
	// SevNote is something worth knowing.
	SevNote Severity = "note"
)

// Finding is one thing that Check saw.
type Finding struct {
	Severity  Severity `json:"severity"`
	Area      string   `json:"area"`   // "superblock", "identity", "metadata", "object"
	Target    string   `json:"target"` // device, directory, or ""
	Namespace string   `json:"namespace,omitempty"`
	Key       []byte   `json:"key,omitempty"`
	Text      string   `json:"text"`
	Hint      string   `json:"hint,omitempty"`  // what can be done; the same for many findings
	Mends     string   `json:"mends,omitempty"` // what Repair writes anew on Target because of it

	ns uint32 // of the record, when no namespace has this number
}

// reportVersion is the version of the JSON form of Report.
const reportVersion = 1

// Report is the answer of Check.
type Report struct {
	Version    int             `json:"version"`
	Layout     *Layout         `json:"layout,omitempty"` // nil when the superblocks do not tell
	LastGen    uint64          `json:"last_generation"`
	MarkGen    uint64          `json:"mark_generation"` // the highest generation that a device proves
	Usage      Usage           `json:"usage"`
	FreeBytes  int64           `json:"free_bytes"`
	Namespaces []NamespaceInfo `json:"namespaces"`
	Findings   []Finding       `json:"findings"`
	// Verified tells that every value was read and compared with its checksum.
	Verified bool `json:"verified"`
	// Removed are the objects that Repair took away.
	Removed []Removed `json:"removed"`
	// Rewritten is what Repair wrote anew.
	Rewritten []Rewritten `json:"rewritten"`

	refused []Finding // objects whose extents the allocator refused
}

// Removed is an object that Repair took away.
type Removed struct {
	Namespace string `json:"namespace"`
	Key       []byte `json:"key"`
	Text      string `json:"text"` // what was wrong with it
}

// Rewritten is what Repair wrote anew on a device: a superblock copy, the label.
type Rewritten struct {
	Target string `json:"target"`
	What   string `json:"what"`
}

// CheckOptions of Check and Repair.
type CheckOptions struct {
	// VerifyData reads every value and compares it with its checksum.
	VerifyData bool
	// Progress is told the bytes of values read so far, and of all. May be nil.
	Progress func(done, total int64)
	// Removing is told of each object that Repair is about to remove, before
	// anything of its batch is; an error ends the repair there. May be nil.
	Removing func(Removed) error
}

// Clean reports whether nothing is wrong.
func (r *Report) Clean() bool {
	for _, f := range r.Findings {
		if f.Severity != SevNote {
			return false
		}
	}
	return true
}

// Faults is the number of errors.
func (r *Report) Faults() (n int) {
	for _, f := range r.Findings {
		if f.Severity == SevError {
			n++
		}
	}
	return n
}

func (r *Report) add(sev Severity, area, target string, err error) {
	_, hint := base.Parts(err)
	text := strings.ReplaceAll(err.Error(), " ("+hint+")", "")
	r.Findings = append(r.Findings, Finding{Severity: sev, Area: area, Target: target, Text: text, Hint: hint})
}

// Unopened is the report on a store whose device target does not open because of err: it
// is not what the store was made on.
func Unopened(target string, err error) *Report {
	r := newReport()
	r.add(SevError, "superblock", target, err)
	return r
}

func newReport() *Report {
	return &Report{Version: reportVersion, Namespaces: []NamespaceInfo{}, Findings: []Finding{}, Removed: []Removed{}, Rewritten: []Rewritten{}}
}

// Check looks at everything that the store's promises rest on: each superblock
// copy, the identities, the commit marks, every metadata record, that no two
// objects overlap, and what follows from them. It changes nothing, goes on after
// a fault as far as that makes sense, and reports what it saw. An error means
// that it could not run: a device or the database cannot be read, or has an owner.
func Check(ctx context.Context, o Options, c CheckOptions) (*Report, error) {
	o.fill()
	o.ReadOnly = true
	r := newReport()
	if err := r.supers(ctx, o.Devices); err != nil {
		return nil, err
	}
	if r.Faults() > 0 {
		return r, nil
	}
	p, err := examine(ctx, o.Devices, o.Meta)
	if err != nil {
		return r.fault(err, "identity", o.Meta.Dir)
	}
	r.Layout, r.MarkGen = &p.layout, p.top.Gen
	if p.readOnly != nil {
		r.add(SevWarning, "superblock", "", p.readOnly)
	}
	s := newStore(o, p)
	defer s.abandon(ctx)
	if err := s.loadWith(ctx, p, func(ctx context.Context) error { return s.db.Scan(ctx, r.record(s)) }); err != nil {
		return r.fault(err, "metadata", o.Meta.Dir)
	}
	r.LastGen = s.db.Header().LastGen
	r.marks()
	for _, st := range s.ns {
		u := st.usage()
		r.Namespaces = append(r.Namespaces, NamespaceInfo{st.name, st.layout, u})
	}
	sortNamespaces(r.Namespaces)
	r.Usage = s.Usage()
	r.FreeBytes = p.layout.PoolBytes - r.Usage.SlotBytes
	if len(r.refused) > 0 {
		err = r.overlaps(ctx, s)
	}
	if err == nil && c.VerifyData {
		err = r.verifyData(ctx, s, c.Progress)
	}
	return r, err
}

// marks tells what the commit marks do not cover. Every round but the first
// writes one, so that a store of many rounds without any has lost them.
func (r *Report) marks() {
	switch {
	case r.LastGen <= r.MarkGen:
	case r.MarkGen == 0 && r.LastGen > 3*MaxRoundOps:
		r.Findings = append(r.Findings, Finding{Severity: SevWarning, Area: "marks",
			Text: "no device has a valid commit mark: an older copy of the metadata would not be noticed; opening the store for writing makes one"})
	default:
		r.Findings = append(r.Findings, Finding{Severity: SevNote, Area: "marks",
			Text: "the last round is not covered by a commit mark: the store was not closed, or its marks are damaged"})
	}
}

// fault turns a refusal into a finding; anything else means Check could not run.
func (r *Report) fault(err error, area, target string) (*Report, error) {
	if IsRefusal(err) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotSupported) {
		r.add(SevError, area, target, err)
		for _, m := range mendable {
			if errors.Is(err, m.cause) {
				r.Findings[len(r.Findings)-1].Mends = m.what
			}
		}
		return r, nil
	}
	return nil, err
}

// supers looks at every superblock copy of every device.
func (r *Report) supers(ctx context.Context, devs []driver.Device) error {
	for _, d := range devs {
		io, err := newBlockIO(d)
		if err != nil {
			return err
		}
		q, err := io.readSupers(ctx)
		if err == nil {
			err = r.label(ctx, io, q)
		}
		io.close()
		target := d.Info().Target
		if err != nil {
			if _, err := r.fault(err, "superblock", target); err != nil {
				return err
			}
			continue
		}
		for i, err := range q.faults {
			if err != nil {
				r.mend("superblock", target, "superblock copy "+strconv.Itoa(i), fmt.Sprintf("copy %d: %v", i, err), q.whole)
			}
		}
	}
	return nil
}

// mend reports damage that Repair writes over, if it can.
func (r *Report) mend(area, target, what, text string, can bool) {
	hint := ""
	if can {
		hint = "no value is lost by a damaged label or superblock copy: `ugdsctl fsck --repair --yes` writes it anew"
	}
	r.Findings = append(r.Findings, Finding{Severity: SevWarning, Area: area, Target: target, Text: text, Hint: hint, Mends: what})
}

// label looks at what tells other programs that the device is not blank.
func (r *Report) label(ctx context.Context, io *blockIO, q quorum) error {
	b, err := io.read(ctx, labelOff, base.StoreBlock)
	if err != nil {
		return err
	}
	want := make([]byte, base.StoreBlock)
	encodeLabel(want, q.super.Layout.Capacity)
	if !bytes.Equal(b, want) {
		r.mend("label", io.dev.Info().Target, labelName,
			"block 0 is not what the format wrote: other programs may take the device for blank or for their own", q.whole)
	}
	return nil
}

// record collects what is wrong with single objects.
func (r *Report) record(s *Store) func(uint32, []byte, *meta.Record) error {
	return func(nsID uint32, key []byte, rec *meta.Record) error {
		err := s.loadRecord(nsID, key, rec)
		if err == nil {
			return nil
		}
		if !isCorrupt(err) {
			return err
		}
		cause, hint := base.Parts(err)
		f := Finding{Severity: SevError, Area: "object", Key: append([]byte(nil), key...), Text: cause, Hint: hint, ns: nsID}
		if ns := s.nsByID[nsID]; ns != nil {
			f.Namespace = ns.name
		}
		if errors.Is(err, errOverlap) {
			r.refused = append(r.refused, f) // judged in pairs, once everything is loaded
		} else {
			r.Findings = append(r.Findings, f)
		}
		if len(r.Findings)+len(r.refused) >= maxFindings {
			return base.Errorf("check", "store", ErrCorrupt, "more than %d faults", maxFindings)
		}
		return nil
	}
}

// maxFindings bounds a report.
const maxFindings = 100000
