package meta

import (
	"context"
	"encoding/binary"
	"math"
	"sort"

	"github.com/cockroachdb/pebble/v2"
	"github.com/ugds-store/ugds/internal/base"
)

// Namespace is a space of keys with one layout fingerprint.
type Namespace struct {
	ID     uint32 // 1 and up; never reused
	Name   string // 1 to 255 bytes
	Layout [16]byte
}

// namespaceLen is version, id, layout, checksum.
const namespaceLen = 1 + 4 + 16 + 4

func encodeNamespace(n Namespace) []byte {
	b := append(make([]byte, 0, namespaceLen), 1)
	b = binary.LittleEndian.AppendUint32(b, n.ID)
	b = append(b, n.Layout[:]...)
	return binary.LittleEndian.AppendUint32(b, sum(namespaceKey(n.Name), b))
}

func decodeNamespace(key, b []byte) (n Namespace, err error) {
	if len(key) < 1+MinNamespaceLen || len(key) > 1+MaxNamespaceLen || len(b) != namespaceLen ||
		b[0] != 1 || binary.LittleEndian.Uint32(b[21:]) != sum(key, b[:21]) {
		return n, base.Errorf("metadata", "", base.ErrCorrupt, "namespace %q holds %x", key, b)
	}
	n.ID, n.Name = binary.LittleEndian.Uint32(b[1:]), string(key[1:])
	copy(n.Layout[:], b[5:])
	return n, nil
}

// Namespaces lists all, by id. The slice is the caller's.
func (d *DB) Namespaces() ([]Namespace, error) {
	if err := d.life.enter("namespaces"); err != nil {
		return nil, err
	}
	defer d.life.leave()
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Namespace(nil), d.namespaces...), nil
}

// CreateNamespace adds a namespace, durable when it returns. ErrExists when the
// name is taken; other errors are those of Commit.
func (d *DB) CreateNamespace(ctx context.Context, name string, layout [16]byte) (Namespace, error) {
	n := Namespace{Name: name, Layout: layout}
	if len(name) < MinNamespaceLen || len(name) > MaxNamespaceLen {
		return n, base.Errorf("create namespace", "", base.ErrInvalid, "name of %d bytes (%d to %d are possible)",
			len(name), MinNamespaceLen, MaxNamespaceLen)
	}
	b := new(pebble.Batch)
	c := change{op: "create namespace", pb: b, fill: func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, have := range d.namespaces {
			if have.Name == name {
				return base.Errorf("create namespace", name, base.ErrExists, "it has id %d", have.ID)
			}
		}
		if d.header.NextNS == math.MaxUint32 {
			return base.Errorf("create namespace", name, base.ErrNoSpace, "no namespace id is left")
		}
		n.ID = d.header.NextNS
		_ = b.Set(namespaceKey(name), encodeNamespace(n), nil)
		return b.Set(keyNextNS, encodeSingleton(keyNextNS, uint64(n.ID)+1), nil)
	}, done: func() {
		d.header.NextNS = n.ID + 1
		d.namespaces = append(d.namespaces, n)
	}}
	err := await(func(lost func(error)) (bool, error) { return d.commit(ctx, c, lost) })
	return n, err
}

// loadNamespaces reads all of them at open and checks that ids are distinct and
// below the next one.
func (d *DB) loadNamespaces() error {
	it, err := d.p.NewIter(&pebble.IterOptions{LowerBound: []byte{tagNamespace}, UpperBound: []byte{tagNamespace + 1}})
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		n, err := decodeNamespace(it.Key(), it.Value())
		if err != nil {
			return err
		}
		d.namespaces = append(d.namespaces, n)
	}
	if err := it.Error(); err != nil {
		return err
	}
	sort.Slice(d.namespaces, func(i, j int) bool { return d.namespaces[i].ID < d.namespaces[j].ID })
	last := uint32(0)
	for _, n := range d.namespaces {
		if n.ID <= last || n.ID >= d.header.NextNS {
			return base.Errorf("metadata", n.Name, base.ErrCorrupt, "namespace id %d after %d, next is %d", n.ID, last, d.header.NextNS)
		}
		last = n.ID
	}
	return nil
}
