package xfer

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// TestBytes is what the self-test of a pair needs on the device and on the GPU.
const TestBytes = 64 * base.KiB

// The rounds of a self-test, and how long a stream waits for bytes that should have
// arrived.
const (
	testRounds = 2
	testWaits  = 16
	waitEnd    = time.Second
	waitKernel = 5 * waitEnd  // after which a kernel that waits gives up by itself
	waitStart  = 30 * waitEnd // until the GPU, which may be busy, has begun it
)

// reasonTest is why the bytes of self-tests move.
const reasonTest = "self-test"

// errOtherBytes: what arrived is not what was sent.
var errOtherBytes = errors.New("other bytes arrived")

// selfTest moves patterns between a device and a GPU in both directions, directly,
// and compares what arrived with what went through host memory. Each pattern is new,
// so that nothing left over from an earlier one passes for it. A device that is only to
// be read gives what it has, into memory in which every byte is another one.
type selfTest struct {
	dev   driver.Device
	off   int64 // of TestBytes on the device
	gpu   gpu.Device
	count func(driver.PathKey, int64)
	waits int
	read  bool // the device is only to be read

	exported, imported bool

	host   *driver.Region // what goes by way of host memory
	peer   *driver.Region
	mem    gpu.Memory
	pin    gpu.HostMemory
	stream gpu.Stream
	waker  gpu.Stream
}

// run gives nil if every byte arrived, an error with errOtherBytes if one did not,
// and any other error if that could not be found out.
func (t *selfTest) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.open(); err != nil {
		return err
	}
	in := t.gpu.Info()
	reads := !needsFlush(in) || in.CanFlush // else none goes this way
	for range testRounds {
		if !t.read {
			if err := t.fromGPU(ctx); err != nil {
				return err
			}
		}
		if reads {
			if err := t.toGPU(ctx); err != nil {
				return err
			}
		}
	}
	if !reads {
		return nil
	}
	if t.waits == 0 {
		t.waits = testWaits
	}
	err = base.ErrNotSupported
	if in.Mover {
		err = t.wait(ctx, t.waits, t.kernel)
	}
	if errors.Is(err, base.ErrNotSupported) && in.MemOps { // no kernel, or it could not be loaded
		err = t.wait(ctx, t.waits, t.held)
	}
	if errors.Is(err, base.ErrNotSupported) {
		return nil // nothing of ours can wait there
	}
	return err
}

// open takes what the test needs.
func (t *selfTest) open() (err error) {
	if t.host, err = driver.AllocRegion(TestBytes, "self-test"); err != nil {
		return err
	}
	if t.mem, err = t.gpu.Alloc(TestBytes); err != nil {
		return err
	}
	if t.pin, err = t.gpu.AllocHost(TestBytes); err != nil {
		return err
	}
	if t.stream, err = t.gpu.NewStream(); err != nil {
		return err
	}
	if t.waker, err = t.gpu.NewStream(); err != nil { // while the other one does not wait
		return err
	}
	if err = t.gpu.SyncMemOps(t.mem.Ptr()); err != nil {
		return err
	}
	fd, err := t.gpu.Export(t.mem.Ptr(), TestBytes)
	if err != nil {
		return err
	}
	t.exported = true
	t.peer = driver.NewFDRegion(fd, TestBytes, nil)
	if err = t.dev.Attach(t.peer); err == nil {
		t.imported = true
	}
	return err
}

// close gives everything back, the device's part before the GPU's.
func (t *selfTest) close() error {
	var errs []error
	if t.peer != nil {
		if err := t.peer.Close(); err != nil {
			return err // a command may still use the memory
		}
		errs = append(errs, unix.NewFD(t.peer.FD(), "dma-buf").Close())
	}
	for _, s := range []gpu.Stream{t.waker, t.stream} {
		if s == nil {
			continue
		}
		if err := s.Close(); err != nil {
			return errors.Join(append(errs, err)...) // it may still use the memory
		}
	}
	if t.pin != nil {
		errs = append(errs, t.pin.Close())
	}
	if t.mem != nil {
		errs = append(errs, t.mem.Close())
	}
	if t.host != nil {
		errs = append(errs, t.host.Close())
	}
	return errors.Join(errs...)
}

