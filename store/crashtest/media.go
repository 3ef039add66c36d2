package crashtest

import (
	"slices"
	"strings"
	"sync/atomic"
)

// chunkBlocks is the number of blocks that are copied together on write.
const chunkBlocks = 32

// media is a sparse array of immutable blocks. The empty string is a block of
// zeros. Cloning costs one pointer for every chunkBlocks blocks; afterwards both
// sides copy a chunk before they change it.
type media struct {
	blockBytes int64
	owner      uint64 // chunks with another owner are shared
	chunks     []*chunk
}

type chunk struct {
	owner  uint64
	blocks [chunkBlocks]string
}

// owners numbers the media of the process, so that no two share an owner.
var owners atomic.Uint64

func newMedia(capacity, blockBytes int64) *media {
	n := (capacity/blockBytes + chunkBlocks - 1) / chunkBlocks
	return &media{blockBytes: blockBytes, owner: owners.Add(1), chunks: make([]*chunk, n)}
}

// clone gives an independent copy.
func (m *media) clone() *media {
	m.owner = owners.Add(1) // what m held alone until now is shared from now on
	return &media{blockBytes: m.blockBytes, owner: owners.Add(1), chunks: slices.Clone(m.chunks)}
}

// get gives block lba; "" is a block of zeros.
func (m *media) get(lba int64) string {
	if c := m.chunks[lba/chunkBlocks]; c != nil {
		return c.blocks[lba%chunkBlocks]
	}
	return ""
}

// set replaces block lba. data has blockBytes bytes or is "".
func (m *media) set(lba int64, data string) {
	i := lba / chunkBlocks
	c := m.chunks[i]
	switch {
	case c == nil && data == "":
		return
	case c == nil:
		c = &chunk{owner: m.owner}
		m.chunks[i] = c
	case c.owner != m.owner:
		c = &chunk{owner: m.owner, blocks: c.blocks}
		m.chunks[i] = c
	}
	c.blocks[lba%chunkBlocks] = data
}

// onesBlock is what a discarded block may read as, besides zeros and its old
// content.
func onesBlock(blockBytes int64) string { return strings.Repeat("\xff", int(blockBytes)) }
