package gpu

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestMoves(t *testing.T) {
	b := make([]byte, 3*MoveBytes)
	want := Move{0x7f00_0000_1000, 0x1_2345, 1<<33 + 1}
	PutMove(b, 1, want)
	if got := GetMove(b, 1); got != want || GetMove(b, 0) != (Move{}) || GetMove(b, 2) != (Move{}) {
		t.Errorf("%+v", got)
	}
}

func TestCheckExport(t *testing.T) {
	a := Attributes{Kind: KindDevice, Base: 1 << 20, Size: 1 << 20}
	for _, c := range []struct {
		p    Ptr
		n    int64
		kind Kind
		want error
	}{
		{1 << 20, 1 << 20, KindDevice, nil},
		{1<<20 + 4096, 4096, KindDevice, nil},
		{1<<20 + 1, 4096, KindDevice, base.ErrMisaligned},
		{1 << 20, 4095, KindDevice, base.ErrMisaligned},
		{1 << 20, 0, KindDevice, base.ErrInvalid},
		{1 << 20, 1<<20 + 4096, KindDevice, base.ErrOutOfRange},
		{1<<20 - 4096, 4096, KindDevice, base.ErrOutOfRange},
		{1 << 20, 4096, KindManaged, base.ErrNotSupported},
		{1 << 20, 4096, KindHost, base.ErrNotSupported},
	} {
		a.Kind = c.kind
		if err := CheckExport(a, c.p, c.n); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestWaitCell(t *testing.T) {
	var cell atomic.Uint64
	alive := func() error { return nil }
	cell.Store(^uint64(0)) // one below 0: the comparison wraps
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := WaitCell(ctx, &cell, 1, alive); !errors.Is(err, base.ErrTimeout) {
		t.Error(err)
	}
	time.AfterFunc(time.Millisecond, func() { cell.Store(3) })
	if err := WaitCell(context.Background(), &cell, 1, alive); err != nil {
		t.Error(err)
	}
	broken := errors.New("broken")
	if err := WaitCell(context.Background(), &cell, 4, func() error { return broken }); err != broken {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	if KindManaged.String() != "managed" || Ptr(16).String() != "0x10" {
		t.Error(KindManaged, Ptr(16))
	}
}
