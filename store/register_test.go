package store_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/store"
)

var registerTime = flag.Duration("register", 0, "how long TestRegister runs; 0 is 60s under -race and 3s without")

// event is one finished call on a key: what it saw or made, and when.
type event struct {
	write, absent bool // absent: a delete, or "not found"
	exists        bool // a put that was refused: the key was there, version unknown
	gen           uint64
	from, to      int64 // monotonic nanoseconds
}

// registers is the history of every key.
type registers struct {
	mu   []sync.Mutex
	hist [][]event
}

func (r *registers) add(k int, e event) {
	r.mu[k].Lock()
	defer r.mu[k].Unlock()
	r.hist[k] = append(r.hist[k], e)
}

// TestRegister lets 64 goroutines put, get, replace, delete and list the same
// 1,000 keys, and checks that every key behaved as one register: the generations
// are an order of all operations on a key that agrees with real time (bug J-23:
// repeated puts of one key).
func TestRegister(t *testing.T) {
	t.Run("two files", func(t *testing.T) { register(t, box{sizes: []int64{64 << 20, 64 << 20}}, 1) })
	t.Run("three controllers", func(t *testing.T) {
		register(t, box{kind: sims, sizes: []int64{64 << 20, 64 << 20, 64 << 20}}, 3)
	})
}

// register is TestRegister for the n-th part of its time.
func register(t *testing.T, on box, n time.Duration) {
	const keys, workers = 1000, 64
	d := *registerTime
	if d == 0 {
		if d = 3 * time.Second; testenv.Race {
			d = time.Minute
		}
	}
	d /= n
	b := newBox(t, on)
	free := b.s.Stats().Space.Allocated
	r := &registers{make([]sync.Mutex, keys), make([][]event, keys)}
	start := time.Now()
	rng := testenv.Seed(t)
	var wg sync.WaitGroup
	for w := range workers {
		w := &registerWorker{t: t, b: b, r: r, id: w, start: start, rng: rand.New(rand.NewPCG(rng.Uint64(), uint64(w)))}
		wg.Go(func() {
			for time.Since(start) < d && !t.Failed() {
				w.step(keys)
			}
		})
	}
	wg.Wait()
	total := 0
	for k, h := range r.hist {
		total += len(h)
		if err := linear(h); err != nil {
			t.Errorf("key %d: %v", k, err)
		}
	}
	t.Logf("%d operations, %d rounds", total, b.s.Stats().Rounds)
	for k := range keys {
		_ = b.ns.Delete(bg, registerKey(k), store.DeleteOptions{Durability: store.Relaxed})
	}
	b.reopen()
	if got := b.s.Stats().Space.Allocated; got != free {
		t.Errorf("%d bytes allocated after deleting everything, %d before", got, free)
	}
}

func registerKey(k int) []byte { return []byte(fmt.Sprintf("register/%04d", k)) }

type registerWorker struct {
	t     *testing.T
	b     *box
	r     *registers
	id    int
	seq   uint32
	start time.Time
	rng   *rand.Rand
}

func (w *registerWorker) now() int64 { return int64(time.Since(w.start)) }

// value carries key, writer and sequence in every 16 bytes.
func (w *registerWorker) value(k int) []byte {
	w.seq++
	b := make([]byte, 16*(1+w.rng.IntN(700)))
	for i := 0; i < len(b); i += 16 {
		binary.LittleEndian.PutUint32(b[i:], uint32(k))
		binary.LittleEndian.PutUint32(b[i+4:], uint32(w.id))
		binary.LittleEndian.PutUint32(b[i+8:], w.seq)
		binary.LittleEndian.PutUint32(b[i+12:], uint32(len(b)))
	}
	return b
}

// whole checks that a value is one put of key k.
func whole(k int, b []byte) bool {
	for i := 0; i < len(b); i += 16 {
		if string(b[i:i+16]) != string(b[:16]) {
			return false
		}
	}
	return len(b) > 0 && binary.LittleEndian.Uint32(b) == uint32(k) && int(binary.LittleEndian.Uint32(b[12:])) == len(b)
}

func (w *registerWorker) step(keys int) {
	k := w.rng.IntN(keys)
	d := store.Durability(w.rng.IntN(2))
	switch n := w.rng.IntN(100); {
	case n < 35:
		w.put(k, store.PutOptions{Durability: d, Replace: w.rng.IntN(4) > 0})
	case n < 80:
		w.get(k)
	case n < 99:
		w.delete(k, d)
	default:
		w.list()
	}
}

func (w *registerWorker) put(k int, o store.PutOptions) {
	items := []store.PutItem{{Key: registerKey(k), Value: store.Bytes(w.value(k)), PutOptions: o}}
	e := event{write: true, from: w.now()}
	w.b.ns.PutBatch(bg, items)
	e.to, e.gen = w.now(), items[0].Generation
	switch err := items[0].Err; {
	case err == nil:
	case errors.Is(err, store.ErrExists) && !o.Replace:
		e.write, e.exists = false, true
	default:
		w.t.Errorf("put %d: %v", k, err)
		return
	}
	w.r.add(k, e)
}

func (w *registerWorker) get(k int) {
	items := []store.GetItem{{Key: registerKey(k), Dst: store.Bytes(make([]byte, 16*701))}}
	e := event{from: w.now()}
	w.b.ns.GetBatch(bg, items)
	e.to, e.gen = w.now(), items[0].Generation
	switch g := &items[0]; {
	case g.Err == nil:
		if !whole(k, g.Dst[0].Bytes[:g.N]) {
			w.t.Errorf("get %d: bytes of another put", k)
		}
	case errors.Is(g.Err, store.ErrNotFound):
		e.absent = true
	default:
		w.t.Errorf("get %d: %v", k, g.Err)
		return
	}
	w.r.add(k, e)
}

