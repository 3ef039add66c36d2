// Package uring is a small io_uring: the two rings, registered files and
// buffers, and a probe of what the kernel has. It is one of the five places
// where unsafe is allowed, because the rings are memory shared with the kernel.
//
// What the caller must keep true: Next with Publish, Peek, Wait, and SetBuffer
// are each called by one goroutine at a time; memory named by an entry stays
// valid, in place and alive until its completion was taken; no more entries are
// in flight than the completion ring has room for. Submit may be called by many.
//
// The rings are ordinary memory, so that sync/atomic gives the ordering that
// the kernel expects: entries are written before the tail is stored, and
// completions are read after the tail was loaded. The race detector does not
// see memory that the kernel maps; whoever passes data from submitter to reaper
// orders it with a lock or an atomic of their own.
package uring

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ugds-store/ugds/internal/unix"
)

// SQE is one submission entry, in the kernel's layout.
type SQE struct {
	Opcode      uint8
	Flags       uint8
	Ioprio      uint16
	Fd          int32
	Off         uint64
	Addr        uint64
	Len         uint32
	OpFlags     uint32 // rw_flags, fsync_flags, …
	UserData    uint64
	BufIndex    uint16
	Personality uint16
	SpliceFd    int32
	Addr3       uint64
	_           uint64
}

// CQE is one completion: the entry's UserData and its result, a count or a
// negative error number.
type CQE struct {
	UserData uint64
	Res      int32
	Flags    uint32
}

// Operations.
const (
	OpNop        = 0
	OpReadv      = 1
	OpWritev     = 2
	OpFsync      = 3
	OpReadFixed  = 4
	OpWriteFixed = 5
	OpFallocate  = 17
	OpRead       = 22
	OpWrite      = 23
)

// Flags of entries.
const (
	FixedFile = 1 << 0 // Fd is an index of the registered files
	Datasync  = 1 << 0 // in OpFlags of OpFsync
)

const (
	offSQRing = 0
	offSQEs   = 0x10000000

	featSingleMmap = 1 << 0
	featNoDrop     = 1 << 1
	featExtArg     = 1 << 8

	setupClamp = 1 << 4

	enterGetEvents = 1 << 0
	enterExtArg    = 1 << 3
)

// MaxEntries is the largest submission ring that New makes.
const MaxEntries = 4096

type sqOffsets struct {
	head, tail, ringMask, ringEntries, flags, dropped, array, _ uint32
	userAddr                                                    uint64
}

type cqOffsets struct {
	head, tail, ringMask, ringEntries, overflow, cqes, flags, _ uint32
	userAddr                                                    uint64
}

type params struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFd uint32
	_                                                                      [3]uint32
	sq                                                                     sqOffsets
	cq                                                                     cqOffsets
}

// Ring is one io_uring. See the package comment for who may call what.
type Ring struct {
	fd       *unix.FD
	ringMem  []byte
	sqeMem   []byte
	features uint32

	sqHead, sqTail *atomic.Uint32
	sqMask         uint32
	sqes           []SQE
	next           uint32 // tail that is filled but not published

	cqHead, cqTail, cqOverflow *atomic.Uint32
	cqMask                     uint32
	cqes                       []CQE

	// Structs that name each other by number must not be on a goroutine's
	// stack, which moves: the ring lives on the heap, so they live in it.
	ts  timespec
	arg geteventsArg
	iov unix.Iovec
}

// New makes a ring of at least entries submission entries and twice as many
// completions. Errors are the kernel's: ENOSYS and EPERM where it is refused,
// ENOMEM where the memory limit is too low.
func New(entries int) (*Ring, error) {
	if entries < 1 || entries > MaxEntries {
		return nil, fmt.Errorf("io_uring of %d entries: %w", entries, unix.EINVAL)
	}
	p := params{flags: setupClamp}
	fd, err := unix.UringSetup(uint32(entries), unsafe.Pointer(&p))
	if err != nil {
		return nil, fmt.Errorf("io_uring_setup: %w", err)
	}
	r := &Ring{fd: fd, features: p.features}
	const need = featSingleMmap | featNoDrop | featExtArg
	if p.features&need != need {
		err = errors.New("io_uring: the kernel is older than 5.11")
	} else {
		err = r.mapRings(&p)
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Ring) mapRings(p *params) error {
	sqLen := int64(p.sq.array) + int64(p.sqEntries)*4
	cqLen := int64(p.cq.cqes) + int64(p.cqEntries)*int64(unsafe.Sizeof(CQE{}))
	var err error
	if r.ringMem, err = unix.MmapShared(r.fd, offSQRing, max(sqLen, cqLen)); err != nil {
		return fmt.Errorf("io_uring map rings: %w", err)
	}
	sqeLen := int64(p.sqEntries) * int64(unsafe.Sizeof(SQE{}))
	if r.sqeMem, err = unix.MmapShared(r.fd, offSQEs, sqeLen); err != nil {
		return fmt.Errorf("io_uring map entries: %w", err)
	}
	for _, m := range [][]byte{r.ringMem, r.sqeMem} {
		if err := unix.DontFork(m); err != nil {
			return fmt.Errorf("io_uring: %w", err)
		}
	}
	base := unsafe.Pointer(unsafe.SliceData(r.ringMem))
	word := func(off uint32) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Add(base, off)) }
	r.sqHead, r.sqTail = word(p.sq.head), word(p.sq.tail)
	r.sqMask = word(p.sq.ringMask).Load()
	r.cqHead, r.cqTail, r.cqOverflow = word(p.cq.head), word(p.cq.tail), word(p.cq.overflow)
	r.cqMask = word(p.cq.ringMask).Load()
	r.cqes = unsafe.Slice((*CQE)(unsafe.Add(base, p.cq.cqes)), p.cqEntries)
	r.sqes = unsafe.Slice((*SQE)(unsafe.Pointer(unsafe.SliceData(r.sqeMem))), p.sqEntries)
	array := unsafe.Slice((*uint32)(unsafe.Add(base, p.sq.array)), p.sqEntries)
	for i := range array { // entry i is always at place i
		array[i] = uint32(i)
	}
	r.next = r.sqTail.Load()
	return nil
}

