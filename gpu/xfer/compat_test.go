package xfer_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
)

// compatMover is a mover with settings over memory that is registered and, as far as
// the GPU is concerned, could be reached directly.
func compatMover(t *testing.T, r *rig, s xfer.Settings) *xfer.Mover {
	t.Helper()
	tab := gpu.NewTable(r.b, gpu.TableOptions{Export: true})
	reg, err := tab.Register(r.mem.Ptr(), rigBytes)
	if err != nil {
		t.Fatal(err)
	}
	if fd, why := reg.Direct(); fd < 0 {
		t.Fatal(why)
	}
	m, err := xfer.New(r.b, r.d, tab, s.Options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := errors.Join(m.Close(c), reg.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

// counts gives the one line of the statistics.
func counts(t *testing.T, m *xfer.Mover) driver.PathCount {
	t.Helper()
	all := m.Paths()
	if len(all) != 1 {
		t.Fatalf("%+v", all)
	}
	return all[0]
}

// TestT01T05Compat: AUTO looks for the direct way and tells what speaks against it;
// ON does not even look, although the memory has a dma-buf. Both count one operation
// a task and every byte, and none as too small for the direct way.
func TestT01T05Compat(t *testing.T) {
	const n, task = 1 << 20, 64 << 10
	data := noise(t, n)
	for mode, reason := range map[string]string{"AUTO": xfer.ReasonNoTransport, "ON": xfer.ReasonCompat} {
		r := newRig(t, host.Options{}, xfer.Options{})
		m := compatMover(t, r, load(t, layer("flag", map[string]string{"compat_mode": mode, "task_size": "64KiB"})))
		e, err := xfer.Extent(newDevice(t, data), 0, n)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := m.Read(ctx(t), e, 0, r.mem.Ptr(), n); got != n || err != nil || !bytes.Equal(r.peek(r.mem.Ptr(), n), data) {
			t.Fatalf("%s: %d, %v, or other bytes", mode, got, err)
		}
		if c := counts(t, m); c.Path != driver.PathStaged || c.Reason != reason || c.Ops != n/task || c.Bytes != n {
			t.Errorf("%s: %+v, want %d operations: %s", mode, c, n/task, reason)
		}
	}
}

// TestT03Off: OFF without a direct way is an error that says what is missing; not a
// byte moves, in either direction, and the device is not even asked.
func TestT03Off(t *testing.T) {
	const n = 1 << 20
	data := noise(t, n)
	r := newRig(t, host.Options{}, xfer.Options{})
	m := compatMover(t, r, load(t, layer("flag", map[string]string{"compat_mode": "OFF"})))
	dev := newDevice(t, data)
	e, err := xfer.Extent(dev, 0, n)
	if err != nil {
		t.Fatal(err)
	}
	before := bytes.Repeat([]byte{0xee}, n)
	r.poke(r.mem.Ptr(), before)
	asked := dev.Stats()
	for end, reason := range map[xfer.Endpoint]string{e: xfer.ReasonNoTransport, xfer.File(tempFile(t, data)): xfer.ReasonFile} {
		_, rd := m.Read(ctx(t), end, 0, r.mem.Ptr(), n)
		_, wr := m.Write(ctx(t), end, 0, r.mem.Ptr(), n)
		for _, err := range []error{rd, wr} {
			if !errors.Is(err, base.ErrNotSupported) || !strings.Contains(err.Error(), reason) {
				t.Errorf("%v, want %q", err, reason)
			}
		}
	}
	if !bytes.Equal(r.peek(r.mem.Ptr(), n), before) || len(m.Paths()) != 0 {
		t.Errorf("something moved: %+v", m.Paths())
	}
	if now := dev.Stats(); now.ReadBytes != asked.ReadBytes || now.WriteBytes != asked.WriteBytes {
		t.Errorf("the device was asked: %+v", now)
	}
}

// TestT07RuntimeSet: what a program sets itself wins over the environment, for
// movers that are made later; those that exist stay as they are.
func TestT07RuntimeSet(t *testing.T) {
	data := noise(t, 100_000)
	environment := map[string]string{"UGDS_COMPAT_MODE": "ON"}
	env := xfer.Environment(func(v string) (string, bool) { s, ok := environment[v]; return s, ok })
	r := newRig(t, host.Options{}, xfer.Options{})
	move := func(m *xfer.Mover) (driver.PathCount, error) {
		_, err := m.Read(ctx(t), xfer.Reader(bytes.NewReader(data)), 0, r.mem.Ptr(), int64(len(data)))
		if err != nil {
			return driver.PathCount{}, err
		}
		return counts(t, m), nil
	}
	first := load(t, env)
	m1 := compatMover(t, r, first)
	if c, err := move(m1); err != nil || c.Reason != xfer.ReasonCompat {
		t.Fatalf("%+v, %v", c, err)
	}
	environment["UGDS_COMPAT_MODE"] = "AUTO"
	m2 := compatMover(t, r, load(t, layer("program", map[string]string{"compat_mode": "OFF"}), env))
	if _, err := move(m2); !errors.Is(err, base.ErrNotSupported) {
		t.Errorf("set to OFF: %v", err)
	}
	m3 := compatMover(t, r, load(t, env))
	if c, err := move(m3); err != nil || c.Reason != xfer.ReasonFile {
		t.Errorf("a new environment: %+v, %v", c, err)
	}
	if c, err := move(m1); err != nil || c.Reason != xfer.ReasonCompat || c.Bytes != 2*int64(len(data)) || m1.Options().Compat != xfer.CompatOn {
		t.Errorf("the first mover became another one: %+v, %v", c, err)
	}
}
