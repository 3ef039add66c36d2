package sim_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/peermem"
)

// peerBytes is three pages: more than PRP1 and PRP2 name.
const peerBytes = 3 * 4096

// peerHost is a driver of a model with memory of another device.
func peerHost(t *testing.T) (*host, *pair, []byte, *peermem.Memory, hw.Mapping) {
	t.Helper()
	m, err := dma.Alloc(peerBytes, "peer")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Free)
	fd, mem, err := peermem.Export(m.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	h := up(t, open(t, sim.Default(16*base.MiB)))
	peer, err := h.s.MapFD(fd.Int(), 0, peerBytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]int64{{1, 4096}, {0, 4095}, {0, peerBytes + 4096}, {peerBytes, 4096}} {
		if _, err := h.s.MapFD(fd.Int(), c[0], c[1]); !errors.Is(err, base.ErrMisaligned) && !errors.Is(err, base.ErrOutOfRange) {
			t.Errorf("%v: %v", c, err)
		}
	}
	if _, err := h.s.MapFD(-1, 0, 4096); !errors.Is(err, base.ErrNotSupported) {
		t.Errorf("a descriptor of nothing: %v", err)
	}
	return h, h.queue(1, 8, false), m.Bytes(), mem, peer
}

// count fills b with bytes that differ from zeros, ones and those of other starts.
func count(b []byte, start int) []byte {
	for i := range b {
		b[i] = byte(1 + (start+i)%250)
	}
	return b
}

// TestPeers: bytes go between the controller and memory of another device, or are lost
// as the effect says; commands end well all the same, and host memory is not concerned.
func TestPeers(t *testing.T) {
	lost := func(e sim.PeerEffect, sent, was []byte) []byte { // what arrives
		out := bytes.Clone(sent)
		for page := 0; page < len(out); page += 4096 {
			p, old := out[page:page+4096], was[page:page+4096]
			switch e {
			case sim.PeerDrop:
				copy(p, old)
			case sim.PeerZeros:
				clear(p)
			case sim.PeerOnes:
				copy(p, bytes.Repeat([]byte{0xff}, 4096))
			case sim.PeerTail:
				copy(p[4088:], old[4088:])
			}
		}
		return out
	}
	for _, e := range []sim.PeerEffect{sim.PeerRight, sim.PeerDrop, sim.PeerZeros, sim.PeerOnes, sim.PeerTail} {
		t.Run(fmt.Sprint(e), func(t *testing.T) {
			h, p, gpu, _, peer := peerHost(t)
			mem, err := dma.Alloc(peerBytes, "host")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(mem.Free)
			own := h.mapped(mem.Bytes())
			ok := func(write bool, slba uint64, segs []hw.Seg) {
				t.Helper()
				if st := h.rw(p, write, false, slba, 3, segs); !st.OK() {
					t.Fatalf("%v", st)
				}
			}
			sent := bytes.Clone(count(mem.Bytes(), 7))
			ok(true, 0, own)
			h.s.Peers(e, sim.PeerRight)
			was := bytes.Clone(count(gpu, 100))
			ok(false, 0, peer.Segments())
			if !bytes.Equal(gpu, lost(e, sent, was)) {
				t.Error("to the other device: other bytes")
			}
			h.s.Peers(sim.PeerRight, e)
			sent = bytes.Clone(count(gpu, 33))
			ok(true, 8, peer.Segments())
			ok(false, 8, own)
			if !bytes.Equal(mem.Bytes(), lost(e, sent, bytes.Repeat([]byte{0xff}, peerBytes))) {
				t.Error("from the other device: other bytes")
			}
			if err := peer.Unmap(); err != nil {
				t.Error(err)
			}
			clean(t, h.s)
		})
	}
}

// TestPeerRevoked: memory that its owner takes back is out of the controller's reach
// at once; commands that name it fail, which is no violation.
func TestPeerRevoked(t *testing.T) {
	h, p, gpu, mem, peer := peerHost(t)
	r := peer.(hw.Revocable)
	if r.Revoked() {
		t.Error("revoked from the beginning")
	}
	was := bytes.Clone(count(gpu, 1))
	mem.Revoke()
	for _, write := range []bool{false, true} {
		if st := h.rw(p, write, false, 0, 3, peer.Segments()); st.Code() != nvme.StatusTransferError {
			t.Errorf("write=%v: %v", write, st)
		}
	}
	if !r.Revoked() || !bytes.Equal(gpu, was) {
		t.Error("the controller reached it")
	}
	if err := peer.Unmap(); err != nil {
		t.Error(err)
	}
	clean(t, h.s)
}
