// Package peermem is memory of this process behind a descriptor: what a dma-buf of a
// GPU is to a controller, for models of both. The model of a GPU exports memory, the
// model of a controller finds it by the descriptor, and the exporter can take it back
// at any time.
//
// The descriptor is a file in memory that holds nothing but a number, so that it can
// be duplicated and closed like that of a dma-buf, and so that any other descriptor
// is told apart.
package peermem

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Memory is memory that was exported. Safe for concurrent use.
type Memory struct {
	id   uint64
	gone atomic.Bool

	mu    sync.Mutex
	bytes []byte
	users map[*user]struct{}
}

// user is a device that reaches the memory.
type user struct{ gone func() }

// exports are the memories that were not taken back, by number.
var exports struct {
	m    sync.Map // uint64 → *Memory
	next atomic.Uint64
}

// magic is how the file behind a descriptor begins.
const magic = 0x6d656d7265657001

// Export gives a descriptor for mem, which the caller closes. Until Revoke, mem must
// stay where it is, whether the descriptor is open or not.
func Export(mem []byte) (*unix.FD, *Memory, error) {
	f, err := unix.Memfd("peer memory")
	if err != nil {
		return nil, nil, err
	}
	m := &Memory{id: exports.next.Add(1), bytes: mem, users: map[*user]struct{}{}}
	b := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, magic), m.id)
	if n, err := unix.Pwrite(f, b, 0); err != nil || n != len(b) {
		return nil, nil, errors.Join(base.Errorf("export", "memory", base.ErrNoSpace, "%d bytes written: %w", n, err), f.Close())
	}
	exports.m.Store(m.id, m)
	return f, m, nil
}

// Join gives [off, off+n) of the memory behind a descriptor. gone is called once,
// inside Revoke, if that comes before leave. ErrNotSupported for a descriptor of
// something else, ErrClosed for memory that was taken back, ErrOutOfRange.
func Join(fd int, off, n int64, gone func()) (mem *Memory, b []byte, leave func(), err error) {
	refuse := func(class error, format string, args ...any) (*Memory, []byte, func(), error) {
		return nil, nil, nil, base.Errorf("import", "descriptor", class, format, args...)
	}
	var raw [16]byte
	f := unix.NewFD(fd, "descriptor") // borrowed: never closed here
	if k, err := unix.Pread(f, raw[:], 0); err != nil || k != len(raw) || binary.LittleEndian.Uint64(raw[:]) != magic {
		return refuse(base.ErrNotSupported, "it stands for no memory of this process")
	}
	v, ok := exports.m.Load(binary.LittleEndian.Uint64(raw[8:]))
	if !ok {
		return refuse(base.ErrClosed, "its exporter has taken the memory back")
	}
	m := v.(*Memory)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.gone.Load():
		return refuse(base.ErrClosed, "its exporter has taken the memory back")
	case n < 1 || !base.CheckRange(off, n, int64(len(m.bytes))):
		return refuse(base.ErrOutOfRange, "%d bytes at %d of %d", n, off, len(m.bytes))
	}
	u := &user{gone}
	m.users[u] = struct{}{}
	leave = func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.users, u)
	}
	return m, m.bytes[off : off+n : off+n], leave, nil
}

// Revoke takes the memory back: when it returns, nobody reaches it any more. Doing it
// twice is harmless.
func (m *Memory) Revoke() {
	m.mu.Lock()
	m.gone.Store(true)
	users := m.users
	m.users = map[*user]struct{}{}
	m.mu.Unlock()
	exports.m.Delete(m.id)
	for u := range users {
		u.gone()
	}
}

// Revoked tells whether Revoke was called.
func (m *Memory) Revoked() bool { return m.gone.Load() }
