//go:build nogpu

package cuda

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