// pattern fills b: a number that never came before and the place, in each word.
func pattern(b []byte) {
	var nonce [8]byte
	_, _ = rand.Read(nonce[:]) // never fails on Linux: the runtime ends the program instead
	n := binary.LittleEndian.Uint64(nonce[:])
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], n+uint64(i)*0x9e3779b97f4a7c15)
	}
}

// fromGPU: GPU → device directly, device → host memory.
func (t *selfTest) fromGPU(ctx context.Context) error {
	pattern(t.pin.Bytes())
	if err := t.copy(ctx, false); err != nil {
		return err
	}
	pattern(t.host.CPU())
	err := t.do(ctx, driver.OpWrite, t.peer, 0, TestBytes)
	if err == nil {
		err = t.do(ctx, driver.OpRead, t.host, 0, TestBytes)
	}
	if err != nil {
		return err
	}
	return t.compare("from the GPU to", t.host.CPU(), t.pin.Bytes())
}

// toGPU: host memory → device, device → GPU directly.
func (t *selfTest) toGPU(ctx context.Context) error {
	err := t.prepare(ctx, t.host.CPU())
	if err == nil {
		err = t.copy(ctx, false)
	}
	if err == nil {
		err = t.arrive(ctx, 0, TestBytes)
	}
	if err == nil {
		err = t.copy(ctx, true)
	}
	if err != nil {
		return err
	}
	return t.compare("to the GPU from", t.pin.Bytes(), t.host.CPU())
}

// prepare has the device hold want, or tells what it holds if it is only to be read, and
// makes the pinned memory have other bytes than those.
func (t *selfTest) prepare(ctx context.Context, want []byte) error {
	op := driver.OpRead
	if !t.read {
		op = driver.OpWrite
		pattern(want)
	}
	err := t.do(ctx, op, t.host, 0, int64(len(want)))
	for i, b := range want {
		t.pin.Bytes()[i] = ^b
	}
	return err
}

// arrive reads n bytes of the device, from byte at of its place on, into the GPU's memory
// and makes them visible.
func (t *selfTest) arrive(ctx context.Context, at, n int64) error {
	err := t.do(ctx, driver.OpRead, t.peer, at, n)
	if err == nil && needsFlush(t.gpu.Info()) {
		err = t.gpu.FlushWrites()
	}
	return err
}

// wait has work of the GPU wait for the last bytes of the second of two blocks that the
// device brings, n times. They are read one after the other, since a device may write the
// bytes of one command in any order: when the work sees the last ones, it must see all of
// the block before. way queues the work.
func (t *selfTest) wait(ctx context.Context, n int, way func(ctx context.Context, last uint64) (uint64, error)) error {
	want := t.host.CPU()[:waitBytes]
	for range n {
		if err := t.prepare(ctx, want); err != nil {
			return err
		}
		last := binary.LittleEndian.Uint64(want[waitBytes-8:])
		old := ^last
		if int64(old-last) >= 0 { // a stream would not wait for it
			old ^= 1 << 63
		}
		binary.LittleEndian.PutUint64(t.pin.Bytes()[waitBytes-8:], old)
		if err := t.copy(ctx, false); err != nil {
			return err
		}
		tick, err := way(ctx, last)
		if err != nil {
			return err
		}
		began := time.Now()
		err = t.arrive(ctx, 0, waitBlock)
		if err == nil {
			err = t.arrive(ctx, waitBlock, waitBlock)
		}
		if err != nil {
			return errors.Join(err, t.wake(last))
		}
		if took := time.Since(began); took > waitKernel/2 {
			return errors.Join(base.Errorf("read", t.dev.Info().Target, base.ErrTimeout, "a block took %v", took), t.wake(last))
		}
		c, cancel := context.WithTimeout(ctx, waitEnd)
		err = t.stream.WaitTick(c, tick)
		cancel()
		if err != nil {
			err = fmt.Errorf("%w: work that waited for the last bytes did not see them: %w", errOtherBytes, err)
			return errors.Join(err, t.wake(last))
		}
		if err := t.compare("to waiting work of the GPU from", t.pin.Bytes()[:waitBlock], want[:waitBlock]); err != nil {
			return err
		}
	}
	return nil
}

