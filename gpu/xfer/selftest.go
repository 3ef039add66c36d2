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
	waitBytes  = time.Second
)

// reasonTest is why the bytes of self-tests move.
const reasonTest = "self-test"

// errOtherBytes: what arrived is not what was sent.
var errOtherBytes = errors.New("other bytes arrived")

// selfTest moves patterns between a device and a GPU in both directions, directly,
// and compares what arrived with what went through host memory. Each pattern is new,
// so that nothing left over from an earlier one passes for it.
type selfTest struct {
	dev   driver.Device
	off   int64 // of TestBytes on the device
	gpu   gpu.Device
	count func(driver.PathKey, int64)
	waits int

	exported, imported bool

	host   *driver.Region // what goes by way of host memory
	peer   *driver.Region
	mem    gpu.Memory
	pin    gpu.HostMemory
	stream gpu.Stream
}

// run gives nil if every byte arrived, an error with errOtherBytes if one did not,
// and any other error if that could not be found out.
func (t *selfTest) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.open(); err != nil {
		return err
	}
	in := t.gpu.Info()
	for range testRounds {
		if err := t.fromGPU(ctx); err != nil {
			return err
		}
		if !needsFlush(in) || in.CanFlush { // else no read goes this way
			if err := t.toGPU(ctx); err != nil {
				return err
			}
		}
	}
	if in.MemOps && (!needsFlush(in) || in.CanFlush) {
		if t.waits == 0 {
			t.waits = testWaits
		}
		return t.wait(ctx, t.waits)
	}
	return nil
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
	if t.stream != nil {
		if err := t.stream.Close(); err != nil {
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
	err := t.do(ctx, driver.OpWrite, t.peer, TestBytes)
	if err == nil {
		err = t.do(ctx, driver.OpRead, t.host, TestBytes)
	}
	if err != nil {
		return err
	}
	return t.compare("from the GPU to", t.host.CPU(), t.pin.Bytes())
}

// toGPU: host memory → device, device → GPU directly.
func (t *selfTest) toGPU(ctx context.Context) error {
	pattern(t.pin.Bytes())
	if err := t.copy(ctx, false); err != nil {
		return err
	}
	pattern(t.host.CPU())
	err := t.do(ctx, driver.OpWrite, t.host, TestBytes)
	if err == nil {
		err = t.arrive(ctx, TestBytes)
	}
	if err == nil {
		err = t.copy(ctx, true)
	}
	if err != nil {
		return err
	}
	return t.compare("to the GPU from", t.pin.Bytes(), t.host.CPU())
}

// arrive reads n bytes of the device into the GPU's memory and makes them visible.
func (t *selfTest) arrive(ctx context.Context, n int64) error {
	err := t.do(ctx, driver.OpRead, t.peer, n)
	if err == nil && needsFlush(t.gpu.Info()) {
		err = t.gpu.FlushWrites()
	}
	return err
}

// wait has a stream wait for the last bytes of a block that the device brings, n
// times: work that runs already must see them, and all that came before them.
func (t *selfTest) wait(ctx context.Context, n int) error {
	const block = base.StoreBlock
	last := t.mem.Ptr() + block - 8
	want := t.host.CPU()[:block]
	clear(t.pin.Bytes()) // the counter begins at 0
	if err := t.copy(ctx, false); err != nil {
		return err
	}
	for k := range uint64(n) {
		pattern(want)
		binary.LittleEndian.PutUint64(want[block-8:], k+1)
		if err := t.do(ctx, driver.OpWrite, t.host, block); err != nil {
			return err
		}
		if err := t.stream.AwaitCell(last, k+1); err != nil {
			return err
		}
		tick, err := t.queue(gpu.Copy{Dev: t.mem.Ptr(), Host: t.pin.Bytes()[:block], ToHost: true})
		if err != nil {
			return err
		}
		if err := t.arrive(ctx, block); err != nil {
			return errors.Join(err, t.wake(last, k+1))
		}
		c, cancel := context.WithTimeout(ctx, waitBytes)
		err = t.stream.WaitTick(c, tick)
		cancel()
		if err != nil {
			err = fmt.Errorf("%w: work that waited for the last bytes did not see them: %w", errOtherBytes, err)
			return errors.Join(err, t.wake(last, k+1))
		}
		if err := t.compare("to waiting work of the GPU from", t.pin.Bytes()[:block], want); err != nil {
			return err
		}
	}
	return nil
}

// wake ends the wait of the stream, so that it can be closed.
func (t *selfTest) wake(at gpu.Ptr, v uint64) error {
	s, err := t.gpu.NewStream()
	if err != nil {
		return err
	}
	if err = s.WriteCell(at, v); err != nil {
		return errors.Join(err, s.Close())
	}
	return s.Close()
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
	c, cancel := context.WithTimeout(ctx, 30*waitBytes)
	defer cancel()
	return t.stream.WaitTick(c, tick)
}

// do moves the first n bytes of a region.
func (t *selfTest) do(ctx context.Context, op driver.Op, r *driver.Region, n int64) error {
	err := driver.Do(ctx, t.dev, driver.Request{Op: op, Off: t.off, Len: n, Segs: []driver.Seg{r.Seg(0, n)}})
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
