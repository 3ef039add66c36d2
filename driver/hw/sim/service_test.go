package sim

import (
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/testenv"
)

// TestLinkSteps: steps over full microseconds lead where a look at each one leads, on
// a link whose backlog comes and goes; and no data passes quicker than the link is.
func TestLinkSteps(t *testing.T) {
	rnd := testenv.Seed(t)
	var l link
	used := map[int64]uint64{} // the link, looked at one microsecond at a time
	now := time.Duration(0)
	longest := 0
	for range 20000 {
		if rnd.IntN(50) == 0 {
			now += time.Duration(rnd.IntN(150_000))
		}
		ready, n := now+time.Duration(rnd.IntN(1_000_000)), uint64(1+rnd.IntN(3*linkBytes))
		at := ready.Microseconds()
		used[at] = max(used[at], uint64(ready%time.Microsecond)*linkBytes/1000)
		for left := n; ; at++ {
			take := min(left, linkBytes-used[at])
			used[at] += take
			if left -= take; left == 0 {
				break
			}
		}
		want := time.Duration(at)*time.Microsecond + time.Duration(used[at])*time.Microsecond/linkBytes
		got := l.transfer(now, ready, n)
		if lone := ready + time.Duration(n)*time.Microsecond/linkBytes; got != want || got < lone-1 {
			t.Fatalf("%d bytes, ready at %v, now %v: passed at %v, must be %v, alone %v", n, ready, now, got, want, lone)
		}
		longest = max(longest, int(at-ready.Microseconds()))
	}
	if longest < 300 {
		t.Errorf("at most %d microseconds of backlog show little", longest)
	}
}
