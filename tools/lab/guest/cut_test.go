//go:build ugds_lab

package guest

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// What the machine outside says of the cuts before; see tools/lab/cuts.go.
var (
	cutFirst = flag.Bool("cut-first", false, "nothing was formatted yet")
	cutLast  = flag.Bool("cut-last", false, "check only")
	cutDone  = flag.Int("cut-done", 0, "how many puts were answered before the power was cut")
)

// TestCut checks a store whose SSD and metadata have lost power in the middle of work:
// what a returned put had stored is there, exactly, and the store is clean (I1). Then
// it works on until the power is cut again.
func TestCut(t *testing.T) {
	const disk, point = "/dev/vda", "/tmp/disk"
	if err := os.MkdirAll(point, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(disk, point, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	d, _ := openCtrl(t, 0, ctrl.Options{})
	o := store.Options{Devices: []driver.Device{d}, Meta: meta.Options{Dir: point + "/meta"}}
	if *cutFirst {
		if _, err := store.Format(soon(t), store.FormatOptions{Devices: o.Devices, Meta: o.Meta}); err != nil {
			t.Fatal(err)
		}
	}
	report, err := store.Check(within(t, 5*time.Minute), o, store.CheckOptions{VerifyData: true})
	if err != nil || !report.Clean() {
		t.Fatalf("check: %v, %+v", err, report)
	}
	s, err := store.Open(within(t, 5*time.Minute), o)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := s.Namespace(soon(t), "lab", store.NamespaceOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range *cutDone + 1 { // the last may be there, and then must be whole
		n, _, seed := valueOf(i)
		want := make([]byte, n)
		pattern(want, seed)
		got, err := ns.GetBytes(soon(t), keyOf(i), store.GetOptions{})
		if i == *cutDone && errors.Is(err, base.ErrNotFound) {
			continue
		}
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("key %d after the cut: %d bytes of %d, %v", i, len(got), n, err)
		}
	}
	if *cutLast || t.Failed() {
		if err := s.Close(soon(t)); err != nil {
			t.Error(err)
		}
		return
	}
	go fly(ns)
	for i := *cutDone; ; i++ {
		n, _, seed := valueOf(i)
		v := make([]byte, n)
		pattern(v, seed)
		err := ns.Put(within(t, 5*time.Minute), keyOf(i), store.Bytes(v), store.PutOptions{})
		if err != nil && !(i == *cutDone && errors.Is(err, base.ErrExists)) {
			t.Fatal(err)
		}
		fmt.Println("cut put", i)
	}
}
