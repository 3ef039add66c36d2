package ctl

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/ugds-store/ugds/alloc"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

type usageDoc struct {
	header
	Usage      store.Usage    `json:"usage"`
	Namespaces []namespaceDoc `json:"namespaces"`
	Space      usageSpace     `json:"space"`
	Slots      []slotDoc      `json:"slots"` // sizes that are in use
	Devices    []deviceSpace  `json:"devices"`
}

// usageSpace says where the bytes of the pool are; the parts add up to the capacity.
type usageSpace struct {
	Capacity  int64 `json:"capacity"`
	Allocated int64 `json:"allocated"`
	FreeSlabs int64 `json:"free_slab_bytes"` // for any value
	FreeSlots int64 `json:"free_slot_bytes"` // for values of the size of a slot
	Rest      int64 `json:"rest_bytes"`      // of slabs that no whole number of slots fills
}

// slotDoc counts the slots of one size.
type slotDoc struct {
	SlotBytes int64 `json:"slot_bytes"`
	Slabs     int   `json:"slabs"`
	Used      int64 `json:"used"`
	Free      int64 `json:"free"`
}

// deviceSpace counts the space of one device.
type deviceSpace struct {
	Target    string `json:"target"`
	Capacity  int64  `json:"capacity"` // of its slabs
	Allocated int64  `json:"allocated"`
	FreeSlabs int64  `json:"free_slab_bytes"`
}

// Usage tells how much is stored, by namespace and in all, and what is free and
// where.
func Usage(ctx context.Context, e *Env, t *Target) error {
	return e.fail("usage", storeUsage(ctx, e, t))
}

func storeUsage(ctx context.Context, e *Env, t *Target) error {
	doc := usageDoc{header: head("usage", nil), Slots: []slotDoc{}, Devices: []deviceSpace{}}
	err := e.with(ctx, "usage", t, true, func(s *session) (err error) {
		doc.Usage = s.Usage()
		doc.addSpace(s.Info(), s.Stats().Space)
		names, err := s.Namespaces(ctx)
		doc.Namespaces = docNamespaces(names)
		return err
	})
	if err != nil {
		return err
	}
	if e.JSON {
		return e.emit(doc)
	}
	return e.usageText(&doc)
}

func (d *usageDoc) addSpace(l store.Layout, st alloc.Stats) {
	d.Space = usageSpace{st.Capacity, st.Allocated, st.FreeSlab, st.FreeSlot, st.Rest}
	for _, c := range st.Classes {
		if c.Slabs > 0 {
			d.Slots = append(d.Slots, slotDoc{c.SlotBytes, c.Slabs, c.Used, c.Free})
		}
	}
	for i, ds := range st.Devices {
		d.Devices = append(d.Devices, deviceSpace{l.Devices[i].Target, int64(ds.Slabs) * st.SlabBytes,
			ds.Allocated, int64(ds.FreeSlabs) * st.SlabBytes})
	}
}

func (e *Env) usageText(d *usageDoc) error {
	w := tabwriter.NewWriter(e.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAMESPACE\tOBJECTS\tBYTES\tSPACE")
	for _, n := range d.Namespaces {
		usageRow(w, showName(n.Name), n.Usage)
	}
	usageRow(w, "(all)", d.Usage)
	if len(d.Slots) > 0 {
		fmt.Fprintln(w, "\nSLOTS OF\tSLABS\tUSED\tFREE")
	}
	for _, s := range d.Slots {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", base.FormatBytes(s.SlotBytes), s.Slabs, s.Used, s.Free)
	}
	fmt.Fprintln(w, "\nDEVICE\tSPACE\tUSED\tFREE SLABS\tTARGET")
	for i, v := range d.Devices {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", i, base.FormatBytes(v.Capacity), base.FormatBytes(v.Allocated), base.FormatBytes(v.FreeSlabs), v.Target)
	}
	fmt.Fprintf(w, "\nfree: %s in whole slabs for any value, %s in slots\n", base.FormatBytes(d.Space.FreeSlabs), base.FormatBytes(d.Space.FreeSlots))
	return w.Flush()
}

func usageRow(w *tabwriter.Writer, name string, u store.Usage) {
	fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", name, u.Objects, base.FormatBytes(u.Bytes), base.FormatBytes(u.SlotBytes))
}
