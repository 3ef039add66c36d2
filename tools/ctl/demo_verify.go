package ctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

// DemoVerify is the second half of the demo, in a process of its own: it opens
// the store, asks for every chain as a cache would, reads every value and
// compares every byte with what the seed says. It writes a document.
func DemoVerify(ctx context.Context, e *Env, t *Target, o DemoOptions) error {
	w := newDemoWork(o.Seed, o.Size)
	w.change()
	doc := verifyDoc{header: head("demo-verify", nil)}
	begin := time.Now()
	// With a GPU the store is opened for writing: only then are pairs of it and the
	// devices tested, without which nothing goes directly.
	err := e.with(ctx, "demo", t, t.GPU == "", func(s *session) error {
		doc.OpenSeconds = time.Since(begin).Seconds()
		n, err := s.Namespace(ctx, t.namespace(), store.NamespaceOptions{})
		if err != nil {
			return err
		}
		bar := e.progress("get and verify", w.bytes)
		defer bar.Done()
		if err := w.verify(ctx, s, n, bar, &doc); err != nil {
			return err
		}
		doc.Paths, doc.Devices, doc.GPU = docPaths(s.Stats().Paths), docDevices(s.devs, openedBy("demo-verify", t.GPU == "")), s.gpuDoc()
		return nil
	})
	doc.header = head("demo-verify", err)
	if werr := e.emit(doc); werr != nil || err == nil {
		return errors.Join(werr, err)
	}
	return quietly(ExitCode(err)) // the first process tells why
}

type verifyDoc struct {
	header
	OpenSeconds float64     `json:"open_seconds"`
	Lookup      phase       `json:"lookup"`
	Get         phase       `json:"get"`
	Absent      int         `json:"absent"` // deleted keys that are not found
	Paths       []pathDoc   `json:"paths"`
	GPU         *gpuDoc     `json:"gpu,omitempty"`
	Devices     []deviceDoc `json:"devices"`
}

func (w *demoWork) verify(ctx context.Context, s *session, n *store.Namespace, bar Bar, doc *verifyDoc) error {
	begin := time.Now()
	if err := w.lookup(ctx, n, &doc.Lookup); err != nil {
		return err
	}
	doc.Lookup.done(begin)

	bufs, err := newDemoBuffers(s)
	if err != nil {
		return err
	}
	defer bufs.close()
	begin = time.Now()
	if err := w.getAll(ctx, n, bufs, bar, &doc.Get); err != nil {
		return err
	}
	doc.Get.done(begin)

	for i := range w.blocks {
		b := &w.blocks[i]
		if !b.deleted {
			continue
		}
		if there, err := n.Exists(ctx, b.key); err != nil || there {
			return errors.Join(err, base.Errorf("verify", string(b.key), base.ErrCorrupt, "it was deleted, yet it is there"))
		}
		doc.Absent++
	}
	if got, want := n.Usage().Objects, int64(doc.Get.Objects); got != want {
		return base.Errorf("verify", "namespace "+n.Name(), base.ErrCorrupt, "%d objects, %d were put", got, want)
	}
	return nil
}

// lookup asks for each chain: how many leading blocks are there?
func (w *demoWork) lookup(ctx context.Context, n *store.Namespace, p *phase) error {
	for _, c := range w.chains {
		keys := make([][]byte, len(c))
		want := len(c)
		for i, at := range c {
			keys[i] = w.blocks[at].key
			if w.blocks[at].deleted && i < want {
				want = i
			}
		}
		lease, err := n.Lookup(ctx, keys, store.LookupOptions{})
		if err != nil {
			return err
		}
		got := lease.Len()
		lease.Release()
		if got != want {
			return base.Errorf("look up", "chain", base.ErrCorrupt, "%d leading blocks of %d, want %d", got, len(c), want)
		}
		p.Objects += len(c)
	}
	return nil
}

