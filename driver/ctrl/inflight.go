package ctrl

import (
	"fmt"
	"strings"

	"github.com/ugds-store/ugds/driver"
)

// MaxListed is how many requests an InFlightError lists at most.
const MaxListed = 256

// InFlight is a request of which commands are on the device.
type InFlight struct {
	Op       driver.Op
	Off, Len int64  // bytes of the device
	Queue    uint16 // of its first command that has not ended
	Commands int    // that have not ended
}

// String tells what it is.
func (f InFlight) String() string {
	if f.Op == driver.OpFlush {
		return fmt.Sprintf("%s (queue %d)", f.Op, f.Queue)
	}
	return fmt.Sprintf("%s of %d bytes at %d (%d commands, queue %d)", f.Op, f.Len, f.Off, f.Commands, f.Queue)
}

// InFlightError is inside the error of a Close whose context ended first: which
// requests have no answer (H-09). They are lost only if the controller is stopped
// before it answers, which ends them with ErrIsolated.
type InFlightError struct {
	Requests []InFlight // by queue; at most MaxListed
	Total    int64      // without an answer, those that have not been sent yet included
}

// told is how many requests the text of the error names.
const told = 4

// Error implements error.
func (e *InFlightError) Error() string {
	text := make([]string, 0, told+1)
	for _, f := range e.Requests[:min(told, len(e.Requests))] {
		text = append(text, f.String())
	}
	if more := e.Total - int64(len(text)); more > 0 && len(text) > 0 {
		text = append(text, fmt.Sprintf("%d more", more))
	}
	s := fmt.Sprintf("%d requests in flight", e.Total)
	if len(text) > 0 {
		s += ": " + strings.Join(text, ", ")
	}
	return s
}

// listInFlight looks at every command that has not ended.
func (d *Device) listInFlight() *InFlightError {
	out := &InFlightError{Total: d.unended.Load()}
	type id struct {
		run *run
		i   int
	}
	seen := map[id]int{}
	for _, q := range d.allQueues() {
		q.mu.Lock()
		for i := range q.slots {
			s := &q.slots[i]
			if !s.live || s.run == nil || s.admin != nil {
				continue
			}
			r := id{s.run, s.i}
			at, ok := seen[r]
			if !ok {
				if len(out.Requests) == MaxListed {
					continue
				}
				at = len(out.Requests)
				seen[r] = at
				e := &s.run.b.Reqs[s.i]
				out.Requests = append(out.Requests, InFlight{Op: e.Op, Off: e.Off, Len: e.Len, Queue: q.id})
			}
			out.Requests[at].Commands++
		}
		q.mu.Unlock()
	}
	return out
}
