package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
	"github.com/ugds-store/ugds/tools/gputool"
)

// How a life of the part exits ends. Each life is a process that first checks what
// the one before it left.
const (
	endKill   = "kill"   // SIGKILL by the parent
	endExit   = "exit"   // os.Exit while requests are in flight
	endReturn = "return" // main returns while they are
	endClose  = "close"  // everything is closed meanwhile, in any order
	endLast   = "last"   // nothing is put
)

const (
	lifeWorkers = 8
	lifeKeys    = 4 // of each worker
	lifeBytes   = 384 * base.MiB
	lifeSlot    = 4 * base.MiB
	lifeLimit   = time.Minute      // of one life
	gpuLimit    = 10 * time.Second // until another process has used the GPU
)

// lifeSizes are the sizes of the values, in bytes.
var lifeSizes = []int64{1, 700, 4096, 65536 + 1, 1 << 20, 3<<20 + 5}

// exits lets processes end in every way while values move between their store and
// the GPU: afterwards another one uses the GPU at once, and the store has every
// value that was acknowledged.
func (r *rig) exits() error {
	root := filepath.Join(*dir, "gpucheck.life")
	if err := errors.Join(os.RemoveAll(root), os.MkdirAll(root, 0o700)); err != nil {
		return err
	}
	defer os.RemoveAll(root)
	if err := makeLife(root); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(21, uint64(*ends)))
	var slowest time.Duration
	values := 0
	died := time.Now()
	for i := range *ends + 1 {
		how := []string{endKill, endExit, endReturn, endClose}[i%4]
		if i == *ends {
			how = endLast
		}
		usable, n, err := runLife(root, how, rng.Uint64(), time.Duration(rng.IntN(60))*time.Millisecond)
		if err != nil {
			return fmt.Errorf("life %d, which ends by %q: %w", i, how, err)
		}
		if took := usable.Sub(died); i > 0 {
			slowest = max(slowest, took)
		}
		died = time.Now()
		values += n
	}
	if values < *ends {
		return fmt.Errorf("only %d values were compared", values)
	}
	if slowest > gpuLimit {
		return fmt.Errorf("another process had used the GPU only after %v", slowest)
	}
	fmt.Printf("  %d processes ended by SIGKILL, os.Exit, return of main and closing in any order, with values in flight;"+
		" after each the store was clean, every value right (%d compared), and another process had used the GPU within %v\n", *ends, values, slowest)
	return nil
}

func makeLife(root string) error {
	data := filepath.Join(root, "data")
	if err := file.Create(data, lifeBytes, false); err != nil {
		return err
	}
	d, err := file.Open(ctx, file.Options{Path: data})
	if err != nil {
		return err
	}
	_, err = store.Format(ctx, store.FormatOptions{Devices: []driver.Device{d}, Meta: meta.Options{Dir: filepath.Join(root, "meta")}})
	return errors.Join(err, d.Close(ctx))
}

// runLife runs one life to its end and tells when it had used the GPU, and how many
// values it found right.
func runLife(root, how string, seed uint64, after time.Duration) (usable time.Time, values int, err error) {
	self, err := os.Executable()
	if err != nil {
		return usable, values, err
	}
	c := exec.Command(self, "-life", how, "-life-seed", fmt.Sprint(seed), "-dir", root, "-gpu", *which)
	var trouble strings.Builder
	c.Stderr = &trouble
	out, err := c.StdoutPipe()
	if err != nil {
		return usable, values, err
	}
	if err := c.Start(); err != nil {
		return usable, values, err
	}
	limit := time.AfterFunc(lifeLimit, func() { _ = c.Process.Kill() })
	killed := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch lines.Text() {
		case "usable":
			usable = time.Now()
		case "flight":
			if how == endKill {
				time.Sleep(after)
				killed = c.Process.Kill() == nil
			}
		default:
			_, _ = fmt.Sscanf(lines.Text(), "values %d", &values)
		}
	}
	err = c.Wait()
	if !limit.Stop() {
		return usable, values, fmt.Errorf("it did not end within %v; %s", lifeLimit, &trouble)
	}
	if killed && trouble.Len() == 0 && c.ProcessState.ExitCode() == -1 {
		err = nil
	}
	if err == nil && usable.IsZero() {
		err = errors.New("it did not use the GPU")
	}
	if err != nil {
		text := trouble.String()
		err = fmt.Errorf("%w; %s", err, text[:min(len(text), 6000)])
	}
	return usable, values, err
}

