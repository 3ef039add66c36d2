package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

func TestMain(m *testing.M) {
	child()
	testenv.Main(m, parked)
}

// parked exempts goroutines that the metadata parked behind its fence.
func parked(stack string) bool {
	return meta.ParkedGoroutines() > 0 && strings.Contains(stack, "pebble")
}

func devices(d ...driver.Device) []driver.Device { return d }

// box is a store on file devices in a directory of the test.
type box struct {
	t       testing.TB
	dir     string
	engine  string
	sizes   []int64
	slab    int64
	metaDir string
	sparse  bool
	tune    func(*store.Options)

	devs []driver.Device
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
	b.devs = nil
	for i := range b.sizes {
		d, err := file.Open(bg, file.Options{Path: b.path(i), Engine: b.engine, Discard: b.sparse})
		if err != nil {
			b.t.Fatal(err)
		}
		b.devs = append(b.devs, d)
	}
}

func (b *box) closeDevices() {
	for _, d := range b.devs {
		if err := d.Close(bg); err != nil {
			b.t.Error(err)
		}
	}
	b.devs = nil
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

// fill gives n seeded bytes.
func fill(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 77))
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		v := rng.Uint64()
		for j := range 8 {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	for i := n &^ 7; i < n; i++ {
		b[i] = byte(rng.Uint32())
	}
	return b
}
