// Package statpage lets a process show its counters to others. A publisher
// writes a JSON document into an anonymous file, again when it has changed; a
// reader finds the file among the descriptors of the process. So the reader does
// not disturb the process, sees the last state also of one that hangs or is
// stopped, and nothing is left behind when the process ends.
//
// The file is version 1: a head of 64 bytes, little-endian, then two bodies of
// which the head names the valid one:
//
//	0  8  "ugdsstat"
//	8  4  version, 1
//	12 4  length of the body in bytes
//	16 8  offset of the body
//	24 8  time of writing, nanoseconds since 1970
//	32 4  CRC-32C of the body
//
// The writer fills the other body before it writes the head, so that a reader
// that sees a wrong checksum reads again.
package statpage

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// Limits.
const (
	// MaxBody bounds a document, in bytes.
	MaxBody = 1 << 20
	// MaxPages bounds the publishers of one process that are read.
	MaxPages = 64
	// MinEvery and MaxEvery bound the time between two looks for changes.
	MinEvery = 10 * time.Millisecond
	MaxEvery = time.Hour
)

const (
	name    = "ugds-stats"
	magic   = "ugdsstat"
	version = 1
	headLen = 64
	// readTries is how often a reader looks at a page that changes under it.
	readTries = 20
)

// Page is a publisher.
type Page struct {
	fd    *unix.FD
	fill  func() any
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once
	last  []byte // the document that was written last
	which int64  // the body that is valid
}

// Publish shows what fill returns, as JSON, until Close. fill is called every
// so often, by one goroutine, and must be quick. The document is written when it
// changed. ErrInvalid for a time out of bounds; ErrNotSupported where the kernel
// has no anonymous files.
func Publish(fill func() any, every time.Duration) (*Page, error) {
	if every < MinEvery || every > MaxEvery {
		return nil, base.Errorf("publish", "statistics", base.ErrInvalid, "every %v; it must be from %v to %v", every, MinEvery, MaxEvery)
	}
	fd, err := unix.Memfd(name)
	if err != nil {
		return nil, base.Errorf("publish", "statistics", base.ErrNotSupported, "%w", err)
	}
	p := &Page{fd: fd, fill: fill, stop: make(chan struct{}), done: make(chan struct{})}
	if err := p.write(); err != nil {
		return nil, errors.Join(err, fd.Close())
	}
	go p.loop(every)
	return p, nil
}

func (p *Page) loop(every time.Duration) {
	defer close(p.done)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = p.write() // the next one may succeed; the readers see the age
		case <-p.stop:
			return
		}
	}
}

// write puts a document that changed into the body that is not valid.
func (p *Page) write() error {
	body, err := json.Marshal(p.fill())
	if err != nil {
		return base.Wrap("publish", "statistics", err)
	}
	if len(body) > MaxBody {
		return base.Errorf("publish", "statistics", base.ErrInvalid, "%d bytes, the limit is %d", len(body), MaxBody)
	}
	if bytes.Equal(body, p.last) {
		return nil
	}
	next := 1 - p.which
	at := int64(headLen) + next*MaxBody
	if _, err := unix.Pwrite(p.fd, body, at); err != nil {
		return base.Wrap("publish", "statistics", err)
	}
	head := make([]byte, headLen)
	copy(head, magic)
	le := binary.LittleEndian
	le.PutUint32(head[8:], version)
	le.PutUint32(head[12:], uint32(len(body)))
	le.PutUint64(head[16:], uint64(at))
	le.PutUint64(head[24:], uint64(time.Now().UnixNano()))
	le.PutUint32(head[32:], crc32.Checksum(body, castagnoli))
	if _, err := unix.Pwrite(p.fd, head, 0); err != nil {
		return base.Wrap("publish", "statistics", err)
	}
	p.which, p.last = next, body
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Close writes the last state and takes the page away. Closing twice is harmless.
func (p *Page) Close() error {
	var err error
	p.once.Do(func() {
		close(p.stop)
		<-p.done
		err = errors.Join(p.write(), p.fd.Close())
	})
	return err
}

// Snapshot is what a page said.
type Snapshot struct {
	Written time.Time
	Body    json.RawMessage
}

// Read gives the pages of a process, in the order in which it made them, none if
// it publishes nothing. ErrNotFound when there is no such process, ErrInvalid for
// a version that is not known; a process of another user is refused by the
// kernel.
func Read(pid int) ([]Snapshot, error) {
	object := "process " + strconv.Itoa(pid)
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	list, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, os.ErrNotExist) || err == nil && pid <= 0:
		return nil, base.Errorf("read statistics of", object, base.ErrNotFound, "there is no such process")
	case errors.Is(err, os.ErrPermission):
		return nil, base.WithHint(base.Wrap("read statistics of", object, err), "run it as the user of the process, or as root")
	case err != nil:
		return nil, base.Wrap("read statistics of", object, err)
	}
	var out []Snapshot
	for _, e := range list {
		path := filepath.Join(dir, e.Name())
		to, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(to, "/memfd:"+name) || len(out) == MaxPages {
			continue
		}
		s, err := readPage(path)
		if errors.Is(err, os.ErrNotExist) { // closed meanwhile
			continue
		}
		if err != nil {
			return nil, base.Wrap("read statistics of", object, err)
		}
		out = append(out, s)
	}
	return out, nil
}

func readPage(path string) (s Snapshot, err error) {
	f, err := os.Open(path)
	if err != nil {
		return s, err
	}
	defer f.Close()
	for range readTries {
		if s, err = readOnce(f); err == nil || errors.Is(err, base.ErrInvalid) {
			return s, err
		}
		time.Sleep(time.Millisecond)
	}
	return s, err
}

func readOnce(f *os.File) (s Snapshot, err error) {
	head := make([]byte, headLen)
	if _, err := f.ReadAt(head, 0); err != nil {
		return s, err
	}
	le := binary.LittleEndian
	if string(head[:8]) != magic || le.Uint32(head[8:]) != version {
		return s, base.Errorf("read", "statistics", base.ErrInvalid, "version %d of %q; this program knows version %d",
			le.Uint32(head[8:]), head[:8], version)
	}
	n := le.Uint32(head[12:])
	if n > MaxBody || le.Uint64(head[16:]) > headLen+MaxBody {
		return s, base.Errorf("read", "statistics", base.ErrCorrupt, "%d bytes at %d", n, le.Uint64(head[16:]))
	}
	body := make([]byte, n)
	if _, err := f.ReadAt(body, int64(le.Uint64(head[16:]))); err != nil {
		return s, err
	}
	if crc32.Checksum(body, castagnoli) != le.Uint32(head[32:]) {
		return s, base.Errorf("read", "statistics", base.ErrCorrupt, "it changed under the reader")
	}
	return Snapshot{time.Unix(0, int64(le.Uint64(head[24:]))), body}, nil
}
