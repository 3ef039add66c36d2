package store

import (
	"errors"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
)

// TestSuperblocksSurviveTwoCuts takes every state that the four copies can be in
// with a quorum, writes the next sequence in the order that judge gives, cuts
// during either pair with every outcome for its two writes, and judges again: a
// sequence with two valid copies is always there.
func TestSuperblocksSurviveTwoCuts(t *testing.T) {
	l := divide(MinDeviceBytes, MinSlabBytes)
	made := func(seq uint64, copyNo int) []byte {
		b := make([]byte, base.StoreBlock)
		if seq > 0 {
			s := superblock{Version: superVersion, Seq: seq, Epoch: seq, SlabSize: MinSlabBytes, Layout: l, Devices: []ID{{}}}
			s.encode(b, copyNo)
		}
		return b // a torn or zeroed copy for sequence 0
	}
	judged := func(seqs [superCopies]uint64) (quorum, error) {
		var copies [superCopies][]byte
		for i, seq := range seqs {
			copies[i] = made(seq, i)
		}
		return judge("test", copies)
	}
	const next = 9
	states := 0
	for code := range 256 { // every copy: invalid or of sequence 1 to 3
		seqs := [superCopies]uint64{uint64(code & 3), uint64(code >> 2 & 3), uint64(code >> 4 & 3), uint64(code >> 6 & 3)}
		q, err := judged(seqs)
		if err != nil || !q.whole {
			continue
		}
		states++
		for pair := range 2 {
			for outcome := range 9 { // each write: landed, dropped or torn
				cut := seqs
				for i := range pair * 2 {
					cut[q.order[i]] = next
				}
				for i, what := range []int{outcome % 3, outcome / 3} {
					switch at := q.order[pair*2+i]; what {
					case 0:
						cut[at] = next
					case 1:
						cut[at] = 0
					}
				}
				got, err := judged(cut)
				if err != nil || !got.whole || got.super.Seq != q.super.Seq && got.super.Seq != next {
					t.Fatalf("from %v in order %v, cut in pair %d to %v: %+v, %v", seqs, q.order, pair, cut, got, err)
				}
			}
		}
	}
	if states < 100 {
		t.Errorf("only %d states", states)
	}
}

// TestSuperblocksOfTwo: copies of two stores, or of two devices of one, are refused with
// whose each is and what helps.
func TestSuperblocksOfTwo(t *testing.T) {
	l := divide(MinDeviceBytes, MinSlabBytes)
	for what, other := range map[string]superblock{
		"stores":  {StoreID: ID{1}},
		"devices": {DeviceID: ID{1}},
	} {
		var copies [superCopies][]byte
		mine := superblock{}
		for i := range copies {
			s := mine
			if i == 2 {
				s = other
			}
			s.Version, s.Seq, s.SlabSize, s.Layout, s.Devices = superVersion, 1, MinSlabBytes, l, []ID{s.DeviceID}
			copies[i] = make([]byte, base.StoreBlock)
			s.encode(copies[i], i)
		}
		copies[1] = make([]byte, base.StoreBlock) // one that is overwritten belongs to nobody
		_, err := judge("test", copies)
		if !errors.Is(err, ErrMismatch) {
			t.Fatalf("two %s: %v", what, err)
		}
		for _, want := range []string{"superblock copies of two " + what + ": copy 0: device ", "; copy 2: device " + other.DeviceID.String() + " of store " + other.StoreID.String(),
			"; copy 3: ", "bring it back from a copy"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		if strings.Contains(err.Error(), "copy 1") {
			t.Error(err)
		}
	}
}
