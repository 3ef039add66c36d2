//go:build ugds_lab

package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

var (
	replayRequests = flag.Int("replay", 60, "requests of the trace that is replayed")
	replayTrace    = flag.String("trace", "", "a file with the trace, one request a line in JSON; one is made without it")
)

const (
	// replayBlock is the size of a block of the trace.
	replayBlock = base.StoreBlock
	// replayMemory is how much of the peer's memory is used.
	replayMemory = 512 * replayBlock
	// replayFlush is after how many requests everything is made durable.
	replayFlush = 10
	// replayLimit bounds a whole replay. The machine is emulated.
	replayLimit = 7 * time.Minute
)

// theTrace is the trace that is replayed, by every process the same.
func theTrace(t testing.TB) (all [][]uint64) {
	t.Helper()
	if *replayTrace == "" {
		return testenv.Trace(rand.New(rand.NewPCG(2000, 1)), *replayRequests)
	}
	f, err := os.Open(*replayTrace)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for in := bufio.NewScanner(f); len(all) < *replayRequests && in.Scan(); {
		var r struct {
			IDs []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r.IDs)
	}
	return all
}

// replayer puts and gets the blocks of a trace. Their bytes are made in the peer's memory,
// and compared there, by the processor in the place of a GPU; host memory never holds them.
type replayer struct {
	s    *store.Store
	ns   *store.Namespace
	peer *driver.Region
	view []byte // of peer, for whoever plays the GPU
	back func() // gives the peer back
	hits int64
	puts int64
}

func traceKey(id uint64) []byte { return fmt.Appendf(nil, "trace/%d", id) }

func (p *replayer) at(i int) []byte { return p.view[i*replayBlock:][:replayBlock] }

func (p *replayer) buffers(i int) store.Buffers {
	return store.InRegion(p.peer, int64(i)*replayBlock, replayBlock)
}

// traceBlock makes the bytes of a block, which follow from its id.
func traceBlock(id uint64, b []byte) {
	numbers := rand.NewPCG(id, 0x6c6162)
	for ; len(b) > 0; b = b[8:] {
		binary.LittleEndian.PutUint64(b, numbers.Uint64())
	}
}

// in does something with ids, as many at a time as there is memory for.
func (p *replayer) in(ids []uint64, do func(ids []uint64) error) error {
	for part := range slices.Chunk(ids, replayMemory/replayBlock) {
		if err := do(part); err != nil {
			return err
		}
	}
	return nil
}

func (p *replayer) get(ctx context.Context, ids []uint64) error {
	clear(p.view[:len(ids)*replayBlock])
	items := make([]store.GetItem, len(ids))
	for i, id := range ids {
		items[i] = store.GetItem{Key: traceKey(id), Dst: p.buffers(i)}
	}
	p.ns.GetBatch(ctx, items)
	want := make([]byte, replayBlock)
	for i, id := range ids {
		if items[i].Err != nil || items[i].N != replayBlock {
			return fmt.Errorf("block %d: %d bytes, %w", id, items[i].N, items[i].Err)
		}
		if traceBlock(id, want); !bytes.Equal(p.at(i), want) {
			return fmt.Errorf("block %d has other bytes: %.16x and not %.16x", id, p.at(i), want)
		}
	}
	p.hits += int64(len(ids))
	return nil
}

func (p *replayer) put(ctx context.Context, ids []uint64) error {
	items := make([]store.PutItem, len(ids))
	for i, id := range ids {
		traceBlock(id, p.at(i))
		items[i] = store.PutItem{Key: traceKey(id), Value: p.buffers(i), PutOptions: store.PutOptions{Durability: store.Relaxed}}
	}
	p.ns.PutBatch(ctx, items)
	for i, id := range ids {
		if items[i].Err != nil {
			return fmt.Errorf("block %d: %w", id, items[i].Err)
		}
	}
	p.puts += int64(len(ids))
	return nil
}

// one replays a request as a cache does: what is there is read, what is missing is put,
// and what stands in the request once more is read then.
func (p *replayer) one(ctx context.Context, ids []uint64) error {
	keys, there := make([][]byte, len(ids)), make([]bool, len(ids))
	for i, id := range ids {
		keys[i] = traceKey(id)
	}
	if err := p.ns.ExistsMany(keys, there); err != nil {
		return err
	}
	var hits, misses, again []uint64
	for i, id := range ids {
		switch {
		case there[i]:
			hits = append(hits, id)
		case slices.Contains(misses, id):
			again = append(again, id)
		default:
			misses = append(misses, id)
		}
	}
	get := func(ids []uint64) error { return p.get(ctx, ids) }
	put := func(ids []uint64) error { return p.put(ctx, ids) }
	return errors.Join(p.in(hits, get), p.in(misses, put), p.in(again, get))
}

// openReplay opens the store of the replay on controller 0.
func openReplay(t testing.TB, dir string) (p *replayer, d driver.Device) {
	t.Helper()
	p = &replayer{}
	p.peer, p.view, p.back = peerMemory(t, replayMemory)
	d, _ = openCtrl(t, healthySSD, ctrl.Options{})
	if err := d.Attach(p.peer); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(soon(t), store.Options{Devices: []driver.Device{d}, Meta: meta.Options{Dir: dir}})
	if err != nil {
		t.Fatal(err)
	}
	p.s = s
	if p.ns, err = s.Namespace(soon(t), "trace", store.NamespaceOptions{Create: true}); err != nil {
		t.Fatal(err)
	}
	return p, d
}

