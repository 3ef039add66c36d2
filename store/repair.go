package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
)

// repairBatch is how many records one commit of Repair removes.
const repairBatch = 1024

// Repair checks the store and removes every object that has a fault: it only
// removes, and lists each key in Report.Removed. Damaged superblock copies and
// labels, a lost lock file and damaged settings of Pebble are written anew and
// listed in Report.Rewritten. Faults of the identities or of the database itself
// are left; the report holds them. What is right stays as it is.
func Repair(ctx context.Context, o Options, c CheckOptions) (*Report, error) {
	o.fill()
	r, err := Check(ctx, o, c)
	if err != nil {
		return nil, err
	}
	var mended []Rewritten
	for _, m := range mendable {
		if !r.needs(m.what) {
			continue
		}
		if err := m.mend(o.Meta); err != nil {
			return r, err
		}
		if r, err = Check(ctx, o, c); err != nil {
			return nil, err
		}
		mended = append(mended, Rewritten{o.Meta.Dir, m.what})
	}
	r.Rewritten = append(r.Rewritten, mended...)
	if r.BeyondRepair() {
		return r, nil // what Open refuses, or opens for reading alone, is not for us to judge
	}
	if r.Clean() && mended == nil {
		return r, nil
	}
	if err := removeRecords(ctx, o.Meta, r.Doomed(), r, c.Removing); err != nil {
		return r, err
	}
	// An ordinary open and close: it proves that the store opens again, and
	// writes all superblock copies, unless too few are left to open for writing.
	s, err := Open(ctx, o)
	if err != nil {
		return r, base.Wrap("repair", "store", err)
	}
	why := s.ReadOnly()
	if err := s.Close(ctx); err != nil || why != nil {
		return r, err
	}
	return r, r.rewritten(ctx, o.Devices)
}

// BeyondRepair tells whether the store does not open for writing, which Repair needs: it
// changes nothing then. What Mends names is mended before.
func (r *Report) BeyondRepair() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool {
		return f.Severity == SevError && f.Key == nil && f.Mends == "" ||
			f.Severity == SevWarning && f.Area == "superblock" && f.Target == ""
	})
}

// mendable are the files of the metadata that hold nothing of the store, and without
// which, or with a damage in which, Check sees nothing; in the order in which it meets
// them. The open that follows in Repair writes the second anew.
var mendable = []struct {
	what  string // as a Finding and Rewritten call it
	cause error
	mend  func(meta.Options) error
}{
	{"lock file", meta.ErrLockLost, meta.RestoreLock},
	{"Pebble's settings", meta.ErrOptionsDamaged, meta.DropOptions},
}

// needs tells whether what must be mended before Check sees anything.
func (r *Report) needs(what string) bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Mends == what })
}

// Doomed are the objects that Repair removes: one finding for each, the first.
func (r *Report) Doomed() []Finding {
	type name struct{ ns, key string }
	seen := map[name]bool{}
	var out []Finding
	for _, f := range r.Findings {
		at := name{fmt.Sprint(f.ns, f.Namespace), string(f.Key)}
		if f.Severity == SevError && f.Key != nil && !seen[at] {
			seen[at] = true
			out = append(out, f)
		}
	}
	return out
}

// rewritten writes the labels that are damaged, and lists them with the
// superblock copies that the open wrote.
func (r *Report) rewritten(ctx context.Context, devs []driver.Device) error {
	for _, f := range r.Findings {
		if f.Mends == "" {
			continue
		}
		if f.Mends == labelName {
			if err := rewriteLabel(ctx, devs, f.Target); err != nil {
				return base.Wrap("repair the label of", f.Target, err)
			}
		}
		r.Rewritten = append(r.Rewritten, Rewritten{f.Target, f.Mends})
	}
	return nil
}

func rewriteLabel(ctx context.Context, devs []driver.Device, target string) error {
	for _, d := range devs {
		if d.Info().Target != target {
			continue
		}
		io, err := newBlockIO(d)
		if err != nil {
			return err
		}
		defer io.close()
		q, err := io.readSupers(ctx)
		if err != nil {
			return err
		}
		if err := io.writeLabel(ctx, q.super.Layout.Capacity); err != nil {
			return err
		}
		return flushIfVolatile(ctx, d)
	}
	return nil
}

// removeRecords deletes the records of faulty objects.
func removeRecords(ctx context.Context, mo meta.Options, doomed []Finding, r *Report, tell func(Removed) error) error {
	if len(doomed) == 0 {
		return nil
	}
	db, err := meta.Open(mo)
	if err != nil {
		return base.Wrap("repair", "metadata", err)
	}
	defer db.Close(ctx)
	names, err := db.Namespaces()
	if err != nil {
		return err
	}
	ids := map[string]uint32{}
	for _, n := range names {
		ids[n.Name] = n.ID
	}
	last := db.Header().LastGen
	for len(doomed) > 0 {
		n := min(len(doomed), repairBatch)
		b := meta.NewBatch()
		for _, f := range doomed[:n] {
			if tell != nil {
				if err := tell(Removed{f.Namespace, f.Key, f.Text}); err != nil {
					return err
				}
			}
			b.Delete(f.nsID(ids), f.Key)
		}
		b.SetLastGen(last)
		if err := db.Commit(ctx, b); err != nil {
			return base.Wrap("repair", "metadata", err)
		}
		for _, f := range doomed[:n] {
			r.Removed = append(r.Removed, Removed{f.Namespace, f.Key, f.Text})
		}
		doomed = doomed[n:]
	}
	return nil
}

func (f *Finding) nsID(ids map[string]uint32) uint32 {
	if id, ok := ids[f.Namespace]; ok {
		return id
	}
	return f.ns
}
