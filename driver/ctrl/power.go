package ctrl

import (
	"context"
	"errors"

	"github.com/ugds-store/ugds/driver/nvme"
)

// apstSize is the size of the table of autonomous power state transitions, bytes
// (Base 5.1.25.1.6).
const apstSize = 256

// power is how the controller saved power before Options.LowLatency. Each half is
// known or not.
type power struct {
	state  *uint32 // the feature Power Management
	idle   *uint32 // the feature Autonomous Power State Transition
	states [apstSize]byte
}

// stayAwake keeps the controller in its fastest power state, if that is asked for:
// leaving another one takes up to milliseconds. A reset undoes it, so that each
// bring-up does it again; what to restore is what Open found. What the controller
// does not support is a reason and no error.
func (d *Device) stayAwake(ctx context.Context) error {
	if !d.opts.LowLatency {
		return nil
	}
	p := &d.power
	steps := []struct {
		name string
		has  bool
		do   func() error
	}{
		{"power states", d.id.NPSS > 0, func() error {
			old, err := d.feature(ctx, nvme.FeatPowerManagement, nil)
			if err == nil {
				d.found(&p.state, old)
				err = d.setFeature(ctx, nvme.FeatPowerManagement, 0, nil)
			}
			return err
		}},
		{"autonomous power states", d.id.APSTA&1 != 0, func() error {
			var table [apstSize]byte
			old, err := d.feature(ctx, nvme.FeatAPST, table[:])
			if err == nil {
				if p.idle == nil {
					p.states = table
				}
				d.found(&p.idle, old)
				err = d.setFeature(ctx, nvme.FeatAPST, 0, make([]byte, apstSize))
			}
			return err
		}},
	}
	for _, s := range steps {
		if !s.has {
			d.reason("low latency: the controller has no %s", s.name)
			continue
		}
		if err := s.do(); err != nil {
			if statusOf(err) == nil {
				return err
			}
			d.reason("low latency: %s stay as they are: %v", s.name, err)
			continue
		}
		d.reason("low latency: no %s until the device is closed", s.name)
	}
	return nil
}

// found remembers what a feature was, the first time.
func (d *Device) found(to **uint32, v uint32) {
	if *to == nil {
		*to = &v
	}
}

// restorePower puts back what stayAwake has changed.
func (d *Device) restorePower(ctx context.Context) error {
	var errs []error
	if p := &d.power; p.state != nil {
		errs = append(errs, d.setFeature(ctx, nvme.FeatPowerManagement, *p.state, nil))
	}
	if p := &d.power; p.idle != nil {
		errs = append(errs, d.setFeature(ctx, nvme.FeatAPST, *p.idle, p.states[:]))
	}
	return errors.Join(errs...)
}

// feature reads a feature, and its data if it has any.
func (d *Device) feature(ctx context.Context, fid uint8, data []byte) (dw0 uint32, err error) {
	var c nvme.Command
	c.SetGetFeatures(fid, 0)
	if data == nil {
		return d.admin(ctx, &c)
	}
	return d.exchange(ctx, &c, int64(len(data)), nil, func(b []byte) error {
		copy(data, b)
		return nil
	})
}

// setFeature changes a feature until the next reset.
func (d *Device) setFeature(ctx context.Context, fid uint8, v uint32, data []byte) error {
	var c nvme.Command
	c.SetSetFeatures(fid, 0, v)
	if data == nil {
		_, err := d.admin(ctx, &c)
		return err
	}
	_, err := d.exchange(ctx, &c, int64(len(data)), data, nil)
	return err
}
