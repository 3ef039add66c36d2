package store_test

import (
	"reflect"
	"testing"

	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/store"
)

// TestL01StatsAfterTheEnd: the statistics call no GPU: they are the same after the
// store was closed, and after the GPUs were.
func TestL01StatsAfterTheEnd(t *testing.T) {
	b := newGPUBox(t, host.Options{Devices: 2}, nil)
	b.poke(b.at(0), fill(1, 100_000))
	if err := b.ns.Put(bg, []byte("key"), store.OnGPU(b.at(0), 100_000), store.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	before := b.s.Stats().GPUs
	if len(before) == 0 || len(before[0].Paths) == 0 {
		t.Fatalf("%+v", before)
	}
	s := b.s
	b.close()
	if now := s.Stats().GPUs; !reflect.DeepEqual(now, before) {
		t.Errorf("after the store was closed: %+v, before %+v", now, before)
	}
	if err := b.mem.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.g.Close(); err != nil {
		t.Fatal(err)
	}
	if now := s.Stats().GPUs; !reflect.DeepEqual(now, before) {
		t.Errorf("after the GPUs were closed: %+v, before %+v", now, before)
	}
}
