package store

import (
	"time"

	"github.com/ugds-store/ugds/internal/statpage"
)

// Published is what other processes see of an open store.
type Published struct {
	Kind    string    `json:"kind"` // "store"
	Program string    `json:"program"`
	Store   string    `json:"store_id"`
	Since   time.Time `json:"since"` // Publish was called
	Devices []string  `json:"devices"`
	Stats   Stats     `json:"stats"`
}

// PublishedKind is Published.Kind.
const PublishedKind = "store"

// Publish shows the counters of the store to other processes, which read them by
// the pid of this one (ugdsctl stats), until stop is called, which must be before
// Close. program names this one for people. What they see is at most every old;
// from 10 ms to an hour.
func (s *Store) Publish(program string, every time.Duration) (stop func(), err error) {
	doc := Published{Kind: PublishedKind, Program: program, Store: s.layout.StoreID.String(), Since: time.Now()}
	for _, d := range s.devs {
		doc.Devices = append(doc.Devices, d.Info().Target)
	}
	page, err := statpage.Publish(func() any {
		now := doc
		now.Stats = s.Stats()
		return now
	}, every)
	if err != nil {
		return nil, err
	}
	return func() { _ = page.Close() }, nil
}
