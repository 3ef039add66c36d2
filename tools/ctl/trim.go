package ctl

import (
	"context"

	"github.com/ugds-store/ugds/internal/base"
)

type trimDoc struct {
	header
	Bytes int64 `json:"bytes"` // also when it did not reach the end
}

// Trim tells the devices that every free slab holds nothing. An interrupt ends
// it between two slabs, with what was told so far.
func Trim(ctx context.Context, e *Env, t *Target) error {
	doc, begun := trimDoc{}, false
	err := e.with(ctx, "trim", t, false, func(s *session) (err error) {
		begun = true
		var bar Bar = noBar{}
		defer func() { bar.Done() }()
		last := int64(0)
		doc.Bytes, err = s.Trim(ctx, func(done, total int64) {
			if last == 0 {
				bar = e.progress("trim", total)
			}
			bar.Add(done - last)
			last = done
		})
		return err
	})
	if !begun || doc.Bytes == 0 && err != nil {
		return e.fail("trim", err)
	}
	if doc.header = head("trim", err); e.JSON {
		if werr := e.emit(doc); err == nil {
			err = werr
		}
		return err
	}
	if werr := e.say("%s of free space given back to the devices", base.FormatBytes(doc.Bytes)); err == nil {
		err = werr
	}
	return err
}
