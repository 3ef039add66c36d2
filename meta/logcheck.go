package meta

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/mutant"
)

// Pebble ends the replay of its newest log, and of a MANIFEST, at the first
// chunk that is not valid, because after a power cut that is what the end looks
// like. For logs it then looks for later chunks that prove damage, but skips the
// rest of the block, and the offsets that are the proof lag behind; for a
// MANIFEST it does not look at all. A flipped byte therefore cuts off what
// follows, without an error.
//
// Here the proof is simple: commits and version edits are serial, each is synced
// before the next is written, so a power cut can damage the last record only.
// When a record, or the mark of a clean end, begins anywhere behind an invalid
// chunk, then this is damage and the open is refused. A flipped byte in the very
// last record of a log without clean end looks like a power cut; the commit
// marks on the devices cover that.

// Format of log and MANIFEST, from pebble/record: blocks of 32 KiB hold chunks;
// a chunk is CRC u32, length u16, type u8, then for logs the log number u32 and
// for newer ones a sync offset u64, then the payload. No chunk crosses a block;
// what is too short for a header is zero.
const (
	logBlock       = 32 << 10
	legacyHeader   = 7
	recycleHeader  = 11
	walSyncHeader  = 19
	typeRecycle    = 4 // types 5 to 8 have a log number
	typeWALSync    = 8 // types 9 to 12 have a sync offset too
	typeMax        = 12
	batchHeader    = 12  // sequence number u64, count u32
	headBytes      = 128 // of a record that are looked at
	firstSequence  = 10  // Pebble reserves those below
	trailerType    = typeRecycle + 1
	maxLogToVerify = 1 << 30 // bytes; far above any log of 16 MiB memtables
)

// position of a chunk in its record: full, first, middle, last.
type position int

const (
	full position = iota
	first
	middle
	last
)

// logFile is a log or MANIFEST in memory.
type logFile struct {
	b        []byte
	num      uint32
	manifest bool
	record   func(head []byte) // called for each whole record, if not nil
}

// logChain is what the logs and the MANIFEST that Pebble reads during one open
// must agree on: sequence numbers of batches are without gaps, so that a log
// that has vanished is noticed unless it was the newest.
type logChain struct {
	// From the MANIFEST. A flush names the oldest log that is still needed: one
	// that exists, or, when it is the flush of an open, a number that is never
	// used; then the next batch directly follows those flushed.
	limit  uint64 // the first batch may not be above this
	minLog uint64 // the oldest log that is needed
	exact  uint64 // without that log the first batch is this one; 0 is unknown

	begun bool
	next  uint64 // sequence number of the next batch, or 0
}