// What a wait is for, in bytes. Behind it in the pinned memory are the entry of the kernel
// and the word that ends a wait which nothing else ended.
const (
	waitBlock = base.StoreBlock
	waitBytes = 2 * waitBlock
	waitEntry = waitBytes
	waitWord  = waitEntry + gpu.WatchBytes
)

// last is where the last bytes come to.
func (t *selfTest) last() gpu.Ptr { return t.mem.Ptr() + waitBytes - 8 }

// kernel has a kernel wait, and returns when it does.
func (t *selfTest) kernel(ctx context.Context, last uint64) (uint64, error) {
	entry := t.pin.Bytes()[waitEntry:][:gpu.WatchBytes]
	gpu.PutWatch(entry, gpu.Watch{Src: t.mem.Ptr(), Dst: t.pin.Ptr(), N: waitBytes, Value: last, For: waitKernel})
	err := t.stream.Watch(t.pin.Ptr() + waitEntry)
	if err != nil {
		return 0, err
	}
	tick, err := t.stream.Tick()
	if err != nil {
		return 0, err
	}
	c, cancel := context.WithTimeout(ctx, waitStart)
	defer cancel()
	return tick, gpu.WaitCell(c, gpu.WatchBegun(entry), 1, func() error { return nil })
}

// held has the stream itself wait.
func (t *selfTest) held(_ context.Context, last uint64) (uint64, error) {
	if err := t.stream.AwaitCell(t.last(), last); err != nil {
		return 0, err
	}
	return t.queue(gpu.Copy{Dev: t.mem.Ptr(), Host: t.pin.Bytes()[:waitBytes], ToHost: true})
}

// wake ends the wait, so that the stream can be closed.
func (t *selfTest) wake(last uint64) error {
	word := t.pin.Bytes()[waitWord:][:8]
	binary.LittleEndian.PutUint64(word, last)
	return t.waker.Copy(gpu.Copy{Dev: t.last(), Host: word})
}

// queue queues copies and a tick.
func (t *selfTest) queue(c gpu.Copy) (uint64, error) {
	if err := t.stream.Copy(c); err != nil {
		return 0, err
	}
	return t.stream.Tick()
}

// copy moves all of the GPU's memory from or to the pinned memory.
func (t *selfTest) copy(ctx context.Context, toHost bool) error {
	tick, err := t.queue(gpu.Copy{Dev: t.mem.Ptr(), Host: t.pin.Bytes(), ToHost: toHost})
	if err != nil {
		return err
	}
	c, cancel := context.WithTimeout(ctx, 30*waitEnd)
	defer cancel()
	return t.stream.WaitTick(c, tick)
}

// do moves n bytes from byte at of a region on.
func (t *selfTest) do(ctx context.Context, op driver.Op, r *driver.Region, at, n int64) error {
	err := driver.Do(ctx, t.dev, driver.Request{Op: op, Off: t.off + at, Len: n, Segs: []driver.Seg{r.Seg(at, n)}})
	if err == nil && t.count != nil {
		path := driver.PathKey{Path: driver.PathDirect, Write: op == driver.OpWrite, Reason: reasonTest}
		if r == t.host {
			path.Path = driver.PathStaged
		}
		t.count(path, n)
	}
	return err
}

// compare tells where what arrived differs first.
func (t *selfTest) compare(way string, got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	i := 0
	for got[i] == want[i] {
		i++
	}
	return fmt.Errorf("%s %s: %w: the first at %d of %d", way, t.dev.Info().Target, errOtherBytes, i, len(want))
}
