package crashtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

// worker is one goroutine of a workload. It is the only writer of its keys, so
// it knows what each of them holds.
type worker struct {
	w      *world
	ctx    context.Context
	region *driver.Region
	leases []heldLease
}

// heldLease is a lease and what its keys held when it was taken.
type heldLease struct {
	lease *store.Lease
	keys  []int
	want  []*Op // nil for absent
	sure  []bool
}

// regionBytes is the registered memory of a worker; larger values are staged.
const regionBytes = 192 * base.KiB

// runWorker does the actions. The store stays open.
func (w *world) runWorker(ctx context.Context, list []action) {
	k := &worker{w: w, ctx: ctx}
	r, err := driver.AllocRegion(regionBytes, "crash laboratory")
	if err != nil {
		w.fault("memory of a worker: %v", err)
		return
	}
	k.region = r
	for i, a := range list {
		k.do(a)
		if i%4 != 0 { // some go on against a disk that is down
			w.awaitDisks()
		}
	}
	for len(k.leases) > 0 {
		k.release()
	}
	if err := r.Close(); err != nil {
		w.fault("the region of an idle worker: %v", err)
	}
}

func (k *worker) do(a action) {
	switch a.kind {
	case actPut:
		k.put(a)
	case actDelete:
		k.delete(a)
	case actGet, actGetAny:
		k.get(a.keys[0])
	case actBatch:
		k.batch(a)
	case actLease:
		k.lease(a.keys)
	case actLeaseRead:
		k.readLeases()
	case actRelease:
		k.release()
	case actFlush:
		k.flush()
	case actList:
		k.list()
	}
}

func (k *worker) ns(key int) *store.Namespace { return k.w.ns[key%2] }

// last is the operation on the key that was called last, and whether what the
// key holds follows from it for certain.
func (k *worker) last(key int) (o *Op, sure bool) {
	k.w.lab.Locked(func() { o, sure = k.w.lastLocked(key) })
	return o, sure
}

func (w *world) lastLocked(key int) (o *Op, sure bool) {
	sure = !w.failed && !w.metaDead
	for i := len(w.hist.Ops) - 1; i >= 0; i-- {
		if c := w.hist.Ops[i]; c.Key == key && c.Fate != FateFailed {
			return c, sure && c.Fate == FateOK
		}
	}
	return nil, sure
}

func durability(relaxed bool) store.Durability {
	if relaxed {
		return store.Relaxed
	}
	return store.Sync
}

func (k *worker) deadline(d time.Duration) (context.Context, context.CancelFunc) {
	if d == 0 {
		return k.ctx, func() {}
	}
	return context.WithTimeout(k.ctx, d)
}

func (k *worker) put(a action) {
	key, size := a.keys[0], a.sizes[0]
	prev, sure := k.last(key)
	ctx, cancel := k.deadline(a.timeout)
	defer cancel()
	replace := a.replace || prev != nil && prev.Fate == FateUnknown
	o := k.w.begin(KindPut, key, size, a.relaxed)
	opts := store.PutOptions{Durability: durability(a.relaxed), Replace: replace}
	if a.writer {
		b := make([]byte, size)
		fillValue(b, k.w.hist.Seed, o.ID)
		k.w.finish(o, k.stream(ctx, key, b, opts))
		return
	}
	var v store.Buffers
	if a.region && size <= regionBytes {
		b := k.region.Bytes(0, size)
		fillValue(b, k.w.hist.Seed, o.ID)
		v = store.InRegion(k.region, 0, size)
	} else {
		b := make([]byte, size)
		fillValue(b, k.w.hist.Seed, o.ID)
		v = store.Bytes(b)
	}
	err := k.ns(key).Put(ctx, keyName(key), v, opts)
	k.w.finish(o, err)
	if sure && !replace && !k.w.unsure() {
		if exists := prev != nil && prev.Kind == KindPut; exists != errors.Is(err, store.ErrExists) {
			k.w.fault("put without replace of a key that exists (%v): %v", exists, o)
		}
	}
}

// stream puts a value whose length the store does not know beforehand.
func (k *worker) stream(ctx context.Context, key int, b []byte, opts store.PutOptions) error {
	wr, err := k.ns(key).NewWriter(ctx, keyName(key), opts)
	if err != nil {
		return err
	}
	for len(b) > 0 {
		n := min(len(b), 70000)
		if _, err := wr.Write(b[:n]); err != nil {
			wr.Abort()
			return err
		}
		b = b[n:]
	}
	return wr.Close()
}

