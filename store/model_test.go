package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/store"
)

// TestModel runs one random list of operations over several configurations and
// compares every answer with a map.
func TestModel(t *testing.T) {
	configs := map[string]box{
		"one device":       {},
		"pwrite":           {engine: file.EnginePool},
		"three, 64K slabs": {sizes: []int64{64 << 20, 64 << 20, 80 << 20}, slab: 64 << 10},
		"sparse, discard":  {sparse: true, slab: 256 << 10, tune: func(o *store.Options) { o.Discard = true }},
		"small staging":    {tune: func(o *store.Options) { o.StagingBytes = 1; o.VolatileBytes = 1 << 20 }},
		"one controller":   {kind: kind{models: []model{tiny}}},
		"two controllers":  {kind: kind{models: []model{usual, odd}}, sizes: []int64{64 << 20, 80 << 20}, slab: 256 << 10},
		"three controllers, discard": {kind: sims, sizes: []int64{64 << 20, 64 << 20, 80 << 20}, slab: 64 << 10,
			tune: func(o *store.Options) { o.Discard = true }},
	}
	steps := 1500
	if testenv.Race || testing.Short() {
		steps = 500
	}
	for name, cfg := range configs {
		t.Run(name, func(t *testing.T) {
			m := &modelRun{t: t, rng: testenv.Seed(t), b: newBox(t, cfg), want: map[string][]byte{}}
			for range steps {
				m.step()
			}
			m.compare()
			m.b.reopen()
			m.compare()
			checkAccounts(t, m.b)
			for key := range m.want {
				if err := m.b.ns.Delete(bg, []byte(key), store.DeleteOptions{Durability: store.Relaxed}); err != nil {
					t.Fatal(err)
				}
			}
			m.want = map[string][]byte{}
			checkEmpty(t, m.b)
		})
	}
}

// checkEmpty checks that an empty store has all its space back.
func checkEmpty(t *testing.T, b *box) {
	t.Helper()
	b.reopen()
	st := b.s.Stats()
	if u := b.s.Usage(); u != (store.Usage{}) || st.Space.Allocated != 0 {
		t.Errorf("an empty store: usage %+v, %d bytes allocated", u, st.Space.Allocated)
	}
}

type modelRun struct {
	t    *testing.T
	rng  *rand.Rand
	b    *box
	want map[string][]byte
	seq  uint64
}

func (m *modelRun) key() string { return fmt.Sprintf("k/%03d", m.rng.IntN(120)) }

func (m *modelRun) value() []byte {
	m.seq++
	size := m.rng.IntN(1 << uint(m.rng.IntN(22)))
	return fill(m.seq, size)
}

func (m *modelRun) durability() store.Durability { return store.Durability(m.rng.IntN(2)) }

func (m *modelRun) step() {
	switch k := m.rng.IntN(100); {
	case k < 35:
		m.put()
	case k < 55:
		m.get()
	case k < 67:
		m.delete()
	case k < 75:
		m.batch()
	case k < 82:
		m.stream()
	case k < 88:
		m.lookup()
	case k < 92:
		m.region()
	case k < 95:
		m.list()
	case k < 98:
		if err := m.b.s.Flush(bg); err != nil {
			m.t.Fatal(err)
		}
	default:
		m.b.reopen()
	}
}

// expect checks the error of an operation on a key that was there or not.
func (m *modelRun) expect(what string, err, want error) bool {
	m.t.Helper()
	if want == nil && err != nil || want != nil && !errors.Is(err, want) {
		m.t.Fatalf("%s: %v, want %v", what, err, want)
	}
	return err == nil
}

func (m *modelRun) putWant(key string, replace bool) error {
	if _, there := m.want[key]; there && !replace {
		return store.ErrExists
	}
	return nil
}

func (m *modelRun) put() {
	key, v := m.key(), m.value()
	o := store.PutOptions{Durability: m.durability(), Replace: m.rng.IntN(2) == 0, NoChecksum: m.rng.IntN(8) == 0}
	bufs := store.Bytes(v)
	if m.rng.IntN(3) == 0 { // a scatter list
		bufs = nil
		for rest := v; len(rest) > 0; {
			n := 1 + m.rng.IntN(len(rest))
			bufs = append(bufs, store.Range{Bytes: rest[:n]}, store.Range{})
			rest = rest[n:]
		}
	}
	if m.expect("put "+key, m.b.ns.Put(bg, []byte(key), bufs, o), m.putWant(key, o.Replace)) {
		m.want[key] = v
	}
}

