package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
)

// fromWindows is from which size on the movers with windows use them, and up to how
// many threads they are measured: more do better with bounce buffers.
const (
	fromWindows = 16 * base.MiB
	fewThreads  = 2
)

// upToFile gives the sizes that the file has.
func upToFile(sizes ...int64) []int64 {
	return slices.DeleteFunc(sizes, func(n int64) bool { return n > *size })
}

func cellSizes() []int64 { return upToFile(1<<20, 4<<20, 16<<20, 128<<20, 1<<30) }

// cellRounds is how many rounds a cell gets: short ones vary more.
func cellRounds(n int64) int {
	switch {
	case n <= 16*base.MiB:
		return 5 * *rounds
	case n <= 128*base.MiB:
		return 3 * *rounds
	}
	return 2 * *rounds
}

// cached: a file in the page cache to the GPU, beside the plain loop and cuFile; first
// with as many threads at work on each side, then with as many callers of libraries that
// choose their threads themselves.
func (r *rig) cached() error {
	nvidia, err := r.newCufile()
	if err != nil {
		fmt.Println("cuFile is no peer:", err)
	} else if nvidia != nil {
		defer func() {
			if err := nvidia.close(); err != nil {
				fmt.Println("cuFile does not close:", err)
			}
		}()
	}
	if err := r.byThreads(nvidia); err != nil {
		return err
	}
	if err := r.byCallers(nvidia); err != nil {
		return err
	}
	sizes := cellSizes()
	return r.check(r.mem.Ptr(), r.ref[:sizes[len(sizes)-1]], "cached file")
}

// way is one way of a cell.
type way struct {
	name string
	fn   func(n int64) error
	then func() // what follows it, and is not measured
}

// cells measures ours beside its peers and one more way, a line a size, and gives the
// ratios of ours to the best peer.
func cells(label string, ours way, peers []way, other *way) (ratios []float64, err error) {
	for _, n := range cellSizes() {
		ways := []func() error{func() error { return ours.fn(n) }}
		for _, p := range peers {
			ways = append(ways, func() error { return p.fn(n) })
		}
		if other != nil && n >= fromWindows {
			ways = append(ways, func() error { return other.fn(n) })
		}
		then := func() {}
		if other != nil {
			then = other.then
		}
		all, err := turnsThen(cellRounds(n), then, ways...)
		if err != nil {
			return nil, err
		}
		line, best := fmt.Sprintf("  %9s %s", base.FormatBytes(n), label), 1
		for k := range peers {
			line += fmt.Sprintf(" %6.2f", rate(n, mid(all[1+k])))
			if mid(all[1+k]) < mid(all[best]) {
				best = 1 + k
			}
		}
		ratio := times(all[best], all[0])
		line += fmt.Sprintf(" | %6.2f %5.2f", rate(n, mid(all[0])), ratio)
		if len(ways) > 1+len(peers) {
			w := all[1+len(peers)]
			line += fmt.Sprintf(" | %s %6.2f %5.2f", other.name, rate(n, mid(w)), times(all[best], w))
		}
		fmt.Println(line)
		ratios = append(ratios, ratio)
	}
	return ratios, nil
}

// byThreads: as many lanes as the plain loop has threads. cuFile does not cut tasks of
// 4 MiB further, and so has as many.
func (r *rig) byThreads(nvidia *cufile) error {
	f, err := file.OpenFile(r.f.Name(), file.FileOptions{Buffered: true})
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Println("cached file to GPU, GiB/s: size, threads at work, plain loop, cuFile in tasks of 4 MiB | ours, ratio to the best | ours with windows, ratio")
	var ratios []float64
	for _, threads := range []int{1, 2, 4, 8, 16} {
		l, err := r.newLoop(threads)
		if err != nil {
			return err
		}
		m, err := r.mover(xfer.Options{Lanes: threads})
		if err != nil {
			return err
		}
		w, err := r.mover(xfer.Options{Lanes: threads, WindowBytes: fromWindows})
		if err != nil {
			return err
		}
		p := r.mem.Ptr()
		peers := []way{{name: "plain", fn: func(n int64) error { return l.read(r.f, p, n) }}}
		if nvidia != nil {
			peers = append(peers, way{name: "cuFile", fn: func(n int64) error { return nvidia.read(p, n, loopTask, threads) }})
		}
		var mapped *way
		if threads <= fewThreads {
			mapped = &way{"windows", func(n int64) error { _, err := w.Read(ctx, xfer.File(f), 0, p, n); return err }, ended(w)}
		}
		row, err := cells(fmt.Sprintf("%3d", threads), way{name: "ours", fn: func(n int64) error { _, err := m.Read(ctx, xfer.File(r.f), 0, p, n); return err }}, peers, mapped)
		l.close()
		if err := errors.Join(err, m.Close(ctx), w.Close(ctx)); err != nil {
			return err
		}
		ratios = append(ratios, row...)
	}
	r.cellFigures(ratios, nvidia, "threads at work")
	return nil
}

// byCallers: each caller reads its share by one call. Ours has the lanes of a mover by
// default for all of them together; cuFile has threads of its own for large calls.
func (r *rig) byCallers(nvidia *cufile) error {
	m, err := r.mover(xfer.Options{})
	if err != nil {
		return err
	}
	defer m.Close(ctx)
	fmt.Println("cached file to GPU, GiB/s: size, callers, plain loop of as many threads, cuFile | ours, ratio to the best")
	var ratios []float64
	for _, callers := range []int{1, 2, 4, 8, 16} {
		l, err := r.newLoop(callers)
		if err != nil {
			return err
		}
		p := r.mem.Ptr()
		share := func(n int64) int64 { return base.AlignUp((n+int64(callers)-1)/int64(callers), base.MiB) }
		peers := []way{{name: "plain", fn: func(n int64) error { return l.read(r.f, p, n) }}}
		if nvidia != nil {
			peers = append(peers, way{name: "cuFile", fn: func(n int64) error { return nvidia.read(p, n, share(n), callers) }})
		}
		row, err := cells(fmt.Sprintf("%3d", callers), way{name: "ours", fn: func(n int64) error { return r.readShares(m, n, share(n)) }}, peers, nil)
		l.close()
		if err != nil {
			return err
		}
		ratios = append(ratios, row...)
	}
	r.cellFigures(ratios, nvidia, "callers")
	return nil
}

// readShares reads n bytes, each share by a caller of its own.
func (r *rig) readShares(m *xfer.Mover, n, share int64) error {
	read := func(at int64) error {
		_, err := m.Read(ctx, xfer.File(r.f), at, r.mem.Ptr()+gpu.Ptr(at), min(share, n-at))
		return err
	}
	if n <= share {
		return read(0)
	}
	errs := make([]error, (n+share-1)/share)
	var wg sync.WaitGroup
	for i := range errs { // as the peers start theirs
		wg.Go(func() { errs[i] = read(int64(i) * share) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (r *rig) cellFigures(ratios []float64, nvidia *cufile, what string) {
	peer := "plain loop"
	if nvidia != nil {
		peer = "the better of plain loop and cuFile"
	}
	least, sum := ratios[0], 0.0
	for _, x := range ratios {
		least = min(least, x)
		sum += math.Log(x)
	}
	mean := math.Exp(sum / float64(len(ratios)))
	fmt.Printf("  ratios: least %.2f, geometric mean %.2f\n", least, mean)
	r.atLeast(0.95, least, "(a) cached file by %s, least cell, beside %s", what, peer)
	r.atLeast(1, mean, "(a) cached file by %s, geometric mean", what)
}
