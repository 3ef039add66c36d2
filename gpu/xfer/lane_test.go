package xfer

import (
	"testing"

	"github.com/ugds-store/ugds/internal/unix"
)

// TestLaneOfProcessor: a lane goes to the processor that used it last, and else the one
// that was used last goes.
func TestLaneOfProcessor(t *testing.T) {
	const processors = 1024
	for range 1000 { // until the test is not moved in the middle
		m := &Mover{ready: make(chan struct{}, processors+1)}
		for cpu := range processors {
			m.idle = append(m.idle, &lane{cpu: cpu})
		}
		here := unix.CPU()
		l := m.pop()
		if here < 0 || here >= processors {
			t.Fatalf("processor %d", here)
		}
		for i, l := range m.idle {
			if i > 0 && l.cpu <= m.idle[i-1].cpu {
				t.Fatal("the others changed their order")
			}
		}
		last := m.pop() // this processor has no other lane
		l.cpu = -1
		m.give(l)
		if l.cpu != here || unix.CPU() != here {
			continue
		}
		if len(m.ready) != 1 || m.idle[len(m.idle)-1] != l {
			t.Error("a lane that was given back is not the last one")
		}
		if want := processors - 1 - here/(processors-1); last.cpu != want {
			t.Errorf("lane of processor %d, want the last one, %d", last.cpu, want)
		}
		if m.pop() != l {
			t.Error("the lane of this processor was not taken")
		}
		return
	}
	t.Error("moved between processors all the time")
}
