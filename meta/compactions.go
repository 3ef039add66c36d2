package meta

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// compactions lets Pebble compact once the database is open, and not before.
// Pebble starts compactions in the middle of Open; when Open then fails, it
// takes the caches away from under them and the process dies. Its own scheduler
// also leaves a goroutine behind a failed Open. Safe for concurrent use; its
// lock comes after those of Pebble.
type compactions struct {
	mu       sync.Mutex
	granted  sync.Cond // granting has become false
	db       pebble.DBForCompaction
	open     bool
	running  int
	granting bool
}

func newCompactions() *compactions {
	c := new(compactions)
	c.granted.L = &c.mu
	return c
}

// Register implements pebble.CompactionScheduler.
func (c *compactions) Register(_ int, db pebble.DBForCompaction) { c.db = db }

// Unregister waits until no call into the database is under way, and lets none
// begin any more.
func (c *compactions) Unregister() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = false
	for c.granting {
		c.granted.Wait()
	}
}

// opened lets compactions begin, the ones that Open wanted first.
func (c *compactions) opened() {
	c.mu.Lock()
	c.open = true
	c.mu.Unlock()
	c.grant()
}

// TrySchedule implements pebble.CompactionScheduler.
func (c *compactions) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open || c.running >= c.db.GetAllowedWithoutPermission() {
		return false, nil
	}
	c.running++
	return true, c
}

// UpdateGetAllowedWithoutPermission needs nothing: Pebble calls TrySchedule
// after each flush, which is when the number may rise.
func (c *compactions) UpdateGetAllowedWithoutPermission() {}

// grant hands waiting compactions what is free. Pebble's locks are taken inside,
// so ours is not held meanwhile.
func (c *compactions) grant() {
	for c.beginGrant() {
		waiting, _ := c.db.GetWaitingCompaction()
		ok := waiting && c.db.Schedule(c)
		c.mu.Lock()
		if !ok {
			c.running--
		}
		c.granting = false
		c.granted.Broadcast()
		c.mu.Unlock()
		if !ok {
			return
		}
	}
}

// beginGrant reserves one compaction; false when none may begin.
func (c *compactions) beginGrant() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.open && c.granting {
		c.granted.Wait()
	}
	if !c.open || c.running >= c.db.GetAllowedWithoutPermission() {
		return false
	}
	c.granting = true
	c.running++
	return true
}

// Started implements pebble.CompactionGrantHandle.
func (c *compactions) Started() {}

// MeasureCPU implements pebble.CompactionGrantHandle.
func (c *compactions) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements pebble.CompactionGrantHandle.
func (c *compactions) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// Done ends a compaction; the next may begin.
func (c *compactions) Done() {
	c.mu.Lock()
	c.running--
	c.mu.Unlock()
	c.grant()
}

var _ pebble.CompactionScheduler = (*compactions)(nil)