func (w *registerWorker) delete(k int, d store.Durability) {
	e := event{write: true, absent: true, from: w.now()}
	gen, err := w.b.ns.DeleteGen(bg, registerKey(k), store.DeleteOptions{Durability: d})
	e.to, e.gen = w.now(), gen
	switch {
	case err == nil:
	case errors.Is(err, store.ErrNotFound):
		e.write = false
	default:
		w.t.Errorf("delete %d: %v", k, err)
		return
	}
	w.r.add(k, e)
}

func (w *registerWorker) list() {
	from, last := w.now(), ""
	for info, err := range w.b.ns.List(bg, store.ListOptions{Prefix: []byte("register/")}) {
		if err != nil {
			w.t.Errorf("list: %v", err)
			return
		}
		if string(info.Key) <= last {
			w.t.Errorf("list: %s after %s", info.Key, last)
		}
		last = string(info.Key)
		var k int
		if _, err := fmt.Sscanf(last, "register/%d", &k); err != nil {
			w.t.Error(err)
			return
		}
		w.r.add(k, event{gen: info.Generation, from: from, to: w.now()})
	}
}

// linear checks one key's history. The generations order the writes; an
// operation may not see a state older than one that was there before it began,
// nor one that began after it ended.
func linear(h []event) error {
	x := newOrder(h)
	for i, e := range h {
		floor := x.floor(e.from) // the newest state that was there before e began
		switch {
		case e.write:
			if e.gen <= floor {
				return fmt.Errorf("write %d has generation %d, state %d was there before", i, e.gen, floor)
			}
		case e.absent:
			if floor > 0 && x.absent.first(floor) >= e.to {
				return fmt.Errorf("call %d found nothing, state %d was there before and no delete since", i, floor)
			}
		case e.exists:
			if x.present.first(floor) >= e.to {
				return fmt.Errorf("put %d was refused though the key was absent", i)
			}
		default:
			if e.gen < floor {
				return fmt.Errorf("read %d saw generation %d, state %d was there before", i, e.gen, floor)
			}
			if from, ok := x.put[e.gen]; !ok || from >= e.to {
				return fmt.Errorf("read %d saw generation %d, which no put made in time", i, e.gen)
			}
		}
	}
	return nil
}

// order answers questions about a history quickly.
type order struct {
	ends            []event // that know a generation, by end; gen is the highest so far
	absent, present writes
	put             map[uint64]int64 // generation of a put → its begin
}

// writes are the writes of one kind by generation; from is the earliest begin of
// it and all later ones.
type writes []event

func newOrder(h []event) *order {
	x := &order{put: map[uint64]int64{}}
	for _, e := range h {
		if e.write || !e.absent && !e.exists {
			x.ends = append(x.ends, e)
		}
		switch {
		case e.write && e.absent:
			x.absent = append(x.absent, e)
		case e.write:
			x.present = append(x.present, e)
			x.put[e.gen] = e.from
		}
	}
	sort.Slice(x.ends, func(i, j int) bool { return x.ends[i].to < x.ends[j].to })
	for i := 1; i < len(x.ends); i++ {
		x.ends[i].gen = max(x.ends[i].gen, x.ends[i-1].gen)
	}
	for _, w := range []writes{x.absent, x.present} {
		sort.Slice(w, func(i, j int) bool { return w[i].gen < w[j].gen })
		for i := len(w) - 2; i >= 0; i-- {
			w[i].from = min(w[i].from, w[i+1].from)
		}
	}
	return x
}

// floor is the highest generation that an operation that ended before t saw or made.
func (x *order) floor(t int64) uint64 {
	n := sort.Search(len(x.ends), func(i int) bool { return x.ends[i].to >= t })
	if n == 0 {
		return 0
	}
	return x.ends[n-1].gen
}

// first is the earliest begin of a write not older than gen.
func (w writes) first(gen uint64) int64 {
	i := sort.Search(len(w), func(i int) bool { return w[i].gen >= gen })
	if i == len(w) {
		return math.MaxInt64
	}
	return w[i].from
}

// TestLinearNotices shows that the check can fail.
func TestLinearNotices(t *testing.T) {
	w := event{write: true, gen: 1, from: 0, to: 1}
	w2 := event{write: true, gen: 2, from: 2, to: 3}
	del := event{write: true, absent: true, gen: 3, from: 4, to: 5}
	for name, bad := range map[string][]event{
		"stale read":            {w, w2, {gen: 1, from: 4, to: 5}},
		"read of nothing known": {w, {gen: 9, from: 4, to: 5}},
		"lost":                  {w, {absent: true, from: 4, to: 5}},
		"came back":             {w, w2, del, {gen: 2, from: 6, to: 7}},
		"order of writes":       {w2, {write: true, gen: 1, from: 4, to: 5}},
		"refused though absent": {w, w2, del, {exists: true, from: 6, to: 7}},
	} {
		if linear(bad) == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
	good := []event{w, {gen: 1, from: 0, to: 2}, w2, {gen: 2, from: 2, to: 3}, del, {absent: true, from: 5, to: 6}}
	if err := linear(good); err != nil {
		t.Errorf("a good history: %v", err)
	}
}
