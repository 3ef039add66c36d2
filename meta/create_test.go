package meta

import (
	"errors"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta/metatest"
)

// TestCreateBesideCreate: of two that make the same directory one wins, also when the
// other had found it empty before.
func TestCreateBesideCreate(t *testing.T) {
	fs := memFS()
	o := Options{Dir: "/m", FS: fs}
	first := testID
	first.Epoch = 77
	fs.Before(func(op metatest.Op) {
		if op.Name != "create" || op.Path != o.path(creatingName) {
			return
		}
		fs.Before(nil)
		if err := Create(o, first); err != nil {
			t.Error(err)
		}
		d := openDB(t, o)
		put(t, d, 1, 1, "k")
		closeDB(t, d)
	})
	if err := Create(o, testID); !errors.Is(err, base.ErrExists) {
		t.Errorf("the second: %v, want ErrExists", err)
	}
	if id, err := ReadIdentity(o); err != nil || id.Epoch != first.Epoch {
		t.Errorf("identity: %+v, %v", id, err)
	}
	d := openDB(t, o)
	if _, err := d.Get(1, []byte("k")); err != nil {
		t.Error(err)
	}
	closeDB(t, d)
}