func (m *modelRun) get() {
	key := m.key()
	want, there := m.want[key]
	o := store.GetOptions{NoVerify: m.rng.IntN(4) == 0}
	if there && len(want) > 0 && m.rng.IntN(2) == 0 {
		o.Off = m.rng.Int64N(int64(len(want)))
		o.Len = m.rng.Int64N(int64(len(want))-o.Off) + 1
		want = want[o.Off : o.Off+o.Len]
	}
	got, err := m.b.ns.GetBytes(bg, []byte(key), o)
	if !there {
		m.expect("get "+key, err, store.ErrNotFound)
		return
	}
	if err != nil || !bytes.Equal(got, want) {
		m.t.Fatalf("get %s %+v: %d bytes, want %d: %v", key, o, len(got), len(want), err)
	}
}

func (m *modelRun) delete() {
	key := m.key()
	_, there := m.want[key]
	var want error
	if !there {
		want = store.ErrNotFound
	}
	m.expect("delete "+key, m.b.ns.Delete(bg, []byte(key), store.DeleteOptions{Durability: m.durability()}), want)
	delete(m.want, key)
}

// batch puts some keys, maybe one twice, and reads them back in one batch.
func (m *modelRun) batch() {
	d := m.durability()
	var items []store.PutItem
	var wants []error
	for range 1 + m.rng.IntN(12) {
		key, v := m.key(), m.value()
		o := store.PutOptions{Durability: d, Replace: m.rng.IntN(2) == 0}
		items = append(items, store.PutItem{Key: []byte(key), Value: store.Bytes(v), PutOptions: o})
		want := m.putWant(key, o.Replace)
		if wants = append(wants, want); want == nil {
			m.want[key] = v
		}
	}
	m.b.ns.PutBatch(bg, items)
	var gets []store.GetItem
	for i := range items {
		m.expect("batch put "+string(items[i].Key), items[i].Err, wants[i])
		gets = append(gets, store.GetItem{Key: items[i].Key, Dst: store.Bytes(make([]byte, len(m.want[string(items[i].Key)])))})
	}
	gets = append(gets, store.GetItem{Key: []byte("never there")})
	m.b.ns.GetBatch(bg, gets)
	for i := range items {
		if g := &gets[i]; g.Err != nil || !bytes.Equal(g.Dst[0].Bytes, m.want[string(g.Key)]) {
			m.t.Fatalf("batch get %s: %v", g.Key, g.Err)
		}
	}
	m.expect("batch get of nothing", gets[len(items)].Err, store.ErrNotFound)
}

// stream writes with a Writer in odd pieces and reads with a Reader.
func (m *modelRun) stream() {
	key, v := m.key(), m.value()
	o := store.PutOptions{Durability: m.durability(), Replace: m.rng.IntN(2) == 0}
	w, err := m.b.ns.NewWriter(bg, []byte(key), o)
	if !m.expect("writer "+key, err, m.putWant(key, o.Replace)) {
		return
	}
	for rest := v; len(rest) > 0; {
		n := 1 + m.rng.IntN(len(rest))
		if _, err := w.Write(rest[:n]); err != nil {
			m.t.Fatal(err)
		}
		rest = rest[n:]
	}
	if m.rng.IntN(4) == 0 {
		w.Abort()
		return
	}
	if err := w.Close(); err != nil {
		m.t.Fatal(err)
	}
	m.want[key] = v
	r, err := m.b.ns.NewReader(bg, []byte(key))
	if err != nil {
		m.t.Fatal(err)
	}
	defer r.Close()
	got := make([]byte, r.Size())
	if err := r.ReadRange(bg, got, 0); err != nil || !bytes.Equal(got, v) {
		m.t.Fatalf("read back %s: %v", key, err)
	}
}

