package ctrl_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// scarce is a controller whose transport has no memory in larger pieces than most.
type scarce struct {
	*sim.Sim
	most  int64
	then  int64   // if not 0, most after the admin queue has its three pieces
	asked []int64 // for queues, in order; refused ones are negative
	live  int
}

func (s *scarce) Alloc(size int64, owner string) (*hw.Buffer, error) {
	if owner != "nvme queues" {
		return s.Sim.Alloc(size, owner)
	}
	if size > s.most {
		s.asked = append(s.asked, -size)
		return nil, base.Errorf("allocate", owner, base.ErrNoSpace, "%d bytes in one piece", size)
	}
	b, err := s.Sim.Alloc(size, owner)
	if err != nil {
		return nil, err
	}
	s.asked = append(s.asked, size)
	if s.live++; len(s.asked) == 3 && s.then != 0 {
		s.most = s.then
	}
	return hw.NewBuffer(b.Bytes, b.Addr, func() { s.live--; b.Free() }), nil
}

// TestB14DepthOfTheController: queues have as many entries as CAP.MQES allows and the
// options ask for; 65,536 is none of the numbers that become 0.
func TestB14DepthOfTheController(t *testing.T) {
	for _, c := range []struct {
		mqes         uint16
		depth, entry uint32
	}{{65535, ctrl.MaxDepth, ctrl.MaxDepth + 1}, {65535, 255, 256}, {65534, ctrl.MaxDepth, ctrl.MaxDepth + 1}, {4095, ctrl.MaxDepth, 4096},
		{4094, ctrl.MaxDepth, 4095}, {127, 255, 128}, {1, 255, 2}} {
		cfg := sim.Default(16 * base.MiB)
		cfg.CAP.MQES = c.mqes
		s := &scarce{Sim: model(t, cfg), most: base.GiB}
		d, err := ctrl.Open(bg(t), s, ctrl.Options{Watch: -1, Queues: 1, Depth: int(c.depth), Latency: 1})
		if err != nil {
			t.Fatal(err)
		}
		if rings, want := s.asked[4:], []int64{int64(c.entry) * nvme.CommandSize, int64(c.entry) * nvme.CompletionSize}; !slices.Equal(rings, want) {
			t.Errorf("MQES %d, depth %d: rings of %d bytes, want %d", c.mqes, c.depth, rings, want)
		}
		b := reads(t, d, int(c.entry-1), 4096) // all at once
		s.Hold(true)
		submit(t, d, b)
		if n := d.Stats().InFlight; n != int64(c.entry-1) {
			t.Errorf("MQES %d, depth %d: %d in flight", c.mqes, c.depth, n)
		}
		s.Hold(false)
		wait(t, b)
		if err := errors.Join(b.Err(), d.Close(bg(t))); err != nil {
			t.Error(err)
		}
	}
}

// TestB14NoLargePieces: where the transport has no memory in one piece that is large
// enough, the depth is lowered; then each ring is allocated once, at its size, and
// nothing else is kept.
func TestB14NoLargePieces(t *testing.T) {
	const depth, queues = 255, 3
	for most, entries := range map[int64]int64{
		64 * base.MiB:            depth + 1, // enough: 255 lists of 4 KiB, the largest piece, have 1,020 KiB
		(depth * 4096):           depth + 1,
		(depth * 4096) - 1:       (depth + 1) / 2,
		64 * base.KiB:            16, // 15 lists
		nvme.CommandSize * 64:    2,  // one list
		nvme.CommandSize*64 + 64: 2,
	} {
		cfg := sim.Default(16 * base.MiB)
		cfg.Identify.MDTS = 0 // commands of 2 MiB, with a page for the list of each
		s := &scarce{Sim: model(t, cfg), most: most}
		d, err := ctrl.Open(bg(t), s, ctrl.Options{Watch: -1, Queues: queues, Depth: depth, Latency: depth})
		if err != nil {
			t.Fatalf("pieces of %d bytes: %v", most, err)
		}
		var rings, given []int64
		for _, n := range s.asked[3:] { // after those of the admin queue
			if n > 0 {
				given = append(given, n)
			}
		}
		for range queues {
			rings = append(rings, (entries-1)*4096, entries*nvme.CommandSize, entries*nvme.CompletionSize)
		}
		if !slices.Equal(given, rings) || s.live != len(rings)+3 {
			t.Errorf("pieces of %d bytes: allocated %d, want %d; %d are kept", most, given, rings, s.live)
		}
		if n := len(s.asked) - 3 - len(given); n > 8 {
			t.Errorf("pieces of %d bytes: %d were refused", most, n)
		}
		if said := strings.Contains(strings.Join(d.Info().Reasons, "\n"), "no more memory in one piece"); said != (entries <= depth) {
			t.Errorf("pieces of %d bytes: %q", most, d.Info().Reasons)
		}
		works(t, d)
		if err := d.Close(bg(t)); err != nil || s.live != 0 {
			t.Errorf("%v, %d pieces are kept", err, s.live)
		}
	}
	// Too little for any queue: of the admin queue, and of one command.
	for _, s := range []*scarce{{most: 15}, {most: base.MiB, then: 100}} {
		s.Sim = model(t, sim.Default(16*base.MiB))
		if _, err := ctrl.Open(bg(t), s, quiet); !errors.Is(err, base.ErrNoSpace) || s.live != 0 {
			t.Errorf("pieces of %d bytes: %v, %d are kept", s.most, err, s.live)
		}
	}
}

// TestRoomWait: by the clock of the model, Submit of a batch takes as long as it waits
// for room in a queue of one command; one that finds room at once waits for none.
func TestRoomWait(t *testing.T) {
	cfg := sim.Default(16 * base.MiB)
	cfg.CAP.MQES, cfg.Service = 1, sim.ServiceFixed
	s := model(t, cfg)
	d := opened(t, s, ctrl.Options{Watch: -1, Queues: 1})
	run(t, d, reads(t, d, 1, 4096))
	if n := d.Stats().RoomWait; n != 0 {
		t.Errorf("one read has waited %v", n)
	}
	b := reads(t, d, 8, 4096)
	from := s.Now()
	submit(t, d, b)
	if n, took := d.Stats().RoomWait, s.Now()-from; n != took || n == 0 {
		t.Errorf("waited %v of %v", n, took)
	}
	wait(t, b)
}
