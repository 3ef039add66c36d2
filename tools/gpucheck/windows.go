package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

// windows: cached file data by one copy of the GPU, mapped for each call and kept,
// beside the plain loop of one thread and the bare copy of pinned memory.
func (r *rig) windows() error {
	if err := r.callWindows(); err != nil {
		return err
	}
	return r.keptWindows()
}

// ended waits for the windows of the last call, which may end a moment after it.
func ended(m *xfer.Mover) func() { return func() { _ = m.EndWindows(ctx) } }

// callWindows: a file of others, one caller, windows that are registered for the call
// from 16 MiB on, and fewer bytes as such a mover reads them. The last column is the same,
// one call after the other.
func (r *rig) callWindows() error {
	f, err := file.OpenFile(r.f.Name(), file.FileOptions{Buffered: true})
	if err != nil {
		return err
	}
	defer f.Close()
	l, err := r.newLoop(1)
	if err != nil {
		return err
	}
	defer l.close()
	bounce, err := r.mover(xfer.Options{})
	if err != nil {
		return err
	}
	defer bounce.Close(ctx)
	m, err := r.mover(xfer.Options{WindowBytes: fromWindows})
	if err != nil {
		return err
	}
	defer m.Close(ctx)
	fmt.Println("cached file to GPU, one caller, GiB/s: size, plain loop of one thread, bounce buffers in 16 lanes, windows for the call from 16 MiB on; those without a pause")
	for _, n := range upToFile(1<<20, 4<<20, 16<<20, 64<<20, 128<<20, 1<<30) {
		own := func() error { _, err := m.Read(ctx, xfer.File(f), 0, r.mem.Ptr(), n); return err }
		took, err := turnsThen(cellRounds(n), ended(m), func() error { return l.read(r.f, r.mem.Ptr(), n) },
			func() error { _, err := bounce.Read(ctx, xfer.File(f), 0, r.mem.Ptr(), n); return err }, own)
		if err != nil {
			return err
		}
		again, err := median(cellRounds(n), own)
		if err != nil {
			return err
		}
		first := rate(n, mid(took[2]))
		fmt.Printf("  %9s %6.2f %6.2f %6.2f; %6.2f\n", base.FormatBytes(n), rate(n, mid(took[0])), rate(n, mid(took[1])), first, rate(n, again))
		if n >= fromWindows {
			r.atLeast(15, first, "(a) first touch by windows of the call, %s, GiB/s", base.FormatBytes(n))
		}
	}
	for _, c := range m.Paths() {
		fmt.Printf("  %v, %s: %s\n", c.Path, c.Reason, base.FormatBytes(c.Bytes))
	}
	return r.check(r.mem.Ptr(), r.ref, "windows")
}

// keptWindows: values of a store that were read before, one caller.
func (r *rig) keptWindows() (err error) {
	s, err := r.newShop(store.Options{GPU: store.GPUOptions{WindowBytes: 2 * *size}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	stream, err := r.d.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	copyBuf := r.h.Bytes()
	fmt.Println("value of a store to GPU, one caller, GiB/s: size, from the device, by its window, bare copy of pinned memory, ratio")
	for i, n := range []int64{1 << 20, 4 << 20, 16 << 20, 64 << 20, *size / 2} {
		if n > *size/2 {
			break
		}
		key := fmt.Sprint("w", i)
		if _, err := r.upload(r.mem.Ptr(), r.ref[:n]); err != nil {
			return err
		}
		if err := s.put(key, r.mem.Ptr(), n); err != nil {
			return err
		}
		began := time.Now()
		if err := s.get(key, r.mem.Ptr(), n); err != nil {
			return err
		}
		device := time.Since(began)
		if err := s.get(key, r.mem.Ptr(), n); err != nil { // asks for the window
			return err
		}
		for end := time.Now().Add(20 * time.Second); s.Stats().Windows.Opened < int64(i+1); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return fmt.Errorf("no window: %+v", s.Stats().Windows)
			}
		}
		if _, err := r.upload(r.mem.Ptr(), make([]byte, n)); err != nil {
			return err
		}
		took, err := turns(2*cellRounds(n), func() error {
			if err := stream.Copy(gpu.Copy{Dev: r.mem.Ptr() + gpu.Ptr(*size/2), Host: copyBuf[:min(n, *size/2)]}); err != nil {
				return err
			}
			return finish(stream)
		}, func() error { return s.get(key, r.mem.Ptr(), n) })
		if err != nil {
			return err
		}
		if err := r.check(r.mem.Ptr(), r.ref[:n], "window of "+key); err != nil {
			return err
		}
		ratio := times(took[0], took[1])
		fmt.Printf("  %9s %6.2f %6.2f %6.2f %5.2f\n", base.FormatBytes(n), rate(n, device), rate(n, mid(took[1])), rate(n, mid(took[0])), ratio)
		if n >= 16*base.MiB {
			r.atLeast(0.9, ratio, "(a) kept window of the store, %s, beside the bare copy", base.FormatBytes(n))
		}
	}
	fmt.Printf("  %+v\n", *s.Stats().Windows)
	return nil
}
