package peermem_test

import (
	"errors"
	"os"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/peermem"
)

// TestJoin: a descriptor gives the memory, and parts of it, until it is taken back;
// other descriptors give none.
func TestJoin(t *testing.T) {
	mem := make([]byte, 8192)
	fd, m, err := peermem.Export(mem)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	told := 0
	_, b, leave, err := peermem.Join(fd.Int(), 4096, 4096, func() { told++ })
	if err != nil {
		t.Fatal(err)
	}
	b[0] = 7
	if mem[4096] != 7 || len(b) != 4096 {
		t.Error("it is other memory")
	}
	for _, c := range [][2]int64{{0, 8193}, {4096, 4097}, {-1, 1}, {0, 0}} {
		if _, _, _, err := peermem.Join(fd.Int(), c[0], c[1], nil); !errors.Is(err, base.ErrOutOfRange) {
			t.Errorf("%v: %v", c, err)
		}
	}
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	for _, other := range []int{int(zero.Fd()), -1} {
		if _, _, _, err := peermem.Join(other, 0, 1, nil); !errors.Is(err, base.ErrNotSupported) {
			t.Errorf("descriptor %d: %v", other, err)
		}
	}
	leave()
	if m.Revoked() || told != 0 {
		t.Error("revoked too early")
	}
}

// TestRevoke: who reaches the memory is told, once, and who has left is not; nobody
// gets it afterwards.
func TestRevoke(t *testing.T) {
	fd, m, err := peermem.Export(make([]byte, 4096))
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	told := 0
	_, _, leave, err := peermem.Join(fd.Int(), 0, 4096, func() { t.Error("one that has left is told") })
	if err != nil {
		t.Fatal(err)
	}
	leave()
	if _, _, leave, err = peermem.Join(fd.Int(), 0, 4096, func() { told++ }); err != nil {
		t.Fatal(err)
	}
	m.Revoke()
	m.Revoke()
	leave()
	if told != 1 || !m.Revoked() {
		t.Errorf("told %d times, revoked %v", told, m.Revoked())
	}
	if _, _, _, err := peermem.Join(fd.Int(), 0, 4096, nil); !errors.Is(err, base.ErrClosed) {
		t.Errorf("after it was taken back: %v", err)
	}
}