// check reads the log or MANIFEST at path and fails with ErrCorrupt when it is
// damaged before its end, or does not follow those before. Other files pass.
func (c *logChain) check(fs vfs.FS, path string) error {
	l, ok := logName(filepath.Base(path))
	if !ok || mutant.On(mutant.ApplyBeforeFlush) { // whose unsynced writes break the rule above
		return nil
	}
	f, err := openRegular(fs, path, vfs.SequentialReadsOption)
	if errors.Is(err, errNotRegular) {
		return base.Errorf("check log", path, base.ErrCorrupt, "%w", err)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if l.b, err = io.ReadAll(io.LimitReader(f, maxLogToVerify)); err != nil {
		return err
	}
	gap := ""
	if !l.manifest && !c.begun {
		c.begun = true
		if uint64(l.num) == c.minLog {
			c.exact = 0
		}
	}
	l.record = func(head []byte) {
		if l.manifest {
			c.edit(head)
		} else if why := c.batch(head); gap == "" {
			gap = why
		}
	}
	at, why := l.end()
	if why != "" {
		if later := l.evidence(at); later >= 0 {
			return base.Errorf("check log", path, base.ErrCorrupt, "%s at offset %d, but a record begins at %d", why, at, later)
		}
	}
	if gap != "" {
		return base.Errorf("check log", path, base.ErrCorrupt, "%s: a log is missing", gap)
	}
	return nil
}

// edit takes the oldest log and the last sequence number from the head of a
// version edit: tags and values as varints, the comparer's name first.
func (c *logChain) edit(head []byte) {
	const comparer, oldestLog, lastSequence, prevLog = 1, 2, 4, 9 // 3 is a number too
	flush := false
	for {
		tag, n := binary.Uvarint(head)
		if n <= 0 || tag > lastSequence && tag != prevLog {
			return
		}
		v, m := binary.Uvarint(head[n:])
		if m <= 0 {
			return
		}
		head = head[n+m:]
		switch {
		case tag == oldestLog:
			flush, c.minLog, c.exact = true, v, 0
		case tag == lastSequence:
			c.limit = max(c.limit, v+1, firstSequence)
			if flush && v > 0 {
				c.exact = max(v+1, firstSequence)
			}
			return
		case tag == comparer && v <= uint64(len(head)):
			head = head[v:]
		case tag == comparer:
			return
		}
	}
}

// batch takes sequence number and count from the head of a batch.
func (c *logChain) batch(head []byte) string {
	if len(head) < batchHeader {
		return ""
	}
	seq, count := binary.LittleEndian.Uint64(head), binary.LittleEndian.Uint32(head[8:])
	defer func() { c.next = seq + uint64(count) }()
	switch {
	case c.next != 0 && seq != c.next:
		return fmt.Sprintf("batch %d follows batch %d", seq, c.next-1)
	case c.next == 0 && (c.limit != 0 && seq > c.limit || c.exact != 0 && seq != c.exact):
		return fmt.Sprintf("batch %d follows tables up to %d", seq, c.limit-1)
	}
	return ""
}

// logName recognises the names of logs and MANIFESTs.
func logName(name string) (logFile, bool) {
	if strings.HasPrefix(name, "MANIFEST-") {
		return logFile{manifest: true}, true
	}
	num, ok := strings.CutSuffix(name, ".log")
	if !ok {
		return logFile{}, false
	}
	n, err := strconv.ParseUint(num, 10, 64)
	return logFile{num: uint32(n)}, err == nil
}

// end walks the chunks. It returns where they end and why, "" at a clean end.
func (l *logFile) end() (at int, why string) {
	inside := false // a record has begun and not ended
	start := 0      // of the current record
	var head []byte // its first bytes
	for at < len(l.b) {
		if skip := l.padding(at); skip > 0 {
			at += skip
			continue
		}
		if l.trailer(at) && !inside {
			return at, ""
		}
		pos, header, n := l.chunk(at)
		switch {
		case n == 0:
			return at, "no valid chunk"
		case inside != (pos == middle || pos == last):
			return at, "a chunk out of place"
		}
		if !inside {
			start, head = at, head[:0]
		}
		head = append(head, l.b[at+header:at+min(n, header+headBytes-len(head))]...)
		inside = pos == first || pos == middle
		at += n
		if !inside && l.record != nil {
			l.record(head)
		}
	}
	if inside {
		return start, "a record without end"
	}
	return at, ""
}

// padding is the number of bytes up to the next block if they are too few for a
// chunk and zero, else 0.
func (l *logFile) padding(at int) int {
	n := min(logBlock-at%logBlock, len(l.b)-at)
	limit := walSyncHeader
	if l.manifest {
		limit = legacyHeader
	}
	if at%logBlock+n != logBlock || n >= limit {
		return 0
	}
	for _, c := range l.b[at : at+n] {
		if c != 0 {
			return 0
		}
	}
	return n
}

// trailer reports whether the mark of a clean end is at this offset.
func (l *logFile) trailer(at int) bool {
	if l.manifest || at+recycleHeader > len(l.b) {
		return false
	}
	le := binary.LittleEndian
	return le.Uint32(l.b[at:]) == 0 && le.Uint16(l.b[at+4:]) == 0 && l.b[at+6] == trailerType &&
		le.Uint32(l.b[at+7:]) == l.num+1
}

// chunk is the position, header length and whole length of the valid chunk at
// this offset; lengths are 0 if there is none.
func (l *logFile) chunk(at int) (pos position, header, n int) {
	room := min(logBlock-at%logBlock, len(l.b)-at)
	if room < legacyHeader {
		return 0, 0, 0
	}
	b := l.b[at : at+room]
	kind := int(b[6])
	header = legacyHeader
	switch {
	case kind == 0 || kind > typeMax || l.manifest != (kind <= typeRecycle):
		return 0, 0, 0
	case kind > typeWALSync:
		header = walSyncHeader
	case kind > typeRecycle:
		header = recycleHeader
	}
	le := binary.LittleEndian
	n = header + int(le.Uint16(b[4:]))
	if n > room || !l.manifest && le.Uint32(b[7:]) != l.num || le.Uint32(b) != maskedCRC(b[6:n]) {
		return 0, 0, 0
	}
	return position((kind - 1) % 4), header, n
}

// maskedCRC is Pebble's checksum of chunks.
func maskedCRC(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}

// evidence looks behind an invalid chunk for the begin of a later record or a
// clean end and returns its offset, or -1. In the block of the invalid chunk
// every offset may be one, since the length is not to be trusted; later blocks
// begin with a chunk.
func (l *logFile) evidence(bad int) int {
	block := bad - bad%logBlock + logBlock
	for at := bad + 1; at < min(block, len(l.b)); at++ {
		if l.begins(at) {
			return at
		}
	}
	for ; block < len(l.b); block += logBlock {
		for at := block; at < min(block+logBlock, len(l.b)); {
			if l.begins(at) {
				return at
			}
			_, _, n := l.chunk(at)
			if n == 0 {
				break
			}
			at += n
		}
	}
	return -1
}

func (l *logFile) begins(at int) bool {
	pos, _, n := l.chunk(at)
	return n > 0 && (pos == full || pos == first) || l.trailer(at)
}
