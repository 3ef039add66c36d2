package ctl

import (
	"context"
	"strconv"
	"strings"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

type statObjectDoc struct {
	header
	nameDoc
	Object objectDoc `json:"object"`
}

type statStoreDoc struct {
	header
	Layout     store.Layout   `json:"layout"`
	Usage      store.Usage    `json:"usage"`
	Namespaces []namespaceDoc `json:"namespaces"`
	Space      spaceDoc       `json:"space"`
	IndexBytes int64          `json:"index_bytes"` // of memory
	Devices    []deviceDoc    `json:"devices"`
}

// spaceDoc says where the bytes of the pool are.
type spaceDoc struct {
	Capacity  int64 `json:"capacity"`
	Allocated int64 `json:"allocated"`
	FreeSlabs int64 `json:"free_slab_bytes"` // for any value
	FreeSlots int64 `json:"free_slot_bytes"` // for values of the size of a slot
}

// Stat describes the object with the given key or, without one, the store.
func Stat(ctx context.Context, e *Env, t *Target, key ...string) error {
	if len(key) == 0 {
		return e.fail("stat", statStore(ctx, e, t))
	}
	return e.fail("stat", statObject(ctx, e, t, key[0]))
}

func statObject(ctx context.Context, e *Env, t *Target, arg string) error {
	key, err := t.parseKey("stat", arg)
	if err != nil {
		return err
	}
	var info store.ObjectInfo
	err = e.withNamespace(ctx, "stat", t, true, func(n *store.Namespace) error {
		if n == nil {
			return noKey("stat", t, key)
		}
		info, err = n.Stat(ctx, key)
		return err
	})
	if err != nil {
		return err
	}
	doc := docObject(&info)
	if e.JSON {
		return e.emit(statObjectDoc{head("stat", nil), docName(t.namespace()), doc})
	}
	crc := "none"
	if doc.CRC32C != nil {
		crc = *doc.CRC32C
	}
	devs := []string{} // none of an empty value
	for _, d := range doc.Devices {
		devs = append(devs, strconv.Itoa(d))
	}
	return e.grid(0, [][]string{ // not wrapped: a key is one word, whatever is in it
		{"key", t.showKey(info.Key)},
		{"namespace", showName(t.namespace())},
		{"size", size(info.Size)},
		{"space", size(info.SlotBytes)},
		{"generation", strconv.FormatUint(info.Generation, 10)},
		{"CRC-32C", crc},
		{"devices", orElse(strings.Join(devs, ", "), "none")},
	})
}

func statStore(ctx context.Context, e *Env, t *Target) error {
	doc := statStoreDoc{header: head("stat", nil)}
	err := e.with(ctx, "stat", t, true, func(s *session) (err error) {
		st := s.Stats()
		doc.Layout, doc.Usage, doc.IndexBytes = s.Info(), s.Usage(), st.IndexBytes
		doc.Space = spaceDoc{st.Space.Capacity, st.Space.Allocated, st.Space.FreeSlab, st.Space.FreeSlot}
		doc.Devices = docDevices(s.devs, openedBy("stat", true))
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
	return e.statText(&doc)
}

func (e *Env) statText(d *statStoreDoc) error {
	l := d.Layout
	rows := [][2]string{
		row("store", "%v, format version %d, epoch %d", l.StoreID, l.Version, l.Epoch),
		row("pool", "%s in slabs of %s", size(l.PoolBytes), base.FormatBytes(l.SlabBytes)),
		row("used", "%s for %s of %s", size(d.Usage.SlotBytes), count(d.Usage.Objects, "object"), size(d.Usage.Bytes)),
		row("free", "%s in whole slabs, %s in slots", base.FormatBytes(d.Space.FreeSlabs), base.FormatBytes(d.Space.FreeSlots)),
		row("memory", "%s of index", base.FormatBytes(d.IndexBytes)),
	}
	for i, dev := range d.Devices {
		rows = append(rows, dev.rows("device "+strconv.Itoa(i))...)
	}
	for _, n := range d.Namespaces {
		rows = append(rows, row("namespace", "%s: %s, %s", showName(n.Name), count(n.Usage.Objects, "object"), base.FormatBytes(n.Usage.Bytes)))
	}
	return e.table(rows...)
}
