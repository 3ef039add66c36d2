package store

import (
	"encoding/binary"
	"testing"

	"github.com/ugds-store/ugds/alloc"
	"github.com/ugds-store/ugds/internal/testenv"
)

// TestIndexModel compares the index with a map under random changes, in few
// shards so that they grow, shrink and collide.
func TestIndexModel(t *testing.T) {
	rng := testenv.Seed(t)
	x, err := newIndex(0)
	if err != nil {
		t.Fatal(err)
	}
	defer x.close()
	model := map[fingerprint]version{}
	var keys []fingerprint
	for step := range 60000 {
		f := fingerprint{hi: rng.Uint64() >> 63 << 63, lo: rng.Uint64N(4000) << 52}
		sh := x.shard(f)
		sh.mu.Lock()
		switch rng.IntN(5) {
		case 0:
			sh.remove(f)
			delete(model, f)
		default:
			v := version{gen: uint64(step + 1), length: rng.Int64N(1 << 33), crc: rng.Uint32(), noCRC: rng.IntN(2) == 0}
			for range rng.IntN(4) * rng.IntN(6) {
				v.exts = append(v.exts, alloc.Extent{Dev: uint8(rng.IntN(4)), Start: rng.Uint64N(1 << 36), Blocks: rng.Uint32N(1<<20-1) + 1})
			}
			if len(v.exts) == 0 {
				v.length = 0
			}
			if err := sh.set(f, &v, rng.IntN(2) == 0); err != nil {
				t.Fatal(err)
			}
			model[f] = v
			keys = append(keys, f)
		}
		sh.mu.Unlock()
		if step%500 == 0 {
			compareIndex(t, x, model, keys)
		}
	}
	objects, _ := x.bytes()
	if int(objects) != len(model) {
		t.Errorf("%d objects, model has %d", objects, len(model))
	}
	for f := range model {
		x.shard(f).remove(f)
	}
	if objects, _ = x.bytes(); objects != 0 {
		t.Errorf("%d objects after removal of all", objects)
	}
}

func compareIndex(t *testing.T, x *index, model map[fingerprint]version, keys []fingerprint) {
	t.Helper()
	for _, f := range keys {
		want, there := model[f]
		got, _, ok := x.shard(f).get(f, nil)
		if ok != there {
			t.Fatalf("%x: present %v, want %v", f, ok, there)
		}
		if !ok {
			continue
		}
		same := got.gen == want.gen && got.length == want.length && got.crc == want.crc &&
			got.noCRC == want.noCRC && len(got.exts) == len(want.exts)
		for i := range got.exts {
			same = same && got.exts[i] == want.exts[i]
		}
		if !same {
			t.Fatalf("%x: %+v, want %+v", f, got, want)
		}
	}
}

// TestIndexMemory keeps the index under its limit: 64 bytes an object at any
// count over 100,000, the space of growth included.
func TestIndexMemory(t *testing.T) {
	x, err := newIndex(0)
	if err != nil {
		t.Fatal(err)
	}
	defer x.close()
	if err := x.fit(); err != nil { // what a store grows from
		t.Fatal(err)
	}
	h := newHasher([16]byte{1, 2, 3})
	var key [8]byte
	worst := 0.0
	for i := range 300000 {
		binary.LittleEndian.PutUint64(key[:], uint64(i))
		f := h.of(1, key[:])
		v := version{gen: uint64(i + 1), length: 4096, exts: []alloc.Extent{{Start: uint64(i), Blocks: 1}}}
		if err := x.shard(f).set(f, &v, false); err != nil {
			t.Fatal(err)
		}
		if i > 100000 && i%997 == 0 {
			objects, bytes := x.bytes()
			worst = max(worst, float64(bytes)/float64(objects))
		}
	}
	t.Logf("at most %.1f bytes an object", worst)
	if worst > 64 {
		t.Errorf("%.1f bytes an object, the limit is 64", worst)
	}
}

func TestFingerprintDependsOnEverything(t *testing.T) {
	h, g := newHasher([16]byte{1}), newHasher([16]byte{2})
	seen := map[fingerprint]bool{}
	for _, f := range []fingerprint{h.of(1, []byte("a")), h.of(2, []byte("a")), h.of(1, []byte("b")), h.of(1, []byte("aa")), g.of(1, []byte("a"))} {
		if seen[f] {
			t.Fatalf("fingerprint %x twice", f)
		}
		seen[f] = true
	}
}

func BenchmarkLookup(b *testing.B) {
	x, err := newIndex(0)
	if err != nil {
		b.Fatal(err)
	}
	defer x.close()
	h := newHasher([16]byte{1, 2, 3})
	var key [16]byte
	const n = 1 << 20
	for i := range n {
		binary.LittleEndian.PutUint64(key[:], uint64(i))
		f := h.of(1, key[:])
		v := version{gen: uint64(i + 1), length: 4096, exts: []alloc.Extent{{Start: uint64(i), Blocks: 1}}}
		if err := x.shard(f).set(f, &v, false); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	k := uint64(1)
	for range b.N {
		k = k*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(key[:], k>>44)
		f := h.of(1, key[:])
		sh := x.shard(f)
		sh.mu.Lock()
		_, ok := sh.find(f)
		sh.mu.Unlock()
		if !ok {
			b.Fatal("missing")
		}
	}
}
