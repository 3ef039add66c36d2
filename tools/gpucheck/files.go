package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/unix"
)

// The file that another process changes: sectors, each with the number of the change
// that wrote it and its own place. A sector of zeros is a hole, or was cut off.
const (
	sector    = 512
	filesSize = 32 * base.MiB
	filesFor  = 6 * time.Second
)

// board is a page that both processes see. All of it is about changes by number.
type board struct{ mem []byte }

func (b board) begun() *atomic.Uint64         { return dl.Cell(b.mem, 0) }             // the last change that was begun
func (b board) done() *atomic.Uint64          { return dl.Cell(b.mem, 64) }            // and that ended
func (b board) renaming() *atomic.Uint64      { return dl.Cell(b.mem, 128) }           // renames that were begun
func (b board) renamed() *atomic.Uint64       { return dl.Cell(b.mem, 192) }           // and that ended
func (b board) wrote(i int64) *atomic.Uint64  { return dl.Cell(b.mem, 512+8*int(i)) }  // the last change of MiB i that ended
func (b board) zeroed(i int64) *atomic.Uint64 { return dl.Cell(b.mem, 2048+8*int(i)) } // the last one begun that leaves zeros there, for good or for a while

func openBoard(path string) (board, func() error, error) {
	f, err := unix.Open(path, unix.ReadWrite|unix.Create, 0o600)
	if err != nil {
		return board{}, nil, err
	}
	defer f.Close()
	if err := unix.Truncate(f, 4096); err != nil {
		return board{}, nil, err
	}
	b, err := unix.MmapShared(f, 0, 4096)
	return board{b}, func() error { return unix.Munmap(b) }, err
}

func fillSectors(b []byte, off int64, change uint64) {
	for at := 0; at+sector <= len(b); at += sector {
		for k := 0; k < sector; k += 16 {
			binary.LittleEndian.PutUint64(b[at+k:], change)
			binary.LittleEndian.PutUint64(b[at+k+8:], uint64(off)+uint64(at))
		}
	}
}

// write is the other process: it changes the file in every way until its standard
// input ends.
func write(path string) error {
	b, done, err := openBoard(path + ".board")
	if err != nil {
		return err
	}
	defer done()
	var over atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		over.Store(true)
	}()
	mem, err := dma.Alloc(base.MiB, "gpucheck writer")
	if err != nil {
		return err
	}
	defer mem.Free()
	rng := rand.New(rand.NewPCG(7, uint64(os.Getpid())))
	for change := b.done().Load() + 1; !over.Load(); change++ {
		if err := b.change(path, change, rng, mem.Bytes()); err != nil {
			return err
		}
		b.done().Store(change)
	}
	return nil
}

// change makes one change and tells the board before and after.
func (b board) change(path string, change uint64, rng *rand.Rand, mem []byte) error {
	b.begun().Store(change)
	how := rng.IntN(10)
	from, to := int64(0), int64(filesSize)
	if how > 2 {
		from = rng.Int64N(filesSize/base.MiB) * base.MiB
		to = min(filesSize, from+int64(1+rng.IntN(4))*base.MiB)
	}
	if how == 2 || how == 3 {
		for at := from; at < to; at += base.MiB {
			b.zeroed(at / base.MiB).Store(change)
		}
	}
	err := b.carryOut(how, path, change, from, to, rng, mem)
	for at := from; at < to; at += base.MiB {
		b.wrote(at / base.MiB).Store(change)
	}
	if how == 0 {
		b.renamed().Add(1)
	}
	return err
}

