package crashtest

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/alloc"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// small is a history of three keys: key 1 put, replaced, deleted; key 2 put and
// replaced with an unknown outcome; key 3 put relaxed.
func small() *History {
	return &History{Ops: []*Op{
		{ID: 1, Key: 1, Size: 8, Called: 1, Returned: 10, Durable: 10, Fate: FateOK, Gen: 1},
		{ID: 2, Key: 2, Size: 9, Called: 2, Returned: 12, Durable: 12, Fate: FateOK, Gen: 2},
		{ID: 3, Key: 1, Size: 10, Called: 11, Returned: 20, Durable: 20, Fate: FateOK, Gen: 3},
		{ID: 4, Key: 3, Size: 11, Relaxed: true, Called: 13, Returned: 14, Fate: FateOK, Gen: 4},
		{ID: 5, Key: 2, Size: 12, Called: 15, Returned: 30, Fate: FateUnknown},
		{ID: 6, Key: 1, Kind: KindDelete, Called: 21, Returned: 40, Durable: 40, Fate: FateOK, Gen: 6},
	}}
}

// TestJudge: what the oracle accepts and what it reports.
func TestJudge(t *testing.T) {
	type objects = map[int]Object
	put1, put2 := Object{1, 8, 1}, Object{2, 9, 2}
	again1, relaxed3, unknown2 := Object{3, 10, 3}, Object{4, 11, 4}, Object{5, 12, 5}
	for _, c := range []struct {
		name string
		step int64
		gen  uint64
		objs objects
		want string // a part of the violation, "" for none
	}{
		{"everything", 50, 6, objects{2: put2, 3: relaxed3}, ""},
		{"unknown one is in", 50, 6, objects{2: unknown2, 3: relaxed3}, ""},
		{"prefix before the relaxed put", 25, 3, objects{1: again1, 2: put2}, ""},
		{"delete in flight is in", 35, 6, objects{2: put2, 3: relaxed3}, ""},
		{"nothing called yet", 0, 0, objects{}, ""},
		{"synced operation dropped", 50, 6, objects{1: again1, 2: put2, 3: relaxed3}, "key 1"},
		{"prefix too short", 50, 5, objects{1: again1, 2: put2, 3: relaxed3}, "promised"},
		{"two operations swapped", 25, 3, objects{1: put1, 2: put2}, "key 1"},
		{"hole in the prefix", 50, 6, objects{2: put2}, "key 3"},
		{"beyond the prefix", 25, 3, objects{1: again1, 2: put2, 3: relaxed3}, "key 3"},
		{"wrong bytes", 50, 6, objects{2: {0, 9, 2}, 3: relaxed3}, "key 2"},
		{"wrong size", 50, 6, objects{2: {2, 8, 2}, 3: relaxed3}, "key 2"},
		{"another's value", 50, 6, objects{2: {4, 11, 2}, 3: relaxed3}, "key 2"},
		{"wrong generation", 50, 6, objects{2: {2, 9, 1}, 3: relaxed3}, "key 2"},
		{"same generation twice", 50, 6, objects{2: {5, 12, 4}, 3: relaxed3}, "same generation"},
		{"unknown one before its predecessor", 50, 6, objects{2: {5, 12, 1}, 3: relaxed3}, "key 2"},
		{"key from nowhere", 50, 6, objects{2: put2, 3: relaxed3, 9: {7, 7, 5}}, "never put"},
		{"operation from the future", 12, 2, objects{1: put1, 2: put2, 3: relaxed3}, "key 3"},
	} {
		got := small().judge(&Recovered{LastGen: c.gen, Objects: c.objs}, c.step)
		if c.want == "" && len(got) > 0 || c.want != "" && !strings.Contains(strings.Join(got, "\n"), c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestJudgeWithdrawn: a withdrawn operation must be gone; one withdrawn because
// of a commit of unknown outcome may be there.
func TestJudgeWithdrawn(t *testing.T) {
	h := small()
	h.Ops[3].Lost = 16
	there := &Recovered{LastGen: 6, Objects: map[int]Object{2: {2, 9, 2}, 3: {4, 11, 4}}}
	if got := h.judge(there, 50); len(got) != 1 {
		t.Errorf("a withdrawn operation came back: %q", got)
	}
	h.Ops[3].Doubt = true
	if got := h.judge(there, 50); len(got) != 0 {
		t.Errorf("an operation in doubt: %q", got)
	}
}

// TestAssign: events find their operations, and those that do not are reported.
func TestAssign(t *testing.T) {
	h := small()
	for _, o := range h.Ops {
		o.Gen = 0
	}
	events := []published{{key: 1, size: 8, gen: 1}, {key: 2, size: 9, gen: 2}, {key: 1, size: 10, gen: 3},
		{key: 3, size: 11, gen: 4}, {key: 1, kind: KindDelete, gen: 6}, {key: 3, gen: 4, lost: true, step: 77}}
	if faults := h.assign(events); len(faults) > 0 {
		t.Fatal(faults)
	}
	for i, want := range []uint64{1, 2, 3, 4, 0, 6} {
		if h.Ops[i].Gen != want {
			t.Errorf("%v, want generation %d", h.Ops[i], want)
		}
	}
	if h.Ops[3].Lost != 77 {
		t.Errorf("not withdrawn: %v", h.Ops[3])
	}
	if faults := small().assign([]published{{key: 1, size: 999, gen: 9}}); len(faults) == 0 {
		t.Error("an event of nobody was accepted")
	}
}

// TestOracleMutants spoils what real images gave: every spoiled one must be
// reported, at every cut of a workload.
func TestOracleMutants(t *testing.T) {
	ctx := context.Background()
	set := NewSetup(5)
	set.Incidents, set.Reformat = nil, false
	w, err := newWorld(set)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.run(ctx); err != nil || len(w.faults) > 0 {
		t.Fatal(err, w.faults)
	}
	tried := map[string]int{}
	for _, sh := range w.shots[len(w.shots)/3:] {
		im := sh.draw(set.Seed, 0)
		s, err := store.Open(ctx, im.options())
		if err != nil {
			t.Fatal(err)
		}
		r, faults := readStore(ctx, s, w.hist)
		if faults = append(faults, w.hist.judge(&r.Recovered, sh.step)...); len(faults) > 0 {
			t.Fatal(faults)
		}
		if err := s.Close(ctx); err != nil {
			t.Fatal(err)
		}
		im.close()
		for name, spoil := range map[string]func(map[int]Object) bool{
			"synced operation dropped": func(m map[int]Object) bool { return dropSynced(w.hist, r.LastGen, sh.step, m) },
			"two operations swapped":   func(m map[int]Object) bool { return swapTwo(w.hist, r.LastGen, m) },
			"one wrong byte":           wrongByte,
		} {
			bad := Recovered{LastGen: r.LastGen, Objects: maps.Clone(r.Objects)}
			if !spoil(bad.Objects) {
				continue
			}
			tried[name]++
			if len(w.hist.judge(&bad, sh.step)) == 0 {
				t.Errorf("%s at step %d was not reported", name, sh.step)
			}
		}
		if t.Failed() {
			return
		}
	}
	for _, name := range []string{"synced operation dropped", "two operations swapped", "one wrong byte"} {
		if tried[name] < 10 {
			t.Errorf("%s: tried %d times", name, tried[name])
		}
	}
}

// versions are the certain operations of a key in the prefix, in order.
func versions(h *History, key int, lastGen uint64) (out []*Op) {
	for _, o := range h.Ops {
		if o.Key == key && certain(o) && o.Gen <= lastGen {
			out = append(out, o)
		}
	}
	return out
}

func install(m map[int]Object, key int, o *Op) {
	if delete(m, key); o != nil && o.Kind == KindPut {
		m[key] = Object{o.ID, o.Size, o.Gen}
	}
}

// dropSynced takes the last operation of a key back, which was promised.
func dropSynced(h *History, lastGen uint64, step int64, m map[int]Object) bool {
	for key := range h.byKey(step) {
		v := versions(h, key, lastGen)
		if len(v) > 1 && promised(v[len(v)-1], step) {
			install(m, key, v[len(v)-2])
			return true
		}
	}
	return false
}

// swapTwo lets the two last operations of a key happen in the other order.
func swapTwo(h *History, lastGen uint64, m map[int]Object) bool {
	for key := range m {
		if v := versions(h, key, lastGen); len(v) > 1 && v[len(v)-2].Kind == KindPut {
			install(m, key, v[len(v)-2])
			return true
		}
	}
	return false
}

// wrongByte is what reading a value with a wrong byte gives: nobody's value.
func wrongByte(m map[int]Object) bool {
	for key, o := range m {
		o.ID = 0
		m[key] = o
		return true
	}
	return false
}

// TestForgedOverlap: a record whose extents overlap another's is refused at
// open, and the refusal changes neither the devices nor a record.
func TestForgedOverlap(t *testing.T) {
	ctx := context.Background()
	for name, shift := range map[string]int64{"same extents": 0, "one block further": 1} {
		set := NewSetup(1)
		set.Incidents, set.MaxShots = nil, 0
		w, err := newWorld(set)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.format(ctx), w.open(ctx)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 20000)
		fillValue(b, set.Seed, 1)
		if err := w.ns[0].Put(ctx, []byte("honest"), store.Bytes(b), store.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := w.close(ctx); err != nil {
			t.Fatal(err)
		}
		forge(t, w, shift)
		before := w.disks[0].content().content
		im := &image{lab: w.lab, disks: w.disks, meta: w.mfs}
		if s, err := store.Open(ctx, im.options()); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%s: open: %v", name, err)
			if err == nil {
				_ = s.Close(ctx)
			}
		}
		after := w.disks[0].content().content
		for lba := range w.disks[0].Info().Capacity / set.BlockSize {
			if before.get(lba) != after.get(lba) {
				t.Fatalf("%s: the refused open changed block %d", name, lba)
			}
		}
		if r := records(t, w); r != 2 {
			t.Errorf("%s: %d records after the refusal", name, r)
		}
		w.end()
	}
}

// forge writes a record that names the blocks of another, moved by shift.
func forge(t *testing.T, w *world, shift int64) {
	t.Helper()
	db, err := meta.Open(w.metaOptions())
	if err != nil {
		t.Fatal(err)
	}
	names, err := db.Namespaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		r, err := db.Get(n.ID, []byte("honest"))
		if errors.Is(err, base.ErrNotFound) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		e := alloc.Unpack(r.Extents[0])
		e.Start += uint64(shift)
		r.Extents[0], r.Gen = e.Pack(), r.Gen+1
		batch := meta.NewBatch()
		batch.Put(n.ID, []byte("forged"), &r)
		batch.SetLastGen(r.Gen)
		if err := db.Commit(context.Background(), batch); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func records(t *testing.T, w *world) (n int) {
	t.Helper()
	db, err := meta.Open(w.metaOptions())
	if err != nil {
		t.Fatal(err)
	}
	err = db.Scan(context.Background(), func(uint32, []byte, *meta.Record) error { n++; return nil })
	if err = errors.Join(err, db.Close(context.Background())); err != nil {
		t.Fatal(err)
	}
	return n
}
