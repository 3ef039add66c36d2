package dma_test

import (
	"errors"
	"sync"
	"testing"
	"unsafe"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dma"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func held(owner string) int64 {
	for _, u := range dma.Usage() {
		if u.Owner == owner {
			return u.Bytes
		}
	}
	return 0
}

func TestAllocAlignmentZeroAndCapacity(t *testing.T) {
	for _, n := range []int64{1, 4095, 4096, 4097, 2<<20 - 1, 2 << 20, 3<<20 + 5} {
		m, err := dma.Alloc(n, "alignment")
		if err != nil {
			t.Fatal(err)
		}
		b := m.Bytes()
		if int64(len(b)) != n || cap(b) != len(b) {
			t.Errorf("%d: len %d cap %d", n, len(b), cap(b))
		}
		if uintptr(unsafe.Pointer(unsafe.SliceData(b)))%dma.PageSize != 0 {
			t.Errorf("%d: not aligned", n)
		}
		for i := range b {
			if b[i] != 0 {
				t.Fatalf("%d: byte %d is %d", n, i, b[i])
			}
		}
		b[0], b[n-1] = 1, 1
		m.Free()
	}
}

func TestAllocRefuses(t *testing.T) {
	for _, n := range []int64{0, -1, -1 << 62} {
		if _, err := dma.Alloc(n, "refused"); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("Alloc(%d): %v", n, err)
		}
	}
	for _, n := range []int64{1<<63 - 1, 1 << 60} {
		if _, err := dma.Alloc(n, "refused"); err == nil {
			t.Errorf("Alloc(%d) succeeded", n)
		}
	}
	if n := held("refused"); n != 0 {
		t.Errorf("%d bytes accounted", n)
	}
}

func TestOwnersAreAccounted(t *testing.T) {
	a, _ := dma.Alloc(1, "a")
	b, _ := dma.Alloc(8192, "b")
	c, _ := dma.Alloc(4097, "a")
	if held("a") != 3*4096 || held("b") != 8192 {
		t.Errorf("%+v", dma.Usage())
	}
	a.Free()
	if held("a") != 2*4096 {
		t.Errorf("%+v", dma.Usage())
	}
	b.Free()
	c.Free()
	if held("a") != 0 || held("b") != 0 {
		t.Errorf("%+v", dma.Usage())
	}
}

func TestFreeTwicePanics(t *testing.T) {
	m, _ := dma.Alloc(1, "twice")
	m.Free()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
		if n := held("twice"); n != 0 {
			t.Errorf("%d bytes accounted", n)
		}
	}()
	m.Free()
}

func TestConcurrentAlloc(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				m, err := dma.Alloc(5000, "many")
				if err != nil {
					t.Error(err)
					return
				}
				m.Bytes()[4999] = 1
				m.Free()
			}
		})
	}
	wg.Wait()
	if n := held("many"); n != 0 {
		t.Errorf("%d bytes left", n)
	}
}

type flat struct {
	A uint64
	B [3]uint16
	C struct{ D bool }
}

func TestTable(t *testing.T) {
	tab, err := dma.NewTable[flat](1000, "table")
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Free()
	if len(tab.E) != 1000 || tab.E[999] != (flat{}) {
		t.Errorf("%d elements, last %+v", len(tab.E), tab.E[len(tab.E)-1])
	}
	tab.E[999].B[2] = 5
	if held("table") != base.AlignUp(1000*int64(unsafe.Sizeof(flat{})), dma.PageSize) {
		t.Errorf("%+v", dma.Usage())
	}
}

func TestTableRefusesSizes(t *testing.T) {
	for _, n := range []int{0, -1, 1 << 62, 1<<63 - 1} {
		if _, err := dma.NewTable[flat](n, "sizes"); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("NewTable(%d): %v", n, err)
		}
	}
}

func mustPanic[T any](t *testing.T) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("a table of %T was made", *new(T))
		}
	}()
	if tab, err := dma.NewTable[T](1, "pointers"); err == nil {
		tab.Free()
	}
}

func TestTableWithPointersPanics(t *testing.T) {
	mustPanic[*int](t)
	mustPanic[string](t)
	mustPanic[[]byte](t)
	mustPanic[map[int]int](t)
	mustPanic[any](t)
	mustPanic[func()](t)
	mustPanic[chan int](t)
	mustPanic[struct{ A [2]struct{ P *int } }](t)
	mustPanic[unsafe.Pointer](t)
}

func TestBackend(t *testing.T) {
	if dma.OffHeap == testenv.Race {
		t.Errorf("off heap %v, race %v: the detector must see the memory", dma.OffHeap, testenv.Race)
	}
}
