package crashtest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
)

// block is n bytes of c.
func fill(n int, c byte) []byte { return bytes.Repeat([]byte{c}, n) }

func region(t *testing.T, mem []byte) *driver.Region {
	t.Helper()
	return driver.NewRegion(mem)
}

func writeReq(t *testing.T, off int64, mem []byte) driver.Request {
	t.Helper()
	r := region(t, mem)
	return driver.Request{Op: driver.OpWrite, Off: off, Len: int64(len(mem)), Segs: []driver.Seg{r.Seg(0, int64(len(mem)))}}
}

func mustDo(t *testing.T, d driver.Device, reqs ...driver.Request) {
	t.Helper()
	if err := driver.Do(context.Background(), d, reqs...); err != nil {
		t.Fatal(err)
	}
}

func readAll(t *testing.T, d driver.Device, off int64, n int) []byte {
	t.Helper()
	mem := make([]byte, n)
	r := region(t, mem)
	mustDo(t, d, driver.Request{Op: driver.OpRead, Off: off, Len: int64(n), Segs: []driver.Seg{r.Seg(0, int64(n))}})
	return mem
}

func newTestDisk(t *testing.T, opts DiskOptions) *Disk {
	t.Helper()
	d := NewDisk(nil, opts)
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

// draws opens many images of this instant and hands each disk to fn.
func draws(t *testing.T, d *Disk, cut Cut, n int, fn func(*Disk)) (differ int) {
	t.Helper()
	var im *DiskImage
	d.lab.Locked(func() { im = d.imageLocked() })
	for i := range n {
		e, out := im.Draw(cut, rand.New(rand.NewPCG(uint64(i), 1)), nil, func(o *DiskOptions) { o.Immediate = true })
		if out.Differs() {
			differ++
		}
		fn(e)
		if err := e.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	return differ
}

// TestFlushMakesStable: what a flush covers survives every draw, what it does
// not cover has each fate: landed, dropped, torn.
func TestFlushMakesStable(t *testing.T) {
	for _, lba := range []int64{512, 4096} {
		d := newTestDisk(t, DiskOptions{BlockSize: lba})
		const n = 16384
		mustDo(t, d, writeReq(t, 0, fill(n, 'a')))
		if err := driver.Flush(context.Background(), d); err != nil {
			t.Fatal(err)
		}
		mustDo(t, d, writeReq(t, n, fill(n, 'b')))
		mustDo(t, d, writeReq(t, 0, fill(n, 'c')))
		seen := map[string]int{}
		draws(t, d, CutAll, 400, func(e *Disk) {
			got := readAll(t, e, 0, 2*n)
			for i := 0; i < 2*n; i += int(lba) {
				if b := got[i : i+int(lba)]; strings.Trim(string(b), string(b[:1])) != "" {
					t.Fatalf("block at %d is torn below the block size %d", i, lba)
				}
			}
			for name, part := range map[string][]byte{"first": got[:n], "second": got[n:]} {
				old, now := byte('a'), byte('c')
				if name == "second" {
					old, now = 0, 'b'
				}
				switch {
				case bytes.Equal(part, fill(n, old)):
					seen[name+" dropped"]++
				case bytes.Equal(part, fill(n, now)):
					seen[name+" landed"]++
				case bytes.IndexFunc(part, func(r rune) bool { return r != rune(old) && r != rune(now) }) >= 0:
					t.Fatalf("%s has a byte that was never written", name)
				default:
					seen[name+" torn"]++
				}
			}
		})
		for _, what := range []string{"first dropped", "first landed", "first torn", "second dropped", "second landed", "second torn"} {
			if seen[what] < 20 {
				t.Errorf("block size %d: %s was drawn %d times of 400", lba, what, seen[what])
			}
		}
	}
}

// TestFlushCoversOnlyAnswered: a write that is answered after the flush was
// submitted is not covered, even if it ends before the flush does.
func TestFlushCoversOnlyAnswered(t *testing.T) {
	ctx := context.Background()
	begin := func() (*Disk, *driver.Batch) {
		d := newTestDisk(t, DiskOptions{Seed: 7, Pace: Pace{Hold: 40}})
		mustDo(t, d, writeReq(t, 0, fill(4096, 'a')))
		flush := &driver.Batch{Reqs: []driver.Request{{Op: driver.OpFlush}}}
		if err := d.Submit(ctx, flush); err != nil {
			t.Fatal(err)
		}
		mustDo(t, d, writeReq(t, 4096, fill(4096, 'b')))
		return d, flush
	}
	d, flush := begin()
	for tries := 0; flush.Ended() && tries < 100; tries++ { // the flush was faster than the write
		d, flush = begin()
	}
	if flush.Ended() {
		t.Fatal("the flush was faster than the write, 100 times")
	}
	if err := flush.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	lost := 0
	draws(t, d, CutAll, 100, func(e *Disk) {
		got := readAll(t, e, 0, 8192)
		if !bytes.Equal(got[:4096], fill(4096, 'a')) {
			t.Fatal("a covered write was lost")
		}
		if got[4096] == 0 {
			lost++
		}
	})
	if lost == 0 {
		t.Fatal("a write that the flush does not cover was never lost")
	}
}

// TestSameBlockAnyOrder: of two unflushed writes to one block either may be
// what stays.
func TestSameBlockAnyOrder(t *testing.T) {
	d := newTestDisk(t, DiskOptions{})
	mustDo(t, d, writeReq(t, 0, fill(4096, 'a')))
	mustDo(t, d, writeReq(t, 0, fill(4096, 'b')))
	seen := map[byte]int{}
	draws(t, d, CutAll, 300, func(e *Disk) { seen[readAll(t, e, 0, 4096)[0]]++ })
	if seen[0] == 0 || seen['a'] == 0 || seen['b'] == 0 || len(seen) != 3 {
		t.Fatalf("seen %v", seen)
	}
}

// TestFUASupersedes: a write with FUA is safe at its answer, and no older
// unflushed write of the same block lands over it.
func TestFUASupersedes(t *testing.T) {
	d := newTestDisk(t, DiskOptions{})
	mustDo(t, d, writeReq(t, 0, fill(8192, 'a')))
	w := writeReq(t, 0, fill(4096, 'b'))
	w.FUA = true
	mustDo(t, d, w)
	rest := map[byte]int{}
	draws(t, d, CutAll, 200, func(e *Disk) {
		got := readAll(t, e, 0, 8192)
		if got[0] != 'b' {
			t.Fatalf("block 0 reads %q", got[0])
		}
		rest[got[4096]]++
	})
	if rest[0] == 0 || rest['a'] == 0 {
		t.Fatalf("block 1: seen %v", rest)
	}
}

// TestDiscard: discarded blocks read as before, as zeros or as ones; a discard
// is undone by a cut unless it was flushed; in flight it may hit a later write.
func TestDiscard(t *testing.T) {
	seen := map[byte]int{}
	late := 0
	for seed := range uint64(20) {
		d := newTestDisk(t, DiskOptions{Seed: seed, Pace: Pace{Hold: 20}})
		ctx := context.Background()
		mustDo(t, d, writeReq(t, 0, fill(65536, 'a')))
		if err := driver.Flush(ctx, d); err != nil {
			t.Fatal(err)
		}
		b := &driver.Batch{Reqs: []driver.Request{{Op: driver.OpDiscard, Off: 0, Len: 65536}}}
		if err := d.Submit(ctx, b); err != nil {
			t.Fatal(err)
		}
		mustDo(t, d, writeReq(t, 0, fill(4096, 'b'))) // a mistake that must show
		if err := b.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		got := readAll(t, d, 0, 65536)
		if got[0] != 'b' {
			late++
		}
		for i := 4096; i < len(got); i += 4096 {
			seen[got[i]]++
		}
		undone := 0
		draws(t, d, CutAll, 20, func(e *Disk) {
			if bytes.Equal(readAll(t, e, 4096, 61440), fill(61440, 'a')) {
				undone++
			}
		})
		if undone == 0 {
			t.Fatal("an unflushed discard was never undone")
		}
	}
	if late == 0 || len(seen) != 3 || seen['a'] == 0 || seen[0] == 0 || seen[0xff] == 0 {
		t.Fatalf("hit a later write %d times of 20; blocks read %v", late, seen)
	}
}

// TestPowerCutAlone: the disk loses power with the process alive.
func TestPowerCutAlone(t *testing.T) {
	d := newTestDisk(t, DiskOptions{Pace: Pace{Hold: 1000}})
	ctx := context.Background()
	mustDo(t, d, writeReq(t, 0, fill(65536, 'a')))
	events := make(chan driver.Event, 8)
	defer d.Subscribe(func(e driver.Event) {
		if e.State == driver.StateIsolated && d.Incarnation() != 1 {
			t.Error("isolated is visible before the incarnation rose")
		}
		events <- e
	})()
	b := &driver.Batch{Reqs: []driver.Request{{Op: driver.OpFlush}}}
	if err := d.Submit(ctx, b); err != nil {
		t.Fatal(err)
	}
	d.PowerCut(rand.New(rand.NewPCG(1, 1)))
	if err := b.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if err := b.Err(); !errors.Is(err, base.ErrIsolated) {
		t.Fatalf("in flight at the cut: %v", err)
	}
	if err := driver.Flush(ctx, d); !errors.Is(err, base.ErrIsolated) {
		t.Fatalf("after the cut: %v", err)
	}
	if err := d.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	first := readAll(t, d, 0, 65536)
	mustDo(t, d, writeReq(t, 131072, fill(4096, 'z')))
	draws(t, d, CutAll, 20, func(e *Disk) {
		if !bytes.Equal(readAll(t, e, 0, 65536), first) {
			t.Fatal("what the first cut left changed at a second one")
		}
	})
	for _, want := range []driver.State{driver.StateIsolated, driver.StateResetting, driver.StateReady} {
		select {
		case e := <-events:
			if e.State != want {
				t.Fatalf("event %v, want %v", e.State, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no event %v", want)
		}
	}
}

// TestHostCutKeepsCache: answered writes stay readable, commands in flight may
// land before the next owner gets the disk, and a later cut may lose them all.
func TestHostCutKeepsCache(t *testing.T) {
	d := newTestDisk(t, DiskOptions{Pace: Pace{Pause: 20 * time.Millisecond, PausePer16: 16}})
	ctx := context.Background()
	mustDo(t, d, writeReq(t, 0, fill(4096, 'a')))
	b := &driver.Batch{}
	for i := range 8 {
		b.Reqs = append(b.Reqs, writeReq(t, int64(i+1)*4096, fill(4096, 'b')))
	}
	if err := d.Submit(ctx, b); err != nil {
		t.Fatal(err)
	}
	var im *DiskImage
	d.lab.Locked(func() { im = d.imageLocked() })
	if err := b.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	landed, missing, lost := 0, 0, 0
	for seed := range uint64(100) {
		e, out := im.Draw(CutHost, rand.New(rand.NewPCG(seed, 2)), nil, func(o *DiskOptions) { o.Pace = Pace{} })
		if out.Total() != im.Open() {
			t.Fatalf("%d outcomes of %d writes", out.Total(), im.Open())
		}
		got := readAll(t, e, 0, 9*4096)
		if got[0] != 'a' {
			t.Fatal("the cache was not kept")
		}
		n := bytes.Count(got, []byte("b")) / 4096
		landed, missing = landed+n, missing+8-n
		draws(t, e, CutAll, 4, func(f *Disk) {
			if readAll(t, f, 0, 4096)[0] == 0 {
				lost++
			}
		})
		if err := e.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if landed == 0 || missing == 0 || lost == 0 {
		t.Fatalf("in flight: %d landed, %d did not; the cached write was lost %d times", landed, missing, lost)
	}
}

// TestSeesChangedMemory: the disk notices memory that changes under a write.
func TestSeesChangedMemory(t *testing.T) {
	d := newTestDisk(t, DiskOptions{Pace: Pace{Pause: 50 * time.Millisecond, PausePer16: 16}})
	mem := fill(4096, 'a')
	r := writeReq(t, 0, mem)
	d.lab.Locked(func() {
		c := &command{batch: &driver.Batch{Reqs: []driver.Request{r}}, req: &r}
		d.start(c)
		mem[100] = 'x'
		d.takeEffect(c, true)
		d.answer(c)
		d.answering-- // nobody is given this answer
	})
	if len(d.Faults()) != 1 {
		t.Fatalf("faults: %v", d.Faults())
	}
}
