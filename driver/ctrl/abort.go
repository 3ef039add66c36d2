package ctrl

import (
	"errors"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// A command that has passed its deadline is aborted before the controller is
// isolated because of it: a controller that still obeys keeps its other commands.
// It has a twentieth of the deadline for that, so that callers know within 1.1
// times the deadline either way. Until the command has ended its memory and its
// identifier stay in flight, whatever the Abort says (I4): a controller that says
// that it has not aborted the command may do so later (Base 5.1.1.2).
const (
	// graceShare is the part of a deadline that an Abort has.
	graceShare = 20
	// abortAgain is how often commands that wait for their Abort are looked at.
	abortAgain = time.Millisecond
)

// aborter sends Abort commands for commands that are late: one at a time, whatever
// the controller's ACL allows, and once for each (Base 5.1.1). It belongs to the
// admin queue's mutex.
type aborter struct {
	sent *adminWait // the last one
}

// abort asks the controller to abort the command of a slot of q, unless another
// Abort is in flight or the admin queue is in use; the caller holds q's mutex.
func (d *Device) abort(q *queue, s *slot) {
	admin := d.adminQ.Load()
	if admin == nil || !admin.mu.TryLock() {
		return
	}
	defer admin.mu.Unlock()
	admin.reap()
	a := &d.aborts
	if a.sent != nil && !a.sent.done.Load() {
		return
	}
	var c nvme.Command
	c.SetAbort(q.id, s.cid)
	w := new(adminWait)
	if admin.submit(&c, w, hw.Forever) == nil { // the late command's own end bounds it
		a.sent, s.aborted = w, true
		d.warn(base.Errorf(s.opc.Name(false), d.info.Target, base.ErrTimeout,
			"no completion within its deadline, command %d of queue %d is being aborted", s.cid, q.id))
	}
}

// overdue looks at a slot whose deadline has passed at now. It isolates the
// controller when the time for an Abort has passed too; else it tells when to look
// again. The caller holds mu.
func (q *queue) overdue(s *slot, now time.Duration) (again time.Duration, isolated bool) {
	end := s.due + q.dev.deadline(s.opc)/graceShare
	if q.id == 0 || now >= end { // admin commands are not aborted: something is badly wrong
		q.late(s)
		return 0, true
	}
	if !s.aborted {
		q.dev.abort(q, s)
	}
	if !s.aborted {
		end = min(end, now+abortAgain)
	}
	return end, false
}

// deadline is that of an I/O command.
func (d *Device) deadline(op nvme.Opcode) time.Duration {
	switch op {
	case nvme.OpFlush:
		return d.opts.Deadline.Flush
	case nvme.OpDSM:
		return d.opts.Deadline.Discard
	}
	return d.opts.Deadline.ReadWrite
}

// late isolates the controller because of a command that has not ended in time,
// and asks it whether it is still there.
func (q *queue) late(s *slot) {
	d := q.dev
	why := d.alive()
	if why == nil && s.aborted {
		why = errors.New("an Abort did not end it")
	}
	if why == nil {
		why = errors.New("the controller says nothing of it")
	}
	d.isolate(base.Errorf(s.opc.Name(q.id == 0), d.info.Target, base.ErrTimeout,
		"no completion within its deadline, command %d of queue %d: %w", s.cid, q.id, why))
}
