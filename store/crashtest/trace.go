package crashtest

import (
	"bufio"
	"fmt"
	"io"
)

// traceSteps is how many of the latest steps a Trace keeps.
const traceSteps = 1 << 14

// Trace keeps the latest steps of a Lab. The Lab's lock guards it.
type Trace struct {
	ring []Step
	next int
}

func (t *Trace) add(s Step) {
	if len(t.ring) < traceSteps {
		t.ring = append(t.ring, s)
		return
	}
	t.ring[t.next] = s
	t.next = (t.next + 1) % traceSteps
}

// WriteTo prints the steps up to index last, oldest first.
func (t *Trace) print(w io.Writer, last int64) error {
	b := bufio.NewWriter(w)
	for i := range t.ring {
		s := &t.ring[(t.next+i)%len(t.ring)]
		if s.Index > last {
			break
		}
		switch s.Kind {
		case StepMeta, StepPower:
			fmt.Fprintf(b, "%8d %-6s disk %2d %s\n", s.Index, s.Kind, s.Disk, s.Text)
		default:
			fmt.Fprintf(b, "%8d %-6s disk %2d %s %d+%d op %d\n", s.Index, s.Kind, s.Disk, s.Op, s.Off, s.Len, s.Label)
		}
	}
	return b.Flush()
}
