package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ugds-store/ugds/alloc"
	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// Limits of a gather.
const (
	// RangeUnit is the unit of offsets and lengths of ranges, bytes.
	RangeUnit = 512
	// MaxRange is the longest range, bytes; the shortest is RangeUnit.
	MaxRange = 4096
	// MaxRanges is how many one call takes.
	MaxRanges = store.MaxBatchKeys
)

// GatherPlan reads many small ranges of many objects, as a search for vectors does:
// all of them in one call, and one call for each.
type GatherPlan struct {
	Place  Place  // Dir with what Prepare made, or an existing store
	Model  string // a model in memory, on which a store is made with its metadata in Place.Dir; "" for Place
	Bytes  int64  // of all values
	Size   int64  // of a value, bytes, at least MaxRange
	Ranges int
	Rounds int // each with ranges of its own
	Seed   uint64
	// Progress hears of each round before it begins. May be nil.
	Progress func(done, all int)
}

// GatherReport is what Gather found.
type GatherReport struct {
	Version int         `json:"version"`
	Began   time.Time   `json:"began"`
	Seconds float64     `json:"seconds"`
	Machine Machine     `json:"machine"`
	Engine  string      `json:"engine"`
	Objects int         `json:"objects"`
	Size    int64       `json:"object_bytes"`
	Ranges  int         `json:"ranges"`
	Rounds  int         `json:"rounds"`
	Rows    []GatherRow `json:"rows"`
	Gain    float64     `json:"gain"` // of one call over one call a range, both unverified
}

// GatherRow is one way to read the ranges, over all rounds. Times are of the wall.
type GatherRow struct {
	Way       string    `json:"way"`
	Verified  bool      `json:"verified"` // the pieces around each range are read and their checksums compared
	Seconds   float64   `json:"seconds"`
	PerSecond float64   `json:"ranges_per_second"`
	MBPerS    float64   `json:"mb_per_s"`    // of what was asked for
	P50       float64   `json:"p50_seconds"` // of a call
	P90       float64   `json:"p90_seconds"`
	P99       float64   `json:"p99_seconds"`
	P999      float64   `json:"p999_seconds"`
	Max       float64   `json:"max_seconds"`
	Asked     int64     `json:"asked_bytes"`
	Moved     int64     `json:"moved_bytes"` // by the devices
	Commands  float64   `json:"commands_per_range"`
	CPU       *float64  `json:"cpu_seconds_per_range"` // null if unknown
	Paths     []PathRow `json:"paths"`
}

// PathRow is what took one path.
type PathRow struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	Bytes  int64  `json:"bytes"`
}

// The ways of a gather.
const (
	OneCall  = "one call"
	EachCall = "one call a range"
)

func (p *GatherPlan) check() error {
	bad := func(format string, args ...any) error {
		return base.Errorf("bench", "gather", base.ErrInvalid, format, args...)
	}
	switch {
	case p.Size < MaxRange:
		return bad("values of %d bytes: at least %d", p.Size, MaxRange)
	case p.Ranges < 1 || p.Ranges > MaxRanges:
		return bad("%d ranges: 1 to %d are possible", p.Ranges, MaxRanges)
	case p.Rounds < 1 || p.Rounds > MaxRounds:
		return bad("%d rounds: 1 to %d are possible", p.Rounds, MaxRounds)
	case p.Bytes < p.Size || p.Bytes > MaxBytes:
		return bad("%s of values of %s; at most %s", base.FormatBytes(p.Bytes), base.FormatBytes(p.Size), base.FormatBytes(MaxBytes))
	}
	return nil
}

// WallClock refuses models on a virtual clock: a store is measured by the wall's, on which
// their commands take no time.
func WallClock(targets ...string) error {
	for _, target := range targets {
		if c, err := sim.ParseTarget(target); err == nil && !c.Real {
			return base.WithHint(base.Errorf("bench", target, base.ErrInvalid, "its clock is virtual, and a store is measured by the wall's, on which its commands take no time"),
				"clock=real measures this computer; bench --device without a store and a workload tells times of a virtual clock")
		}
	}
	return nil
}

