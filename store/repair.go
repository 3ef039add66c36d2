package store

import (
	"context"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
)

// repairBatch is how many records one commit of Repair removes.
const repairBatch = 1024

// Repair checks the store and removes every object that has a fault: it only
// removes, and lists each key in Report.Removed. Damaged superblock copies are
// written anew. Faults of the identities or of the database itself are left; the
// report holds them. What is right stays as it is.
func Repair(ctx context.Context, o Options, c CheckOptions) (*Report, error) {
	o.fill()
	r, err := Check(ctx, o, c)
	if err != nil {
		return nil, err
	}
	var doomed []Finding
	for _, f := range r.Findings {
		if f.Severity == SevError && f.Key == nil {
			return r, nil // what Open refuses is not for us to judge
		}
		if f.Severity == SevError {
			doomed = append(doomed, f)
		}
	}
	if r.Clean() {
		return r, nil
	}
	if err := removeRecords(ctx, o.Meta, doomed, r, c.Removing); err != nil {
		return r, err
	}
	// An ordinary open and close: it proves that the store opens again, and
	// writes all superblock copies.
	s, err := Open(ctx, o)
	if err != nil {
		return r, base.Wrap("repair", "store", err)
	}
	return r, s.Close(ctx)
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
				if err := tell(Removed{f.Namespace, f.Key}); err != nil {
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
			r.Removed = append(r.Removed, Removed{f.Namespace, f.Key})
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
