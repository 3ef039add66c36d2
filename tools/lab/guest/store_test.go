//go:build ugds_lab

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/vfio"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

const (
	// killAfter is how many puts have returned when the owner is killed.
	killAfter = 60
	// valueBytes is the largest value, bytes.
	valueBytes = 256 * base.KiB
	// storeDir is where a child finds the metadata.
	storeDir = "UGDS_LAB_STORE"
)

// peerMemory is n bytes of the BAR that plays a GPU's memory, in the way of the
// transport: a window of VFIO, or a dma-buf; and a view of it for whoever plays the GPU.
// Whoever has it gives it back before another process can have it.
func peerMemory(t testing.TB, n int64) (r *driver.Region, view []byte, giveBack func()) {
	t.Helper()
	if *transport != "vfio" {
		buf, view := gpuMemory(t, 0, n, 0)
		r = driver.NewFDRegion(buf.Int(), n, nil)
		return r, view, func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	gpu := nth(t, classFakeGPU, 0)
	bind(t, gpu, "vfio-pci")
	peer, err := vfio.OpenPeer(gpu)
	if err != nil {
		t.Fatal(err)
	}
	w, err := peer.Window(2)
	if err != nil {
		t.Fatal(err)
	}
	view, err = unix.MmapShared(unix.NewFD(w.FD, "peer"), w.Off, n) // the peer closes the descriptor
	if err != nil {
		t.Fatal(err)
	}
	r = driver.NewWindowRegion(w.FD, w.Off, n)
	return r, view, func() {
		if err := errors.Join(r.Close(), unix.Munmap(view), peer.Close()); err != nil {
			t.Error(err)
		}
	}
}

// valueOf is the value of key i. Every second one goes through the peer's memory.
func valueOf(i int) (n int64, direct bool, seed byte) {
	return base.StoreBlock * int64(1+i*7%(valueBytes/base.StoreBlock)), i%2 == 1, byte(i + 1)
}

func keyOf(i int) []byte { return fmt.Appendf(nil, "key %04d", i) }

// mover carries values between the host and the peer's memory by way of a second SSD:
// the processor does not touch that memory.
type mover struct {
	scratch *ctrl.Device
	host    *driver.Region
	peer    *driver.Region
}

func newMover(t testing.TB) *mover {
	t.Helper()
	m := &mover{}
	m.scratch, _ = openCtrl(t, 1, ctrl.Options{Queues: 2})
	m.host = region(t, valueBytes, 0)
	var giveBack func()
	m.peer, _, giveBack = peerMemory(t, valueBytes)
	t.Cleanup(giveBack)
	return m
}

func (m *mover) copy(t testing.TB, to, from *driver.Region, n int64) {
	t.Helper()
	do(t, m.scratch, driver.Request{Op: driver.OpWrite, Len: n, Segs: []driver.Seg{from.Seg(0, n)}})
	do(t, m.scratch, driver.Request{Op: driver.OpRead, Len: n, Segs: []driver.Seg{to.Seg(0, n)}})
}

// put stores the value of key i.
func (m *mover) put(t testing.TB, ns *store.Namespace, i int) error {
	n, direct, seed := valueOf(i)
	pattern(m.host.CPU()[:n], seed)
	from := m.host
	if direct {
		m.copy(t, m.peer, m.host, n)
		from = m.peer
	}
	return ns.Put(soon(t), keyOf(i), store.InRegion(from, 0, n), store.PutOptions{})
}

// check compares the value of key i, read the same way.
func (m *mover) check(t testing.TB, ns *store.Namespace, i int) {
	t.Helper()
	n, direct, seed := valueOf(i)
	want := make([]byte, n)
	pattern(want, seed)
	to := m.host
	if direct {
		to = m.peer
	}
	got, err := ns.Get(soon(t), keyOf(i), store.InRegion(to, 0, n), store.GetOptions{})
	if err != nil || got != n {
		t.Errorf("key %d: %d bytes of %d: %v", i, got, n, err)
		return
	}
	if direct {
		m.copy(t, m.host, m.peer, n)
	}
	if !bytes.Equal(m.host.CPU()[:n], want) {
		t.Errorf("key %d has other bytes", i)
	}
}

// TestStoreChild fills a store until it is killed. It is nothing by itself.
func TestStoreChild(t *testing.T) {
	dir := os.Getenv(storeDir)
	if dir == "" {
		t.Fatal("no store")
	}
	m := newMover(t)
	d, _ := openCtrl(t, 0, ctrl.Options{})
	s, err := store.Open(soon(t), store.Options{Devices: []driver.Device{d}, Meta: meta.Options{Dir: dir}})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := s.Namespace(soon(t), "lab", store.NamespaceOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	go fly(ns)
	for i := 0; ; i++ {
		if err := m.put(t, ns, i); err != nil {
			t.Fatal(err)
		}
		fmt.Println("put", i)
	}
}

// fly keeps the SSD busy with relaxed puts beside the others.
func fly(ns *store.Namespace) {
	v := make([]byte, base.MiB)
	for i := 0; ; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err := ns.Put(ctx, fmt.Appendf(nil, "fly %d", i%8), store.Bytes(v), store.PutOptions{Durability: store.Relaxed, Replace: true})
		cancel()
		if err != nil {
			return
		}
	}
}

// TestStoreKilled: a store on a controller, with values that go to and from the memory
// of another device, is killed in full flight. What a returned put has stored is
// there, exactly, and the store is clean.
func TestStoreKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "meta")
	d, _ := openCtrl(t, 0, ctrl.Options{})
	o := store.FormatOptions{Devices: []driver.Device{d}, Meta: meta.Options{Dir: dir}, Overwrite: true} // other tests have used it
	if _, err := store.Format(soon(t), o); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	done := fillUntilKilled(t, dir)
	m := newMover(t)
	d, _ = openCtrl(t, 0, ctrl.Options{})
	so := store.Options{Devices: []driver.Device{d}, Meta: meta.Options{Dir: dir}}
	report, err := store.Check(within(t, 5*time.Minute), so, store.CheckOptions{VerifyData: true})
	if err != nil || !report.Clean() {
		t.Fatalf("check: %v, %+v", err, report)
	}
	s, err := store.Open(soon(t), so)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := s.Namespace(soon(t), "lab", store.NamespaceOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range done {
		m.check(t, ns, i)
	}
	for i := done + 1; i < done+10; i++ { // at most one put had not returned
		if _, err := ns.Stat(soon(t), keyOf(i)); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("key %d, which was never put: %v", i, err)
		}
	}
	if err := s.Close(soon(t)); err != nil {
		t.Error(err)
	}
	t.Logf("%d values after the kill", done)
}

// fillUntilKilled runs TestStoreChild, kills it, and tells how many puts returned.
func fillUntilKilled(t testing.TB, dir string) (done int) {
	t.Helper()
	c := exec.Command("/proc/self/exe", "-test.run=^TestStoreChild$", "-transport", *transport)
	c.Env = append(os.Environ(), storeDir+"="+dir)
	out := new(safeBuffer)
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	for end := time.Now().Add(3 * time.Minute); strings.Count(out.String(), "put ") < killAfter; time.Sleep(5 * time.Millisecond) {
		if len(ended) > 0 || time.Now().After(end) {
			t.Fatalf("the child ended early, or is too slow:\n%s", out.String())
		}
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	return strings.Count(out.String(), "put ")
}
