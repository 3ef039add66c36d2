package sim

import (
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/testenv"
)

// TestLinkSteps: steps over full microseconds lead where a look at each one leads.
func TestLinkSteps(t *testing.T) {
	rnd := testenv.Seed(t)
	var l link
	used := map[int64]uint64{} // the link, looked at one microsecond at a time
	now := time.Duration(0)
	for range 20000 {
		if rnd.IntN(50) == 0 {
			now += time.Duration(rnd.IntN(3_000_000))
		}
		ready, n := now+time.Duration(rnd.IntN(1_000_000)), uint64(1+rnd.IntN(3*linkBytes))
		at := ready.Microseconds()
		for left := n; ; at++ {
			take := min(left, linkBytes-used[at])
			used[at] += take
			if left -= take; left == 0 {
				break
			}
		}
		want := max(ready, time.Duration(at)*time.Microsecond+time.Duration(used[at])*time.Microsecond/linkBytes)
		if got := l.transfer(now, ready, n); got != want {
			t.Fatalf("%d bytes, ready at %v, now %v: passed at %v, must be %v", n, ready, now, got, want)
		}
	}
}