// being is one life: a store with its values on the GPU, and what the lives before
// have told of them.
type being struct {
	g      *gputool.GPU
	s      *store.Store
	n      *store.Namespace
	dev    *file.Device
	told   board
	rng    *rand.Rand
	rounds atomic.Int64
	ending atomic.Bool
	errs   chan error
	work   []*worker
}

// worker puts and gets with memory of its own.
type worker struct {
	m     *gputool.Memory
	reg   *gpu.Registration
	ended chan struct{}
}

// close may come at any moment: ErrBusy while a request or the worker itself uses
// the memory.
func (w *worker) close() error {
	if err := w.reg.Close(); err != nil && !errors.Is(err, store.ErrClosed) {
		return err
	}
	select {
	case <-w.ended:
		return w.m.Close()
	default:
		return store.ErrBusy
	}
}

// begun is the last version of a key whose put began, acked the last one whose put
// with a sync has returned.
func (b *being) begun(key int) *atomic.Uint64 { return dl.Cell(b.told.mem, 64*key) }
func (b *being) acked(key int) *atomic.Uint64 { return dl.Cell(b.told.mem, 64*key+8) }

// live is the child's side.
func live(how string, seed uint64) error {
	g, err := gputool.Open(*which)
	if err != nil {
		return err
	}
	b := &being{g: g, rng: rand.New(rand.NewPCG(seed, 1)), errs: make(chan error, lifeWorkers)}
	m, err := g.NewMemory(lifeSlot)
	if err != nil {
		return err
	}
	if err := m.Upload(0, lifeSlot); err != nil {
		return err
	}
	fmt.Println("usable")
	if b.told, _, err = openBoard(filepath.Join(*dir, "board")); err != nil {
		return err
	}
	if err := b.open(); err != nil {
		return err
	}
	if err := b.verify(m); err != nil {
		return err
	}
	if how == endLast {
		c, cancel := context.WithTimeout(ctx, lifeLimit)
		defer cancel()
		return errors.Join(b.s.Close(c), b.dev.Close(c), m.Close(), g.Close())
	}
	for w := range lifeWorkers {
		if err := b.start(w); err != nil {
			return err
		}
	}
	for b.rounds.Load() < 2*lifeWorkers && len(b.errs) == 0 {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("flight")
	select {
	case err := <-b.errs:
		return err
	case <-time.After(time.Duration(b.rng.IntN(60)) * time.Millisecond):
	}
	switch how {
	case endKill:
		return <-b.errs
	case endExit:
		os.Exit(0)
	case endClose:
		return errors.Join(b.closeAll(), m.Close(), g.Close())
	}
	return nil
}

func (b *being) open() (err error) {
	if b.dev, err = file.Open(ctx, file.Options{Path: filepath.Join(*dir, "data"), Wait: lifeLimit / 2}); err != nil {
		return err
	}
	o := store.Options{Devices: []driver.Device{b.dev}, Meta: meta.Options{Dir: filepath.Join(*dir, "meta")}}
	report, err := store.Check(ctx, o, store.CheckOptions{VerifyData: true})
	if err != nil {
		return err
	}
	if !report.Clean() {
		return fmt.Errorf("fsck: %+v", report.Findings)
	}
	o.GPU.Backend = b.g.Backend
	if b.s, err = store.Open(ctx, o); err != nil {
		return err
	}
	b.n, err = b.s.Namespace(ctx, "life", store.NamespaceOptions{Create: true})
	return err
}

// fillValue makes version v of a key in p and gives its size: the version comes
// first, as far as there is room.
func fillValue(p []byte, key int, v uint64) int64 {
	n := lifeSizes[(uint64(key)+v)%uint64(len(lifeSizes))]
	src := rand.NewPCG(uint64(key), v)
	for at := int64(0); at < n; at += 8 {
		binary.LittleEndian.PutUint64(p[at:], src.Uint64())
	}
	return n
}

func lifeKey(key int) []byte { return fmt.Append(nil, "life ", key) }

// verify gets every value into GPU memory: each must be a version that was begun, and
// not one older than the last that was acknowledged.
func (b *being) verify(m *gputool.Memory) error {
	want, values := make([]byte, lifeSlot), 0
	for key := range lifeWorkers * lifeKeys {
		low, high := b.acked(key).Load(), b.begun(key).Load()
		n, err := b.n.Get(ctx, lifeKey(key), store.OnGPU(m.Ptr(), lifeSlot), store.GetOptions{})
		if errors.Is(err, store.ErrNotFound) && low == 0 {
			continue
		}
		if err != nil {
			return fmt.Errorf("key %d, acknowledged %d, begun %d: %w", key, low, high, err)
		}
		if err := m.Download(0, lifeSlot); err != nil {
			return err
		}
		values++
		right := false
		for v := high; v >= max(low, 1) && !right; v-- {
			right = fillValue(want, key, v) == n && bytes.Equal(want[:n], m.Host()[:n])
		}
		if !right {
			return fmt.Errorf("key %d: %d bytes of no version from %d to %d", key, n, low, high)
		}
	}
	fmt.Println("values", values)
	return nil
}

// start has a worker put and get its keys until something ends it.
func (b *being) start(w int) error {
	m, err := b.g.NewMemory(2 * lifeSlot)
	if err != nil {
		return err
	}
	reg, err := b.s.RegisterGPU(m.Ptr(), m.Size())
	if err != nil {
		return err
	}
	this := &worker{m, reg, make(chan struct{})}
	b.work = append(b.work, this)
	rng := rand.New(rand.NewPCG(b.rng.Uint64(), uint64(w)))
	go func() {
		defer close(this.ended)
		for !b.ending.Load() {
			if err := b.round(w*lifeKeys+rng.IntN(lifeKeys), m); err != nil {
				if !b.ending.Load() {
					b.errs <- err
				}
				return
			}
			b.rounds.Add(1)
		}
	}()
	return nil
}

func (b *being) round(key int, m *gputool.Memory) error {
	v := b.begun(key).Load() + 1
	n := fillValue(m.Host(), key, v)
	if err := m.Upload(0, n); err != nil {
		return err
	}
	b.begun(key).Store(v)
	o := store.PutOptions{Replace: true}
	if v%2 == 0 {
		o.Durability = store.Relaxed
	}
	if err := b.n.Put(ctx, lifeKey(key), store.OnGPU(m.Ptr(), n), o); err != nil {
		return err
	}
	if o.Durability != store.Relaxed {
		b.acked(key).Store(v)
	}
	_, err := b.n.Get(ctx, lifeKey(key), store.OnGPU(m.Ptr()+lifeSlot, n), store.GetOptions{})
	return err
}

// closeAll closes the store, its device and the memory in any order while requests
// are under way. What is refused as busy is closed later; a store whose device was
// closed says so, and is closed.
func (b *being) closeAll() error {
	b.ending.Store(true)
	c, cancel := context.WithTimeout(ctx, lifeLimit/2)
	defer cancel()
	todo := []func() error{func() error { return b.s.Close(c) }, func() error { return b.dev.Close(c) }}
	for _, w := range b.work {
		todo = append(todo, w.close)
	}
	b.rng.Shuffle(len(todo), func(i, k int) { todo[i], todo[k] = todo[k], todo[i] })
	for len(todo) > 0 && c.Err() == nil {
		var errs []error
		todo = slices.DeleteFunc(todo, func(fn func() error) bool {
			err := fn()
			if err == nil || errors.Is(err, store.ErrClosed) {
				return true
			}
			if !errors.Is(err, store.ErrBusy) {
				errs = append(errs, err)
			}
			return false
		})
		if len(errs) > 0 {
			return errors.Join(errs...)
		}
		time.Sleep(time.Millisecond)
	}
	return c.Err()
}
