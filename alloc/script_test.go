package alloc

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/ugds-store/ugds/internal/base"
)

// script runs the commands of testdata/script. Extents get the name of their
// first argument.
type script struct {
	p    *Pool
	name map[string][]Extent
}

// TestScript runs the golden scripts:
//
//	new slab=BLOCKS devices=(SLABS, …) [first=BLOCK]
//	alloc NAME SIZE
//	slab NAME
//	free NAME …
//	free-extent DEV START BLOCKS
//	restore NAME DEV START BLOCKS
//	take-discard NAME
//	done-discard NAME
//	stats
func TestScript(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return s.run(t, d)
		})
	})
}

func (s *script) run(t *testing.T, d *datadriven.TestData) (out string) {
	defer func() {
		if r := recover(); r != nil {
			out = fmt.Sprintln("panic:", r)
		}
		if s.p != nil {
			checkPool(t, s.p)
		}
	}()
	var args []string
	for _, a := range d.CmdArgs {
		args = append(args, a.Key)
	}
	switch d.Cmd {
	case "new":
		return s.create(t, d)
	case "alloc":
		n, err := base.ParseBytes(args[1])
		if err != nil {
			t.Fatal(err)
		}
		es, err := s.p.Alloc(nil, n)
		return s.keep(args[0], es, err)
	case "slab":
		es, err := s.p.AllocSlab(nil)
		return s.keep(args[0], es, err)
	case "free":
		for _, a := range args {
			for _, e := range s.name[a] {
				s.p.Free(e)
			}
		}
		return "ok\n"
	case "free-extent":
		s.p.Free(extentOf(t, args))
		return "ok\n"
	case "restore":
		e := extentOf(t, args[1:])
		return s.keep(args[0], []Extent{e}, s.p.Restore(e))
	case "take-discard":
		e, ok := s.p.TakeDiscard()
		if !ok {
			return "none\n"
		}
		return s.keep(args[0], []Extent{e}, nil)
	case "done-discard":
		s.p.DoneDiscard(s.name[args[0]][0])
		return "ok\n"
	case "stats":
		return formatStats(s.p.Stats())
	}
	t.Fatalf("unknown command %q", d.Cmd)
	return ""
}

func (s *script) create(t *testing.T, d *datadriven.TestData) string {
	var first, blocks int
	d.ScanArgs(t, "slab", &blocks)
	d.MaybeScanArgs(t, "first", &first)
	g := Geometry{SlabBlocks: uint32(blocks)}
	for _, a := range d.CmdArgs {
		for _, v := range a.Vals {
			if n, err := strconv.Atoi(v); err == nil && a.Key == "devices" {
				g.Devices = append(g.Devices, Span{uint64(first), uint32(n)})
			}
		}
	}
	p, err := New(g)
	if err != nil {
		return err.Error() + "\n"
	}
	s.p, s.name = p, map[string][]Extent{}
	return "ok\n"
}

func (s *script) keep(name string, es []Extent, err error) string {
	if err != nil {
		return err.Error() + "\n"
	}
	s.name[name] = es
	return fmt.Sprintln(es)
}

func extentOf(t *testing.T, args []string) Extent {
	var e Extent
	if _, err := fmt.Sscan(strings.Join(args, " "), &e.Dev, &e.Start, &e.Blocks); err != nil {
		t.Fatal(err)
	}
	return e
}

func formatStats(s Stats) string {
	var b strings.Builder
	blocks := func(n int64) int64 { return n / base.StoreBlock }
	fmt.Fprintf(&b, "blocks: %d = allocated %d + free slabs %d + free slots %d + rest %d + discarding %d\n",
		blocks(s.Capacity), blocks(s.Allocated), blocks(s.FreeSlab), blocks(s.FreeSlot), blocks(s.Rest),
		blocks(s.Discarding))
	fmt.Fprintf(&b, "discards: %d candidates, %d in flight\n", s.DiscardCandidates, s.DiscardsInFlight)
	for _, c := range s.Classes {
		if c.Slabs > 0 {
			fmt.Fprintf(&b, "class %d: slabs %d, slots a slab %d, used %d, free %d\n", blocks(c.SlotBytes), c.Slabs,
				c.PerSlab, c.Used, c.Free)
		}
	}
	for i, d := range s.Devices {
		fmt.Fprintf(&b, "device %d: %d of %d slabs free, %d blocks allocated, %d candidates, %d in flight\n",
			i, d.FreeSlabs, d.Slabs, blocks(d.Allocated), d.DiscardCandidates, d.DiscardsInFlight)
	}
	return b.String()
}