func (b board) carryOut(how int, path string, change uint64, from, to int64, rng *rand.Rand, mem []byte) error {
	name := path
	switch how {
	case 0: // another file takes the name
		name = path + ".new"
		b.renaming().Add(1)
	case 2: // cut, and written again
		if err := os.Truncate(path, rng.Int64N(filesSize)); err != nil {
			return err
		}
	case 3: // a hole
		fd, err := unix.Open(path, unix.ReadWrite, 0)
		if err != nil {
			return err
		}
		return errors.Join(unix.Fallocate(fd, unix.PunchHole, from, to-from), fd.Close())
	}
	f, err := file.OpenFile(name, file.FileOptions{Access: file.ForBoth, Create: true, Buffered: how%2 == 1})
	if err != nil {
		return err
	}
	for ; from < to; from += int64(len(mem)) {
		fillSectors(mem, from, change)
		if _, err := f.WriteAt(mem, from); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	if err := f.Close(); err != nil || how != 0 {
		return err
	}
	return os.Rename(name, path)
}

// files: another process rewrites a file in place past the page cache and through it,
// cuts it, punches holes and renames over it, between and during reads. Every sector
// that arrives on the GPU must be one that the file had during the call.
func (r *rig) files() error {
	path := filepath.Join(*dir, "gpucheck.files")
	defer func() {
		for _, s := range []string{"", ".new", ".board"} {
			_ = os.Remove(path + s)
		}
	}()
	first := make([]byte, filesSize)
	fillSectors(first, 0, 1)
	if err := os.WriteFile(path, first, 0o600); err != nil {
		return err
	}
	b, done, err := openBoard(path + ".board")
	if err != nil {
		return err
	}
	defer done()
	b.begun().Store(1)
	b.done().Store(1)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.Command(self, "-writer", path)
	c.Stderr = os.Stderr
	stop, err := c.StdinPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make([]error, 4)
	var reads, sectors atomic.Int64
	for k := range errs {
		wg.Go(func() { errs[k] = r.readChanging(path, k, b, &reads, &sectors) })
	}
	wg.Wait()
	err = errors.Join(append(errs, stop.Close(), c.Wait())...)
	fmt.Printf("  %d changes by another process, %d reads, %d sectors compared\n", b.done().Load(), reads.Load(), sectors.Load())
	return err
}

// readChanging reads the file again and again: reader 0 and 1 by windows, the others
// without, and the odd ones past the page cache where that is possible.
func (r *rig) readChanging(path string, k int, b board, reads, sectors *atomic.Int64) (err error) {
	o := xfer.Options{Lanes: 4}
	if k < 2 {
		o.WindowBytes = xfer.MinWindow
	}
	m, err := r.mover(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close(ctx)) }()
	h, err := r.d.AllocHost(filesSize)
	if err != nil {
		return err
	}
	defer h.Close()
	mem, err := r.d.Alloc(filesSize)
	if err != nil {
		return err
	}
	defer mem.Close()
	rng := rand.New(rand.NewPCG(8, uint64(k)))
	for end := time.Now().Add(filesFor); time.Now().Before(end); {
		renames := b.renaming().Load()
		settled := b.renamed().Load() == renames // the file has the name, and keeps it until the next
		f, err := file.OpenFile(path, file.FileOptions{Buffered: k%2 == 0})
		if err != nil {
			return err
		}
		for range 4 {
			got, err := r.readOnce(m, f, mem, h, rng, b, func() bool { return settled && b.renaming().Load() == renames })
			if err != nil {
				return errors.Join(fmt.Errorf("reader %d: %w", k, err), f.Close())
			}
			reads.Add(1)
			sectors.Add(got / sector)
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	var ways []string
	for _, p := range m.Paths() {
		ways = append(ways, fmt.Sprintf("%v (%s) %s", p.Path, p.Reason, base.FormatBytes(p.Bytes)))
	}
	fmt.Printf("  reader %d: %s\n", k, strings.Join(ways, "; "))
	return nil
}

// readOnce reads a part of the file and compares it. While current is true the file
// is the one that changes.
func (r *rig) readOnce(m *xfer.Mover, f *file.File, mem gpu.Memory, h gpu.HostMemory, rng *rand.Rand, b board, current func() bool) (int64, error) {
	off := rng.Int64N(filesSize/sector-1) * sector
	n := min(filesSize-off, base.AlignUp(rng.Int64N(filesSize)+1, sector))
	var low [filesSize / base.MiB]uint64
	for i := range low {
		low[i] = b.wrote(int64(i)).Load()
	}
	known := current() // what low tells is about this file
	got, err := m.Read(ctx, xfer.File(f), off, mem.Ptr(), n)
	if err != nil && err != io.EOF {
		return 0, err
	}
	high := b.begun().Load()
	if got -= got % sector; got == 0 {
		return 0, nil
	}
	if _, err := m.Write(ctx, xfer.Pinned(h), 0, mem.Ptr(), got); err != nil {
		return 0, err
	}
	for at := int64(0); at < got; at += sector {
		c, place := binary.LittleEndian.Uint64(h.Bytes()[at:]), binary.LittleEndian.Uint64(h.Bytes()[at+8:])
		i := (off + at) / base.MiB
		// A write that goes on may have brought one of the two words and not yet the
		// other, where there were zeros: reads are not atomic, not even the kernel's.
		zeros := c == 0 || place == 0 && off+at > 0
		switch {
		case place != 0 && place != uint64(off+at) || c > high:
			return 0, fmt.Errorf("at %d: change %d of place %d; %d was begun last", off+at, c, place, high)
		case zeros && known && b.zeroed(i).Load() < low[i]:
			return 0, fmt.Errorf("at %d: zeros, although change %d wrote there and none made zeros later", off+at, low[i])
		case c > 0 && known && c < low[i]:
			return 0, fmt.Errorf("at %d: change %d, although %d had ended before the read began", off+at, c, low[i])
		}
	}
	return got, nil
}
