package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ugds-store/ugds/driver/drivertest"
)

// TestConformance: the simulated disk is a Device like any other.
func TestConformance(t *testing.T) {
	for _, block := range []int64{512, 4096} {
		t.Run(fmt.Sprint(block), func(t *testing.T) {
			drivertest.Run(t, func(t *testing.T) drivertest.Harness {
				d := NewDisk(nil, DiskOptions{Capacity: drivertest.MinCapacity, BlockSize: block, Depth: 256, Pace: Pace{PausePer16: -1}})
				t.Cleanup(func() { _ = d.Close(context.Background()) })
				rng := rand.New(rand.NewPCG(1, 2))
				return drivertest.Harness{Dev: d, Hold: d.Hold, Fail: d.FailNext, Isolate: func() { d.Isolate(rng) }}
			})
		})
	}
}
