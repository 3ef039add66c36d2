package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/gpu/cuda"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
)

// opening makes the program a process of the part open: it opens what the word says,
// prints how many nanoseconds that took, and ends.
var opening = flag.String("opening", "", "for the part open: open the library (bare) or everything (ours) and print the time")

const (
	openBare = "bare" // cuInit and the primary context, as any program must have them
	openOurs = "ours" // a device, the GPU with its kernels, and a mover
)

// open: how long it takes until a process can move its first bytes, beside what the
// library takes by itself. Each is measured in processes of their own.
func (r *rig) open() error {
	if r.d.Info().Backend != "cuda" {
		fmt.Println("not run: it is for NVIDIA's library")
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	path := filepath.Join(*dir, "gpucheck.open")
	defer os.Remove(path)
	if err := file.Create(path, base.GiB/16, true); err != nil {
		return err
	}
	var took [2][]time.Duration
	for range max(*rounds, 5) {
		for k, what := range []string{openBare, openOurs} {
			c := exec.Command(self, "-opening", what, "-dir", *dir, "-gpu", *which)
			c.Stderr = os.Stderr
			out, err := c.Output()
			if err != nil {
				return fmt.Errorf("opening %s: %w", what, err)
			}
			ns, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
			if err != nil {
				return err
			}
			took[k] = append(took[k], time.Duration(ns))
		}
	}
	bare, ours := mid(took[0]), mid(took[1])
	fmt.Printf("cuInit and the context %v; device, GPU, kernels and mover %v: %v more\n", bare, ours, ours-bare)
	r.atMost(50, float64(ours-bare)/1e6, "(f) open of driver and GPU beyond cuInit and context, ms")
	return nil
}

// openOnce is such a process.
func openOnce(what string) error {
	began := time.Now()
	if what == openBare {
		const (
			cuInit = iota
			cuDeviceGet
			cuDevicePrimaryCtxRetain
		)
		lib, err := cuda.Load([]dl.Symbol{{Name: "cuInit"}, {Name: "cuDeviceGet"}, {Name: "cuDevicePrimaryCtxRetain"}}, cuda.DefaultLibrary)
		if err != nil {
			return err
		}
		f := dl.NewFrame()
		defer f.Done()
		dev, c := f.Word(0), f.Word(0)
		began = time.Now() // loading the library is ours
		if r := lib.Call(cuInit, 0) | lib.Call(cuDeviceGet, dev.Addr, 0); int32(r) != 0 {
			return fmt.Errorf("cuInit: %d", int32(r))
		}
		if r := lib.Call(cuDevicePrimaryCtxRetain, c.Addr, uintptr(dev.Uint32())); int32(r) != 0 {
			return fmt.Errorf("cuDevicePrimaryCtxRetain: %d", int32(r))
		}
		fmt.Println(time.Since(began).Nanoseconds())
		return nil
	}
	d, err := file.Open(ctx, file.Options{Path: filepath.Join(*dir, "gpucheck.open")})
	if err != nil {
		return err
	}
	defer d.Close(ctx)
	b, err := cuda.Open(cuda.Options{})
	if err != nil {
		return err
	}
	defer b.Close()
	dev := b.Devices()[0]
	if err := dev.Warm(); err != nil {
		return err
	}
	m, err := xfer.New(b, dev, nil, xfer.Options{})
	if err != nil {
		return err
	}
	fmt.Println(time.Since(began).Nanoseconds())
	return m.Close(ctx)
}
