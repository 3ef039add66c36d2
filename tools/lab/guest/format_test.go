//go:build ugds_lab

package guest

import (
	"strings"
	"testing"

	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/internal/base"
)

// Controllers of the shape "formats" by their place; see tools/lab/shapes.go.
const (
	ssd4K = iota
	ssdMetadata
	ssdProtection
	ssdThreeNamespaces
	ssdShared
	ssdSharedToo
	ssdZoned
	ssdOneQueue
)

// refused opens controller n and wants that to fail, in words.
func refused(t *testing.T, n int, o ctrl.Options, class error, words string) {
	t.Helper()
	d, err := ctrl.Open(soon(t), openHW(t, nth(t, classNVMe, n)), o)
	if d != nil {
		t.Errorf("controller %d was opened", n)
		_ = d.Close(soon(t))
		return
	}
	wantErr(t, words, err, class)
	if err != nil && !strings.Contains(err.Error(), words) {
		t.Errorf("the error does not say %q: %v", words, err)
	}
	t.Log(err)
}

// TestFormat4K: blocks of 4 KiB.
func TestFormat4K(t *testing.T) {
	d, _ := openCtrl(t, ssd4K, ctrl.Options{})
	if i := d.Info(); i.BlockSize != 4096 || i.Capacity != 256*base.MiB {
		t.Errorf("%+v", i)
	}
	roundTrip(t, d, 0, 3*base.MiB, 1)
}

// TestFormatRefused: namespaces that the driver would get wrong are refused.
func TestFormatRefused(t *testing.T) {
	refused(t, ssdMetadata, ctrl.Options{}, base.ErrNotSupported, "metadata")
	refused(t, ssdProtection, ctrl.Options{}, base.ErrNotSupported, "metadata")
	refused(t, ssdZoned, ctrl.Options{}, base.ErrNotSupported, "zone")
}

// TestFormatNamespaces: of several namespaces one is named, and only that is touched.
func TestFormatNamespaces(t *testing.T) {
	refused(t, ssdThreeNamespaces, ctrl.Options{}, base.ErrInvalid, "[1 2 7]")
	refused(t, ssdThreeNamespaces, ctrl.Options{NSID: 3}, base.ErrNotFound, "namespace 3")
	for _, id := range []uint32{1, 2, 7} {
		d, _ := openCtrl(t, ssdThreeNamespaces, ctrl.Options{NSID: id})
		if want := map[uint32]int64{1: 512, 2: 4096, 7: 512}[id]; d.Info().BlockSize != want {
			t.Errorf("namespace %d: %+v", id, d.Info())
		}
		do(t, d, write(0, region(t, base.MiB, byte(id))))
		if err := d.Close(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []uint32{1, 2, 7} {
		d, _ := openCtrl(t, ssdThreeNamespaces, ctrl.Options{NSID: id})
		want, got := region(t, base.MiB, byte(id)), region(t, base.MiB, 100)
		do(t, d, read(0, got))
		if string(want.CPU()) != string(got.CPU()) {
			t.Errorf("namespace %d has other bytes", id)
		}
		if err := d.Close(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFormatShared: a namespace that another controller may use is only taken by force.
func TestFormatShared(t *testing.T) {
	refused(t, ssdSharedToo, ctrl.Options{}, base.ErrInUse, "another controller")
	d, _ := openCtrl(t, ssdShared, ctrl.Options{Force: true})
	roundTrip(t, d, 0, base.MiB, 5)
}

// TestFormatOneQueue: one queue pair, one interrupt vector, no limit of transfers.
func TestFormatOneQueue(t *testing.T) {
	for _, mode := range []ctrl.Mode{ctrl.Polled, ctrl.Interrupts} {
		d, _ := openCtrl(t, ssdOneQueue, ctrl.Options{Mode: mode})
		for _, why := range d.Info().Reasons {
			t.Log(why)
		}
		roundTrip(t, d, 0, 9*base.MiB, 6)
		if err := d.Close(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
}
