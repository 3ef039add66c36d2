package store_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

func TestMain(m *testing.M) {
	child()
	testenv.Main(m, meta.ExemptGoroutine)
}

func devices(d ...driver.Device) []driver.Device { return d }

// kind is a sort of devices that tests run on: files, or controller models with
// files behind them, driven by the NVMe driver.
type kind struct {
	name   string
	models []model // in turn for the devices of a pool; none for files
}

// model is the shape of a controller.
type model struct {
	target string // without the file
	opts   ctrl.Options
}

// The controllers differ in all that the store could notice or lean on.
var (
	tiny  = model{"sim:lba=512,mdts=1,mqes=3,queues=1,vectors=0", ctrl.Options{Depth: 2}}
	usual = model{"sim:lba=4096,mdts=5,mqes=256,sgl=1", ctrl.Options{Queues: 4}}
	odd   = model{"sim:lba=512,mdts=3,noiob=24,dstrd=2,nsid=7,vwc=0", ctrl.Options{Mode: ctrl.Interrupts}}
)

var (
	files = kind{"file", nil}
	sims  = kind{"sim", []model{tiny, usual, odd}}
	kinds = []kind{files, sims, {"sim, larger blocks first", []model{usual, odd, tiny}}}
)

// everyKind runs a test on each kind of devices.
func everyKind(t *testing.T, test func(t *testing.T, k kind)) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { test(t, k) })
	}
}

// open opens device i of a pool, whose data is in a file.
func (k kind) open(i int, o file.Options) (driver.Device, *sim.Sim, error) {
	if k.models == nil {
		d, err := file.Open(bg, o)
		return d, nil, err
	}
	m := k.models[i%len(k.models)]
	cfg, err := sim.ParseTarget(m.target + ",path=" + strings.ReplaceAll(o.Path, ",", ",,"))
	if err != nil {
		return nil, nil, err
	}
	s, err := sim.Open(cfg)
	if err != nil {
		return nil, nil, err
	}
	d, err := ctrl.Open(bg, s, m.opts)
	return d, s, err
}

func (k kind) newBox(t testing.TB, b box) *box {
	b.kind = k
	return newBox(t, b)
}

// box is a store on devices with files in a directory of the test.
type box struct {
	t       testing.TB
	kind    kind
	dir     string
	engine  string
	sizes   []int64
	slab    int64
	metaDir string
	sparse  bool
	tune    func(*store.Options)

	devs []driver.Device
	sims []*sim.Sim // behind them, nil for files
	s    *store.Store
	ns   *store.Namespace
	base [2]int64 // bytes that the devices read and wrote before the store counted
}

var bg = context.Background()

// newBox formats a store and opens it.
func newBox(t testing.TB, b box) *box {
	b.t = t
	if b.dir == "" {
		b.dir = t.TempDir()
	}
	if b.sizes == nil {
		b.sizes = []int64{128 << 20}
	}
	for i, size := range b.sizes {
		if err := file.Create(b.path(i), size, b.sparse); err != nil {
			t.Fatal(err)
		}
	}
	b.openDevices()
	if _, err := store.Format(bg, store.FormatOptions{Devices: b.devs, Meta: b.meta(), SlabBytes: b.slab}); err != nil {
		t.Fatal(err)
	}
	b.open()
	t.Cleanup(b.close)
	return &b
}

func (b *box) path(i int) string { return filepath.Join(b.dir, fmt.Sprintf("data%d.ugds", i)) }
func (b *box) meta() meta.Options {
	if b.metaDir != "" {
		return meta.Options{Dir: b.metaDir}
	}
	return meta.Options{Dir: filepath.Join(b.dir, "meta")}
}

func (b *box) openDevices() {
	b.t.Helper()
	b.devs, b.sims = nil, nil
	for i := range b.sizes {
		d, s, err := b.kind.open(i, file.Options{Path: b.path(i), Engine: b.engine, Discard: b.sparse})
		if err != nil {
			b.t.Fatal(err)
		}
		b.devs, b.sims = append(b.devs, d), append(b.sims, s)
	}
}

func (b *box) closeDevices() {
	for _, d := range b.devs {
		if err := d.Close(bg); err != nil {
			b.t.Error(err)
		}
	}
	for i, s := range b.sims {
		if s == nil {
			continue
		}
		for _, v := range s.Violations() {
			b.t.Errorf("device %d: violation: %s", i, v)
		}
	}
	b.devs, b.sims = nil, nil
}

func (b *box) options() store.Options {
	o := store.Options{Devices: b.devs, Meta: b.meta(), StagingBytes: 8 << 20}
	if b.tune != nil {
		b.tune(&o)
	}
	return o
}

// open opens the store on the open devices.
func (b *box) open() {
	b.t.Helper()
	s, err := store.Open(bg, b.options())
	if err != nil {
		b.t.Fatal(err)
	}
	b.s, b.base = s, [2]int64{}
	st := s.Stats()
	for _, d := range st.Devices {
		b.base[0] += d.ReadBytes
		b.base[1] += d.WriteBytes
	}
	for _, p := range st.Paths { // raising the epoch is counted already
		if p.Write {
			b.base[1] -= p.Bytes
		}
	}
	b.ns, err = s.Namespace(bg, "default", store.NamespaceOptions{Create: true})
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) close() {
	if b.s != nil {
		ctx, cancel := context.WithTimeout(bg, time.Minute)
		defer cancel()
		if err := b.s.Close(ctx); err != nil {
			b.t.Error(err)
		}
		b.s = nil
	}
	b.closeDevices()
}

// reopen closes everything in order and opens it again.
func (b *box) reopen() {
	b.t.Helper()
	b.close()
	b.openDevices()
	b.open()
}

// equal compares what the devices and the mover counted (I10).
func (b *box) equal() {
	b.t.Helper()
	if err := b.s.Flush(bg); err != nil {
		b.t.Fatal(err)
	}
	var moved, counted [2]int64
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // the idle mark may be under way
		st := b.s.Stats()
		moved, counted = [2]int64{}, [2]int64{}
		for _, p := range st.Paths {
			if p.Write {
				moved[1] += p.Bytes
			} else {
				moved[0] += p.Bytes
			}
		}
		for _, d := range st.Devices {
			counted[0] += d.ReadBytes
			counted[1] += d.WriteBytes
		}
		counted[0] -= b.base[0]
		counted[1] -= b.base[1]
		if moved == counted {
			return
		}
		if time.Now().After(end) {
			b.t.Errorf("the mover counted %d read and written, the devices %d", moved, counted)
			return
		}
	}
}

// fill gives n seeded bytes.
func fill(seed uint64, n int) []byte {
	b := make([]byte, n)
	testenv.Fill(b, seed)
	return b
}
