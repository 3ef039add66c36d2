package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
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

// TestControllerConformance: and so is a controller as the laboratory has it.
func TestControllerConformance(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		d, err := newController(new(Lab), DiskOptions{Capacity: drivertest.MinCapacity, Depth: 64,
			Pace: Pace{Pause: time.Microsecond}, Controller: &Controller{MDTS: 5, Entries: 256, Queues: 2}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for _, f := range closeAll(context.Background(), []device{d}) {
				t.Error(f)
			}
		})
		rng := rand.New(rand.NewPCG(1, 2))
		return drivertest.Harness{Dev: d, Hold: d.model.Hold,
			Fail:    func(op driver.Op) { d.lab.Locked(func() { d.failNext(op) }) },
			Isolate: func() { d.lab.Locked(func() { d.loseContact(rng) }) }}
	})
}
