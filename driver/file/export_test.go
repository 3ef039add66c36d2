package file

import (
	"errors"

	"github.com/ugds-store/ugds/internal/base"
)

// Isolate makes d stop as if a deadline had passed.
func Isolate(d *Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.isolate(base.Wrap("test", d.h.info.Target, errors.New("stopped by the test")))
}
