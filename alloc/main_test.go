package alloc

import (
	"flag"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 draws one")

func TestMain(m *testing.M) {
	flag.Parse()
	if *seedFlag == 0 {
		*seedFlag = uint64(time.Now().UnixNano())
	}
	os.Exit(m.Run())
}

// newRand gives the generator of a test and prints the seed that repeats it.
func newRand(t testing.TB) *rand.Rand {
	t.Logf("repeat with -seed=%d", *seedFlag)
	return rand.New(rand.NewPCG(*seedFlag, 0))
}
