package ctl

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"

	"github.com/ugds-store/ugds/internal/base"
)

// The shape of the demo's workload: conversations, each a chain of blocks. The
// key of a block is a hash over its own content and the key before it, as in
// the caches of language models, so equal beginnings share their blocks.
const (
	demoMinValue = 64 * base.KiB
	demoMaxValue = 2 * base.MiB
	demoMinChain = 4
	demoMaxChain = 48
)

// demoBlock is one value of the workload.
type demoBlock struct {
	key     []byte
	size    int
	version int // 1, or 2 once replaced
	deleted bool
}

// demoChain is a conversation: the indices of its blocks, in order.
type demoChain []int

// demoWork is the whole workload; it follows from the seed and the size alone,
// so another process can make it again.
type demoWork struct {
	seed   uint64
	blocks []demoBlock
	chains []demoChain
	bytes  int64 // of all blocks, as first put
}

func newDemoWork(seed uint64, bytes int64) *demoWork {
	w := &demoWork{seed: seed}
	r := rand.New(rand.NewPCG(seed, 0x75474453))
	for w.bytes < bytes {
		var c demoChain
		parent := []byte("ugds demo")
		if len(w.chains) > 0 && r.IntN(2) == 0 { // goes on from an earlier one
			from := w.chains[r.IntN(len(w.chains))]
			c = append(c, from[:1+r.IntN(len(from))]...)
			parent = w.blocks[c[len(c)-1]].key
		}
		for n := demoMinChain + r.IntN(demoMaxChain-demoMinChain+1); n > 0 && w.bytes < bytes; n-- {
			b := demoBlock{key: demoKey(parent, r.Uint64()), size: demoSize(r), version: 1}
			parent = b.key
			c = append(c, len(w.blocks))
			w.blocks = append(w.blocks, b)
			w.bytes += int64(b.size)
		}
		w.chains = append(w.chains, c)
	}
	return w
}

func demoKey(parent []byte, content uint64) []byte {
	h := sha256.Sum256(binary.LittleEndian.AppendUint64(append([]byte(nil), parent...), content))
	return append([]byte("kv/"), hex.EncodeToString(h[:16])...)
}

// demoSize is log-uniform; one size in eight is not a multiple of a block.
func demoSize(r *rand.Rand) int {
	n := int(demoMinValue * math.Exp(r.Float64()*math.Log(demoMaxValue/demoMinValue)))
	if r.IntN(8) != 0 {
		n &^= base.StoreBlock - 1
	}
	return min(max(n, demoMinValue), demoMaxValue)
}

// change marks one block in 16 as replaced and one in 16 as deleted.
func (w *demoWork) change() {
	r := rand.New(rand.NewPCG(w.seed, 0x6368616e6765))
	for i := range w.blocks {
		switch r.IntN(16) {
		case 0:
			w.blocks[i].version = 2
		case 1:
			w.blocks[i].deleted = true
		}
	}
}

// fill makes the value of a block: a stream of numbers that no other block, and
// no other version of this one, has.
func (w *demoWork) fill(b *demoBlock, dst []byte) {
	h := sha256.Sum256(b.key)
	p := rand.NewPCG(w.seed^uint64(b.version)<<56, binary.LittleEndian.Uint64(h[:]))
	n := len(dst) &^ 7
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(dst[i:], p.Uint64())
	}
	for v := p.Uint64(); n < len(dst); n++ {
		dst[n] = byte(v)
		v >>= 8
	}
}

// firstDifference compares a value with what it should be; -1 when equal. It
// makes the numbers on the fly, so that reading is not slowed by a second copy.
func (w *demoWork) firstDifference(b *demoBlock, got []byte) int {
	h := sha256.Sum256(b.key)
	p := rand.NewPCG(w.seed^uint64(b.version)<<56, binary.LittleEndian.Uint64(h[:]))
	n := len(got) &^ 7
	for i := 0; i < n; i += 8 {
		if binary.LittleEndian.Uint64(got[i:]) != p.Uint64() {
			return i
		}
	}
	for v := p.Uint64(); n < len(got); n++ {
		if got[n] != byte(v) {
			return n
		}
		v >>= 8
	}
	return -1
}