// Entries is the size of the submission ring.
func (r *Ring) Entries() int { return len(r.sqes) }

// Completions is the size of the completion ring.
func (r *Ring) Completions() int { return len(r.cqes) }

// Next gives a zeroed entry to fill in place, or nil when the ring is full. The
// kernel sees it after Publish.
func (r *Ring) Next() *SQE {
	if r.next-r.sqHead.Load() >= uint32(len(r.sqes)) {
		return nil
	}
	s := &r.sqes[r.next&r.sqMask]
	*s = SQE{}
	r.next++
	return s
}

// Publish shows the filled entries to the kernel, which takes them at the next
// Enter.
func (r *Ring) Publish() { r.sqTail.Store(r.next) }

// Unsubmitted is the number of published entries that the kernel has not taken.
func (r *Ring) Unsubmitted() int { return int(r.sqTail.Load() - r.sqHead.Load()) }

// Submit lets the kernel take every published entry. It gives how many were
// taken by this call; the others stay in the ring for the next one. EAGAIN and
// EBUSY mean that the kernel is short of memory or that completions must be
// reaped first.
func (r *Ring) Submit() (int, error) {
	n := r.Unsubmitted()
	if n == 0 {
		return 0, nil
	}
	for {
		got, err := unix.UringEnter(r.fd, uint32(n), 0, 0, nil, 0)
		if err != unix.EINTR {
			return got, err
		}
	}
}

type timespec struct{ sec, nsec int64 }

type geteventsArg struct {
	sigmask   uint64
	sigmaskSz uint32
	_         uint32
	ts        uint64
}

// Wait submits what is published and blocks until a completion is there or
// timeout has passed; then the error is ETIME. EINTR is also given to the
// caller, who knows the deadline.
func (r *Ring) Wait(timeout time.Duration) error {
	if r.Ready() > 0 && r.Unsubmitted() == 0 {
		return nil
	}
	timeout = max(timeout, 0)
	r.ts = timespec{int64(timeout / time.Second), int64(timeout % time.Second)}
	r.arg = geteventsArg{ts: uint64(uintptr(unsafe.Pointer(&r.ts)))}
	_, err := unix.UringEnter(r.fd, uint32(r.Unsubmitted()), 1, enterGetEvents|enterExtArg,
		unsafe.Pointer(&r.arg), unsafe.Sizeof(r.arg))
	runtime.KeepAlive(r)
	return err
}

// Ready is the number of completions that wait in the ring.
func (r *Ring) Ready() int { return int(r.cqTail.Load() - r.cqHead.Load()) }

// Peek takes up to len(out) completions and gives how many.
func (r *Ring) Peek(out []CQE) int {
	head := r.cqHead.Load()
	n := min(int(r.cqTail.Load()-head), len(out))
	for i := range n {
		out[i] = r.cqes[(head+uint32(i))&r.cqMask]
	}
	if n > 0 {
		r.cqHead.Store(head + uint32(n))
	}
	return n
}

// Overflows counts completions that found the ring full; the kernel kept them
// aside. Not zero means that a caller broke the rule of the package comment.
func (r *Ring) Overflows() uint32 { return r.cqOverflow.Load() }

// Close unmaps the rings and closes the descriptor. Nothing may be in flight.
func (r *Ring) Close() {
	if r.sqeMem != nil {
		_ = unix.Munmap(r.sqeMem)
	}
	if r.ringMem != nil {
		_ = unix.Munmap(r.ringMem)
	}
	r.sqeMem, r.ringMem, r.sqes, r.cqes = nil, nil, nil, nil
	_ = r.fd.Close()
}
