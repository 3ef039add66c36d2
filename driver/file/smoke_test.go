package file_test

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestSmoke(t *testing.T) {
	for _, eng := range []string{file.EngineURing, file.EnginePool} {
		t.Run(eng, func(t *testing.T) {
			p := filepath.Join(t.TempDir(), "data")
			if err := file.Create(p, 16<<20, false); err != nil {
				t.Fatal(err)
			}
			ctx := context.Background()
			d, err := file.Open(ctx, file.Options{Path: p, Engine: eng})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range d.Info().Reasons {
				t.Log(r)
			}
			r, _ := driver.AllocRegion(8<<20, "smoke")
			if err := d.Attach(r); err != nil {
				t.Fatal(err)
			}
			copy(r.CPU(), bytes.Repeat([]byte("abcdefg"), 600000))
			if err := driver.Do(ctx, d, driver.Request{Op: driver.OpWrite, Off: 4096, Len: 4 << 20, Segs: []driver.Seg{r.Seg(0, 4<<20)}}); err != nil {
				t.Fatal(err)
			}
			if err := driver.Flush(ctx, d); err != nil {
				t.Fatal(err)
			}
			if err := driver.Do(ctx, d, driver.Request{Op: driver.OpRead, Off: 4096, Len: 4 << 20, Segs: []driver.Seg{r.Seg(4<<20, 4<<20)}}); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(r.CPU()[:4<<20], r.CPU()[4<<20:]) {
				t.Error("differs")
			}
			t.Logf("%+v", d.Stats())
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if err := d.Close(ctx); err != nil {
				t.Fatal(err)
			}
		})
	}
}
