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
	dieSpreading = 0x9e3779b97f4a7c15   // neighbours go to different dies, distant pages as if at random
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
	slots []slot // by microsecond from the one at from
	from  int64  // every microsecond before is full or over
}

// slot is one microsecond of a link.
type slot struct {
	used uint32 // bytes: what has passed, or could have before the first data was ready
	skip uint32 // of a full one: every slot nearer than that is full, too
}

// drop forgets the first n microseconds.
func (l *link) drop(n int64) {
	l.slots = l.slots[min(n, int64(len(l.slots))):]
	l.from += n
}

// room is the first slot from i on that is not full. What lies before it is passed in
// one step by those who come later: a deep queue would look at each full microsecond
// for each of its pages, and a real clock would show that.
func (l *link) room(i int64) int64 {
	end := i
	for end < int64(len(l.slots)) && l.slots[end].used == linkBytes {
		end += int64(l.slots[end].skip)
	}
	for i < end {
		s := &l.slots[i]
		i, s.skip = i+int64(s.skip), uint32(end-i)
	}
	return end
}

// transfer finds room for n bytes that are ready at some time, and tells when the
// last of them has passed.
func (l *link) transfer(now, ready time.Duration, n uint64) time.Duration {
	l.drop(max(now.Microseconds()-l.from, 0))
	l.drop(l.room(0))
	first := ready.Microseconds() - l.from
	early := uint32(ready % time.Microsecond * linkBytes / time.Microsecond) // bytes of first, over when the data is ready
	for i := max(first, 0); ; i++ {
		i = l.room(i)
		for int64(len(l.slots)) <= i {
			l.slots = append(l.slots, slot{skip: 1})
		}
		s := &l.slots[i]
		if i == first {
			s.used = max(s.used, early)
		}
		take := min(n, uint64(linkBytes-s.used))
		s.used += uint32(take)
		if n -= take; n == 0 {
			return time.Duration(l.from+i)*time.Microsecond + time.Duration(s.used)*time.Microsecond/linkBytes
		}
	}
}
