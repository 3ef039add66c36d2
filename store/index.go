package store

import (
	"math/bits"
	"sync"

	"github.com/dchest/siphash"
	"github.com/ugds-store/ugds/alloc"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
)

// fingerprint is the keyed 128-bit hash of namespace and key (SipHash-2-4 with
// 128 bits of output, keyed by the superblock). A match is trusted.
type fingerprint struct{ hi, lo uint64 }

// hasher computes fingerprints.
type hasher struct{ k0, k1 uint64 }

func newHasher(key [16]byte) hasher {
	return hasher{le.Uint64(key[:8]), le.Uint64(key[8:])}
}

// of hashes a key of namespace ns. key has at most MaxKeyLen bytes.
func (h hasher) of(ns uint32, key []byte) fingerprint {
	// The namespace goes into the key of the hash, which saves a copy of the
	// object's key; it is spread over the word so that neighbouring namespaces
	// do not differ in one low bit only.
	k := h.k0 ^ uint64(ns)*0x9e3779b97f4a7c15
	hi, lo := siphash.Hash128(k, h.k1, key)
	return fingerprint{hi, lo}
}

const (
	shardBits  = 8
	shardCount = 1 << shardBits
	// A shard grows by a quarter when it is 85 % full. Shards begin at staggered
	// sizes, so that they do not all grow at the same object count.
	shardMinCap  = 256
	shardSmall   = 256 // a smaller shard doubles: its memory is no matter, its growing is
	shardMaxLoad = 85
)

// Flags of an index entry.
const (
	entryMulti    = 1 << iota // ext is the first node of the overflow list
	entryVolatile             // the round of this version is not over
	entryNoCRC                // stored without a checksum
)

const (
	genBits = 48
	genMask = 1<<genBits - 1
)

// entry is one object in the index: 40 bytes, no pointers.
type entry struct {
	hi, lo uint64
	ext    uint64 // packed extent; 0 for an empty value; a node number with entryMulti
	meta   uint64 // flags<<48 | generation; 0 marks a free entry
	crc    uint32 // CRC-32C of the whole value
	len    uint32 // bytes of the value, unless entryMulti
}

func (e *entry) gen() uint64   { return e.meta & genMask }
func (e *entry) flags() uint64 { return e.meta >> genBits }

// node is a link of the overflow list of an object with more than one extent.
type node struct {
	length int64 // bytes of the value (first node)
	count  uint32
	next   uint32 // 0 ends the list
	ext    [6]uint64
}

// version is one version of an object, as the code outside the index sees it.
type version struct {
	gen    uint64
	length int64
	crc    uint32
	noCRC  bool
	exts   []alloc.Extent
	sums   []uint32 // one CRC-32C a piece, only for values of several pieces; nil if not loaded
}

func (v *version) slotBytes() (n int64) {
	for _, e := range v.exts {
		n += e.Bytes()
	}
	return n
}

// multi tells whether the version needs the overflow list: several extents, or
// a length that an entry has no room for.
func (v *version) multi() bool { return len(v.exts) > 1 || v.length > 1<<32-1 }

// pieces is the number of checksummed pieces.
func (v *version) pieces() int { return int((v.length + PieceBytes - 1) / PieceBytes) }

// shard is a part of the index with its own lock. Lock order: one shard, then
// Store.q.mu; never two shards.
type shard struct {
	mu    sync.Mutex
	tab   []entry           // open addressing
	own   *dma.Table[entry] // behind tab, once the shard has grown out of index.first
	first *dma.Table[entry] // index.first
	at    int               // where tab lies in it, as long as own is nil
	used  int
	// doubles is set while the index is loaded: growing moves each entry about
	// once then, instead of four times. fit ends it.
	doubles bool
	nodes   *dma.Table[node]
	free    uint32 // first free node; 0 if none
	top     uint32 // nodes ever used; node 0 is never used

	busy map[fingerprint]*op // keys with an operation that is not yet durable
	pins map[uint64]*pin     // versions held by readers, by generation
}

// index maps fingerprints to objects.
type index struct {
	shards [shardCount]shard
	first  *dma.Table[entry] // the first tables of all shards: one mapping instead of 256
}

