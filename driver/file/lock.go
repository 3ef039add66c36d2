package file

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// How the lock of a dead owner is awaited.
const (
	lockPoll  = 5 * time.Millisecond
	scanEvery = time.Second // looking through /proc for holders is not free
	// lockGrace is how long an unknown holder is given: a process that is just
	// being started may have a copy of a closed descriptor, and one that is being
	// killed may hold a file that it had not signed yet.
	lockGrace = 200 * time.Millisecond
)

// errHeld says that somebody else has the lock or the block device.
var errHeld = errors.New("held")

// acquire opens and locks the file. When somebody holds it, a living owner gives
// ErrLocked at once; for a dead one it waits up to o.Wait, because the kernel
// keeps the lock until the owner's last request has landed.
func acquire(ctx context.Context, o *Options) (*handle, error) {
	start := time.Now()
	var lastScan time.Time
	var waited string
	for {
		h, err := tryOpen(o)
		if err == nil {
			if waited != "" {
				h.reason("waited %v: %s", time.Since(start).Round(time.Millisecond), waited)
			}
			return h, nil
		}
		if !errors.Is(err, errHeld) {
			return nil, err
		}
		v := judge(o.Path, time.Since(lastScan) >= scanEvery)
		if time.Since(lastScan) >= scanEvery {
			lastScan = time.Now()
		}
		if err := giveUp(ctx, o, v, time.Since(start)); err != nil {
			return nil, err
		}
		if waited == "" && !v.unknown {
			waited = v.why
			if o.OnWait != nil {
				o.OnWait(v.why)
			}
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
		}
	}
}

// giveUp decides whether waiting makes sense; nil means wait.
func giveUp(ctx context.Context, o *Options, v verdict, waited time.Duration) error {
	switch {
	case v.unknown && waited < lockGrace && ctx.Err() == nil:
		return nil
	case v.inUse:
		return base.WithHint(base.Errorf("open", o.Path, base.ErrInUse, "%s", v.why),
			"unmount or release it, or choose another device")
	case !v.dead:
		return base.WithHint(base.Errorf("open", o.Path, base.ErrLocked, "%s", v.why), "%s", base.OwnerHint(v.pid))
	case ctx.Err() != nil:
		return base.Errorf("open", o.Path, base.ErrLocked, "%s; gave up after %v: %w",
			v.why, waited.Round(time.Millisecond), context.Cause(ctx))
	case waited >= o.Wait:
		return base.WithHint(base.Errorf("open", o.Path, base.ErrLocked, "%s; waited %v",
			v.why, waited.Round(time.Millisecond)), "try again, or wait longer")
	}
	return nil
}

// InUse refuses a file or block device that Open would refuse for writing because it is
// mounted, swap, behind a loop device or otherwise held. It changes nothing, and of locks
// it knows only those of what is behind a loop device and of others over the same.
func InUse(path string) error {
	st, err := unix.StatPath(path)
	if err != nil {
		return base.Wrap("open", path, err)
	}
	if st.Kind == unix.KindBlock {
		if who := unix.BlockHolders(st.Rdev); len(who) > 0 {
			return giveUp(context.Background(), &Options{Path: path}, verdict{inUse: true, why: who[0]}, 0)
		}
	}
	return unclaimed(path, st)
}

// unclaimed refuses what is in use without a claim that the kernel would refuse Open for:
// a loop device claims nothing of what is behind it, and neither does a store there.
func unclaimed(path string, st unix.Stat) error {
	if who := unix.LoopsOver(st); len(who) > 0 {
		return giveUp(context.Background(), &Options{Path: path}, verdict{inUse: true, why: who[0]}, 0)
	}
	for range maxLoops {
		if st.Kind != unix.KindBlock {
			return nil
		}
		behind := unix.BehindLoop(st.Rdev)
		bst, err := unix.StatPath(behind)
		if behind == "" || err != nil {
			return nil
		}
		if who := unix.UsedBehind(st.Rdev, bst); len(who) > 0 {
			return giveUp(context.Background(), &Options{Path: path},
				verdict{inUse: true, why: behind + " is behind it, and " + who[0]}, 0)
		}
		if err := othersBehind(path, behind, st, bst); err != nil {
			return err
		}
		st = bst
	}
	return nil
}

