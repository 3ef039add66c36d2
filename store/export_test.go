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
