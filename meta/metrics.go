package meta

import (
	"strings"
	"sync/atomic"
)

// Metrics counts since the open.
type Metrics struct {
	Commits, FailedCommits  int64
	WALSyncs                int64 // fdatasync calls on logs
	WALBytes, OtherBytes    int64 // written to logs; to tables, manifests and the rest
	BackgroundErrors        int64
	ParkedGoroutines        int64 // of the whole process
	OpenIterators, OpenUses int
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
