package store

import (
	"context"
	"testing"
)

// DeleteGen deletes and gives the generation of the delete.
func (n *Namespace) DeleteGen(ctx context.Context, key []byte, o DeleteOptions) (uint64, error) {
	if err := n.s.gate.enter("delete", n.ns.name); err != nil {
		return 0, err
	}
	defer n.s.gate.leave()
	op, err := n.deleteOne(ctx, key, o)
	if err != nil {
		return 0, err
	}
	if !op.relaxed {
		err = op.wait(ctx)
	}
	return op.gen, err
}

// LeaveStaging takes every bounce buffer for a whole piece but n, until the end of the
// test.
func (s *Store) LeaveStaging(t *testing.T, n int) {
	var taken []stageBuf
	for b := s.stage.tryGet(PieceBytes); b.ok(); b = s.stage.tryGet(PieceBytes) {
		taken = append(taken, b)
	}
	for i, b := range taken {
		if i < n {
			s.stage.put(b)
		} else {
			t.Cleanup(func() { s.stage.put(b) })
		}
	}
}

// HoldKey keeps everybody from what the index says of a key, until release.
func (n *Namespace) HoldKey(key []byte) (release func()) {
	sh := n.s.idx.shard(n.s.hash.of(n.ns.id, key))
	sh.mu.Lock()
	return sh.mu.Unlock
}

// Pending is the number of operations in the queue and in rounds.
func (s *Store) Pending() int {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	return len(s.q.ops) + len(s.q.round)
}

// TryAllocate takes space for n bytes as a put does, and gives it back.
func (s *Store) TryAllocate(n int64) error {
	exts, err := s.allocate(context.Background(), nil, n)
	if err == nil {
		s.freeNow(exts)
	}
	return err
}

// Expire is a timer of the lease that comes late.
func (l *Lease) Expire() { l.expire() }

// PutHuge finishes a put of a value of so many pieces that has no space: for what
// comes after its writes.
func (n *Namespace) PutHuge(key []byte, pieces int) error {
	p := &putItem{op: n.newOp(opPut, key, Sync), pi: &PutItem{}}
	p.it.v = version{length: int64(pieces) * PieceBytes, sums: make([]uint32, pieces)}
	if _, err := n.s.claim(p.op, false); err != nil {
		return err
	}
	if n.s.finishPut(p) {
		return p.op.wait(context.Background())
	}
	return p.pi.Err
}

// Outdate puts a record of another generation in place of the key's, which the index
// is not told.
func Outdate(n *Namespace, key []byte) error {
	rec, err := n.s.db.Get(n.ns.id, key)
	if err != nil {
		return err
	}
	rec.Gen++
	b := n.s.db.NewBatch()
	b.Put(n.ns.id, key, &rec)
	return n.s.db.Commit(context.Background(), b)
}

// CrowdShard fills the key's part of the index until one more object makes it grow,
// with objects that are nowhere else. places is how many it has room for.
func (n *Namespace) CrowdShard(key []byte) (places func() int) {
	f := n.s.hash.of(n.ns.id, key)
	sh := n.s.idx.shard(f)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for i := uint64(1); (sh.used+1)*100 <= len(sh.tab)*shardMaxLoad; i++ {
		if err := sh.set(fingerprint{f.hi, f.lo + i*0x9e3779b97f4a7c15}, &version{gen: 1}, false); err != nil {
			panic(err)
		}
	}
	return func() int {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		return len(sh.tab)
	}
}