// lookup leases some versions, replaces and deletes the keys, and reads what it
// leased.
func (m *modelRun) lookup() {
	var keys [][]byte
	for range 1 + m.rng.IntN(6) {
		keys = append(keys, []byte(m.key()))
	}
	l, err := m.b.ns.Lookup(bg, keys, store.LookupOptions{All: m.rng.IntN(2) == 0})
	if err != nil {
		m.t.Fatal(err)
	}
	defer l.Release()
	lead, was := 0, make([][]byte, len(keys))
	for i, k := range keys {
		v, there := m.want[string(k)]
		if was[i] = v; there && lead == i {
			lead++
		}
	}
	if l.Len() != lead {
		m.t.Fatalf("lookup: %d leading keys, want %d", l.Len(), lead)
	}
	for range 3 {
		m.put()
		m.delete()
	}
	for i := range keys {
		if !l.Present(i) {
			continue
		}
		got := make([]byte, len(was[i]))
		if n, err := l.Get(bg, i, store.Bytes(got), store.GetOptions{}); err != nil || n != int64(len(got)) || !bytes.Equal(got, was[i]) {
			m.t.Fatalf("leased %s: %d bytes, want %d: %v", keys[i], n, len(got), err)
		}
	}
}

// region puts from and gets into registered memory, aligned or not.
func (m *modelRun) region() {
	key, v := m.key(), m.value()
	off := m.rng.Int64N(3) * 2048
	r, err := driver.AllocRegion(int64(len(v))+off+8192, "test region")
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			m.t.Error(err)
		}
	}()
	n := int64(len(v))
	copy(r.Bytes(off, n), v)
	o := store.PutOptions{Durability: m.durability(), Replace: true}
	if err := m.b.ns.Put(bg, []byte(key), store.InRegion(r, off, n), o); err != nil {
		m.t.Fatalf("put %s from a region: %v", key, err)
	}
	m.want[key] = v
	clear(r.CPU())
	got, err := m.b.ns.Get(bg, []byte(key), store.InRegion(r, off, n), store.GetOptions{})
	if err != nil || got != n || !bytes.Equal(r.Bytes(off, n), v) {
		m.t.Fatalf("get %s into a region at %d: %d of %d bytes: %v", key, off, got, n, err)
	}
	for _, rest := range [][]byte{r.Bytes(0, off), r.Bytes(off+n, r.Size()-off-n)} {
		if len(bytes.Trim(rest, "\x00")) != 0 {
			m.t.Fatalf("get %s of %d bytes at %d wrote outside its range", key, n, off)
		}
	}
}

func (m *modelRun) list() {
	prefix := fmt.Sprintf("k/%d", m.rng.IntN(3))
	var want []string
	for k := range m.want {
		if strings.HasPrefix(k, prefix) {
			want = append(want, k)
		}
	}
	sort.Strings(want)
	after := ""
	if len(want) > 0 && m.rng.IntN(2) == 0 {
		i := m.rng.IntN(len(want))
		after, want = want[i], want[i+1:]
	}
	o := store.ListOptions{Prefix: []byte(prefix)}
	if after != "" {
		o.After = []byte(after)
	}
	if m.rng.IntN(2) == 0 && len(want) > 1 {
		o.Limit = 1 + m.rng.IntN(len(want)-1)
		want = want[:o.Limit]
	}
	var got []string
	for info, err := range m.b.ns.List(bg, o) {
		if err != nil {
			m.t.Fatal(err)
		}
		if info.Size != int64(len(m.want[string(info.Key)])) {
			m.t.Fatalf("listed %s with %d bytes", info.Key, info.Size)
		}
		got = append(got, string(info.Key))
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		m.t.Fatalf("list %q after %q: %v, want %v", prefix, after, got, want)
	}
}

// compare reads everything back.
func (m *modelRun) compare() {
	m.t.Helper()
	n := 0
	for info, err := range m.b.ns.List(bg, store.ListOptions{}) {
		if err != nil {
			m.t.Fatal(err)
		}
		n++
		got, err := m.b.ns.GetBytes(bg, info.Key, store.GetOptions{})
		if err != nil || !bytes.Equal(got, m.want[string(info.Key)]) {
			m.t.Fatalf("%s: %v", info.Key, err)
		}
	}
	if n != len(m.want) {
		m.t.Fatalf("%d objects, want %d", n, len(m.want))
	}
}
