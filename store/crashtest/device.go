package crashtest

import (
	"context"
	"math/rand/v2"

	"github.com/ugds-store/ugds/driver"
)

// device is a disk of the laboratory: a Disk, which is a model of its own, or a
// model of an NVMe controller behind its driver. For the methods besides those of
// driver.Device, Faults and content the lab's lock is held.
type device interface {
	driver.Device

	// image keeps this instant.
	image() deviceImage
	// unresolved are the writes and discards whose fate is open.
	unresolved() []*write
	// inFlight is the step at which the latest of the commands of an operation was
	// submitted that have no answer; 0 if there is none.
	inFlight(op driver.Op) int64
	// down tells whether it lost power or contact and is not back.
	down() bool

	losePower(rng *rand.Rand)
	loseContact(rng *rand.Rand)
	failNext(op driver.Op)
	failNoMore()

	// Faults lists what no user of a device may do.
	Faults() []string
	// content is what it holds now, on its own, with its options.
	content() savedDisk
}

// deviceImage is one instant of a device.
type deviceImage interface {
	// draw makes a device as it may be after a cut; change, if not nil, may set its
	// pace.
	draw(cut Cut, rng *rand.Rand, lab *Lab, change func(*DiskOptions)) (device, Outcome)
}

// newDevice makes a blank device of either kind.
func newDevice(lab *Lab, opts DiskOptions) (device, error) {
	if opts.Controller != nil {
		return newController(lab, opts)
	}
	return NewDisk(lab, opts), nil
}

// loadDevice makes a device that holds m, for opening a kept image.
func loadDevice(lab *Lab, opts DiskOptions, m *media) (device, error) {
	if opts.Controller != nil {
		return loadController(lab, opts, m)
	}
	return startDisk(lab, opts, m, m.clone(), nil, nil), nil
}

func (d *Disk) image() deviceImage         { return d.imageLocked() }
func (d *Disk) unresolved() []*write       { return d.open }
func (d *Disk) down() bool                 { return d.state != driver.StateReady }
func (d *Disk) losePower(rng *rand.Rand)   { d.powerCutLocked(rng) }
func (d *Disk) loseContact(rng *rand.Rand) { d.isolateLocked(rng) }
func (d *Disk) failNext(op driver.Op)      { d.failNextLocked(op) }
func (d *Disk) failNoMore()                { d.failing = nil }
func (d *Disk) content() savedDisk         { return savedDisk{d.opts, d.visible.clone()} }

func (d *Disk) inFlight(op driver.Op) (latest int64) {
	for _, c := range d.queue {
		if c.req.Op == op {
			latest = max(latest, c.submitted)
		}
	}
	return latest
}

func (im *DiskImage) draw(cut Cut, rng *rand.Rand, lab *Lab, change func(*DiskOptions)) (device, Outcome) {
	return im.Draw(cut, rng, lab, change)
}

// closeAll closes devices and collects what they saw.
func closeAll(ctx context.Context, devs []device) (faults []string) {
	for _, d := range devs {
		if err := d.Close(ctx); err != nil {
			faults = append(faults, "close of a disk: "+err.Error())
		}
		faults = append(faults, d.Faults()...)
	}
	return faults
}
