package crashtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/meta/metatest"
	"github.com/ugds-store/ugds/store"
)

// facts is what is known about a cut besides the history.
type facts struct {
	Step      int64
	Formatted bool // the format had returned
	Fillers   int  // that must be there
	Over      over
	Extra     extra
}

// extra is what is done with some images besides opening them.
type extra uint8

const (
	extraNone extra = iota
	extraChurn
	extraReopen
	extraCheck
)

// facts of draw i.
func (sh *shot) facts(i int) facts {
	f := facts{Step: sh.step, Formatted: sh.formatted, Fillers: sh.fillers, Over: sh.over}
	if which := (sh.step + int64(i)) % 10; which >= 1 && which <= 3 {
		f.Extra = extra(which)
	}
	return f
}

// image is one cut, drawn: what a machine would find when it starts again.
type image struct {
	cut     Cut
	lab     *Lab
	disks   []device
	meta    *metatest.FS
	outcome Outcome // of the writes of the disks
	differs bool    // from "everything landed"
	percent int

	checked, again, churned int // what was done with it besides
	facts                   facts
}

// draw makes image i of a shot, on disks that answer at once. Drawing it again
// gives the same.
func (sh *shot) draw(seed uint64, i int) *image {
	return sh.drawAt(seed, i, func(o *DiskOptions) { o.Immediate = true })
}

// saved is image i of a shot as it is before anything opens it.
func (sh *shot) saved(seed uint64, i int) *savedImage {
	im := sh.draw(seed, i)
	defer im.close()
	out := &savedImage{meta: sh.draws[i].fs, facts: im.facts}
	for _, d := range im.disks {
		out.disks = append(out.disks, d.content())
	}
	return out
}

func (sh *shot) drawAt(seed uint64, i int, change func(*DiskOptions)) *image {
	rng := rand.New(rand.NewPCG(seed^uint64(sh.step)<<20, uint64(i)))
	im := &image{cut: CutAll, lab: new(Lab), meta: sh.draws[i].fs.Clone(rng, 100),
		percent: sh.draws[i].percent, facts: sh.facts(i)}
	switch {
	case sh.metaDead && (i+int(sh.step))%2 == 0:
		im.cut = CutMeta
	case (i+int(sh.step))%4 == 3:
		im.cut = CutHost
	}
	for _, d := range sh.disks {
		diskSeed := rng.Uint64()
		disk, out := d.draw(im.cut, rng, im.lab, func(o *DiskOptions) {
			o.Seed = diskSeed
			change(o)
		})
		im.disks = append(im.disks, disk)
		im.outcome.add(out)
	}
	im.differs = im.outcome.Differs()
	return im
}

// close stops the disks and tells what they saw.
func (im *image) close() (faults []string) { return closeAll(context.Background(), im.disks) }

func (im *image) options() store.Options {
	o := store.Options{Meta: meta.Options{Dir: metaDir, FS: im.meta}, StagingBytes: 4 * base.MiB, Discard: true}
	for _, d := range im.disks {
		o.Devices = append(o.Devices, d)
	}
	return o
}

// contents is what a store holds.
type contents struct {
	Recovered
	fillers int
	slots   int64
}

// readStore reads every object of a store and finds out whose value it is.
func readStore(ctx context.Context, s *store.Store, h *History) (*contents, []string) {
	r := &contents{Recovered: Recovered{LastGen: s.Stats().LastGen, Objects: map[int]Object{}}}
	ops := map[int][]*Op{}
	for _, o := range h.Ops {
		ops[o.Key] = append(ops[o.Key], o)
	}
	var faults []string
	for parity, name := range nsNames {
		n, err := s.Namespace(ctx, name, store.NamespaceOptions{})
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return r, append(faults, fmt.Sprintf("I1: namespace %s: %v", name, err))
		}
		for info, err := range n.List(ctx, store.ListOptions{}) {
			if err != nil {
				return r, append(faults, fmt.Sprintf("I1: list of %s: %v", name, err))
			}
			r.slots += info.SlotBytes
			if strings.HasPrefix(string(info.Key), "filler-") {
				r.fillers++
				continue
			}
			key := keyNumber(info.Key)
			if key < 0 || key%2 != parity {
				faults = append(faults, fmt.Sprintf("I1: a key that was never put: %q in %s", info.Key, name))
				continue
			}
			b, err := n.GetBytes(ctx, info.Key, store.GetOptions{})
			if err != nil {
				faults = append(faults, fmt.Sprintf("I1: key %d is listed and does not read: %v", key, err))
			}
			r.Objects[key] = identify(b, err, info, ops[key], h.Seed)
		}
	}
	return r, faults
}

// identify finds the operation whose value b is; ID 0 if it is nobody's.
func identify(b []byte, err error, info store.ObjectInfo, ops []*Op, seed uint64) Object {
	obj := Object{Size: info.Size, Gen: info.Generation}
	for _, o := range ops {
		if err == nil && o.Kind == KindPut && o.Size == int64(len(b)) && isValue(b, seed, o) {
			// Values too short to name their operation may be alike.
			if obj.ID = o.ID; o.Gen == 0 || o.Gen == info.Generation {
				break
			}
		}
	}
	return obj
}

