//go:build nogpu

package hip

import (
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/dl"
)

// linker says that this build has none.
func linker() (*dl.Linker, error) {
	return nil, base.Errorf("open", "hip", base.ErrNotSupported, "built with the tag nogpu")
}
