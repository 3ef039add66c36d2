package testenv

import "math/rand/v2"

// Shape of a made trace: the longest run of new blocks in a request, from how far back
// a conversation is taken up again, and how rarely a block stands in a request twice.
const (
	traceGrowth = 40
	traceBack   = 50
	traceTwice  = 20
)

// Trace makes requests of block references as a service for language models leaves
// them: conversations that begin alike and grow, some blocks twice in a request.
func Trace(r *rand.Rand, requests int) (all [][]uint64) {
	next := uint64(1)
	for range requests {
		ids := []uint64{0} // every request begins with the same block
		if len(all) > 0 && r.IntN(3) > 0 {
			from := all[max(0, len(all)-1-r.IntN(traceBack))]
			ids = append([]uint64(nil), from[:1+r.IntN(len(from))]...)
		}
		for n := r.IntN(traceGrowth); n > 0; n-- {
			if r.IntN(traceTwice) == 0 {
				ids = append(ids, ids[r.IntN(len(ids))])
				continue
			}
			ids = append(ids, next)
			next++
		}
		all = append(all, ids)
	}
	return all
}

// CountTrace counts what a replay of the requests must count, one reference after the
// other; there is what is in the cache before, and is what is in it after.
func CountTrace(all [][]uint64, there map[uint64]bool) (refs, hits, puts int64) {
	for _, ids := range all {
		for _, id := range ids {
			refs++
			if there[id] {
				hits++
			} else {
				puts++
				there[id] = true
			}
		}
	}
	return refs, hits, puts
}
