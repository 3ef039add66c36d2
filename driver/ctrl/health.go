package ctrl

import (
	"context"
	"fmt"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/nvme"
)

// degradedAfter is how many failed requests in a row make Health not OK.
const degradedAfter = 5

// Health implements driver.Device: the SMART page, and what the driver counted.
// Of a device that takes no requests only the latter.
func (d *Device) Health(ctx context.Context) (driver.Health, error) {
	h := driver.Health{TemperatureKelvin: -1, SparePercent: -1, UsedPercent: -1, MediaErrors: -1,
		BytesWrittenByHost: -1, ConsecutiveErrors: d.count.inRow.Load()}
	if s := d.State(); s != driver.StateReady {
		h.Critical = s.String()
		return h, nil
	}
	l, err := d.SMART(ctx)
	if err != nil {
		return h, err
	}
	h.Critical = l.Warnings()
	if k := l.CompositeKelvin.Get(); k != 0 {
		h.TemperatureKelvin = int(k)
	}
	h.SparePercent, h.UsedPercent = int(l.AvailableSpare), int(l.PercentageUsed)
	h.MediaErrors = int64(min(l.MediaErrors.Uint64(), 1<<63-1))
	h.BytesWrittenByHost = l.DataUnitsWritten.Float() * nvme.DataUnit
	if h.Critical == "" && h.ConsecutiveErrors >= degradedAfter {
		h.Critical = fmt.Sprintf("%d requests in a row failed", h.ConsecutiveErrors)
	}
	h.OK = h.Critical == ""
	return h, nil
}

// Warning is the last thing that the controller has reported of itself, "" for none.
// Subscribers learn each of them.
func (d *Device) Warning() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.warning
}
