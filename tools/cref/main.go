// Command cref drives the NVMe driver over an instant controller, and prints what
// an I/O costs the processor. The C programs in its folder c do the same with the
// smallest loop that works, and with a driver that takes the same steps as ours.
//
//	cref -mode count|time|duo|digest -size 4096 -batch 32 -depth 32 -turns 100
//	cref -compare 10
//
// The second form, in this folder of the source, builds all three programs, times
// them in turns in so many processes each, and prints a table.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
)

// result is what a run prints, as JSON; the C programs print the same names.
type result struct {
	IOs         int64   `json:"ios,omitempty"`         // commands that were counted
	Allocations int64   `json:"allocations,omitempty"` // of the counted commands together
	Doorbells   int64   `json:"doorbells,omitempty"`
	NS          float64 `json:"ns,omitempty"`     // a command, the controller's part included
	Model       float64 `json:"model,omitempty"`  // the controller's part alone; 0 when it has a thread
	Digest      string  `json:"digest,omitempty"` // of the commands
}

func main() {
	mode := flag.String("mode", "time", "count, time, duo or digest")
	size := flag.Int64("size", 4096, "bytes a request")
	per := flag.Int("batch", 32, "requests a batch")
	depth := flag.Int("depth", 32, "requests in flight")
	turns := flag.Int("turns", 100, "how often every request is made, for count and digest")
	rounds := flag.Int("compare", 0, "processes of each program to compare")
	flag.Parse()
	if *rounds > 0 {
		if err := compare(os.Stdout, ".", *rounds); err != nil {
			fmt.Fprintln(os.Stderr, "cref:", err)
			os.Exit(1)
		}
		return
	}
	r, err := run(*mode, *size, *per, *depth, *turns)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cref:", err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(r)
}

func run(mode string, size int64, per, depth, turns int) (r result, err error) {
	debug.SetGCPercent(-1)
	dev, d, err := openDevice()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, dev.close(d)) }()
	l, err := newLoad(dev, d, size, per, depth)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, l.region.Close()) }()
	switch mode {
	case "count":
		err = r.count(l, turns)
	case "time":
		err = r.time(l, depth)
	case "duo":
		r.NS, err = l.duo()
	case "digest":
		err = r.digest(l, turns)
	default:
		err = fmt.Errorf("no mode %q", mode)
	}
	return r, errors.Join(err, l.check())
}

// count runs turns after as many that warm up pools and tables.
func (r *result) count(l *load, turns int) error {
	for range turns {
		if err := l.turn(); err != nil {
			return err
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	rings, commands := l.dev.rings, l.d.Stats().Commands
	for range turns {
		if err := l.counted(); err != nil {
			return err
		}
	}
	runtime.ReadMemStats(&after)
	r.IOs = l.d.Stats().Commands - commands
	r.Doorbells = l.dev.rings - rings
	r.Allocations = int64(after.Mallocs - before.Mallocs)
	return nil
}

// time gives the nanoseconds of a command, and those of the controller's part.
func (r *result) time(l *load, depth int) error {
	best, err := fastest(depth, l.turn, l.model())
	if err == nil {
		r.NS, r.Model = best[0], best[1]
	}
	return err
}

// digest says what the commands were.
func (r *result) digest(l *load, turns int) error {
	var sum uint64
	for range turns {
		for _, b := range l.batches {
			if err := l.d.Submit(l.ctx, b); err != nil {
				return err
			}
			sum = sum*31 + l.dev.digest()
			l.dev.ctl.step()
			if err := b.Wait(l.ctx); err != nil {
				return err
			}
		}
	}
	r.Digest = fmt.Sprintf("%016x", sum)
	return nil
}
