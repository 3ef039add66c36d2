//go:build nogpu

package hip

import (
	"errors"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
)

func TestOpenIsRefused(t *testing.T) {
	if _, err := Open(Options{}); !errors.Is(err, base.ErrNotSupported) || Available() {
		t.Error(err)
	}
}
