package crashtest

import (
	"context"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/ctrl"
	"github.com/ugds-store/ugds/driver/hw/sim"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// Controller is the shape of a controller model. The other options of a disk mean
// the same as for a Disk; Pace.Pause is how long each command is in flight at most.
type Controller struct {
	MDTS    uint8  // largest command, as a power of two of 4 KiB; 0 is no limit
	Entries int    // of a queue
	Queues  int    // pairs
	NOIOB   uint16 // blocks
	SGL     bool
	Mode    ctrl.Mode
}

// UseControllers makes the disks of a setup controllers of different shapes, which
// its seed draws; seeds in a row have pools of one, two and three.
func UseControllers(s *Setup) {
	rng := rand.New(rand.NewPCG(s.Seed, 0xc7a1))
	s.Disks = 1 + int(s.Seed%3)
	for range s.Disks {
		s.Controllers = append(s.Controllers, Controller{
			MDTS: [...]uint8{0, 1, 3, 5}[rng.IntN(4)], Entries: [...]int{3, 16, 64, 256}[rng.IntN(4)],
			Queues: 1 + rng.IntN(4), NOIOB: [...]uint16{0, 0, 24}[rng.IntN(3)], SGL: rng.IntN(3) == 0,
			Mode: [...]ctrl.Mode{ctrl.Polled, ctrl.Polled, ctrl.Interrupts, ctrl.Hybrid}[rng.IntN(4)]})
	}
}

// watchEvery is how often the driver of a controller looks at what nobody waits for.
const watchEvery = time.Millisecond

// controller is a device that is a model of an NVMe controller behind the real
// driver. The model has the cache and draws what a cut leaves of it; this type
// follows the commands, for the labels of the states.
type controller struct {
	*ctrl.Device
	model *sim.Sim
	lab   *Lab
	index int
	opts  DiskOptions

	// The lab's lock guards everything below.
	open    []*write
	flights map[uint64]*flight // by the model's identifier
	failing []sim.Rule
	lost    bool   // it lost power or contact, and
	lostIn  uint64 // this is the incarnation that does not know yet
	faults  []string
}

// flight is a command that has no answer yet.
type flight struct {
	step Step
	w    *write // nil for flushes
	sum  uint32 // of a write's payload, at the fetch
	at   int64  // step of the fetch
}

func (o *DiskOptions) config(lab *Lab) func(c *sim.Config) {
	return func(c *sim.Config) {
		c.Lock, c.Real, c.Eager, c.Seed, c.FixedPages, c.Patience = &lab.mu, true, true, o.Seed, 256, 0
		c.Identify.MDTS, c.CAP.MQES, c.MaxQueues = o.Controller.MDTS, uint16(o.Controller.Entries-1), uint32(o.Controller.Queues)
		c.Identify.SGLS.Set(0)
		if o.Controller.SGL {
			c.Identify.SGLS.Set(1)
		}
		if o.WriteThrough {
			c.Identify.VWC = 0
		}
		if o.NoDiscard {
			c.Identify.ONCS.Set(c.Identify.ONCS.Get() &^ nvme.ONCSDSM)
		}
		if !o.Immediate {
			c.DiscardDelay = 2 * o.Pace.Pause
		}
	}
}

// newController makes a blank one and brings it up.
func newController(lab *Lab, opts DiskOptions) (*controller, error) {
	opts.defaults()
	return loadController(lab, opts, nil)
}

func loadController(lab *Lab, opts DiskOptions, m *media) (*controller, error) {
	cfg := sim.Default(opts.Capacity)
	ns := &cfg.Namespaces[0]
	if opts.BlockSize == 512 {
		ns.BlockShift, ns.Blocks = 9, ns.Blocks*8
	}
	ns.NOIOB = opts.Controller.NOIOB
	opts.config(lab)(&cfg)
	model, err := sim.Open(cfg)
	if err != nil {
		return nil, err
	}
	if m != nil {
		lab.Locked(func() {
			for lba := range opts.Capacity / opts.BlockSize {
				if b := m.get(lba); b != "" {
					model.Locked().Write(0, uint64(lba*opts.BlockSize), []byte(b))
				}
			}
		})
	}
	return startController(lab, opts, model)
}

// startController brings a model up and follows its commands.
func startController(lab *Lab, opts DiskOptions, model *sim.Sim) (*controller, error) {
	d := &controller{model: model, lab: lab, opts: opts, flights: map[uint64]*flight{}}
	lab.Locked(func() {
		d.index = len(lab.disks)
		lab.disks = append(lab.disks, d)
		d.script()
	})
	o := ctrl.Options{Queues: opts.Controller.Queues, Depth: opts.Depth, Mode: opts.Controller.Mode, Watch: watchEvery}
	if opts.Immediate {
		o.Mode, o.Watch = ctrl.Polled, -1
	} else {
		model.Observe(d.observe)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var err error
	d.Device, err = ctrl.Open(ctx, model, o)
	return d, err
}

// script tells the model what is slow and what fails. The lock is held.
func (d *controller) script() {
	rules := slices.Clone(d.failing)
	if !d.opts.Immediate {
		// Most end soon; a quarter, and all discards, stay so long that their callers
		// give up and others come.
		slow, soon := 30*d.opts.Pace.Pause, d.opts.Pace.Pause
		rules = append(rules, sim.Rule{Kind: sim.FaultDelay, Ops: []nvme.Opcode{nvme.OpDSM}, Delay: slow},
			sim.Rule{Kind: sim.FaultDelay, Chance: 0.25, Delay: slow}, sim.Rule{Kind: sim.FaultDelay, Delay: soon})
	}
	d.model.Locked().Script(rules...)
}

// opcodes are the commands that the operations become.
var opcodes = [...]nvme.Opcode{driver.OpRead: nvme.OpRead, driver.OpWrite: nvme.OpWrite, driver.OpFlush: nvme.OpFlush,
	driver.OpDiscard: nvme.OpDSM, driver.OpWriteZeroes: nvme.OpWriteZeroes}

// opOf is the operation that became a command.
func opOf(c nvme.Opcode) driver.Op { return driver.Op(slices.Index(opcodes[:], c)) }

// observe is the model's observer. The lock is held.
func (d *controller) observe(x sim.Seen) {
	op := opOf(x.Command.OPC)
	if op == driver.OpRead {
		if x.Moment == sim.Ended {
			d.failed(op, x.Status)
		}
		return
	}
	switch x.Moment {
	case sim.Fetched:
		d.fetched(op, &x)
	case sim.Executed:
		d.executed(op, &x)
	case sim.Ended:
		d.ended(op, &x)
	}
}

func (d *controller) fetched(op driver.Op, x *sim.Seen) {
	f := &flight{step: Step{Disk: d.index, Op: op}, at: d.lab.index + 1}
	d.flights[x.ID] = f
	if op != driver.OpFlush {
		f.w = &write{op: op}
		d.open = append(d.open, f.w)
	}
	if op == driver.OpWrite || op == driver.OpWriteZeroes {
		f.step.Off, f.step.Len = int64(x.Command.SLBA())*d.opts.BlockSize, int64(x.Command.Blocks())*d.opts.BlockSize
	}
	if op == driver.OpWrite {
		data := x.Data()
		f.sum = checksum(data)
		if d.lab.label != nil {
			f.step.Label = d.lab.label(head(data))
			f.w.label = f.step.Label
		}
	}
	d.note(StepSubmit, f)
}

func (d *controller) executed(op driver.Op, x *sim.Seen) {
	f := d.flights[x.ID]
	if f == nil || !x.Status.OK() {
		return
	}
	if op == driver.OpFlush {
		d.open = slices.DeleteFunc(d.open, func(w *write) bool {
			return w.effect && (w.op != driver.OpDiscard || w.answered != 0)
		})
		return
	}
	f.w.effect = true
	d.note(StepEffect, f)
}

func (d *controller) ended(op driver.Op, x *sim.Seen) {
	f := d.flights[x.ID]
	if f == nil {
		return
	}
	delete(d.flights, x.ID)
	d.failed(op, x.Status)
	if f.w != nil {
		f.w.answered = d.lab.index + 1
		if op == driver.OpWrite && checksum(x.Data()) != f.sum {
			d.faults = append(d.faults, fmt.Sprintf("%s: the memory of a write at %d+%d changed while in flight",
				d.Info().Target, f.step.Off, f.step.Len))
		}
		if !x.Status.OK() || op == driver.OpWrite && (x.Command.FUA() || d.opts.WriteThrough) {
			d.drop(f.w)
		}
	}
	d.note(StepAnswer, f)
}

func (d *controller) drop(w *write) {
	d.open = slices.DeleteFunc(d.open, func(o *write) bool { return o == w })
}

// failed takes a rule away that has done its work.
func (d *controller) failed(op driver.Op, status nvme.Status) {
	if status.OK() {
		return
	}
	d.failing = slices.DeleteFunc(d.failing, func(r sim.Rule) bool { return opOf(r.Ops[0]) == op })
	d.script()
}

func (d *controller) note(kind StepKind, f *flight) {
	f.step.Kind = kind
	d.lab.note(f.step)
}

// head is the beginning of a payload.
func head(data [][]byte) string {
	var b []byte
	for _, p := range data {
		if b = append(b, p[:min(len(p), 64)]...); len(b) >= 64 {
			break
		}
	}
	return string(b)
}

func checksum(data [][]byte) (sum uint32) {
	for _, p := range data {
		sum = crc32.Update(sum, castagnoli, p)
	}
	return sum
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (d *controller) unresolved() []*write { return d.open }

func (d *controller) inFlight(op driver.Op) (latest int64) {
	for _, f := range d.flights {
		if f.step.Op == op {
			latest = max(latest, f.at)
		}
	}
	return latest
}

func (d *controller) down() bool {
	if d.lost && d.Incarnation() == d.lostIn {
		return true // and the driver does not know yet
	}
	d.lost = false
	return d.State() != driver.StateReady
}

func (d *controller) losePower(*rand.Rand) {
	d.lost, d.lostIn = true, d.Incarnation()
	d.model.Locked().Power(func(sim.Loss) {
		d.open = nil
		clear(d.flights)
		d.lab.note(Step{Kind: StepPower, Disk: d.index, Text: "the controller lost power"})
	})
}

// loseContact stops the controller, which keeps its cache: it fails, or the link to
// it goes down.
func (d *controller) loseContact(rng *rand.Rand) {
	d.lost, d.lostIn = true, d.Incarnation()
	if rng.IntN(2) == 0 {
		d.model.Locked().Fatal()
	} else {
		d.model.Locked().Ones()
	}
	d.open = slices.DeleteFunc(d.open, func(w *write) bool {
		w.answered = max(w.answered, 1)
		return false
	})
	clear(d.flights)
	d.lab.note(Step{Kind: StepPower, Disk: d.index, Text: "the controller stopped"})
}

func (d *controller) failNext(op driver.Op) {
	r := sim.Rule{Kind: sim.FaultStatus, Ops: []nvme.Opcode{opcodes[op]}, Count: 1, Status: nvme.StatusWriteFault | nvme.StatusDNR}
	if op == driver.OpRead {
		r.Status = nvme.StatusUnrecoveredRead | nvme.StatusDNR
	}
	d.failing = append(d.failing, r)
	d.script()
}

func (d *controller) failNoMore() {
	d.failing = nil
	d.script()
}

// Reset implements driver.Device. A loss that the driver has not noticed yet is
// waited for.
func (d *controller) Reset(ctx context.Context) error {
	for {
		var wait bool
		d.lab.Locked(func() { wait = d.down() && d.State() == driver.StateReady })
		if !wait {
			break
		}
		select {
		case <-ctx.Done():
			return base.Errorf("reset", d.Info().Target, base.ErrTimeout, "%w", ctx.Err())
		case <-time.After(watchEvery):
		}
	}
	return d.Device.Reset(ctx)
}

// Faults is what the model refused or found illegal, and what was seen here.
func (d *controller) Faults() (out []string) {
	for _, v := range d.model.Violations() {
		out = append(out, d.Info().Target+": "+v)
	}
	d.lab.Locked(func() { out = append(out, d.faults...) })
	return out
}

func (d *controller) content() savedDisk {
	m := newMedia(d.opts.Capacity, d.opts.BlockSize)
	d.lab.Locked(func() {
		now := d.model.Locked()
		b := make([]byte, d.opts.BlockSize)
		for lba := range d.opts.Capacity / d.opts.BlockSize {
			now.Read(0, uint64(lba*d.opts.BlockSize), b)
			if s := string(b); strings.Trim(s, "\x00") != "" {
				m.set(lba, s)
			}
		}
	})
	return savedDisk{d.opts, m}
}

// controllerImage is one instant of a controller.
type controllerImage struct {
	opts DiskOptions
	im   *sim.Image
}

func (d *controller) image() deviceImage {
	return &controllerImage{d.opts, d.model.Locked().Image()}
}

func (im *controllerImage) draw(cut Cut, rng *rand.Rand, lab *Lab, change func(*DiskOptions)) (device, Outcome) {
	opts := im.opts
	opts.Seed = rng.Uint64()
	if change != nil {
		change(&opts)
		opts.defaults()
	}
	fate := map[Cut]sim.Fate{CutAll: sim.PowerLost, CutSSD: sim.PowerLost, CutHost: sim.HostLost, CutMeta: sim.AllEnded}[cut]
	model, loss, err := im.im.Open(fate, opts.config(lab))
	if err != nil {
		panic("crashtest: " + err.Error()) // the shape was good before
	}
	out := Outcome{Landed: loss.Kept + loss.Landed, Dropped: loss.Lost + loss.Dropped, Torn: loss.Torn, Late: model.Late()}
	d, err := startController(lab, opts, model)
	if err != nil {
		panic("crashtest: " + err.Error()) // nothing fails in an image
	}
	return d, out
}
