package meta

import (
	"strings"
	"sync/atomic"
)

// Metrics counts since the open.
type Metrics struct {
	Commits          int64 `json:"commits"`
	FailedCommits    int64 `json:"failed_commits"`
	WALSyncs         int64 `json:"wal_syncs"`   // fdatasync calls on logs
	WALBytes         int64 `json:"wal_bytes"`   // written to logs
	OtherBytes       int64 `json:"other_bytes"` // to tables, manifests and the rest
	BackgroundErrors int64 `json:"background_errors"`
	ParkedGoroutines int64 `json:"parked_goroutines"` // of the whole process
	OpenIterators    int   `json:"open_iterators"`
	OpenUses         int   `json:"open_uses"`
}

type stats struct {
	commits, failed      atomic.Int64
	walSyncs             atomic.Int64
	walBytes, otherBytes atomic.Int64
	background           atomic.Int64
}

func (s *stats) written(path string, n int) {
	if strings.HasSuffix(path, ".log") {
		s.walBytes.Add(int64(n))
	} else {
		s.otherBytes.Add(int64(n))
	}
}

// Metrics is a snapshot of the counters. It is safe for concurrent use, also
// after Close.
func (d *DB) Metrics() Metrics {
	s := &d.fs.stats
	return Metrics{
		Commits: s.commits.Load(), FailedCommits: s.failed.Load(), WALSyncs: s.walSyncs.Load(),
		WALBytes: s.walBytes.Load(), OtherBytes: s.otherBytes.Load(), BackgroundErrors: s.background.Load(),
		ParkedGoroutines: ParkedGoroutines(), OpenIterators: int(d.iters.Load()), OpenUses: d.life.users(),
	}
}