// verify opens an image, sweeps it, and compares it with the history.
func (im *image) verify(ctx context.Context, h *History, facts facts) (r *contents, violations []string) {
	complain := func(format string, args ...any) {
		violations = append(violations, fmt.Sprintf(format, args...))
	}
	if facts.Extra == extraCheck && facts.Formatted && facts.Over != overBegun {
		violations = append(violations, im.fsck(ctx)...)
	}
	s, err := store.Open(ctx, im.options())
	if err != nil {
		if (!facts.Formatted || facts.Over == overBegun) && (store.IsRefusal(err) || errors.Is(err, store.ErrNotFound)) {
			return nil, nil
		}
		return nil, append(violations, fmt.Sprintf("open: %v", err))
	}
	r, faults := readStore(ctx, s, h)
	violations = append(violations, faults...)
	if empty := len(r.Objects)+r.fillers == 0; facts.Over == overDone && !empty {
		complain("I1: %d objects of before the second format are there", len(r.Objects)+r.fillers)
	} else if facts.Over == overNot || !empty {
		violations = append(violations, h.judge(&r.Recovered, facts.Step)...)
		if facts.Fillers != r.fillers {
			complain("I1: %d fillers of %d are there", r.fillers, facts.Fillers)
		}
	}
	if why := spaceFault(s, r); why != "" {
		complain("I6: %s", why)
	}
	if err := s.ReadOnly(); err != nil && facts.Formatted && facts.Over != overBegun {
		complain("the store opened read-only: %v", err)
	}
	if facts.Extra == extraChurn && len(violations) == 0 && s.ReadOnly() == nil {
		violations = append(violations, im.churn(ctx, s, h, r)...)
	}
	if err := s.Close(ctx); err != nil {
		complain("close: %v", err)
	}
	if facts.Extra == extraReopen && len(violations) == 0 {
		violations = append(violations, im.reopen(ctx, h, r)...)
	}
	return r, violations
}

// fsck checks the image before it is opened: it must be clean, but for copies
// of a superblock that were being written.
func (im *image) fsck(ctx context.Context) (faults []string) {
	im.checked++
	rep, err := store.Check(ctx, im.options(), store.CheckOptions{})
	if err != nil {
		return []string{fmt.Sprintf("I6: fsck: %v", err)}
	}
	for _, f := range rep.Findings {
		if f.Severity == store.SevError || f.Severity == store.SevWarning && f.Area != "superblock" {
			faults = append(faults, fmt.Sprintf("I6: fsck: %s %s %s: %s", f.Severity, f.Area, f.Target, f.Text))
		}
	}
	return faults
}

// spaceFault compares free space with what the live extents leave.
func spaceFault(s *store.Store, r *contents) string {
	sp := s.Stats().Space
	if sp.Allocated != r.slots {
		return fmt.Sprintf("%d bytes are allocated, the objects occupy %d", sp.Allocated, r.slots)
	}
	if sum := sp.Allocated + sp.FreeSlab + sp.FreeSlot + sp.Rest; sum != sp.Capacity {
		return fmt.Sprintf("allocated and free are %d bytes of %d", sum, sp.Capacity)
	}
	return ""
}

// churn writes into the recovered store, so that space that is free and should
// not be shows: nothing that was there may change.
func (im *image) churn(ctx context.Context, s *store.Store, h *History, before *contents) (faults []string) {
	im.churned++
	n, err := s.Namespace(ctx, nsNames[0], store.NamespaceOptions{Create: true})
	if err != nil {
		return []string{fmt.Sprintf("churn: %v", err)}
	}
	var items []store.PutItem
	for j := range 12 {
		b := make([]byte, []int{3000, 9000, 20000, 40000}[j%4]+j)
		for k := range b {
			b[k] = byte(k) | 0x80
		}
		items = append(items, store.PutItem{Key: fmt.Appendf(nil, "filler-churn-%d", j), Value: store.Bytes(b)})
	}
	n.PutBatch(ctx, items)
	for _, it := range items {
		if it.Err != nil && !errors.Is(it.Err, store.ErrNoSpace) {
			faults = append(faults, fmt.Sprintf("put into the recovered store: %v", it.Err))
		}
	}
	after, more := readStore(ctx, s, h)
	faults = append(faults, more...)
	for _, it := range items {
		if b, err := n.GetBytes(ctx, it.Key, store.GetOptions{}); it.Err == nil && (err != nil || !bytes.Equal(b, it.Value[0].Bytes)) {
			faults = append(faults, fmt.Sprintf("I2: a value put into the recovered store changed: %s: %v", it.Key, err))
		}
	}
	return append(faults, sameObjects(before, after, "I2: after new puts")...)
}

// reopen opens the image once more: the outcome must be the same from the first
// open on.
func (im *image) reopen(ctx context.Context, h *History, before *contents) []string {
	im.again++
	s, err := store.Open(ctx, im.options())
	if err != nil {
		return []string{fmt.Sprintf("second open: %v", err)}
	}
	after, faults := readStore(ctx, s, h)
	if err := s.Close(ctx); err != nil {
		faults = append(faults, fmt.Sprintf("second close: %v", err))
	}
	return append(faults, sameObjects(before, after, "I1: at the second open")...)
}

func sameObjects(a, b *contents, when string) (faults []string) {
	for k, x := range a.Objects {
		if y := b.Objects[k]; y != x {
			faults = append(faults, fmt.Sprintf("%s key %d is %+v, it was %+v", when, k, y, x))
		}
	}
	if len(a.Objects) != len(b.Objects) {
		faults = append(faults, fmt.Sprintf("%s there are %d objects, there were %d", when, len(b.Objects), len(a.Objects)))
	}
	return faults
}
