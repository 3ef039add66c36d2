package sim

import (
	"time"

	"github.com/ugds-store/ugds/driver/nvme"
)

// The parts of ServiceFixed.
const (
	channels     = 8
	dies         = channels * 16
	pageRead     = 60 * time.Microsecond // of one page, on its die
	pageBytes    = 4096
	linkBytes    = 6000 // each microsecond, shared by all data
	flushTime    = time.Millisecond
	commandTime  = 5 * time.Microsecond // of everything that moves no data
	dieSpreading = 0x9e3779b97f4a7c15   // pages go to dies as if at random
)

// due is when a command that was fetched now has been served.
func (s *Sim) due(o *op) time.Duration {
	at := s.now
	if s.cfg.Service == ServiceFixed {
		at = s.fixed(o)
	}
	if f := o.fault; f != nil && f.Kind == FaultDelay && f.Delay > 0 {
		at += time.Duration(s.rnd.Int64N(int64(f.Delay) + 1))
	}
	return at
}

func (s *Sim) fixed(o *op) time.Duration {
	c := &o.cmd
	if o.sq.id == 0 {
		return s.now + commandTime
	}
	switch c.OPC {
	case nvme.OpFlush:
		return s.now + flushTime
	case nvme.OpRead, nvme.OpCompare, nvme.OpWrite:
	default:
		return s.now + commandTime
	}
	m := s.find(c.NSID.Get())
	if m == nil {
		return s.now + commandTime
	}
	first := c.SLBA() << m.ns.BlockShift
	n := uint64(c.Blocks()) << m.ns.BlockShift
	end := s.now
	for page := first / pageBytes; page <= (first+n-1)/pageBytes; page++ {
		ready := s.now
		if c.OPC != nvme.OpWrite { // a write is in the cache when its data has come
			die := (page * dieSpreading) >> 32 % dies
			ready = max(s.now, s.dies[die]) + pageRead
			s.dies[die] = ready
		}
		lo, hi := max(first, page*pageBytes), min(first+n, (page+1)*pageBytes)
		end = max(end, s.link.transfer(s.now, ready, hi-lo))
	}
	return end
}

// link is the capacity of the link that is used up, by microsecond. Data passes as
// soon as it is ready and there is room, so that a page on a busy die holds no
// other page up.
type link struct {
	used []uint32 // bytes, by microsecond from the one at from
	from int64    // every microsecond before is full or over
}

// drop forgets the first n microseconds.
func (l *link) drop(n int64) {
	l.used = l.used[min(n, int64(len(l.used))):]
	l.from += n
}

// transfer finds room for n bytes that are ready at some time, and tells when the
// last of them has passed.
func (l *link) transfer(now, ready time.Duration, n uint64) time.Duration {
	l.drop(max(now.Microseconds()-l.from, 0))
	for len(l.used) > 0 && l.used[0] == linkBytes {
		l.drop(1)
	}
	for at := max(ready.Microseconds(), l.from); ; at++ {
		for int64(len(l.used)) <= at-l.from {
			l.used = append(l.used, 0)
		}
		used := &l.used[at-l.from]
		take := min(n, uint64(linkBytes-*used))
		*used += uint32(take)
		if n -= take; n == 0 {
			passed := time.Duration(at)*time.Microsecond + time.Duration(*used)*time.Microsecond/linkBytes
			return max(ready, passed)
		}
	}
}
