package store_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/store"
)

var long = flag.Bool("long", false, "run the tests that write gigabytes")

func needLong(t *testing.T) {
	if !*long {
		t.Skip("writes gigabytes; run with -long (make soak does)")
	}
}

// TestGoTree stores the Go source tree under its paths in a store of 4 GiB: at
// most 400 MiB of slots, and everything comes back equal.
func TestGoTree(t *testing.T) {
	needLong(t)
	b := newBox(t, box{sizes: []int64{4 << 30}})
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSpace(string(out))
	var paths []string
	var total int64
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil || len(paths) < 10000 {
		t.Fatalf("%d files below %s: %v", len(paths), root, err)
	}
	for len(paths) > 0 {
		n := min(512, len(paths))
		items := make([]store.PutItem, n)
		for i, p := range paths[:n] {
			v, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			total += int64(len(v))
			items[i] = store.PutItem{Key: []byte(p), Value: store.Bytes(v), PutOptions: store.PutOptions{Durability: store.Relaxed}}
		}
		b.ns.PutBatch(bg, items)
		for i := range items {
			if items[i].Err != nil {
				t.Fatal(items[i].Err)
			}
		}
		paths = paths[n:]
	}
	b.reopen()
	u := b.s.Usage()
	sp := b.s.Stats().Space
	slabs := sp.Capacity - sp.FreeSlab
	t.Logf("%d files, %d MiB, %d MiB of slots, %d MiB of slabs", u.Objects, total>>20, u.SlotBytes>>20, slabs>>20)
	if u.SlotBytes > 400<<20 || slabs > 400<<20 || u.Bytes != total {
		t.Errorf("usage %+v, %d bytes of files, %d of slabs", u, total, slabs)
	}
	for info, err := range b.ns.List(bg, store.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(string(info.Key))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := b.ns.GetBytes(bg, info.Key, store.GetOptions{}); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s: %v", info.Key, err)
		}
	}
}

// TestLogUniformFill fills 4 GiB with sizes drawn log-uniformly from 1 byte to
// 16 MiB: at least 85 % of the device are value bytes at the first ErrNoSpace.
func TestLogUniformFill(t *testing.T) {
	needLong(t)
	const device = 4 << 30
	b := newBox(t, box{sizes: []int64{device}})
	rng := testenv.Seed(t)
	buf := fill(1, 16<<20)
	var total int64
	for i := 0; ; i++ {
		n := int(math.Exp(rng.Float64() * math.Log(16<<20)))
		err := b.ns.Put(bg, []byte(fmt.Sprint(i)), store.Bytes(buf[:n]), store.PutOptions{Durability: store.Relaxed})
		if errors.Is(err, store.ErrNoSpace) {
			t.Logf("%d objects, %.1f %% of the device: %v", i, 100*float64(total)/device, err)
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		total += int64(n)
	}
	if total < device/100*85 {
		t.Errorf("%.1f %% full at the first ErrNoSpace, want 85", 100*float64(total)/device)
	}
}
