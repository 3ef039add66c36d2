//go:build !nogpu

package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

// watched is a block that a kernel waits for, and who may write it.
type watched struct {
	t       *testing.T
	d       gpu.Device
	block   gpu.Ptr        // what the kernel looks at
	pin     gpu.HostMemory // the entry, what the kernel copied, what is to be written, a table of moves
	waiter  gpu.Stream
	writer  gpu.Stream
	pattern []byte
}

// Where the parts of the pinned memory are.
const (
	watchBlock  = 4096
	watchCopied = 1 * watchBlock
	watchSource = 2 * watchBlock
	watchTable  = 3 * watchBlock
)

// one has a kernel wait for new bytes, has them written, and compares what it saw.
func (w *watched) one(write func() error) {
	w.t.Helper()
	entry := w.pin.Bytes()
	last := binary.LittleEndian.Uint64(w.pattern[watchBlock-8:])
	gpu.PutWatch(entry, gpu.Watch{Src: w.block, Dst: w.pin.Ptr() + watchCopied, N: watchBlock, Value: last, For: 10 * time.Second})
	err := w.waiter.Watch(w.pin.Ptr())
	if err == nil {
		err = gpu.WaitCell(w.t.Context(), gpu.WatchBegun(entry), 1, func() error { return nil })
	}
	if err == nil {
		err = write()
	}
	if err = errors.Join(err, finish(w.t, w.waiter)); err != nil {
		w.t.Fatal(err)
	}
	if gpu.WatchEnded(entry).Load() != gpu.WatchSaw || !bytes.Equal(w.pin.Bytes()[watchCopied:][:watchBlock], w.pattern) {
		w.t.Fatalf("ended as %d, or with other bytes", gpu.WatchEnded(entry).Load())
	}
}

// copies writes a block, and its last bytes behind all others: one copy, as one kernel,
// stores its bytes in any order.
func copies(s gpu.Stream, to gpu.Ptr, b []byte) error {
	last := len(b) - 8
	return s.Copy(gpu.Copy{Dev: to, Host: b[:last]}, gpu.Copy{Dev: to + gpu.Ptr(last), Host: b[last:]})
}

// TestRealWatch: a kernel that waits sees what is written while it does, the last bytes
// and all before them: by the copy engine, by kernels of another stream, and in pinned
// memory by the processor. One that waits for nothing ends in time.
func TestRealWatch(t *testing.T) {
	b, d := realDevice(t)
	if b == nil {
		return
	}
	m, pin, waiter := use(t, d, 4*watchBlock)
	other, _, writer := use(t, d, 4*watchBlock)
	w := &watched{t: t, d: d, block: m.Ptr(), pin: pin, waiter: waiter, writer: writer}
	source := pin.Bytes()[watchSource:][:watchBlock]
	w.pattern = source
	rng := testenv.Seed(t)
	began := time.Now()
	for name, write := range map[string]func() error{
		"copy engine": func() error { return copies(writer, w.block, source) },
		"copy engine and flush": func() error {
			return errors.Join(copies(writer, w.block, source), d.FlushWrites())
		},
		"kernels of another stream": func() error {
			from, table := pin.Ptr()+watchSource, pin.Bytes()[watchTable:]
			gpu.PutMove(table, 0, gpu.Move{Src: from, Dst: w.block, N: watchBlock - 8})
			gpu.PutMove(table, 1, gpu.Move{Src: from + watchBlock - 8, Dst: w.block + watchBlock - 8, N: 8})
			at := pin.Ptr() + watchTable
			return errors.Join(writer.Move(at, 1), writer.Move(at+gpu.MoveBytes, 1))
		},
	} {
		for range 3000 {
			for i := 0; i < watchBlock; i += 8 {
				binary.LittleEndian.PutUint64(source[i:], rng.Uint64())
			}
			w.one(write)
		}
		fmt.Printf("a kernel that waited saw 3,000 blocks written by: %s (%v)\n", name, time.Since(began))
	}
	_, far, _ := use(t, d, watchBlock) // pinned memory that the processor writes
	w.block, w.pattern = far.Ptr(), bytes.Clone(source)
	for range 3000 {
		for i := 0; i < watchBlock; i += 8 {
			binary.LittleEndian.PutUint64(w.pattern[i:], rng.Uint64())
		}
		w.one(func() error {
			copy(far.Bytes(), w.pattern[:watchBlock-8])
			dl.Cell(far.Bytes(), watchBlock-8).Store(binary.LittleEndian.Uint64(w.pattern[watchBlock-8:]))
			return nil
		})
	}
	fmt.Printf("a kernel that waited saw 3,000 blocks written by: processor, into pinned memory (%v)\n", time.Since(began))
	entry := pin.Bytes()
	gpu.PutWatch(entry, gpu.Watch{Src: other.Ptr(), Dst: pin.Ptr() + watchCopied, N: watchBlock, Value: 1, For: 200 * time.Millisecond})
	began = time.Now()
	if err := errors.Join(waiter.Watch(pin.Ptr()), finish(t, waiter)); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	fmt.Printf("a kernel that waited 200 ms for nothing: gave up after %v\n", took)
	if gpu.WatchEnded(entry).Load() != gpu.WatchGaveUp {
		t.Errorf("ended as %d", gpu.WatchEnded(entry).Load())
	}
	w.mapped(other)
}

// mapped has the processor write through a mapping of the export, which is a write of
// another device for the GPU. Drivers give such mappings on few machines.
func (w *watched) mapped(m gpu.Memory) {
	fd, err := w.d.Export(m.Ptr(), watchBlock)
	if err != nil {
		w.t.Fatal(err)
	}
	export := unix.NewFD(fd, "dma-buf")
	defer export.Close()
	view, err := unix.MmapShared(export, 0, watchBlock)
	if err != nil {
		fmt.Println("the export cannot be mapped, so nobody but the GPU writes its memory here:", err)
		return
	}
	defer unix.Munmap(view)
	w.block = m.Ptr()
	for k := range uint64(3000) {
		for i := 0; i < watchBlock; i += 8 {
			binary.LittleEndian.PutUint64(w.pattern[i:], k<<32+uint64(i)*base.MiB+1)
		}
		w.one(func() error {
			copy(view, w.pattern[:watchBlock-8])
			dl.Cell(view, watchBlock-8).Store(binary.LittleEndian.Uint64(w.pattern[watchBlock-8:]))
			return w.d.FlushWrites()
		})
	}
	fmt.Println("a kernel that waited saw 3,000 blocks written by: processor, through the mapped export")
}