// close ends the store. All bytes of values went straight to and from the peer's memory.
func (p *replayer) close(t testing.TB, d driver.Device) {
	t.Helper()
	for _, c := range p.s.Stats().Paths {
		t.Logf("%v: %d bytes, %d times", c.PathKey, c.Bytes, c.Ops)
		if c.Path != driver.PathDirect {
			t.Errorf("%d bytes went another way: %v", c.Bytes, c.PathKey)
		}
	}
	if err := errors.Join(p.s.Close(soon(t)), d.Close(soon(t))); err != nil {
		t.Error(err)
	}
	p.back()
}

// all replays every request and compares the counts with those of one reference after
// the other.
func (p *replayer) all(t testing.TB, all [][]uint64, there map[uint64]bool) {
	t.Helper()
	refs, hits, puts := testenv.CountTrace(all, there)
	begin, ctx := time.Now(), within(t, replayLimit)
	for i, ids := range all {
		if err := p.one(ctx, ids); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	if err := p.s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d requests, %d references, %d hits, every byte compared, %d puts: %v", len(all), refs, p.hits, p.puts, time.Since(begin))
	if p.hits != hits || p.puts != puts || p.hits+p.puts != refs {
		t.Errorf("%d hits and %d puts of %d references, want %d and %d", p.hits, p.puts, refs, hits, puts)
	}
}

// checkReplay wants a store without a fault.
func checkReplay(t testing.TB, dir string) {
	t.Helper()
	d, _ := openCtrl(t, healthySSD, ctrl.Options{})
	report, err := store.Check(within(t, replayLimit), store.Options{Devices: []driver.Device{d}, Meta: meta.Options{Dir: dir}},
		store.CheckOptions{VerifyData: true})
	if err != nil || !report.Clean() {
		t.Fatalf("check: %v, %+v", err, report)
	}
	if err := d.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
}

// formatReplay makes an empty store.
func formatReplay(t testing.TB, dir string) {
	t.Helper()
	d, _ := openCtrl(t, healthySSD, ctrl.Options{})
	_, err := store.Format(soon(t), store.FormatOptions{Devices: []driver.Device{d}, Meta: meta.Options{Dir: dir}, Overwrite: true})
	if err = errors.Join(err, d.Close(soon(t))); err != nil {
		t.Fatal(err)
	}
}

// TestStoreReplayChild replays until it is killed. It is nothing by itself.
func TestStoreReplayChild(t *testing.T) {
	dir := os.Getenv(storeDir)
	if dir == "" {
		t.Fatal("no store")
	}
	p, _ := openReplay(t, dir)
	ctx := within(t, replayLimit)
	for i, ids := range theTrace(t) {
		if err := p.one(ctx, ids); err != nil {
			t.Fatal(err)
		}
		if i%replayFlush == 0 {
			if err := p.s.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			fmt.Println("flushed", i)
		}
	}
	<-ctx.Done() // too fast: it was to be killed before
}

// TestStoreReplay: a trace is replayed on a new store, and counted; then on another one by
// a process that is killed in the middle. What it had flushed is there, the store is
// clean, and a second replay counts what it must and compares every byte of every hit.
func TestStoreReplay(t *testing.T) {
	all, dir := theTrace(t), filepath.Join(t.TempDir(), "meta")
	if len(all) != *replayRequests {
		t.Fatalf("the trace has %d requests", len(all))
	}
	formatReplay(t, dir)
	p, d := openReplay(t, dir)
	p.all(t, all, map[uint64]bool{})
	p.close(t, d)
	checkReplay(t, dir)

	formatReplay(t, dir)
	if *transport == "kdrv" {
		traceSteps(t)
	}
	flushed := replayUntilKilled(t, dir, len(all)/2)
	checkReplay(t, dir)
	if *transport == "kdrv" { // which stopped the controller before it gave memory back
		checkOrder(t, traced(t))
	}
	p, d = openReplay(t, dir)
	there := p.present(t, all)
	for i, ids := range all[:flushed+1] {
		for _, id := range ids {
			if !there[id] {
				t.Fatalf("block %d of request %d is gone, %d were flushed", id, i, flushed+1)
			}
		}
	}
	t.Logf("%d blocks after the kill, %d requests were flushed", len(there), flushed+1)
	p.all(t, all, there)
	p.close(t, d)
	checkReplay(t, dir)
}

// present is what a store has of the trace's blocks.
func (p *replayer) present(t testing.TB, all [][]uint64) map[uint64]bool {
	t.Helper()
	out := map[uint64]bool{}
	for _, ids := range all {
		for _, id := range ids {
			ok, err := p.ns.Exists(soon(t), traceKey(id))
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				out[id] = true
			}
		}
	}
	return out
}

// replayUntilKilled runs TestStoreReplayChild, kills it after so many requests, and tells
// which was the last that it flushed.
func replayUntilKilled(t testing.TB, dir string, requests int) (flushed int) {
	t.Helper()
	c := exec.Command("/proc/self/exe", "-test.run=^TestStoreReplayChild$", "-transport", *transport,
		"-replay", fmt.Sprint(*replayRequests), "-trace", *replayTrace)
	c.Env = append(os.Environ(), storeDir+"="+dir)
	out := new(safeBuffer)
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	last := func() (n int) {
		for line := range strings.Lines(out.String()) {
			_, _ = fmt.Sscanf(line, "flushed %d", &n)
		}
		return n
	}
	for end := time.Now().Add(replayLimit); last() < requests; time.Sleep(5 * time.Millisecond) {
		if len(ended) > 0 || time.Now().After(end) {
			t.Fatalf("the child ended early, or is too slow:\n%s", out.String())
		}
	}
	if *transport == "kdrv" {
		writeSys(t, tracing+"trace", "")
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	return last()
}