// room refuses more values than a model of its own has room for, before the first is
// put. A store that is named tells by itself that it is full.
func (p *GatherPlan) room(sp alloc.Stats) error {
	if p.Model == "" {
		return nil
	}
	have := sp.FreeSlab / base.AlignUp(p.Size, base.StoreBlock) // of values that are cut, at most
	for _, c := range sp.Classes[:len(sp.Classes)-1] {
		if c.SlotBytes >= p.Size {
			have = sp.FreeSlab / sp.SlabBytes * int64(c.PerSlab)
			break
		}
	}
	if n := p.Bytes / p.Size; n > have {
		return base.WithHint(base.Errorf("bench", p.Model, base.ErrNoSpace, "%d values of %s, and there is room for %d", n, base.FormatBytes(p.Size), have),
			"--bytes asks for fewer, size= makes the model larger")
	}
	return nil
}

// Gather measures both ways, verified and not, and compares every byte.
func Gather(ctx context.Context, p GatherPlan) (r *GatherReport, err error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	c := &Case{Subject: Store, Op: OpPut, Size: p.Size, Objects: int(p.Bytes / p.Size), Callers: 1, Seed: p.Seed, Place: p.Place}
	c.Batch = min(c.Objects, 32)
	if err := c.check(); err != nil {
		return nil, err
	}
	d, err := newDataset(c)
	if err != nil {
		return nil, err
	}
	defer d.close()
	s, err := openGather(ctx, d, p.Model)
	if err != nil {
		return nil, err
	}
	g := &gather{p: &p, d: d, s: s}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		// The memory comes last: of a call that was interrupted, commands may go on.
		err = errors.Join(err, s.purge(cctx), s.close(cctx), g.free())
	}()
	r = &GatherReport{Version: Version, Began: time.Now().UTC(), Machine: describeMachine(p.Place.Dir), Engine: s.count().engine,
		Objects: c.Objects, Size: p.Size, Ranges: p.Ranges, Rounds: p.Rounds, Rows: []GatherRow{}}
	if err := p.room(s.s.Stats().Space); err != nil {
		return nil, err
	}
	if err := errors.Join(pass(ctx, s, d, OpPut, d.order(), nil), s.settle(ctx)); err != nil {
		return nil, err
	}
	if err := g.memory(); err != nil {
		return nil, err
	}
	for _, way := range []string{OneCall, EachCall} { // what only the first calls pay is not counted
		if err := g.round(ctx, &gatherSum{way: way}, p.Rounds); err != nil {
			return nil, err
		}
	}
	rows := []*gatherSum{{way: OneCall}, {way: EachCall}, {way: OneCall, verify: true}, {way: EachCall, verify: true}}
	for round := range p.Rounds {
		for k := range rows {
			if p.Progress != nil {
				p.Progress(round*len(rows)+k, p.Rounds*len(rows))
			}
			if err := g.round(ctx, rows[(k+round)%len(rows)], round); err != nil {
				return nil, err
			}
		}
	}
	for _, sum := range rows {
		r.Rows = append(r.Rows, sum.row(&p))
	}
	r.Gain = r.Rows[1].Seconds / r.Rows[0].Seconds
	r.Seconds = time.Since(r.Began).Seconds()
	return r, nil
}

// openGather opens the store, or makes one on a model that ends with it.
func openGather(ctx context.Context, d *dataset, model string) (_ *storeSubject, err error) {
	if model == "" {
		return openStore(ctx, d)
	}
	s := &storeSubject{d: d}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(context.WithoutCancel(ctx)))
		}
	}()
	dev, err := probe.Open(ctx, model, probe.Options{File: file.Options{Owner: "ugdsctl bench"}})
	if err != nil {
		return s, err
	}
	s.devs = append(s.devs, dev)
	mo := meta.Options{Dir: d.c.Place.storeMeta()}
	if _, err := store.Format(ctx, store.FormatOptions{Devices: s.devs, Meta: mo}); err != nil {
		return s, err
	}
	if err := attach(dev, d); err != nil {
		return s, err
	}
	if s.s, err = store.Open(ctx, store.Options{Devices: s.devs, Meta: mo}); err != nil {
		return s, err
	}
	s.n, err = s.s.Namespace(ctx, Namespace, store.NamespaceOptions{Create: true})
	return s, err
}