// othersBehind refuses a loop device when somebody, a reader as well, has what is behind it
// or another loop device over the same bytes: their locks are not on this one.
func othersBehind(path, behind string, st, bst unix.Stat) error {
	o := &Options{Path: path}
	if v, held := holder(behind, bst); held {
		v.why = behind + " is behind it, and " + v.why
		return giveUp(context.Background(), o, v, 0)
	}
	for _, other := range unix.LoopsBeside(st.Rdev, bst) {
		ost, err := unix.StatPath(other)
		if err != nil || ost.Kind != unix.KindBlock {
			continue // a container need not have it
		}
		if v, held := holder(other, ost); held {
			v.why = other + " is over the same " + behind + ", and " + v.why
			return giveUp(context.Background(), o, v, 0)
		}
	}
	return nil
}

// holder tells whether somebody has the lock of a file or device that is not to be opened,
// and who. It is patient, as with an unknown holder.
func holder(path string, st unix.Stat) (v verdict, held bool) {
	for end := time.Now().Add(lockGrace); isLocked(path, st); time.Sleep(lockPoll) {
		if time.Now().After(end) {
			v = judge(path, true)
			v.unknown = false
			return v, true
		}
	}
	return verdict{}, false
}

// isLocked takes the lock for a moment, since not every holder can be seen in /proc; that
// has to do where the lock cannot be tried.
func isLocked(path string, st unix.Stat) bool {
	f, err := unix.Open(path, unix.ReadOnly|unix.NonBlock, 0)
	if err == nil {
		defer func() { _ = f.Close() }()
		if err = unix.TryFlock(f, unix.LockExclusive); err == nil {
			_ = unix.Unflock(f)
			return false
		}
	}
	return err == unix.EAGAIN || unix.LockedBy(st) > 0
}

// maxLoops bounds a chain of loop devices, of which each is over the next.
const maxLoops = 16

// MayWrite refuses, with ErrReadOnly, what Open would refuse for writing because
// it is read-only for this process. It writes nothing and knows nothing of locks.
func MayWrite(path string) error {
	err := unix.MayWrite(path)
	if err == nil {
		err = blockReadOnly(path)
	}
	if err != nil {
		return openError(&Options{Path: path}, unix.ErrnoOf(err))
	}
	return nil
}

// blockReadOnly is EROFS for a block device that takes no writes.
func blockReadOnly(path string) error {
	st, err := unix.StatPath(path)
	if err != nil || st.Kind != unix.KindBlock {
		return err
	}
	f, err := unix.Open(path, unix.ReadOnly, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if ro, err := unix.BlockReadOnly(f); err != nil || ro {
		return unix.EROFS
	}
	return nil
}

// verdict is who holds a file and whether they can still let go by themselves.
type verdict struct {
	dead  bool // the owner is dead; its requests are landing
	inUse bool // mounted, or held by something that is not a store
	// unknown: nobody was found who holds it
	unknown bool
	pid     int // of who holds it and lives, 0 if not known
	why     string
}

// landing is told of an owner that is not there. From within a container those outside,
// and in others, look like that.
const landing = " is dead and its last requests are still landing, or it lives in another container"

// judge names the holder of path. Everything it reads is text for people and a
// reason to wait or not; the lock alone decides who owns the file.
func judge(path string, scan bool) verdict {
	st, err := unix.StatPath(path)
	if err != nil {
		return verdict{why: err.Error()}
	}
	if st.Kind == unix.KindBlock {
		if who := unix.BlockHolders(st.Rdev); len(who) > 0 {
			return verdict{inUse: true, why: who[0]}
		}
	}
	rec, known := readRecord(path, st)
	if known && rec.Alive() {
		return verdict{pid: rec.PID, why: rec.String() + " has it open"}
	}
	if scan {
		if pids := unix.LockHolders(st); len(pids) > 0 {
			why := fmt.Sprintf("pid %d (%s) holds the lock", pids[0], unix.ProcName(pids[0]))
			if known {
				why += "; it inherited it from " + rec.String() + ", which is dead"
			}
			return verdict{pid: pids[0], why: why}
		}
	}
	if known {
		return verdict{dead: true, why: rec.String() + landing}
	}
	if pid := unix.LockOwner(st); pid > 0 {
		if (unix.Proc{PID: pid}).Alive() {
			return verdict{pid: pid, why: fmt.Sprintf("pid %d (%s) has it locked", pid, unix.ProcName(pid))}
		}
		return verdict{dead: true, why: fmt.Sprintf("pid %d", pid) + landing}
	}
	if st.Kind == unix.KindBlock {
		return verdict{inUse: true, unknown: true, why: "another program has opened it exclusively"}
	}
	return verdict{unknown: true, why: "another process has it locked"} // or it was let go of just now
}
