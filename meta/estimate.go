package meta

import "github.com/cockroachdb/pebble/v2"

// EstimateRecords is about how many records the database holds, from what its
// tables say of themselves; those of the log are not counted, and records that
// were replaced may be counted twice. 0 when it cannot tell.
func (d *DB) EstimateRecords() int64 {
	if d.life.enter("estimate") != nil {
		return 0
	}
	defer d.life.leave()
	levels, err := d.p.SSTables(pebble.WithProperties())
	if err != nil {
		return 0
	}
	var puts, deletes uint64
	for _, tables := range levels {
		for _, t := range tables {
			if t.Properties != nil {
				puts += t.Properties.NumEntries
				deletes += t.Properties.NumDeletions
			}
		}
	}
	return max(0, int64(puts)-2*int64(deletes))
}