func (k *worker) delete(a action) {
	key := a.keys[0]
	prev, sure := k.last(key)
	if prev != nil && prev.Fate == FateUnknown {
		return // the answers could not be told apart
	}
	ctx, cancel := k.deadline(a.timeout)
	defer cancel()
	o := k.w.begin(KindDelete, key, 0, a.relaxed)
	err := k.ns(key).Delete(ctx, keyName(key), store.DeleteOptions{Durability: durability(a.relaxed)})
	k.w.finish(o, err)
	exists := prev != nil && prev.Kind == KindPut
	if sure && a.timeout == 0 && exists == errors.Is(err, store.ErrNotFound) && !k.w.unsure() {
		k.w.fault("delete of a key that exists (%v): %v", exists, o)
	}
}

func (k *worker) batch(a action) {
	ops := make([]*Op, len(a.keys))
	items := make([]store.PutItem, len(a.keys))
	groups := map[*store.Namespace][]int{}
	for i, key := range a.keys {
		ops[i] = k.w.begin(KindPut, key, a.sizes[i], a.relaxed)
		b := make([]byte, a.sizes[i])
		fillValue(b, k.w.hist.Seed, ops[i].ID)
		items[i] = store.PutItem{Key: keyName(key), Value: store.Bytes(b),
			PutOptions: store.PutOptions{Durability: durability(a.relaxed), Replace: true}}
		groups[k.ns(key)] = append(groups[k.ns(key)], i)
	}
	for _, n := range k.w.ns {
		var part []store.PutItem
		for _, i := range groups[n] {
			part = append(part, items[i])
		}
		if len(part) == 0 {
			continue
		}
		n.PutBatch(k.ctx, part)
		for j, i := range groups[n] {
			k.w.finish(ops[i], part[j].Err)
		}
	}
}

// get reads a key and compares it with what it may hold.
func (k *worker) get(key int) {
	allowed, sure := k.w.readBegin(key)
	b, err := k.ns(key).GetBytes(k.ctx, keyName(key), store.GetOptions{})
	allowed = k.w.readEnd(key, allowed, sure)
	k.check("get", key, b, err, allowed, sure)
}

// readBegin lists what a read called now may return: nil is "absent".
func (w *world) readBegin(key int) (allowed []*Op, sure bool) {
	w.lab.Locked(func() {
		sure = !w.failed && !w.metaDead
		allowed = []*Op{nil}
		for _, o := range w.hist.Ops {
			switch {
			case o.Key != key || o.Fate == FateFailed:
			case o.Fate == FateOK:
				allowed = []*Op{o}
			default:
				allowed = append(allowed, o)
			}
		}
	})
	return allowed, sure
}

// readEnd adds what was called while the read ran. After a failure any version
// may have come back.
func (w *world) readEnd(key int, allowed []*Op, sure bool) []*Op {
	w.lab.Locked(func() {
		known := map[*Op]bool{}
		for _, o := range allowed {
			known[o] = true
		}
		sure = sure && !w.failed && !w.metaDead
		after := allowed[0] == nil
		for _, o := range w.hist.Ops {
			if o.Key == key && (after || !sure) && !known[o] {
				allowed = append(allowed, o)
			}
			after = after || o == allowed[0]
		}
		if !sure {
			allowed = append(allowed, nil)
		}
	})
	return allowed
}

// check compares an answer with the versions that are allowed.
func (k *worker) check(what string, key int, b []byte, err error, allowed []*Op, sure bool) {
	if err != nil {
		absent := errors.Is(err, store.ErrNotFound)
		for _, o := range allowed {
			if absent && (o == nil || o.Kind == KindDelete) {
				return
			}
		}
		if k.w.unsure() && (errors.Is(err, store.ErrIsolated) || errors.Is(err, store.ErrReadOnly) || absent || k.w.mediumFailed(err)) {
			return
		}
		k.w.fault("%s of key %d: %v; allowed: %v", what, key, err, allowed)
		return
	}
	for _, o := range allowed {
		if o != nil && o.Kind == KindPut && isValue(b, k.w.hist.Seed, o) {
			return
		}
	}
	k.w.fault("I1: %s of key %d returned %d bytes of op %d; allowed: %v", what, key, len(b), valueID(string(b[:min(16, len(b))])), allowed)
}

