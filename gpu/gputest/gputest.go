// Package gputest leads a gpu.Backend through all that it does, for tests with
// libraries in which each call can fail.
package gputest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/unix"
)

// EveryCall uses everything of the first device once, gives the first error and
// closes what it has got so far. The device must support all of it but the moves and
// checksums, which may give ErrNotSupported.
func EveryCall(b gpu.Backend, kernels bool) (err error) {
	var closers []func() error
	defer func() {
		for _, fn := range slices.Backward(closers) {
			if e := fn(); e != nil {
				err = errors.Join(err, e, fn()) // what could not be closed is closed the second time
			}
		}
	}()
	d := b.Devices()[0]
	if err := d.Warm(); err != nil {
		return err
	}
	mem, err := d.Alloc(64 << 10)
	if err != nil {
		return err
	}
	closers = append(closers, mem.Close)
	host, err := d.AllocHost(4096)
	if err != nil {
		return err
	}
	closers = append(closers, host.Close)
	own, err := dma.Alloc(4096, "gpu test")
	if err != nil {
		return err
	}
	closers = append(closers, func() error { own.Free(); return nil })
	pinned, err := d.PinHost(own.Bytes(), false)
	if err != nil {
		return err
	}
	closers = append(closers, pinned.Close)
	if err := memoryCalls(b, d, mem.Ptr()); err != nil {
		return err
	}
	for _, make := range []func() (gpu.Stream, error){d.NewStream, func() (gpu.Stream, error) { return d.WrapStream(0) }} {
		s, err := make()
		if err != nil {
			return err
		}
		closers = append(closers, s.Close)
		if err := streamCalls(d, s, mem, host); err != nil {
			return err
		}
	}
	if !kernels {
		return nil
	}
	sum, err := gpu.NewSummer(d)
	if err != nil {
		return err
	}
	closers = append(closers, sum.Close)
	if err := sum.Sum(context.Background(), []gpu.SumItem{{Ptr: mem.Ptr() + 1, N: 4096}}); err != nil {
		return err
	}
	s, err := d.NewStream()
	if err != nil {
		return err
	}
	closers = append(closers, s.Close)
	gpu.PutWatch(host.Bytes(), gpu.Watch{Src: mem.Ptr(), Dst: host.Ptr() + gpu.WatchBytes, N: 64})
	return s.Watch(host.Ptr())
}

// closeOnExec are the flags, in octal, of a descriptor with O_CLOEXEC (02000000).
var closeOnExec = regexp.MustCompile(`flags:\s*0[0-7]*[2367][0-7]{6}\n`)

// memoryCalls ask about memory, export it and share it.
func memoryCalls(b gpu.Backend, d gpu.Device, p gpu.Ptr) error {
	if a, err := b.Attributes(p); err != nil || a.Kind != gpu.KindDevice {
		return errors.Join(err, fmt.Errorf("%s memory", a.Kind))
	}
	if err := d.SyncMemOps(p); err != nil {
		return err
	}
	fd, err := d.Export(p, gpu.HostPage)
	if err != nil {
		return err
	}
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err := errors.Join(err, unix.NewFD(fd, "dma-buf").Close()); err != nil {
		return err
	}
	if !closeOnExec.Match(info) {
		return fmt.Errorf("a program that is started gets the dma-buf: %s", info)
	}
	handle, err := d.IPCHandle(p)
	if err != nil {
		return err
	}
	other, err := d.OpenIPC(handle)
	if err != nil {
		return err
	}
	return other.Close()
}

// streamCalls use one stream and an event.
func streamCalls(d gpu.Device, s gpu.Stream, mem gpu.Memory, host gpu.HostMemory) error {
	ev, err := d.NewEvent()
	if err != nil {
		return err
	}
	if err := useStream(s, ev, mem, host); err != nil {
		return errors.Join(err, ev.Close())
	}
	return ev.Close()
}

func useStream(s gpu.Stream, ev gpu.Event, mem gpu.Memory, host gpu.HostMemory) error {
	if _, err := s.Capturing(); err != nil {
		return err
	}
	called := false
	for _, fn := range []func() error{
		func() error { return s.Copy(gpu.Copy{Dev: mem.Ptr(), Host: host.Bytes()[:64]}) },
		func() error { return s.Copy(gpu.Copy{Dev: mem.Ptr(), Host: host.Bytes()[:64], ToHost: true}) },
		func() error { return s.WriteCell(host.Ptr(), 7) },
		func() error { return s.AwaitCell(host.Ptr(), 7) },
		func() error { return s.Call(func() { called = true }) },
		func() error { return s.Record(ev) },
		func() error { return s.Await(ev) },
		func() error { _, err := ev.Done(); return err },
	} {
		if err := fn(); err != nil {
			return err
		}
	}
	n, err := s.Tick()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.WaitTick(ctx, n); err != nil {
		return err
	}
	if !called {
		return errors.New("the function was not called")
	}
	return nil
}
