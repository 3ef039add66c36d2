package nvme_test

import (
	"testing"

	"github.com/ugds-store/ugds/driver/nvme"
)

// TestDoorbellWanted: the register is written exactly when the doorbell goes to event+1
// or beyond it, counted around.
func TestDoorbellWanted(t *testing.T) {
	for _, c := range []struct {
		event, old, v uint32
		want          bool
	}{
		{0, 0, 1, true}, {0, 0, 5, true}, {3, 0, 3, false}, {3, 0, 4, true}, {3, 4, 5, false}, {5, 4, 5, false}, {5, 5, 6, true},
		{0xffff, 0xfffe, 0xffff, false}, {0xffff, 0xffff, 0, true}, {0xffff, 0xfff0, 3, true}, {2, 0xfff0, 2, false},
		{7, 7, 7, false}, // it did not move
	} {
		if got := nvme.DoorbellWanted(c.event, c.old, c.v); got != c.want {
			t.Errorf("event %d, from %d to %d: %v", c.event, c.old, c.v, got)
		}
	}
}
