package uring

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func newRing(t *testing.T, n int) *Ring {
	t.Helper()
	r, err := New(n)
	if err != nil {
		testenv.Skip(t, "io_uring: "+err.Error())
	}
	t.Cleanup(r.Close)
	return r
}

func await(t *testing.T, r *Ring) CQE {
	t.Helper()
	var out [1]CQE
	for range 1000 {
		if r.Peek(out[:]) == 1 {
			return out[0]
		}
		if err := r.Wait(time.Second); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
	}
	t.Fatal("no completion")
	return CQE{}
}

func TestLayout(t *testing.T) {
	for name, got := range map[string][2]uintptr{
		"sqe":     {unsafe.Sizeof(SQE{}), 64},
		"cqe":     {unsafe.Sizeof(CQE{}), 16},
		"params":  {unsafe.Sizeof(params{}), 120},
		"update":  {unsafe.Sizeof(rsrcUpdate2{}), 32},
		"rsrc":    {unsafe.Sizeof(rsrcRegister{}), 32},
		"arg":     {unsafe.Sizeof(geteventsArg{}), 24},
		"probeOp": {unsafe.Sizeof(probeOp{}), 8},
		"buf":     {unsafe.Offsetof(SQE{}.BufIndex), 40},
		"probe":   {unsafe.Sizeof(probe{}), 16 + 256*8},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %d, the kernel has %d", name, got[0], got[1])
		}
	}
}

func TestEntriesLimits(t *testing.T) {
	for _, n := range []int{-1, 0, MaxEntries + 1} {
		if _, err := New(n); !errors.Is(err, unix.EINVAL) {
			t.Errorf("New(%d): %v", n, err)
		}
	}
	for _, n := range []int{1, 3, MaxEntries} {
		if r := newRing(t, n); r.Entries() < n {
			t.Errorf("New(%d) has %d entries", n, r.Entries())
		}
	}
}

// The ring's indices wrap at 2^32 in the kernel and at the ring size here;
// several times round shows both sides agree about the places.
func TestNopsWrapTheRing(t *testing.T) {
	r := newRing(t, 8)
	for round := range 50 {
		n := 0
		for ; ; n++ {
			s := r.Next()
			if s == nil {
				break
			}
			s.Opcode, s.UserData = OpNop, uint64(round*100+n)
		}
		if n != r.Entries() {
			t.Fatalf("round %d: %d entries, want %d", round, n, r.Entries())
		}
		r.Publish()
		if got, err := r.Submit(); got != n || err != nil {
			t.Fatalf("submitted %d, %v", got, err)
		}
		for i := range n {
			if c := await(t, r); c.UserData != uint64(round*100+i) || c.Res != 0 {
				t.Fatalf("completion %d: %+v", i, c)
			}
		}
	}
	if r.Overflows() != 0 {
		t.Error("overflow")
	}
}

func TestWaitTimesOut(t *testing.T) {
	r := newRing(t, 2)
	start := time.Now()
	if err := r.Wait(20 * time.Millisecond); err != unix.ETIME && err != unix.EINTR {
		t.Errorf("%v, want ETIME", err)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("took %v", d)
	}
}

func openTemp(t *testing.T) *unix.FD {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.ReadWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = fd.Close() })
	return fd
}

func do(t *testing.T, r *Ring, fill func(s *SQE)) CQE {
	t.Helper()
	fill(r.Next())
	r.Publish()
	return await(t, r)
}

func TestRegisteredFileAndBuffers(t *testing.T) {
	r := newRing(t, 4)
	fd := openTemp(t)
	if err := r.RegisterFile(fd); err != nil {
		t.Fatal(err)
	}
	if err := r.SparseBuffers(8); err != nil {
		testenv.Skip(t, "sparse buffer tables: "+err.Error())
	}
	m, err := dma.Alloc(8192, "uring test")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	b := m.Bytes()
	if err := r.SetBuffer(3, b); err != nil {
		t.Fatal(err)
	}
	copy(b, bytes.Repeat([]byte{7}, 4096))
	rw := func(op uint8, off int, buf uint16) CQE {
		return do(t, r, func(s *SQE) {
			s.Opcode, s.Flags, s.BufIndex, s.Len = op, FixedFile, buf, 4096
			s.Addr = unix.Addr(b[off:])
		})
	}
	if c := rw(OpWriteFixed, 0, 3); c.Res != 4096 {
		t.Fatalf("write: %d", c.Res)
	}
	if c := rw(OpReadFixed, 4096, 3); c.Res != 4096 || !bytes.Equal(b[:4096], b[4096:]) {
		t.Fatalf("read: %d", c.Res)
	}
	if c := rw(OpReadFixed, 0, 4); unix.Errno(-c.Res) != unix.EFAULT {
		t.Errorf("an empty slot was used: %d", c.Res)
	}
	if err := r.SetBuffer(3, nil); err != nil {
		t.Fatal(err)
	}
	if c := rw(OpReadFixed, 0, 3); unix.Errno(-c.Res) != unix.EFAULT {
		t.Errorf("a removed buffer was used: %d", c.Res)
	}
	if err := errors.Join(r.UnregisterBuffers(), r.UnregisterFile()); err != nil {
		t.Error(err)
	}
}

func TestSupports(t *testing.T) {
	r := newRing(t, 2)
	if _, ok, err := r.Supports(OpRead, OpWrite, OpFsync); !ok || err != nil {
		t.Errorf("%v %v", ok, err)
	}
	if op, ok, err := r.Supports(OpRead, 250); ok || op != 250 || err != nil {
		t.Errorf("operation 250: %d %v %v", op, ok, err)
	}
}

// Submitters under one lock, one reaper: what the race detector can see.
func TestConcurrentSubmitters(t *testing.T) {
	r := newRing(t, 64)
	const each, workers = 500, 4
	var mu sync.Mutex
	room := make(chan struct{}, r.Entries())
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range each {
				room <- struct{}{}
				mu.Lock()
				s := r.Next()
				s.Opcode, s.UserData = OpNop, uint64(i)
				r.Publish()
				mu.Unlock()
				if _, err := r.Submit(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var sum uint64
	for range each * workers {
		sum += await(t, r).UserData
		<-room
	}
	wg.Wait()
	if want := uint64(workers * each * (each - 1) / 2); sum != want {
		t.Errorf("sum %d, want %d", sum, want)
	}
}