// gather is a run under way.
type gather struct {
	p     *GatherPlan
	d     *dataset
	s     *storeSubject
	mem   *driver.Region // where the ranges go, MaxRange apart
	items []store.GetItem
	of    []int // the object of each item
}

func (g *gather) memory() (err error) {
	if g.mem, err = driver.AllocRegion(int64(g.p.Ranges)*MaxRange, "bench ranges"); err != nil {
		return err
	}
	for _, dev := range g.s.devs {
		if err := dev.Attach(g.mem); err != nil {
			return err
		}
	}
	g.items, g.of = make([]store.GetItem, g.p.Ranges), make([]int, g.p.Ranges)
	return nil
}

func (g *gather) free() error {
	if g.mem == nil {
		return nil
	}
	return g.mem.Close()
}

// draw chooses ranges: the same ones for each way of a round.
func (g *gather) draw(round int, verify bool) (asked int64) {
	rnd := rand.New(rand.NewPCG(g.p.Seed, uint64(round)))
	for i := range g.items {
		n := (1 + rnd.Int64N(MaxRange/RangeUnit)) * RangeUnit
		off := rnd.Int64N((g.p.Size-n)/RangeUnit+1) * RangeUnit
		g.of[i] = rnd.IntN(g.d.c.Objects)
		g.items[i] = store.GetItem{Key: g.d.keys[g.of[i]], Dst: store.InRegion(g.mem, int64(i)*MaxRange, n),
			GetOptions: store.GetOptions{Off: off, Len: n, NoVerify: !verify}}
		asked += n
	}
	clear(g.mem.CPU())
	return asked
}

// gatherSum adds up the rounds of one way.
type gatherSum struct {
	way      string
	verify   bool
	spent    time.Duration
	lat      []time.Duration
	asked    int64
	moved    int64
	commands int64
	cpu      *float64
	paths    []PathRow
}

func (g *gather) round(ctx context.Context, sum *gatherSum, round int) error {
	sum.asked += g.draw(round, sum.verify)
	before, paths := g.s.s.Stats(), g.s.s.Stats().Paths
	cpu0, known := cpuSeconds()
	begin := time.Now()
	err := g.read(ctx, sum)
	sum.spent += time.Since(begin)
	if cpu1, ok := cpuSeconds(); ok && known {
		if sum.cpu == nil {
			sum.cpu = new(float64)
		}
		*sum.cpu += cpu1 - cpu0
	}
	after := g.s.s.Stats()
	for i := range after.Devices {
		sum.moved += after.Devices[i].ReadBytes - before.Devices[i].ReadBytes
		sum.commands += after.Devices[i].Commands - before.Devices[i].Commands
	}
	sum.addPaths(paths, after.Paths)
	return errors.Join(err, g.compare())
}

func (g *gather) read(ctx context.Context, sum *gatherSum) error {
	if sum.way == OneCall {
		begin := time.Now()
		g.s.n.GetBatch(ctx, g.items)
		sum.lat = append(sum.lat, time.Since(begin))
		return ctx.Err()
	}
	for i := range g.items {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		begin := time.Now()
		g.s.n.GetBatch(ctx, g.items[i:i+1])
		sum.lat = append(sum.lat, time.Since(begin))
	}
	return nil
}

