package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// The steps of a scale run, each in a process of its own.
const (
	ScaleFill  = "fill"  // make the store and its objects
	ScaleOpen  = "open"  // open it, read one object, look keys up, close it
	ScaleCrash = "crash" // put until a log is long, then die
)

// scaleObject is the size of the objects, bytes.
const scaleObject = base.StoreBlock

// MaxScale is the largest number of objects.
const MaxScale = 100_000_000

// scaleLookups is how many keys are looked up one by one, scaleExists how many
// in one call.
const (
	scaleLookups = 1 << 20
	scaleExists  = 4096
)

// ScaleStep is what one process does.
type ScaleStep struct {
	Do      string `json:"do"`
	Dir     string `json:"dir"`
	Objects int    `json:"objects"`
	// Puts makes objects with puts, of 4 KiB of data each. Without it the records
	// alone are written: the objects are the zeros of a sparse file.
	Puts bool   `json:"puts"`
	Seed uint64 `json:"seed"`
}

// ScaleSample is what a step measured; what it did not measure is nil.
type ScaleSample struct {
	Step        ScaleStep `json:"step"`
	FillSeconds *float64  `json:"fill_seconds,omitempty"`

	OpenSeconds     *float64 `json:"open_seconds,omitempty"`
	FirstHitSeconds *float64 `json:"first_hit_seconds,omitempty"` // from before the open to the first value
	OpenCPU         *float64 `json:"open_cpu_seconds,omitempty"`  // processor time of the open
	Objects         int64    `json:"objects,omitempty"`

	IndexBytes    *float64 `json:"index_bytes_per_object,omitempty"`     // as the store counts
	OffHeapBytes  *float64 `json:"off_heap_bytes_per_object,omitempty"`  // of the index, as allocated
	RSSBytes      *float64 `json:"rss_bytes_per_object,omitempty"`       // growth of the process by the open
	PeakBytes     *float64 `json:"peak_bytes_per_object,omitempty"`      // growth of its largest size
	GrowthPeak    *float64 `json:"growth_peak_per_object,omitempty"`     // of the index, while objects were put
	LookupNS      *float64 `json:"lookup_ns,omitempty"`                  // a hit, one key a call
	ExistsPerS    *float64 `json:"exists_per_s,omitempty"`               // keys, 4,096 a call
	RestPerObject *float64 `json:"other_off_heap_per_object,omitempty"`  // off-heap bytes of other owners
	LogBytes      *int64   `json:"log_bytes_before_the_crash,omitempty"` // of the metadata
}

func scaleKey(i int) []byte { return strconv.AppendInt([]byte("scale/"), int64(i), 10) }

// RunScale does one step.
func RunScale(ctx context.Context, st ScaleStep) (*ScaleSample, error) {
	if st.Objects < 1 || st.Objects > MaxScale {
		return nil, base.Errorf("bench", "scale", base.ErrInvalid, "%d objects, 1 to %d are possible", st.Objects, MaxScale)
	}
	out := &ScaleSample{Step: st}
	switch st.Do {
	case ScaleFill:
		return out, out.fill(ctx)
	case ScaleOpen:
		return out, out.open(ctx)
	case ScaleCrash:
		return out, out.crash(ctx)
	}
	return nil, base.Errorf("bench", "scale", base.ErrInvalid, "no step %q", st.Do)
}

// scaleStore is an open store of a scale run.
type scaleStore struct {
	dev driver.Device
	s   *store.Store
	n   *store.Namespace
}

func (st *ScaleStep) path() string { return filepath.Join(st.Dir, dataName) }
func (st *ScaleStep) meta() meta.Options {
	return meta.Options{Dir: filepath.Join(st.Dir, metaName)}
}

func (st *ScaleStep) device(ctx context.Context) (*file.Device, error) {
	return file.Open(ctx, file.Options{Path: st.path(), Owner: "ugdsctl bench", Wait: time.Minute})
}

func (st *ScaleStep) openStore(ctx context.Context) (*scaleStore, error) {
	dev, err := st.device(ctx)
	if err != nil {
		return nil, err
	}
	s, err := store.Open(ctx, store.Options{Devices: []driver.Device{dev}, Meta: st.meta()})
	if err != nil {
		return nil, errors.Join(err, dev.Close(ctx))
	}
	o := &scaleStore{dev: dev, s: s}
	if o.n, err = s.Namespace(ctx, Namespace, store.NamespaceOptions{Create: true}); err != nil {
		return nil, errors.Join(err, o.close(ctx))
	}
	return o, nil
}

