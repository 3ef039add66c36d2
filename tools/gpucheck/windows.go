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

// callWindows: a file of others, one caller.
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
	var movers []*xfer.Mover
	shapes := []xfer.Options{{}, {Lanes: 1, WindowBytes: xfer.MinWindow}, {WindowBytes: xfer.MinWindow}}
	if *tune {
		for _, chunk := range []int64{16, 64, 256} {
			for _, lanes := range []int{1, 2} {
				o := xfer.Options{Lanes: lanes, WindowBytes: xfer.MinWindow, WindowChunk: chunk << 20}
				fmt.Printf("  column %d: %d lanes, windows of %d MiB\n", len(shapes)+1, lanes, chunk)
				shapes = append(shapes, o)
			}
		}
	}
	for _, o := range shapes {
		m, err := r.mover(o)
		if err != nil {
			return err
		}
		defer m.Close(ctx)
		movers = append(movers, m)
	}
	fmt.Println("cached file to GPU, one caller, GiB/s: size, plain loop of one thread, bounce buffers, windows for the call in 1 lane, in 2")
	for _, n := range []int64{1 << 20, 4 << 20, 16 << 20, 128 << 20, *size} {
		if n > *size {
			continue
		}
		line := fmt.Sprintf("  %9s", base.FormatBytes(n))
		plain, err := median(*rounds, func() error { return l.read(r.f, r.mem.Ptr(), n) })
		if err != nil {
			return err
		}
		line += fmt.Sprintf(" %6.2f", rate(n, plain))
		for _, m := range movers {
			took, err := median(*rounds, func() error { _, err := m.Read(ctx, xfer.File(f), 0, r.mem.Ptr(), n); return err })
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %6.2f", rate(n, took))
		}
		fmt.Println(line)
	}
	for _, c := range movers[2].Paths() {
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
		bare, ours, err := pair(max(*rounds, 9), func() error {
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
		fmt.Printf("  %9s %6.2f %6.2f %6.2f %5.2f\n", base.FormatBytes(n), rate(n, device), rate(n, ours), rate(n, bare), float64(bare)/float64(ours))
	}
	fmt.Printf("  %+v\n", *s.Stats().Windows)
	return nil
}
