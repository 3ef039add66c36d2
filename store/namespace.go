package store

import (
	"bytes"
	"context"
	"iter"
	"sort"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
)

// Namespace is a set of keys of its own. Safe for concurrent use.
type Namespace struct {
	s  *Store
	ns *nsState
}

// NamespaceInfo describes a namespace.
type NamespaceInfo struct {
	Name   string   `json:"name"`
	Layout [16]byte `json:"-"`
	Usage  Usage    `json:"usage"`
}

// Namespace opens a namespace by name, 1 to 255 bytes. Errors: ErrNotFound
// without Create; ErrMismatch when it has another layout fingerprint;
// ErrReadOnly when it would have to be made.
func (s *Store) Namespace(ctx context.Context, name string, o NamespaceOptions) (*Namespace, error) {
	if err := s.gate.enter("open namespace", name); err != nil {
		return nil, err
	}
	defer s.gate.leave()
	if len(name) == 0 || len(name) > MaxNamespaceLen {
		return nil, base.Errorf("open", "namespace", ErrInvalid, "%d bytes, a name has 1 to %d", len(name), MaxNamespaceLen)
	}
	s.nsMu.Lock()
	defer s.nsMu.Unlock()
	st := s.ns[name]
	if st == nil {
		if !o.Create {
			return nil, base.Wrap("open namespace", name, ErrNotFound)
		}
		if err := s.ReadOnly(); err != nil {
			return nil, base.Wrap("create namespace", name, err)
		}
		m, err := s.db.CreateNamespace(ctx, name, o.Layout)
		if err != nil {
			if s.db.Fenced() != nil {
				s.setReadOnly(err)
			}
			return nil, base.Wrap("create namespace", name, err)
		}
		st = s.addNamespace(m)
	}
	if o.Layout != ([16]byte{}) && o.Layout != st.layout {
		return nil, base.Errorf("open namespace", name, ErrMismatch,
			"its values have layout %x, asked for %x", st.layout, o.Layout)
	}
	return &Namespace{s, st}, nil
}

func (s *Store) addNamespace(m meta.Namespace) *nsState {
	st := &nsState{id: m.ID, name: m.Name, layout: m.Layout}
	s.ns[m.Name] = st
	s.nsByID[m.ID] = st
	return st
}

// Name of the namespace.
func (n *Namespace) Name() string { return n.ns.name }

// Usage of the namespace, relaxed objects included.
func (n *Namespace) Usage() Usage { return n.ns.usage() }

// Namespaces lists the namespaces by name.
func (s *Store) Namespaces(context.Context) ([]NamespaceInfo, error) {
	if err := s.gate.enter("list", "namespaces"); err != nil {
		return nil, err
	}
	defer s.gate.leave()
	s.nsMu.Lock()
	defer s.nsMu.Unlock()
	out := make([]NamespaceInfo, 0, len(s.ns))
	for _, st := range s.ns {
		out = append(out, NamespaceInfo{st.name, st.layout, st.usage()})
	}
	sortNamespaces(out)
	return out, nil
}

func sortNamespaces(out []NamespaceInfo) {
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
}

// Usage of all namespaces.
func (s *Store) Usage() (u Usage) {
	s.nsMu.Lock()
	defer s.nsMu.Unlock()
	for _, st := range s.ns {
		n := st.usage()
		u.Objects += n.Objects
		u.Bytes += n.Bytes
		u.SlotBytes += n.SlotBytes
	}
	return u
}

// List walks through the visible objects in key order, relaxed ones included.
// Every object that is there during the whole walk appears exactly once with its
// present description; one put or deleted meanwhile may or may not appear. After
// an error the walk ends.
func (n *Namespace) List(ctx context.Context, o ListOptions) iter.Seq2[ObjectInfo, error] {
	return func(yield func(ObjectInfo, error) bool) {
		if err := n.s.gate.enter("list", n.ns.name); err != nil {
			yield(ObjectInfo{}, err)
			return
		}
		defer n.s.gate.leave()
		left := o.Limit
		emit := func(key []byte) bool {
			info, ok := n.info(key)
			if !ok {
				return true
			}
			if !yield(info, nil) {
				return false
			}
			left--
			return left != 0
		}
		if err := n.walk(ctx, o, emit); err != nil {
			yield(ObjectInfo{}, base.Wrap("list", n.ns.name, err))
		}
	}
}

// walk merges the keys of the metadata with those of relaxed puts that are not
// committed yet. The latter are taken first: a key that is in neither was put
// after the walk began.
func (n *Namespace) walk(ctx context.Context, o ListOptions, emit func([]byte) bool) error {
	fresh := n.s.uncommitted(n.ns, o)
	it := n.s.db.Iter(n.ns.id, o.Prefix, o.After)
	defer it.Close()
	for it.Next() {
		if err := ctx.Err(); err != nil {
			return base.Errorf("walk", "keys", ErrTimeout, "%w", err)
		}
		key := it.Key()
		for len(fresh) > 0 && bytes.Compare(fresh[0], key) < 0 {
			if !emit(fresh[0]) {
				return nil
			}
			fresh = fresh[1:]
		}
		if len(fresh) > 0 && bytes.Equal(fresh[0], key) {
			fresh = fresh[1:]
		}
		if !emit(key) {
			return nil
		}
	}
	if err := it.Err(); err != nil {
		return err
	}
	for _, key := range fresh {
		if !emit(key) {
			return nil
		}
	}
	return nil
}

// uncommitted gives the keys of visible puts that the metadata may not have yet,
// in order, each once.
func (s *Store) uncommitted(ns *nsState, o ListOptions) [][]byte {
	var keys [][]byte
	s.q.mu.Lock()
	for _, ops := range [][]*op{s.q.round, s.q.ops} {
		for _, op := range ops {
			if op.kind == opPut && op.ns == ns && bytes.HasPrefix(op.key, o.Prefix) &&
				(o.After == nil || bytes.Compare(op.key, o.After) > 0) {
				keys = append(keys, op.key)
			}
		}
	}
	s.q.mu.Unlock()
	sort.Slice(keys, func(i, j int) bool { return bytes.Compare(keys[i], keys[j]) < 0 })
	out := keys[:0]
	for i, k := range keys {
		if i == 0 || !bytes.Equal(k, keys[i-1]) {
			out = append(out, k)
		}
	}
	return out
}
