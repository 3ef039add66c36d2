package crashtest

import (
	"math/rand/v2"
	"time"

	"github.com/ugds-store/ugds/internal/base"
)

// Setup is everything about a workload that its seed decides.
type Setup struct {
	Seed      uint64
	Disks     int
	BlockSize int64
	SlabBytes int64
	Discard   bool
	Depth     int
	Pace      Pace
	FreeSlabs int64 // slabs left free by the fillers, on all disks together
	RoundAge  time.Duration
	IdleMark  time.Duration
	Incidents []Incident
	Workers   int
	Ops       int // actions of all workers together
	Keys      int // of each worker
	Lives     int // the second one begins with a cut of the first
	Relaxed   int // of 100 operations, how many are relaxed
	Draws     int // cuts drawn from one shot
	MaxShots  int
	Reformat  bool // at the end of each life
	NoLock    bool // see DiskOptions; every image is then written to
	// Controllers are the shapes of the disks, if they are controllers.
	Controllers []Controller
}

// IncidentKind is what happens to a living process.
type IncidentKind uint8

// The incidents.
const (
	LosePower   IncidentKind = iota // a disk loses power, and its cache
	LoseContact                     // a disk stops and keeps its cache
	FailWrite                       // a write of a disk fails
	FailRead                        // a read of a disk fails
	MetaDies                        // the metadata disk refuses everything from now on
)

// Incident is something that happens to a living process.
type Incident struct {
	Kind    IncidentKind
	Phase   Phase // PhaseRun, PhaseOpen or PhaseClose
	Disk    int
	After   int64 // steps of that phase since the last incident
	OnFlush bool  // wait for the next flush that is submitted
	// OnRelaxed waits for the answer of a relaxed operation's write while nothing
	// is being flushed: the data is published and only in the cache.
	OnRelaxed bool
}

// NewSetup draws the setup of a seed.
func NewSetup(seed uint64) Setup {
	rng := rand.New(rand.NewPCG(seed, 0x5e70))
	pick := func(v ...int64) int64 { return v[rng.IntN(len(v))] }
	s := Setup{
		Seed: seed, Disks: 1 + rng.IntN(3), BlockSize: pick(512, 4096), SlabBytes: 64 * base.KiB,
		Discard: rng.IntN(8) > 0, Depth: int(pick(4, 16, 64)),
		Pace:      Pace{Pause: time.Duration(pick(20, 80, 200)) * time.Microsecond, PausePer16: int(pick(1, 3, 6)), Hold: int(pick(1, 3, 8))},
		FreeSlabs: pick(16, 28, 40, 60),
		RoundAge:  time.Duration(pick(2, 10, 50)) * time.Millisecond,
		IdleMark:  time.Duration(pick(1, 1, 5)) * time.Millisecond,
		Workers:   3 + rng.IntN(4), Ops: 430 + rng.IntN(120), Keys: 5 + rng.IntN(5),
		Lives: 1 + rng.IntN(3), Reformat: rng.IntN(4) == 0, Relaxed: int(pick(30, 50, 90)), Draws: 3, MaxShots: 100,
	}
	for range [...]int{0, 0, 2, 3, 4, 5, 6, 8, 10, 12}[rng.IntN(10)] {
		how := rng.IntN(6)
		in := Incident{Phase: PhaseRun, Disk: rng.IntN(3), After: 10 + rng.Int64N(120), OnFlush: how == 0, OnRelaxed: how > 1}
		switch rng.IntN(8) {
		case 0:
			in.Kind = LoseContact
		case 1:
			in.Kind = FailWrite
		case 2:
			in.Kind, in.OnRelaxed = FailRead, false
		}
		s.Incidents = append(s.Incidents, in)
	}
	switch rng.IntN(12) {
	case 0, 1, 2, 5, 6:
		s.Incidents = append(s.Incidents, Incident{Kind: MetaDies, Phase: PhaseRun, After: 50 + rng.Int64N(600)})
	case 3:
		s.Incidents = append([]Incident{{Phase: PhaseOpen, Disk: rng.IntN(3), After: rng.Int64N(12)}}, s.Incidents...)
	case 4:
		s.Incidents = append(s.Incidents, Incident{Phase: PhaseClose, Disk: rng.IntN(3), After: rng.Int64N(12)})
	}
	return s
}

type actionKind uint8

const (
	actPut actionKind = iota
	actDelete
	actGet
	actGetAny
	actBatch
	actLease
	actLeaseRead
	actRelease
	actFlush
	actList
	actWave // fill slabs with values of one size, and empty them
	actReopen
)

// action is one thing that a worker does. It depends on the seed alone.
type action struct {
	kind    actionKind
	keys    []int
	sizes   []int64
	relaxed bool
	replace bool
	region  bool          // from registered memory
	writer  bool          // as a stream
	timeout time.Duration // 0 for none
}

// waveKeys is how many keys a wave fills.
const waveKeys = 6

// plan is the actions of every worker.
type plan struct {
	workers [][]action
	keys    int // of all workers
}

// worker numbers: keys of worker w are [w*perWorker, (w+1)*perWorker); the last
// waveKeys of them belong to waves.
func newPlan(s Setup) plan {
	per := s.Keys + waveKeys
	p := plan{keys: s.Workers * per}
	for w := range s.Workers {
		rng := rand.New(rand.NewPCG(s.Seed, uint64(w)+1))
		g := &generator{rng: rng, first: w * per, keys: s.Keys, all: p.keys, relaxed: s.Relaxed, roomy: s.FreeSlabs >= 40, puts: map[int]int64{}}
		var list []action
		for len(list) < s.Ops/s.Workers+1 {
			list = append(list, g.next()...)
		}
		p.workers = append(p.workers, list)
	}
	return p
}

