package ctrl

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// adminEntries is the size of the admin queues: a few commands and the
// asynchronous event requests.
const adminEntries = 32

// maxEvents is how many asynchronous event requests are kept outstanding.
const maxEvents = 4

// adminWait is an admin command that somebody waits for.
type adminWait struct {
	sent   bool // the controller has it, or had it
	done   atomic.Bool
	status nvme.Status
	dw0    uint32
	err    error // it never ended: the controller was stopped
}

// send submits an admin command. A deadline of hw.Forever is none.
func (q *queue) send(cmd *nvme.Command, w *adminWait, deadline time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.submit(cmd, w, deadline)
}

// submit is send for a caller that holds mu.
func (q *queue) submit(cmd *nvme.Command, w *adminWait, deadline time.Duration) error {
	switch {
	case q.dead:
		return q.dev.gone(cmd.OPC.Name(true))
	case !q.room():
		return base.Errorf(cmd.OPC.Name(true), q.dev.info.Target, base.ErrBusy, "the admin queue is full")
	}
	s := q.take()
	s.admin, w.sent = w, true
	q.sqe[q.tail] = *cmd
	due := hw.Forever
	if deadline != hw.Forever {
		due = q.dev.hw.Now() + deadline
	}
	q.put(s, due)
	q.ring()
	return nil
}

// inFlight tells whether the command may still use its memory. After the wait for it.
func (w *adminWait) inFlight() bool { return w.sent && !w.done.Load() }

// admin sends an admin command and polls until it ends (Base 5). The wait ends
// with ctx, or with the deadline: then the controller is isolated.
func (d *Device) admin(ctx context.Context, cmd *nvme.Command) (dw0 uint32, err error) {
	return d.await(ctx, cmd, new(adminWait))
}

// await is admin for a command that names memory, which stays the caller's to keep
// while w is in flight.
func (d *Device) await(ctx context.Context, cmd *nvme.Command, w *adminWait) (dw0 uint32, err error) {
	q := d.adminQ.Load()
	if q == nil {
		return 0, d.gone(cmd.OPC.Name(true))
	}
	limit := max(d.opts.Deadline.Admin, time.Duration(d.cap.TimeoutMs())*time.Millisecond)
	if err := q.send(cmd, w, limit); err != nil {
		return 0, err
	}
	end := d.hw.Now() + limit
	for !w.done.Load() {
		now := d.hw.Now()
		q.mu.Lock()
		n := q.reap()
		if n == 0 {
			q.judge(now)
		}
		dead := q.dead
		q.mu.Unlock()
		switch {
		case n > 0:
			continue
		case d.broken.Load():
			d.mu.Lock()
			defer d.mu.Unlock()
			return 0, d.cause
		case ctx.Err() != nil, dead, now > end:
			return 0, base.Errorf(cmd.OPC.Name(true), d.info.Target, base.ErrTimeout,
				"no completion after %v: %w", limit-(end-now), d.whyNot(ctx))
		}
		d.hw.Pause(end + 1)
	}
	if w.err != nil {
		return 0, w.err
	}
	return w.dw0, w.status.Err(cmd.OPC, true, w.dw0)
}

// whyNot is the context's error, or that the controller does not answer.
func (d *Device) whyNot(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.gone("wait")
}

// fetch runs an admin command that fills size bytes, and gives them to use while
// the buffer is the caller's.
func (d *Device) fetch(ctx context.Context, cmd *nvme.Command, size int64, use func(b []byte) error) error {
	_, err := d.exchange(ctx, cmd, size, nil, use)
	return err
}

// exchange runs an admin command with a buffer of size bytes, at most a page: data,
// if not nil, is put into it, and use, if not nil, gets it afterwards. The buffer is
// freed unless the command may still be in flight.
func (d *Device) exchange(ctx context.Context, cmd *nvme.Command, size int64, data []byte,
	use func(b []byte) error) (dw0 uint32, err error) {
	buf, err := d.hw.Alloc(size, "nvme admin data")
	if err != nil {
		return 0, err
	}
	copy(buf.Bytes, data)
	cmd.PRP1.Set(buf.Addr) // it begins at a page
	w := new(adminWait)
	dw0, err = d.await(ctx, cmd, w)
	if w.inFlight() { // the controller may still write
		d.keep(buf, w)
		return 0, err
	}
	defer buf.Free()
	if err == nil && use != nil {
		err = use(buf.Bytes)
	}
	return dw0, err
}