func (o *scaleStore) close(ctx context.Context) error {
	return errors.Join(o.s.Close(ctx), o.dev.Close(ctx))
}

// open measures an open and what can be asked afterwards.
func (out *ScaleSample) open(ctx context.Context) error {
	st := &out.Step
	r := rand.New(rand.NewPCG(st.Seed, 0x7363616c65))
	debug.FreeOSMemory()
	rss, peak := residentBytes()
	cpu, known := cpuSeconds()
	begin := time.Now()
	o, err := st.openStore(ctx)
	if err != nil {
		return err
	}
	out.OpenSeconds = ptr(time.Since(begin).Seconds())
	if now, ok := cpuSeconds(); ok && known {
		out.OpenCPU = ptr(now - cpu)
	}
	v, err := o.n.GetBytes(ctx, scaleKey(r.IntN(st.Objects)), store.GetOptions{})
	out.FirstHitSeconds = ptr(time.Since(begin).Seconds())
	if err == nil && len(v) != scaleObject {
		err = base.Errorf("bench", "scale", base.ErrCorrupt, "a value of %d bytes", len(v))
	}
	if err != nil {
		return errors.Join(err, o.close(ctx))
	}
	_, top := residentBytes()
	out.memory(o.s.Stats(), rss, peak, top)
	return errors.Join(out.lookups(ctx, o.n, r), o.close(ctx))
}

// memory tells what the open store holds for each object.
func (out *ScaleSample) memory(s store.Stats, rss, peak, top int64) {
	out.Objects = s.Objects
	debug.FreeOSMemory()
	now, _ := residentBytes()
	each := func(n int64) *float64 { return ptr(float64(n) / float64(s.Objects)) }
	index, rest := offHeap()
	out.IndexBytes, out.OffHeapBytes, out.RestPerObject = each(s.IndexBytes), each(index), each(rest)
	if rss > 0 {
		out.RSSBytes, out.PeakBytes = each(now-rss), each(top-max(peak, rss))
	}
}

// offHeap sums the memory outside the Go heap: that of the index, and the rest.
func offHeap() (index, rest int64) {
	for _, u := range dma.Usage() {
		if strings.HasPrefix(u.Owner, "index") {
			index += u.Bytes
		} else {
			rest += u.Bytes
		}
	}
	return index, rest
}

// residentBytes is the memory of this process and the most it ever was, 0 where
// the kernel does not tell.
func residentBytes() (now, most int64) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch {
		case err != nil:
		case name == "VmRSS":
			now = n * base.KiB
		case name == "VmHWM":
			most = n * base.KiB
		}
	}
	return now, most
}

// lookups measures hits, one key a call and many keys a call, on keys drawn from
// all of them. The best of many short passes counts: others use the processor too.
func (out *ScaleSample) lookups(ctx context.Context, n *store.Namespace, r *rand.Rand) error {
	keys := make([][]byte, min(scaleLookups, max(out.Step.Objects, scaleExists)))
	for i := range keys {
		keys[i] = scaleKey(r.IntN(out.Step.Objects))
	}
	runtime.GC()
	const slice = 1 << 14
	var single []float64
	for at := 0; at+slice <= len(keys); at += slice {
		begin := time.Now()
		for _, k := range keys[at : at+slice] {
			if there, err := n.Exists(ctx, k); err != nil || !there {
				return errors.Join(err, base.Errorf("bench", string(k), base.ErrNotFound, "it was put"))
			}
		}
		single = append(single, float64(time.Since(begin).Nanoseconds())/slice)
	}
	there := make([]bool, scaleExists)
	var many []float64
	for at := 0; at+scaleExists <= len(keys); at += scaleExists {
		begin := time.Now()
		if err := n.ExistsMany(keys[at:at+scaleExists], there); err != nil {
			return err
		}
		many = append(many, scaleExists/time.Since(begin).Seconds())
		if slices.Contains(there, false) {
			return base.Errorf("bench", "scale", base.ErrNotFound, "a key that was put")
		}
	}
	if len(single) > 0 {
		out.LookupNS = ptr(slices.Min(single))
	}
	out.ExistsPerS = ptr(slices.Max(many))
	return nil
}