type generator struct {
	rng         *rand.Rand
	first, keys int
	all         int
	relaxed     int
	roomy       bool
	puts        map[int]int64
}

// late decides whether an operation is relaxed.
func (g *generator) late() bool { return g.rng.IntN(100) < g.relaxed }

func (g *generator) key() int { return g.first + g.rng.IntN(g.keys) }

// size draws a size for the next put of a key. Consecutive puts of a key differ
// in size, so that events can be told apart.
func (g *generator) size(key int, near int64) int64 {
	n := near
	if n == 0 {
		switch p := g.rng.IntN(100); {
		case p < 3:
			n = 0
		case p < 30:
			n = 1 + g.rng.Int64N(4096)
		case p < 60:
			n = 4096 + g.rng.Int64N(12*base.KiB)
		case p < 78:
			n = 16*base.KiB + g.rng.Int64N(16*base.KiB)
		case p < 92:
			n = 33*base.KiB + g.rng.Int64N(31*base.KiB)
		default:
			n = 66*base.KiB + g.rng.Int64N(100*base.KiB)
		}
	}
	g.puts[key]++
	return n&^7 + g.puts[key]%8
}

func (g *generator) next() []action {
	rng := g.rng
	one := func(k actionKind, key int) []action { return []action{{kind: k, keys: []int{key}}} }
	switch p := rng.IntN(100); {
	case p < 40:
		return g.withHeir(g.put(g.key()))
	case p < 52:
		a := action{kind: actDelete, keys: []int{g.key()}, relaxed: g.late()}
		if rng.IntN(12) == 0 {
			a.timeout = time.Duration(1+rng.IntN(300)) * time.Microsecond
		}
		return []action{a}
	case p < 60:
		return one(actGet, g.key())
	case p < 66:
		return one(actGetAny, rng.IntN(g.all))
	case p < 74:
		return []action{g.batch()}
	case p < 79:
		return g.lease()
	case p < 82:
		return []action{{kind: actFlush}}
	case p < 84:
		return []action{{kind: actList}}
	}
	return g.wave()
}

func (g *generator) put(key int) action {
	a := action{kind: actPut, keys: []int{key}, sizes: []int64{g.size(key, 0)}, relaxed: g.late(),
		replace: g.rng.IntN(5) > 0, region: g.rng.IntN(2) == 0}
	if g.roomy && g.rng.IntN(25) == 0 { // several pieces
		a.sizes[0] = g.size(key, base.MiB+g.rng.Int64N(400*base.KiB))
	}
	if g.rng.IntN(8) == 0 || a.sizes[0] > base.MiB && g.rng.IntN(2) == 0 {
		a.writer, a.region = true, false
	}
	if g.rng.IntN(4) == 0 {
		a.timeout = time.Duration(1+g.rng.IntN([]int{150, 500, 1500}[g.rng.IntN(3)])) * time.Microsecond
		a.replace, a.region = true, false
	}
	return a
}

// withHeir lets a put whose caller may give up be followed by one of that size. If
// the slot of the first is free too early, the second is given it while the write of
// the first may still be under way.
func (g *generator) withHeir(a action) []action {
	if a.timeout == 0 {
		return []action{a}
	}
	key := g.key()
	return []action{a, {kind: actPut, keys: []int{key}, sizes: []int64{g.size(key, a.sizes[0])}, relaxed: g.late(), replace: true}}
}

func (g *generator) batch() action {
	a := action{kind: actBatch, relaxed: g.late(), replace: true}
	for _, i := range g.rng.Perm(g.keys)[:min(g.keys, 2+g.rng.IntN(3))] {
		a.keys = append(a.keys, g.first+i)
		a.sizes = append(a.sizes, g.size(g.first+i, 0))
	}
	return a
}

// lease holds a key across a replace or a delete of it.
func (g *generator) lease() []action {
	k := g.key()
	out := []action{{kind: actLease, keys: []int{k, g.key()}}}
	for range 1 + g.rng.IntN(2) {
		if g.rng.IntN(3) == 0 {
			out = append(out, action{kind: actDelete, keys: []int{k}, relaxed: g.late()})
		} else {
			p := g.put(k)
			p.replace = true
			out = append(out, p)
		}
		out = append(out, action{kind: actLeaseRead})
	}
	return append(out, g.put(g.key()), action{kind: actLeaseRead}, action{kind: actRelease})
}

// wave fills one or two slabs with values of one size and deletes them again,
// so that slabs return and are cut for another class.
func (g *generator) wave() []action {
	size := []int64{9 * base.KiB, 15 * base.KiB, 21 * base.KiB, 31 * base.KiB, 60 * base.KiB}[g.rng.IntN(5)]
	relaxed := g.late()
	fill := action{kind: actBatch, relaxed: relaxed, replace: true}
	var out []action
	for i := range waveKeys {
		k := g.first + g.keys + i
		fill.keys = append(fill.keys, k)
		fill.sizes = append(fill.sizes, g.size(k, size))
		out = append(out, action{kind: actDelete, keys: []int{k}, relaxed: relaxed || g.rng.IntN(4) > 0})
	}
	return append([]action{fill}, out...)
}
