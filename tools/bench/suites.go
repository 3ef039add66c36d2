package bench

import (
	"strings"

	"github.com/ugds-store/ugds/internal/base"
)

// Suites are the plans that have names: "gates" is what the project promises,
// "quick" a look that takes seconds.
func Suites() []string { return []string{"quick", "gates"} }

// SuiteGroups gives the groups of a suite; bytes is what each case moves.
func SuiteGroups(name string, bytes int64, fio bool) ([]Group, error) {
	switch name {
	case "quick":
		return quickSuite(bytes), nil
	case "gates":
		return gateSuite(bytes, fio), nil
	}
	return nil, base.Errorf("bench", "suite "+name, base.ErrInvalid, "there are %s", strings.Join(Suites(), " and "))
}

func quickSuite(bytes int64) []Group {
	s := Sweep{Ops: []string{OpPut, OpGet}, Subjects: []string{Store, Raw, Files}, Sizes: []int64{64 * base.KiB, base.MiB},
		Callers: []int{8}, Batches: []int{1}, Depths: []int{0}, Sync: []bool{false}, Bytes: bytes, MaxObjects: MaxSweepObjects}
	g := s.Groups()
	s = Sweep{Ops: []string{OpGet}, Subjects: []string{Store, Ring, Files}, Sizes: []int64{64 * base.KiB},
		Callers: []int{1}, Batches: []int{32}, Depths: []int{0}, Sync: []bool{false}, Bytes: bytes, MaxObjects: MaxSweepObjects}
	return append(g, s.Groups()...)
}

// MaxSweepObjects bounds the objects of a case, so that small values do not take
// for ever where each is synced.
const MaxSweepObjects = 16384

// gateSuite is the promises on speed: each group has its gates.
func gateSuite(bytes int64, fio bool) []Group {
	var out []Group
	add := func(c Case, goals ...Goal) *Group {
		if c.Objects == 0 {
			c.Objects = objectsFor(bytes, &c, MaxSweepObjects)
		}
		g := Group{Case: c, Subjects: []string{Store}, Batches: map[string]int{}}
		for _, goal := range goals {
			if goal.Base == Fio && !fio {
				continue
			}
			g.Subjects, g.Goals = append(g.Subjects, goal.Base), append(g.Goals, goal)
		}
		out = append(out, g)
		return &out[len(out)-1]
	}
	type gate struct{ gate, aim float64 }
	sizes := []int64{64 * base.KiB, base.MiB, 2 * base.MiB}
	raw, files := []gate{{0.85, 0.95}, {0.9, 0.95}, {0.9, 0.95}}, []gate{{3, 5}, {1.3, 1.8}, {1, 1.2}}
	for i, size := range sizes {
		add(Case{Op: OpPut, Size: size, Callers: 8, Batch: 1},
			Goal{Store, Raw, raw[i].gate, raw[i].aim}, Goal{Store, Files, files[i].gate, files[i].aim})
	}
	for _, size := range sizes {
		add(Case{Op: OpGet, Size: size, Callers: 8, Batch: 1}, Goal{Store, Raw, 0.85, 0.95}, Goal{Store, Files, 0, 0})
	}
	for _, size := range []int64{64 * base.KiB, base.MiB} {
		goals := []Goal{{Store, Fio, 0.8, 0.9}, {Store, Ring, 0, 0}}
		if size == 64*base.KiB {
			goals = append(goals, Goal{Store, Files, 2, 3})
		}
		add(Case{Op: OpGet, Size: size, Callers: 1, Batch: 32}, goals...)
	}
	// A thousand rounds: of two hundred the start of a process would be a good part.
	synced := Case{Op: OpPut, Size: 4 * base.KiB, Callers: 64, Batch: 1, Sync: true, Plain: true}
	synced.Objects = objectsFor(2*bytes, &synced, 4*MaxSweepObjects)
	add(synced,
		Goal{Store, CommitLoop, 0.8, 0.95}, Goal{Store, PebbleSync, 0.35, 0})
	return out
}
