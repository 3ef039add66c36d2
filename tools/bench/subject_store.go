package bench

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// Namespace is where the bench puts its objects in an existing store.
const Namespace = "ugdsctl-bench"

type storeSubject struct {
	d    *dataset
	s    *store.Store
	n    *store.Namespace
	devs []driver.Device
	undo func() error // of the registration of GPU memory
}

func openStore(ctx context.Context, d *dataset) (_ *storeSubject, err error) {
	s := &storeSubject{d: d}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(context.WithoutCancel(ctx)))
		}
	}()
	for _, target := range d.c.Place.storeDevices() {
		dev, err := probe.Open(ctx, target, probe.Options{File: file.Options{Owner: "ugdsctl bench"}})
		if err != nil {
			return s, err
		}
		s.devs = append(s.devs, dev)
		if err := attach(dev, d); err != nil {
			return s, err
		}
	}
	if s.s, err = store.Open(ctx, store.Options{Devices: s.devs, GPU: d.gpuOptions(), Meta: meta.Options{Dir: d.c.Place.storeMeta()}}); err != nil {
		return s, err
	}
	if s.undo, err = d.gpuRegister(s.s); err != nil {
		return s, err
	}
	if s.n, err = s.s.Namespace(ctx, Namespace, store.NamespaceOptions{Create: true}); err == nil && !d.c.Ready {
		err = s.purge(ctx)
	}
	return s, err
}

// purge removes what a bench that was stopped has left in its namespace.
func (s *storeSubject) purge(ctx context.Context) error {
	var keys [][]byte
	for info, err := range s.n.List(ctx, store.ListOptions{}) {
		if err != nil {
			return err
		}
		keys = append(keys, info.Key)
	}
	err := errors.Join(s.n.DeleteBatch(ctx, keys, store.DeleteOptions{Durability: store.Relaxed})...)
	return errors.Join(err, s.s.Flush(ctx))
}

// Purge empties the bench's namespace of a store, after a bench that did not
// reach its end.
func Purge(ctx context.Context, p Place) error {
	d, err := newDataset(&Case{Subject: Store, Op: OpPut, Size: 1, Objects: 1, Callers: 1, Batch: 1, Place: p})
	if err != nil {
		return err
	}
	defer d.close()
	s, err := openStore(ctx, d)
	if err != nil {
		return err
	}
	return s.close(ctx)
}

func attach(dev driver.Device, d *dataset) error {
	return errors.Join(dev.Attach(d.src), dev.Attach(d.dst))
}

func (s *storeSubject) settle(ctx context.Context) error { return s.s.Flush(ctx) }

func (s *storeSubject) close(ctx context.Context) error {
	var errs []error
	if s.undo != nil {
		errs = append(errs, s.undo())
	}
	if s.s != nil {
		errs = append(errs, s.s.Close(ctx))
	}
	for _, dev := range s.devs {
		errs = append(errs, dev.Close(ctx))
	}
	return errors.Join(errs...)
}

// count leaves out the store's own blocks, which the mover counts apart.
func (s *storeSubject) count() counts {
	st := s.s.Stats()
	c := counts{hasBytes: true, hasFlushes: true, hasSyncs: true, walSyncs: st.Meta.WALSyncs, note: wayNote(st)}
	for i, dev := range st.Devices {
		c.read += dev.ReadBytes
		c.written += dev.WriteBytes
		c.flushes += dev.Flushes
		c.engine = s.devs[i].Info().Engine
	}
	for _, p := range st.Paths {
		switch {
		case p.Reason != ownBlocks:
		case p.Write:
			c.written -= p.Bytes
		default:
			c.read -= p.Bytes
		}
	}
	return c
}

// ownBlocks is the reason under which the store counts its superblocks and marks.
const ownBlocks = "superblocks and marks"

// wayNote tells which ways the values took, and why.
func wayNote(st store.Stats) string {
	if note := gpuNote(st); note != "" {
		return note
	}
	var ways []string
	for _, p := range st.Paths {
		way := p.Path.String()
		if p.Path != driver.PathDirect && p.Reason != "" {
			way += " (" + p.Reason + ")"
		}
		if p.Bytes > 0 && p.Reason != ownBlocks && !slices.Contains(ways, way) {
			ways = append(ways, way)
		}
	}
	return strings.Join(ways, ", ")
}

type storeCaller struct {
	s    *storeSubject
	puts []store.PutItem
	gets []store.GetItem
	bufs []store.Range
	keys [][]byte
	out  []bool
}

func (s *storeSubject) caller() caller {
	n := s.d.c.Batch
	return &storeCaller{s: s, puts: make([]store.PutItem, n), gets: make([]store.GetItem, n),
		bufs: make([]store.Range, n), keys: make([][]byte, n), out: make([]bool, n)}
}

func (w *storeCaller) do(ctx context.Context, op string, ids []int) error {
	d := w.s.d
	switch op {
	case OpPut:
		return w.put(ctx, ids)
	case OpGet:
		return w.get(ctx, ids)
	}
	for k, i := range ids {
		w.keys[k] = d.keys[i]
	}
	if op == OpDelete {
		return errors.Join(w.s.n.DeleteBatch(ctx, w.keys[:len(ids)], store.DeleteOptions{Durability: w.durability()})...)
	}
	if err := w.s.n.ExistsMany(w.keys[:len(ids)], w.out[:len(ids)]); err != nil {
		return err
	}
	for k, there := range w.out[:len(ids)] {
		if !there {
			return base.Wrap("bench exists", string(w.keys[k]), base.ErrNotFound)
		}
	}
	return nil
}

func (w *storeCaller) durability() store.Durability {
	if w.s.d.c.Sync {
		return store.Sync
	}
	return store.Relaxed
}

func (w *storeCaller) put(ctx context.Context, ids []int) error {
	d := w.s.d
	o := store.PutOptions{Durability: w.durability(), Replace: d.c.Op == OpMixed}
	for k, i := range ids {
		w.bufs[k] = d.memory(d.src, i)
		w.puts[k] = store.PutItem{Key: d.keys[i], Value: w.bufs[k : k+1], PutOptions: o}
	}
	w.s.n.PutBatch(ctx, w.puts[:len(ids)])
	for k := range ids {
		if err := w.puts[k].Err; err != nil {
			return err
		}
	}
	return nil
}

func (w *storeCaller) get(ctx context.Context, ids []int) error {
	d := w.s.d
	for k, i := range ids {
		w.bufs[k] = d.memory(d.dst, i)
		w.gets[k] = store.GetItem{Key: d.keys[i], Dst: w.bufs[k : k+1]}
	}
	w.s.n.GetBatch(ctx, w.gets[:len(ids)])
	for k := range ids {
		if err := w.gets[k].Err; err != nil {
			return err
		}
	}
	return nil
}

// memory is where object i lies, as the store is told.
func (d *dataset) memory(r *driver.Region, i int) store.Range {
	if d.gpu != nil {
		return d.gpuRange(r, i)
	}
	if d.c.Plain {
		return store.Range{Bytes: r.Bytes(d.off(i), d.c.Size)}
	}
	return store.Range{Region: r, Off: d.off(i), Len: d.c.Size}
}