// compare compares every range with the value that was put.
func (g *gather) compare() error {
	for i := range g.items {
		it := &g.items[i]
		if it.Err != nil {
			return it.Err
		}
		want := g.d.src.Bytes(g.d.off(g.of[i])+it.Off, it.Len)
		if it.N != it.Len || !bytes.Equal(g.mem.Bytes(int64(i)*MaxRange, it.Len), want) {
			return base.Errorf("compare", string(it.Key), base.ErrCorrupt, "range of %d bytes at %d: other bytes than were put", it.Len, it.Off)
		}
	}
	return nil
}

func (sum *gatherSum) addPaths(before, after []driver.PathCount) {
	for _, a := range after {
		if a.Write || a.Reason == ownBlocks {
			continue
		}
		n := a.Bytes
		for _, b := range before {
			if b.PathKey == a.PathKey {
				n -= b.Bytes
			}
		}
		at := slices.IndexFunc(sum.paths, func(p PathRow) bool { return p.Path == a.Path.String() && p.Reason == a.Reason })
		if at < 0 && n > 0 {
			sum.paths = append(sum.paths, PathRow{a.Path.String(), a.Reason, n})
		} else if at >= 0 {
			sum.paths[at].Bytes += n
		}
	}
}

func (sum *gatherSum) row(p *GatherPlan) GatherRow {
	n := float64(p.Ranges * p.Rounds)
	slices.Sort(sum.lat)
	q := func(share float64) float64 { return quantile(sum.lat, share) }
	r := GatherRow{Way: sum.way, Verified: sum.verify, Seconds: sum.spent.Seconds(), PerSecond: n / sum.spent.Seconds(),
		MBPerS: float64(sum.asked) / 1e6 / sum.spent.Seconds(), P50: q(0.5), P90: q(0.9), P99: q(0.99), P999: q(0.999),
		Max: q(1), Asked: sum.asked, Moved: sum.moved, Commands: float64(sum.commands) / n, Paths: append([]PathRow{}, sum.paths...)}
	if sum.cpu != nil {
		r.CPU = ptr(*sum.cpu / n)
	}
	return r
}

// ways names the paths that the bytes took, each once.
func (r *GatherReport) ways() string {
	var ways []string
	for _, row := range r.Rows {
		for _, p := range row.Paths {
			if p.Bytes > 0 && !slices.Contains(ways, p.Path) {
				ways = append(ways, p.Path)
			}
		}
	}
	return strings.Join(ways, " and ")
}

// WriteTable writes the report for people; with explain, also the paths that the
// bytes took.
func (r *GatherReport) WriteTable(w io.Writer, explain bool) error {
	m := &r.Machine
	if _, err := fmt.Fprintf(w, "%d CPUs (%s), load %s at the start; %d ranges of %d to %d bytes of %d values of %s, %s, by %s; %d rounds, %.0f s\n"+
		"Times are those of the wall; every byte was compared.\n\n", m.CPUs, orNot(m.CPU), orNot(m.Load), r.Ranges, RangeUnit, MaxRange,
		r.Objects, base.FormatBytes(r.Size), r.Engine, r.ways(), r.Rounds, r.Seconds); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tranges/s\tMB/s asked\tread/asked\tcommands/range\tp50\tp90\tp99\tp99.9\tCPU/range\t")
	for i := range r.Rows {
		row := &r.Rows[i]
		name := row.Way
		if row.Verified {
			name += ", verified"
		}
		ratio := float64(row.Moved) / float64(row.Asked)
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", name, number(&row.PerSecond), number(&row.MBPerS), number(&ratio),
			number(&row.Commands), span(&row.P50), span(&row.P90), span(&row.P99), span(&row.P999), span(row.CPU))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "\n%s / %s: %.2f\n", OneCall, EachCall, r.Gain); err != nil || !explain {
		return err
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		for _, p := range row.Paths {
			text := p.Path
			if p.Reason != "" {
				text += " (" + p.Reason + ")"
			}
			if _, err := fmt.Fprintf(w, "  %s, verified %v: %s %s\n", row.Way, row.Verified, base.FormatBytes(p.Bytes), text); err != nil {
				return err
			}
		}
	}
	return nil
}