// isValue tells whether b is exactly the value of o.
func isValue(b []byte, seed uint64, o *Op) bool {
	if int64(len(b)) != o.Size {
		return false
	}
	if id := valueID(string(b[:min(16, len(b))])); len(b) >= 16 && id != o.ID {
		return false
	}
	want := make([]byte, len(b))
	fillValue(want, seed, o.ID)
	return bytes.Equal(b, want)
}

func (k *worker) lease(keys []int) {
	if keys[0]%2 != keys[1]%2 || keys[0] == keys[1] {
		keys = keys[:1] // a lease is of one namespace
	}
	h := heldLease{keys: keys}
	var names [][]byte
	for _, key := range keys {
		o, sure := k.last(key)
		if o != nil && o.Kind == KindDelete {
			o = nil
		}
		h.want, h.sure = append(h.want, o), append(h.sure, sure)
		names = append(names, keyName(key))
	}
	l, err := k.ns(keys[0]).Lookup(k.ctx, names, store.LookupOptions{All: true})
	if err != nil {
		// Checksums of several pieces come from the metadata, which may be fenced.
		if !k.w.dead() || !errors.Is(err, store.ErrReadOnly) {
			k.w.fault("lookup: %v", err)
		}
		return
	}
	h.lease = l
	for i, key := range keys {
		if h.sure[i] && l.Present(i) != (h.want[i] != nil) && !k.w.unsure() {
			k.w.fault("lookup of key %d: present %v, last %v", key, l.Present(i), h.want[i])
		}
	}
	k.w.lab.Locked(func() {
		for _, key := range keys {
			k.w.track.leased[key]++
		}
	})
	k.leases = append(k.leases, h)
}

// readLeases reads what the leases hold: it must not have changed.
func (k *worker) readLeases() {
	for _, h := range k.leases {
		for i, key := range h.keys {
			if !h.sure[i] || h.want[i] == nil {
				continue
			}
			b := make([]byte, h.want[i].Size)
			_, err := h.lease.Get(k.ctx, i, store.Bytes(b), store.GetOptions{})
			if err == nil && isValue(b, k.w.hist.Seed, h.want[i]) {
				continue
			}
			if err != nil && k.w.unsure() && (errors.Is(err, store.ErrIsolated) || k.w.mediumFailed(err)) {
				continue
			}
			k.w.fault("I2: a lease of key %d read something else than %v: %v", key, h.want[i], err)
		}
	}
}

func (k *worker) release() {
	if len(k.leases) == 0 {
		return
	}
	h := k.leases[0]
	k.leases = k.leases[1:]
	h.lease.Release()
	k.w.lab.Locked(func() {
		for _, key := range h.keys {
			k.w.track.leased[key]--
		}
	})
}

func (k *worker) flush() {
	called := k.w.promiseBegin()
	err := k.w.st.Flush(k.ctx)
	switch {
	case err == nil:
		k.w.promiseEnd(called)
	case k.w.unsure() && (errors.Is(err, store.ErrReadOnly) || errors.Is(err, store.ErrUnknown) || errors.Is(err, store.ErrIsolated)):
	default:
		k.w.fault("flush: %v", err)
	}
}

// unsure tells whether something failed, so that operations may fail or be
// withdrawn.
func (w *world) unsure() (unsure bool) {
	w.lab.Locked(func() { unsure = w.failed || w.metaDead })
	return unsure
}

// mediumFailed tells a command that was made to fail from wrong bytes.
func (w *world) mediumFailed(err error) bool {
	if err == nil {
		return false
	}
	for _, cause := range []string{errMedium.Error(), nvme.StatusWriteFault.String(), nvme.StatusUnrecoveredRead.String()} {
		if strings.Contains(err.Error(), cause) {
			return true
		}
	}
	return false
}

// awaitDisks waits until every disk is ready again, with a bound.
func (w *world) awaitDisks() {
	for range 2000 {
		down := false
		w.lab.Locked(func() { down = w.anyDown() })
		if !down {
			return
		}
		time.Sleep(time.Millisecond)
	}
	w.fault("a disk that lost power did not come back")
}

func (w *world) dead() (dead bool) {
	w.lab.Locked(func() { dead = w.metaDead })
	return dead
}

// list walks one namespace: every name appears once and in order.
func (k *worker) list() {
	prev := ""
	for info, err := range k.w.ns[0].List(k.ctx, store.ListOptions{}) {
		if err != nil {
			if !k.w.dead() {
				k.w.fault("list: %v", err)
			}
			return
		}
		if string(info.Key) <= prev {
			k.w.fault("list: %s after %s", fmt.Sprintf("%q", info.Key), prev)
		}
		prev = string(info.Key)
	}
}
