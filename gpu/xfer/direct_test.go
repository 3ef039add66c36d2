package xfer_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
)

// directRig is a controller model that reaches the memory of a simulated GPU, all of
// which is registered.
type directRig struct {
	t     *testing.T
	model *sim.Sim
	dev   driver.Device
	g     *host.Backend
	mem   gpu.Memory
	reg   *gpu.Registration
	m     *xfer.Mover
	end   xfer.Endpoint
}

const (
	directBytes = 4 << 20
	directGPU   = 6 << 20
)

func newDirectRig(t *testing.T, o xfer.Options, before func(*sim.Sim)) *directRig {
	t.Helper()
	r := &directRig{t: t}
	cfg := sim.Default(directBytes + base.MiB)
	cfg.Real = true
	var err error
	check := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	r.model, err = sim.Open(cfg)
	check()
	if before != nil {
		before(r.model)
	}
	r.dev, err = ctrl.Open(context.Background(), r.model, ctrl.Options{})
	check()
	r.g, err = host.Open(host.Options{})
	check()
	r.mem, err = r.g.Devices()[0].Alloc(directGPU)
	check()
	tab := gpu.NewTable(r.g, gpu.TableOptions{Export: true})
	o.Pairs = xfer.NewPairs(r.g, xfer.PairsOptions{Devices: []driver.Device{r.dev}, Scratch: func(int) (int64, error) { return directBytes, nil }})
	r.m, err = xfer.New(r.g, r.g.Devices()[0], tab, o)
	check()
	r.reg, err = tab.Register(r.mem.Ptr(), directGPU)
	check()
	r.end, err = xfer.Extent(r.dev, 0, directBytes)
	check()
	t.Cleanup(func() {
		if err := r.reg.Close(); err != nil && !errors.Is(err, base.ErrClosed) {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := errors.Join(r.m.Close(ctx), o.Pairs.Close(), r.mem.Close(), r.g.Close(), r.dev.Close(ctx)); err != nil {
			t.Error(err)
		}
		for _, v := range r.model.Violations() {
			t.Errorf("violation: %s", v)
		}
	})
	return r
}

// ways are the bytes and operations by way and reason, of reads or writes.
func (r *directRig) ways(write bool) (bytes, ops map[string]int64) {
	bytes, ops = map[string]int64{}, map[string]int64{}
	for _, p := range r.m.Paths() {
		if p.Write == write {
			k := strings.TrimSpace(p.Path.String() + " " + p.Reason)
			bytes[k], ops[k] = p.Bytes, p.Ops
		}
	}
	return bytes, ops
}

// copy moves bytes between the GPU's memory and b, by another mover.
func (r *directRig) copy(at gpu.Ptr, b []byte, toHost bool) []byte {
	r.t.Helper()
	d := r.g.Devices()[0]
	h, err := d.AllocHost(int64(len(b)))
	if err != nil {
		r.t.Fatal(err)
	}
	defer h.Close()
	copy(h.Bytes(), b)
	s, err := d.NewStream()
	if err != nil {
		r.t.Fatal(err)
	}
	defer s.Close()
	if err := s.Copy(gpu.Copy{Dev: at, Host: h.Bytes(), ToHost: toHost}); err != nil {
		r.t.Fatal(err)
	}
	n, err := s.Tick()
	if err == nil {
		err = s.WaitTick(context.Background(), n)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return append(b[:0], h.Bytes()...)
}

func directNoise(n int, seed byte) []byte {
	b := make([]byte, n)
	x := uint32(seed) + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// TestT08T17T27Direct: with the direct path every task of a transfer is one direct
// operation, none is staged and there are no bounce copies, in compat mode OFF and in
// strict too; only a partial last block of a read goes through host memory.
func TestT08T17T27Direct(t *testing.T) {
	for name, o := range map[string]xfer.Options{"AUTO": {}, "OFF": {Compat: xfer.CompatOff}, "strict": {Strict: true}} {
		t.Run(name, func(t *testing.T) {
			o.TaskBytes = directBytes / 256
			r := newDirectRig(t, o, nil)
			want := directNoise(directBytes, 1)
			r.copy(r.mem.Ptr(), bytes.Clone(want), false)
			if n, err := r.m.Write(t.Context(), r.end, 0, r.mem.Ptr(), directBytes); n != directBytes || err != nil {
				t.Fatal(n, err)
			}
			r.copy(r.mem.Ptr(), make([]byte, directBytes), false)
			if n, err := r.m.Read(t.Context(), r.end, 0, r.mem.Ptr()+8, directBytes); n != directBytes || err != nil {
				t.Fatal(n, err)
			}
			if !bytes.Equal(r.copy(r.mem.Ptr()+8, make([]byte, directBytes), true), want) {
				t.Error("other bytes")
			}
			for _, write := range []bool{false, true} {
				got, ops := r.ways(write)
				if len(got) != 1 || got["direct"] != directBytes || ops["direct"] != 256 {
					t.Errorf("write=%v: %v, operations %v", write, got, ops)
				}
			}
			if n, err := r.m.Read(t.Context(), r.end, 4096, r.mem.Ptr(), 8192+5); n != 8192+5 || err != nil {
				t.Fatal(n, err)
			}
			if !bytes.Equal(r.copy(r.mem.Ptr(), make([]byte, 8197), true), want[4096:][:8197]) {
				t.Error("other bytes at the end")
			}
			if got, _ := r.ways(false); got["tail partial last block"] != 4096 || got["direct"] != directBytes+8192 {
				t.Errorf("%v", got)
			}
		})
	}
}

// TestT11SameAnswers: bytes, counts and errors do not tell whether a transfer went
// directly or was staged: only the statistics do.
func TestT11SameAnswers(t *testing.T) {
	answers := func(o xfer.Options) (all []string, ways map[string]int64) {
		r := newDirectRig(t, o, nil)
		note := func(what string, n int64, err error) {
			all = append(all, fmt.Sprintf("%s: %d, %v, %x", what, n, err, sha256.Sum256(r.copy(r.mem.Ptr(), make([]byte, directGPU), true))))
		}
		move := func(off, n int64, write bool) {
			r.copy(r.mem.Ptr(), directNoise(directGPU, byte(off>>12)), false)
			do, what := r.m.Read, "read"
			if write {
				do, what = r.m.Write, "write"
			}
			k, err := do(t.Context(), r.end, off, r.mem.Ptr(), n)
			note(fmt.Sprintf("%s %d+%d", what, off, n), k, err)
		}
		for _, c := range [][2]int64{{0, directBytes}, {4096, 8192}, {4096, 5000}, {directBytes, 4096}, {1, 4096}, {-1, 4096}, {0, directGPU + 1}} {
			move(c[0], c[1], true)
		}
		for _, c := range [][2]int64{{0, directBytes}, {4096, 8192 + 5}, {directBytes - 8192, 10_000}, {directBytes, 1}, {1, 4096}, {-1, 4096}, {0, directGPU + 1}} {
			move(c[0], c[1], false)
		}
		ways, _ = r.ways(false)
		return all, ways
	}
	direct, ways := answers(xfer.Options{})
	staged, other := answers(xfer.Options{Compat: xfer.CompatOn})
	if ways["direct"] == 0 || other["direct"] != 0 {
		t.Fatalf("%v, %v", ways, other)
	}
	for i := range direct {
		if direct[i] != staged[i] {
			t.Errorf("directly\n%s\nstaged\n%s", direct[i], staged[i])
		}
	}
}

// TestDirectWhyNot: what speaks against the direct way is the reason of the staged one,
// and the error where staging is not allowed.
func TestDirectWhyNot(t *testing.T) {
	r := newDirectRig(t, xfer.Options{}, nil)
	read := func(off int64, at gpu.Ptr, n int64) string {
		t.Helper()
		before, _ := r.ways(false)
		if k, err := r.m.Read(t.Context(), r.end, off, r.mem.Ptr()+at, n); k != n || err != nil {
			t.Fatal(k, err)
		}
		after, _ := r.ways(false)
		for k, v := range after {
			if v != before[k] {
				return k
			}
		}
		return ""
	}
	const shape = "staged it does not lie on whole blocks, or the memory not as the device needs it"
	for i, c := range []struct {
		off  int64
		at   gpu.Ptr
		want string
	}{{0, 0, "direct"}, {4096, 4, "direct"}, {1, 0, shape}, {0, 1, shape}} {
		if got := read(c.off, c.at, 65536); got != c.want {
			t.Errorf("%d: %s, want %s", i, got, c.want)
		}
	}
	end, err := xfer.Extent(r.dev, directBytes-8192, 8192)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := r.m.Read(t.Context(), end, 0, r.mem.Ptr(), 10000); n != 8192 || err == nil {
		t.Errorf("past the end: %d, %v", n, err)
	}
	if n, err := r.m.Write(t.Context(), end, 0, r.mem.Ptr(), 5000); n != 0 || !errors.Is(err, base.ErrMisaligned) {
		t.Errorf("a part of a block: %d, %v", n, err)
	}
	on := newDirectRig(t, xfer.Options{Compat: xfer.CompatOn}, nil)
	if _, err := on.m.Read(t.Context(), on.end, 0, on.mem.Ptr(), 65536); err != nil {
		t.Fatal(err)
	}
	if got, _ := on.ways(false); got["staged "+xfer.ReasonCompat] != 65536 {
		t.Errorf("compat mode ON: %v", got)
	}
	bad := newDirectRig(t, xfer.Options{}, func(s *sim.Sim) { s.Peers(sim.PeerZeros, sim.PeerRight) })
	if _, err := bad.m.Read(t.Context(), bad.end, 0, bad.mem.Ptr(), 65536); err != nil {
		t.Fatal(err)
	}
	if got, _ := bad.ways(false); got["staged "+xfer.ReasonTest] != 65536 {
		t.Errorf("D-18: %v", got)
	}
	if err := r.reg.Close(); err != nil {
		t.Fatal(err)
	}
	if got := read(0, 0, 65536); got != "staged "+xfer.ReasonUnregistered {
		t.Errorf("T28: %s", got)
	}
}

// TestT41DirectRetry: a direct transfer that fails is repeated through host memory with
// the same bytes, once, and counted; in strict it is the error.
func TestT41DirectRetry(t *testing.T) {
	const n = 1 << 20
	rule := sim.Rule{Kind: sim.FaultStatus, Ops: []nvme.Opcode{nvme.OpRead, nvme.OpWrite}, Count: 1, Status: nvme.StatusTransferError | nvme.StatusDNR}
	for _, write := range []bool{false, true} {
		r := newDirectRig(t, xfer.Options{}, nil)
		move := r.m.Read
		if write {
			move = r.m.Write
		}
		want := directNoise(n, 3)
		r.copy(r.mem.Ptr(), bytes.Clone(want), false)
		if _, err := r.m.Write(t.Context(), r.end, 0, r.mem.Ptr(), n); err != nil {
			t.Fatal(err)
		}
		r.model.Script(rule)
		if k, err := move(t.Context(), r.end, 0, r.mem.Ptr(), n); k != n || err != nil {
			t.Fatal(k, err)
		}
		if k, err := r.m.Read(t.Context(), r.end, 0, r.mem.Ptr()+2*n, n); k != n || err != nil || !bytes.Equal(r.copy(r.mem.Ptr()+2*n, make([]byte, n), true), want) {
			t.Errorf("write=%v: %d, %v, or other bytes", write, k, err)
		}
		if got, _ := r.ways(write); got["staged "+xfer.ReasonRetried] != n {
			t.Errorf("write=%v: %v", write, got)
		}
		if got, _ := r.ways(false); got["staged "+xfer.ReasonBroken] != n {
			t.Errorf("the next one: %v", got)
		}
	}
	strict := newDirectRig(t, xfer.Options{Strict: true}, nil)
	if _, err := strict.m.Read(t.Context(), strict.end, 0, strict.mem.Ptr(), n); err != nil { // the self-test is over
		t.Fatal(err)
	}
	strict.model.Script(rule)
	if k, err := strict.m.Read(t.Context(), strict.end, 0, strict.mem.Ptr(), n); err == nil || k == n {
		t.Errorf("strict: %d, %v", k, err)
	}
}

// TestI4DirectTimeout: a caller that gives up leaves its memory registered until the
// commands have ended.
func TestI4DirectTimeout(t *testing.T) {
	r := newDirectRig(t, xfer.Options{}, nil)
	if _, err := r.m.Read(t.Context(), r.end, 0, r.mem.Ptr(), 4096); err != nil { // the self-test is over
		t.Fatal(err)
	}
	r.model.Hold(true)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if n, err := r.m.Read(ctx, r.end, 0, r.mem.Ptr(), 1<<20); n != 0 || !errors.Is(err, base.ErrTimeout) {
		t.Errorf("%d, %v", n, err)
	}
	if err := r.reg.Close(); !errors.Is(err, base.ErrBusy) {
		t.Errorf("unregistered while in flight: %v", err)
	}
	r.model.Hold(false)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		err := r.reg.Close()
		if err == nil {
			break
		}
		if !errors.Is(err, base.ErrBusy) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// TestPairsReadOnly: devices that are only to be read are good for reads alone, and the
// self-test writes nothing there.
func TestPairsReadOnly(t *testing.T) {
	r := newDirectRig(t, xfer.Options{}, nil)
	if err := driver.Do(t.Context(), r.dev, driver.Request{Op: driver.OpWriteZeroes, Off: 0, Len: xfer.TestBytes}); err != nil {
		t.Fatal(err)
	}
	before := r.dev.Stats().WriteBytes
	ps := xfer.NewPairs(r.g, xfer.PairsOptions{Devices: []driver.Device{r.dev}, Scratch: func(int) (int64, error) { return 0, nil }, ReadOnly: true})
	peer, why := ps.Peer(r.reg)
	if why != "" {
		t.Fatal(why)
	}
	if got := []string{peer.Why(0, true), peer.Why(0, false)}; got[0] != "" || got[1] != xfer.ReasonReadOnly {
		t.Errorf("%q", got)
	}
	if n := r.dev.Stats().WriteBytes - before; n != 0 {
		t.Errorf("%d bytes written", n)
	}
	if err := errors.Join(r.reg.Close(), ps.Close()); err != nil {
		t.Error(err)
	}
}