// newIndex makes an index with room for about so many objects.
func newIndex(objects int64) (*index, error) {
	x := new(index)
	size := func(i int) int {
		n := int(objects/shardCount*100/shardMaxLoad)*33/32 + shardMinCap
		return n + n*i/(4*shardCount)
	}
	total := 0
	for i := range x.shards {
		total += size(i)
	}
	var err error
	if x.first, err = dma.NewTable[entry](total, "index"); err != nil {
		return nil, err
	}
	at := 0
	for i := range x.shards {
		s := &x.shards[i]
		s.busy, s.pins = make(map[fingerprint]*op), make(map[uint64]*pin)
		s.first, s.at = x.first, at
		s.tab = x.first.E[at : at+size(i) : at+size(i)]
		s.doubles = true
		at += size(i)
	}
	return x, nil
}

// fit ends the loading: it gives back what doubling took too much, and leaves
// the shards at staggered sizes again.
func (x *index) fit() error {
	for i := range x.shards {
		s := &x.shards[i]
		s.doubles = false
		want := s.used*100/shardMaxLoad + 1
		want += want * i / (4 * shardCount)
		if want < len(s.tab)*7/8 && want > shardMinCap {
			if err := s.resize(want); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *index) close() {
	for i := range x.shards {
		s := &x.shards[i]
		if s.own != nil {
			s.own.Free()
		}
		if s.nodes != nil {
			s.nodes.Free()
		}
		s.tab, s.own, s.nodes, s.first = nil, nil, nil, nil
	}
	x.first.Free()
}

func (x *index) shard(f fingerprint) *shard { return &x.shards[f.hi>>(64-shardBits)] }

// home is where an entry would like to be. It is monotonic in lo, which lets
// removal shift entries back without marks for removed ones.
func (s *shard) home(lo uint64) int {
	h, _ := bits.Mul64(lo, uint64(len(s.tab)))
	return int(h)
}

// find gives the position of f, or of the free entry where it would go.
func (s *shard) find(f fingerprint) (int, bool) {
	e := s.tab
	for i := s.home(f.lo); ; {
		switch {
		case e[i].meta == 0:
			return i, false
		case e[i].lo == f.lo && e[i].hi == f.hi:
			return i, true
		}
		if i++; i == len(e) {
			i = 0
		}
	}
}

// get returns the version of f. The extents are appended to buf, which lets the
// caller avoid an allocation. The caller holds s.mu.
func (s *shard) get(f fingerprint, buf []alloc.Extent) (v version, volatile, ok bool) {
	i, ok := s.find(f)
	if !ok {
		return version{}, false, false
	}
	e := &s.tab[i]
	v = version{gen: e.gen(), length: int64(e.len), crc: e.crc, noCRC: e.flags()&entryNoCRC != 0, exts: buf}
	switch {
	case e.flags()&entryMulti != 0:
		v.length = s.nodes.E[e.ext].length
		for n := uint32(e.ext); n != 0; n = s.nodes.E[n].next {
			for _, p := range s.nodes.E[n].ext[:s.nodes.E[n].count] {
				v.exts = append(v.exts, alloc.Unpack(p))
			}
		}
	case e.ext != 0:
		v.exts = append(v.exts, alloc.Unpack(e.ext))
	}
	return v, e.flags()&entryVolatile != 0, true
}

// set makes v the version of f. The caller holds s.mu. An error leaves the
// index as it was: there is no memory for it.
func (s *shard) set(f fingerprint, v *version, volatile bool) error {
	if err := s.reserve(v); err != nil {
		return err
	}
	i, ok := s.find(f)
	if ok {
		s.freeNodes(&s.tab[i])
	} else {
		s.used++
	}
	var flags uint64
	if volatile {
		flags |= entryVolatile
	}
	if v.noCRC {
		flags |= entryNoCRC
	}
	e := entry{hi: f.hi, lo: f.lo, crc: v.crc, len: uint32(v.length)}
	switch {
	case v.multi():
		flags |= entryMulti
		e.ext = uint64(s.link(v))
	case len(v.exts) == 1:
		e.ext = v.exts[0].Pack()
	}
	e.meta = flags<<genBits | v.gen
	s.tab[i] = e
	return nil
}

// harden marks the version gen of f durable, if it is still there.
func (s *shard) harden(f fingerprint, gen uint64) {
	if i, ok := s.find(f); ok && s.tab[i].gen() == gen {
		s.tab[i].meta &^= uint64(entryVolatile) << genBits
	}
}

// remove forgets f.
func (s *shard) remove(f fingerprint) {
	i, ok := s.find(f)
	if !ok {
		return
	}
	e := s.tab
	s.freeNodes(&e[i])
	s.used--
	// Shift back the entries that follow and would like to be at or before the
	// hole, so that a search never meets a hole before its entry.
	for j := i; ; {
		if j++; j == len(e) {
			j = 0
		}
		if e[j].meta == 0 {
			break
		}
		h := s.home(e[j].lo)
		if between(i, h, j) {
			continue
		}
		e[i] = e[j]
		i = j
	}
	e[i] = entry{}
}

// between reports whether home h lies in the cyclic range (i, j].
func between(i, h, j int) bool {
	if i <= j {
		return i < h && h <= j
	}
	return i < h || h <= j
}

// reserve makes room for one more entry and the extents of v.
func (s *shard) reserve(v *version) error {
	if (s.used+1)*100 > len(s.tab)*shardMaxLoad {
		if err := s.grow(); err != nil {
			return err
		}
	}
	if !v.multi() {
		return nil
	}
	return s.reserveNodes(max(1, (len(v.exts)+5)/6))
}

// prepare makes room for the keys with an operation under way. Where it fails,
// set tries again and says so.
func (s *shard) prepare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (s.used+len(s.busy))*100 > len(s.tab)*shardMaxLoad {
		_ = s.grow()
	}
}

func (s *shard) grow() error {
	n := len(s.tab) + len(s.tab)/4 + 1
	if s.doubles || len(s.tab) < shardSmall {
		n = 2 * len(s.tab)
	}
	return s.resize(n)
}

// resize moves the entries into a table of n places, which must hold them.
func (s *shard) resize(n int) error {
	t, err := dma.NewTable[entry](n, "index")
	if err != nil {
		return err
	}
	old, oldOwn := s.tab, s.own
	s.tab, s.own = t.E, t
	for i := range old {
		if e := &old[i]; e.meta != 0 {
			j, _ := s.find(fingerprint{e.hi, e.lo})
			s.tab[j] = *e
		}
	}
	if oldOwn != nil {
		oldOwn.Free()
	} else {
		s.first.Release(s.at, s.at+len(old))
	}
	return nil
}

// reserveNodes makes sure that n nodes can be taken.
func (s *shard) reserveNodes(n int) error {
	have := 0
	for f := s.free; f != 0 && have < n; f = s.nodes.E[f].next {
		have++
	}
	if s.nodes != nil {
		have += len(s.nodes.E) - 1 - int(s.top)
	}
	if have >= n {
		return nil
	}
	size := n + 4
	if s.nodes != nil {
		size = len(s.nodes.E) + max(n, len(s.nodes.E)/4)
	}
	t, err := dma.NewTable[node](size, "index overflow")
	if err != nil {
		return err
	}
	if s.nodes != nil {
		copy(t.E, s.nodes.E)
		s.nodes.Free()
	}
	s.nodes = t
	return nil
}

// link stores the extents of v in nodes, which reserve made sure of, and gives
// the first.
func (s *shard) link(v *version) uint32 {
	var first, prev uint32
	exts := v.exts
	for first == 0 || len(exts) > 0 {
		n := s.free
		if n != 0 {
			s.free = s.nodes.E[n].next
		} else {
			s.top++
			n = s.top
		}
		nd := node{length: v.length}
		for ; len(exts) > 0 && int(nd.count) < len(nd.ext); exts = exts[1:] {
			nd.ext[nd.count] = exts[0].Pack()
			nd.count++
		}
		s.nodes.E[n] = nd
		if first == 0 {
			first = n
		} else {
			s.nodes.E[prev].next = n
		}
		prev = n
	}
	return first
}

func (s *shard) freeNodes(e *entry) {
	if e.flags()&entryMulti == 0 {
		return
	}
	for n := uint32(e.ext); n != 0; {
		next := s.nodes.E[n].next
		s.nodes.E[n] = node{next: s.free}
		s.free, n = n, next
	}
}

// bytes is the memory of the index.
func (x *index) bytes() (objects, bytes int64) {
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.Lock()
		objects += int64(s.used)
		bytes += int64(len(s.tab)) * 40
		if s.nodes != nil {
			bytes += int64(len(s.nodes.E)) * 64
		}
		s.mu.Unlock()
	}
	return objects, bytes
}

func checkKey(op string, key []byte) error {
	if len(key) == 0 || len(key) > MaxKeyLen {
		return base.Errorf(op, "key", ErrInvalid, "%d bytes, a key has 1 to %d", len(key), MaxKeyLen)
	}
	return nil
}
