package store

import "context"

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
