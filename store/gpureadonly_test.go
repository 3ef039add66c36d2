package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/gpu/host"
	gpuxfer "github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/store"
)

// openForReading makes a store with one value, and opens it again for reading only,
// with devices that lose bytes on their way to GPUs in the way that is given.
func openForReading(t *testing.T, e sim.PeerEffect, want []byte) (b *gpuBox, writes *atomic.Int64) {
	t.Helper()
	var reading bool
	b = newGPUBoxOn(t, sims, host.Options{}, func(o *store.Options) { o.ReadOnly = reading })
	b.poke(b.at(0), want)
	if err := b.put("a", b.at(0), int64(len(want))); err != nil {
		t.Fatal(err)
	}
	b.poke(b.at(0), make([]byte, len(want)))
	b.close()
	b.openDevices()
	writes = new(atomic.Int64)
	for _, s := range b.sims {
		s.Peers(e, sim.PeerRight)
		s.Observe(func(s sim.Seen) {
			if s.Moment == sim.Fetched && s.Command.OPC != nvme.OpRead {
				writes.Add(1)
			}
		})
	}
	reading = true
	s, err := store.Open(bg, b.options())
	if err != nil {
		t.Fatal(err)
	}
	b.s = s
	if b.ns, err = s.Namespace(bg, "default", store.NamespaceOptions{}); err != nil {
		t.Fatal(err)
	}
	return b, writes
}

// TestDirectReadOnly: a store that is opened for reading reads directly too. The
// self-test then writes nothing, and finds platforms that lose bytes all the same.
func TestDirectReadOnly(t *testing.T) {
	const n = 1 << 20
	want := fill(7, n)
	for _, e := range append([]sim.PeerEffect{sim.PeerRight}, effects...) {
		t.Run(fmt.Sprint(e), func(t *testing.T) {
			b, writes := openForReading(t, e, want)
			b.register()
			if _, err := b.ns.Get(bg, []byte("a"), store.OnGPU(b.at(0), n), store.GetOptions{}); err != nil || !bytes.Equal(b.peek(b.at(0), n), want) {
				t.Fatalf("%v, or other bytes", err)
			}
			way := "read direct"
			if e != sim.PeerRight {
				way = "read staged " + gpuxfer.ReasonTest
			}
			if w := b.ways(); w[way] != n {
				t.Errorf("%v, want %q", w, way)
			}
			for _, p := range b.s.Stats().Pairs {
				if !p.Tested || p.Direct != (e == sim.PeerRight) {
					t.Errorf("%+v", p)
				}
			}
			if err := b.put("b", b.at(0), n); !errors.Is(err, store.ErrReadOnly) {
				t.Errorf("put: %v", err)
			}
			if k := writes.Load(); k != 0 {
				t.Errorf("%d commands were not reads", k)
			}
		})
	}
}