// getAll reads every block and compares it while the next batch is read.
func (w *demoWork) getAll(ctx context.Context, n *store.Namespace, bufs *demoBuffers, bar Bar, p *phase) error {
	type batch struct {
		blocks []*demoBlock
		items  []store.GetItem
		mem    *valueMemory
	}
	free := make(chan *valueMemory, demoSlots)
	for _, m := range bufs.slots {
		free <- m
	}
	full := make(chan batch)
	stop := make(chan struct{})
	go func() { // reads
		defer close(full)
		var b batch
		send := func() bool {
			n.GetBatch(ctx, b.items)
			select {
			case full <- b:
				b = batch{}
				return true
			case <-stop:
				return false
			}
		}
		for i := range w.blocks {
			if w.blocks[i].deleted {
				continue
			}
			if b.mem == nil {
				b.mem = <-free
			}
			off := int64(len(b.items)) * demoMaxValue
			b.blocks = append(b.blocks, &w.blocks[i])
			b.items = append(b.items, store.GetItem{Key: w.blocks[i].key, Dst: b.mem.at(off, demoMaxValue)})
			if len(b.items) == demoBatch && !send() {
				return
			}
		}
		if len(b.items) > 0 {
			send()
		}
	}()
	var err error
	for b := range full {
		if err == nil {
			if err = w.compare(b.blocks, b.items, b.mem, bar, p); err != nil {
				close(stop)
			}
		}
		free <- b.mem
	}
	return err
}

func (w *demoWork) compare(blocks []*demoBlock, items []store.GetItem, mem *valueMemory, bar Bar, p *phase) error {
	if err := mem.got(int64(len(items)) * demoMaxValue); err != nil {
		return err
	}
	for i := range items {
		b, it := blocks[i], &items[i]
		if it.Err != nil {
			return it.Err
		}
		if it.N != int64(b.size) {
			return base.Errorf("verify", string(b.key), base.ErrCorrupt, "%d bytes, want %d", it.N, b.size)
		}
		if at := w.firstDifference(b, mem.bytes(int64(i)*demoMaxValue, it.N)); at >= 0 {
			return base.Errorf("verify", string(b.key), base.ErrCorrupt, "byte %d of %d is not what was put", at, it.N)
		}
		p.Objects++
		p.Bytes += it.N
		bar.Add(it.N)
	}
	return nil
}

// pathDoc is a line of the path statistics.
type pathDoc struct {
	Path   string `json:"path"`
	Write  bool   `json:"write"`
	Reason string `json:"reason"`
	Bytes  int64  `json:"bytes"`
	Ops    int64  `json:"ops"`
}

// pathText prints where bytes went.
func pathText(p pathDoc) string {
	dir := "read"
	if p.Write {
		dir = "written"
	}
	why := ""
	if p.Reason != "" {
		why = " (" + p.Reason + ")"
	}
	return fmt.Sprintf("%s %s %s%s", base.FormatBytes(p.Bytes), dir, p.Path, why)
}

func docPaths(counts []driver.PathCount) []pathDoc {
	out := []pathDoc{}
	for _, c := range counts {
		out = append(out, pathDoc{c.Path.String(), c.Write, c.Reason, c.Bytes, c.Ops})
	}
	return out
}

// deviceDoc says what a device is and how it is driven.
type deviceDoc struct {
	Target    string   `json:"target"`
	Transport string   `json:"transport"`
	Engine    string   `json:"engine"`
	Capacity  int64    `json:"capacity"`
	Reasons   []string `json:"reasons"`
}

// docDevices describes devices; how says how they were opened, see openedBy.
func docDevices(devs []driver.Device, how string) []deviceDoc {
	out := []deviceDoc{}
	for _, d := range devs {
		in := d.Info()
		reasons := slices.Clone(in.Reasons)
		if in.Transport == "sim" && how != "" {
			reasons = append(reasons, how)
		}
		out = append(out, deviceDoc{in.Target, in.Transport, in.Engine, in.Capacity, reasons})
	}
	return out
}

// openedBy says why a model is write protected that a verb opened for reading, "" for
// writing.
func openedBy(verb string, readOnly bool) string {
	if !readOnly {
		return ""
	}
	return verb + " opens it for reading only, so that a model is write protected"
}

// rows tell what a device is and why it is driven so.
func (d deviceDoc) rows(name string) [][2]string {
	rows := [][2]string{row(name, "%s", Plain(d.Target)),
		row("", "%s, %s through %s", base.FormatBytes(d.Capacity), d.Transport, d.Engine)}
	for _, why := range d.Reasons {
		rows = append(rows, row("", "%s", why))
	}
	return rows
}
