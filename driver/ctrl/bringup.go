package ctrl

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

// onesLimit is how long registers may read as ones after a reset, before the
// device counts as gone.
const onesLimit = time.Second

// maxNamespaces bounds the namespaces that Open looks at.
const maxNamespaces = 1024

// step is one state of the bring-up. Its name is part of every error.
type step struct {
	name string
	do   func(d *Device, ctx context.Context) error
}

// steps is the bring-up in order (Base 3.5.1).
var steps = []step{
	{"start the device", (*Device).start},
	{"read capabilities", (*Device).readCapabilities},
	{"disable", (*Device).disable},
	{"configure admin queues", (*Device).configure},
	{"enable", (*Device).enable},
	{"identify controller", (*Device).identifyController},
	{"choose namespace", (*Device).chooseNamespace},
	{"count queues", (*Device).countQueues},
	{"shadow doorbells", (*Device).shadowDoorbells},
	{"create queues", (*Device).createQueues},
	{"stay awake", (*Device).stayAwake},
	{"enable events", (*Device).enableEvents},
}

// bringUp takes the controller from any state to ready. On an error it may be in
// any state, and memory of queues may be known to it.
func (d *Device) bringUp(ctx context.Context) error {
	start := d.hw.Now()
	for _, s := range steps {
		d.phase.Store(s.name)
		if err := s.do(d, ctx); err != nil {
			err = fmt.Errorf("%s, after %v (CAP.TO %d ms, device %04x:%04x): %w", s.name,
				(d.hw.Now() - start).Round(time.Millisecond), d.cap.TimeoutMs(), d.hw.ID().Vendor, d.hw.ID().Device, err)
			return base.Wrap("bring up", d.info.Target, err)
		}
	}
	d.phase.Store("ready")
	return nil
}

// wait polls CSTS until ok, at most limit of the device's time and until ctx ends.
// What is awaited is for the error.
func (d *Device) wait(ctx context.Context, what string, limit time.Duration, ok func(s nvme.CSTS) bool) error {
	end := d.hw.Now() + limit
	for {
		now := d.hw.Now()
		v, err := d.hw.Load32(nvme.RegCSTS)
		switch s := nvme.CSTS(v); {
		case err != nil:
			return err
		case ok(s):
			return nil
		case s.Gone():
			return s.Check()
		case now >= end:
			return base.Errorf("wait for", what, base.ErrTimeout, "CSTS %#x after %v", v, limit)
		case ctx.Err() != nil:
			return base.Errorf("wait for", what, base.ErrTimeout, "CSTS %#x: %w", v, ctx.Err())
		}
		d.hw.Pause(end)
	}
}

func (d *Device) timeout() time.Duration {
	return time.Duration(d.cap.TimeoutMs()) * time.Millisecond
}

func (d *Device) readCapabilities(ctx context.Context) error {
	var v uint64
	start := d.hw.Now()
	end := start + onesLimit
	for waits := 0; ; waits++ {
		now := d.hw.Now()
		var err error
		if v, err = d.hw.Load64(nvme.RegCAP); err != nil {
			return err
		}
		if v != math.MaxUint64 || now >= end || ctx.Err() != nil {
			if waits > 0 && v != math.MaxUint64 {
				d.reason("the registers read as ones for %v", (now - start).Round(time.Millisecond))
			}
			break
		}
		d.hw.Pause(end)
	}
	if err := nvme.CAP(v).Check(); err != nil {
		return d.unreadable(err)
	}
	version, err := d.hw.Load32(nvme.RegVS)
	if err == nil {
		err = nvme.VS(version).Check()
	}
	if err != nil {
		return err
	}
	if d.opened {
		if d.cap != nvme.CAP(v) || d.version != nvme.VS(version) {
			return base.Errorf("read", "CAP and VS", base.ErrMismatch, "they were %#x and %v and are %#x and %v",
				uint64(d.cap), d.version, v, nvme.VS(version))
		}
		return nil
	}
	d.cap, d.version = nvme.CAP(v), nvme.VS(version)
	return nil
}

// unreadable adds to an error of the first registers what may be wrong with the way to
// them; the address and the device's identifiers are told with every error.
func (d *Device) unreadable(err error) error {
	id := d.hw.ID()
	iommu := "no IOMMU translates for it"
	if id.IOMMU {
		iommu = "an IOMMU translates for it"
	}
	return fmt.Errorf("a window of %s by %s, %s: %w", base.FormatBytes(int64(id.Window)), id.Transport, iommu, err)
}

// disable takes the controller to RDY = 0 from wherever a former owner left it
// (B-02): it may still be becoming ready, be shutting down, or have failed.
func (d *Device) disable(ctx context.Context) error {
	v, err := d.hw.Load32(nvme.RegCC)
	if err != nil {
		return err
	}
	cc := nvme.CC(v)
	if cc.Enabled() {
		// EN may be cleared only once RDY is 1, or the controller has failed.
		err := d.wait(ctx, "RDY = 1 of the former owner", d.timeout(), func(s nvme.CSTS) bool {
			return s.Fatal() || s.Ready() && !s.ShutdownActive() || s.ShutdownDone()
		})
		if err != nil && !errors.Is(err, base.ErrTimeout) || ctx.Err() != nil {
			return err
		}
		if err := d.hw.Store32(nvme.RegCC, uint32(cc.WithShutdown(nvme.ShutdownNone).Disabled())); err != nil {
			return err
		}
	}
	err = d.wait(ctx, "RDY = 0", d.timeout(), func(s nvme.CSTS) bool { return !s.Ready() && !s.Gone() })
	if err != nil && ctx.Err() == nil && !errors.Is(err, base.ErrDeviceGone) {
		// It does not obey: the hardware may still stop it.
		if d.hw.Stop(ctx) == nil && d.start(ctx) == nil {
			return d.wait(ctx, "RDY = 0 after a reset", d.timeout(), func(s nvme.CSTS) bool { return !s.Ready() && !s.Gone() })
		}
	}
	return err
}

func (d *Device) configure(context.Context) error {
	if d.quirk.Flags&nvme.QuirkWideSQE != 0 {
		return base.Errorf("configure", "controller", base.ErrNotSupported,
			"its submission queue entries are not those of the specification (%s)", d.quirk.Why)
	}
	shift := max(d.cap.MinPageShift(), 12)
	cc, err := nvme.MakeCC(d.cap, shift, nvme.RoundRobin)
	if err != nil {
		return err
	}
	if !d.opened {
		d.cc = cc
	}
	n := min(uint32(adminEntries), nvme.MaxAdminEntries)
	q, err := newQueue(d, 0, n, n-1, 64)
	if err != nil {
		return err
	}
	d.adminQ.Store(q)
	return errors.Join(
		d.hw.Store32(nvme.RegAQA, uint32(nvme.MakeAQA(n, n))),
		d.hw.Store64(nvme.RegASQ, q.sq.Addr),
		d.hw.Store64(nvme.RegACQ, q.cq.Addr))
}

func (d *Device) enable(ctx context.Context) error {
	if err := d.hw.Store32(nvme.RegCC, uint32(d.cc)); err != nil {
		return err
	}
	if d.quirk.Flags&nvme.QuirkReadyDelay != 0 {
		d.sleep(ctx, d.quirk.DelayMs)
	}
	err := d.wait(ctx, "RDY = 1", d.timeout(), func(s nvme.CSTS) bool { return s.Ready() || s.Fatal() })
	if err != nil {
		return err
	}
	v, err := d.hw.Load32(nvme.RegCSTS)
	if err == nil {
		err = nvme.CSTS(v).Check()
	}
	if err == nil && d.quirk.Flags&nvme.QuirkAdminDelay != 0 {
		d.sleep(ctx, d.quirk.DelayMs)
	}
	return err
}

// sleep leaves the registers alone for some milliseconds of the device's time.
func (d *Device) sleep(ctx context.Context, ms uint32) {
	for end := d.hw.Now() + time.Duration(ms)*time.Millisecond; d.hw.Now() < end && ctx.Err() == nil; {
		d.hw.Pause(end)
	}
}

func (d *Device) identifyController(ctx context.Context) error {
	var c nvme.Command
	c.SetIdentify(nvme.CNSController, 0)
	err := d.fetch(ctx, &c, nvme.IdentifySize, func(b []byte) error {
		id := nvme.Overlay[nvme.IdentifyController](b)
		if !d.opened {
			d.id = *id
			d.sgl = id.SGL()
		} else if id.SN != d.id.SN || id.MN != d.id.MN || id.MDTS != d.id.MDTS || id.VWC != d.id.VWC || id.ONCS != d.id.ONCS {
			return base.Errorf("identify", d.info.Target, base.ErrMismatch,
				"it was %q serial %q and is %q serial %q, or its abilities changed",
				d.id.Model(), d.id.Serial(), id.Model(), id.Serial())
		}
		return id.Check()
	})
	if err != nil || d.opened {
		return err
	}
	if d.version.AtLeast(2, 0) { // earlier controllers do not know the page
		c.SetIdentify(nvme.CNSControllerCSI, 0)
		err := d.fetch(ctx, &c, nvme.IdentifySize, func(b []byte) error {
			d.nvm = *nvme.Overlay[nvme.IdentifyControllerNVM](b)
			return nil
		})
		if err != nil && statusOf(err) == nil {
			return err
		}
	}
	return nil
}

// activeNamespaces reads the active list, page by page.
func (d *Device) activeNamespaces(ctx context.Context) (ids []uint32, err error) {
	for above := uint32(0); len(ids) < maxNamespaces; {
		var c nvme.Command
		c.SetIdentify(nvme.CNSActiveList, above)
		var page []uint32
		err := d.fetch(ctx, &c, nvme.IdentifySize, func(b []byte) (err error) {
			page, err = nvme.Overlay[nvme.NamespaceList](b).IDs()
			return err
		})
		if err != nil {
			return nil, err
		}
		ids = append(ids, page...)
		if len(page) < len(nvme.NamespaceList{}) || page[len(page)-1] >= nvme.NSIDAll-1 {
			break
		}
		above = page[len(page)-1]
	}
	return ids, nil
}

func (d *Device) chooseNamespace(ctx context.Context) error {
	ids, err := d.activeNamespaces(ctx)
	if err != nil {
		return err
	}
	want := d.opts.NSID
	switch {
	case want == 0 && len(ids) == 1:
		want = ids[0]
	case len(ids) == 0:
		return base.Errorf("open", d.info.Target, base.ErrNotFound, "the controller has no active namespace")
	case want == 0:
		return base.WithHint(base.Errorf("open", d.info.Target, base.ErrInvalid,
			"several namespaces are active: %v", ids), "name one")
	case !slices.Contains(ids, want):
		return base.Errorf("open", d.info.Target, base.ErrNotFound, "namespace %d is not active; these are: %v", want, ids)
	}
	if err := d.checkCommandSet(ctx, want); err != nil {
		return base.Wrap("open", fmt.Sprintf("namespace %d", want), err)
	}
	var c nvme.Command
	c.SetIdentify(nvme.CNSNamespace, want)
	return d.fetch(ctx, &c, nvme.IdentifySize, func(b []byte) error {
		ns := nvme.Overlay[nvme.IdentifyNamespace](b)
		g, err := ns.Geometry()
		if err != nil {
			return base.Wrap("open", fmt.Sprintf("namespace %d", want), err)
		}
		if size := d.id.Stripe(d.cap.MinPageShift()); g.Boundary == 0 && d.quirk.Flags&nvme.QuirkStripe != 0 && size>>g.BlockShift != 0 {
			g.Boundary = uint32(size >> g.BlockShift)
		}
		if ns.Shared() && d.id.MultiController() && !d.opts.Force {
			return base.WithHint(base.Errorf("open", fmt.Sprintf("namespace %d", want), base.ErrInUse,
				"another controller may share it"), "force it only if no one else uses it")
		}
		if d.opened {
			if g != d.geo || want != d.nsid {
				return base.Errorf("open", d.info.Target, base.ErrMismatch, "the namespace was %+v and is %+v", d.geo, g)
			}
			return nil
		}
		d.geo, d.nsid, d.protected = g, want, ns.WriteProtected()
		return nil
	})
}

// checkCommandSet refuses a namespace of another command set, such as one of zones: it
// describes itself as if it were of the NVM command set, and then fails writes that
// are. Only controllers with several command sets tell (Base 5.1.13.2.4).
func (d *Device) checkCommandSet(ctx context.Context, nsid uint32) error {
	if d.cap.CSS()&nvme.CSSIO == 0 {
		return nil
	}
	var c nvme.Command
	c.SetIdentify(nvme.CNSDescriptors, nsid)
	err := d.fetch(ctx, &c, nvme.IdentifySize, func(b []byte) error {
		id, err := nvme.ParseDescriptors(b)
		if err == nil && id.CSI != nvme.CSINVM {
			err = base.Errorf("use", "its command set", base.ErrNotSupported, "%s: only the NVM command set is",
				nvme.CSIName(id.CSI))
		}
		return err
	})
	if statusOf(err) != nil {
		return nil // it has no descriptors
	}
	return err
}

// countQueues asks for the queues (B-05): fewer may be granted, and a controller
// that fails the command has one.
func (d *Device) countQueues(ctx context.Context) error {
	var c nvme.Command
	want := uint32(d.opts.Queues)
	c.SetSetFeatures(nvme.FeatNumberOfQueues, 0, nvme.QueueCounts(want))
	dw0, err := d.admin(ctx, &c)
	d.granted = 1
	if err != nil {
		if statusOf(err) == nil {
			return err
		}
		d.reason("the controller does not count its queues (%v): one is used", err)
		return nil
	}
	sq, cq := nvme.GrantedQueues(dw0)
	d.granted = min(want, sq, cq)
	return nil
}

func (d *Device) createQueues(ctx context.Context) error {
	if !d.opened {
		d.limits()
	}
	list := int64(1) // bytes: 16 at least, for the range of a Dataset Management command
	for n := nvme.PRPEntries(dwordTail, uint64(d.limit)<<d.geo.BlockShift, d.cc.PageShift()); list < max(16, 8*int64(n)); {
		list *= 2
	}
	list = min(list, 1<<d.cc.PageShift())
	var queues []*queue
	most := d.cap.QueueEntries() // up to 65,536: not a uint16
	for id := uint16(1); id <= uint16(d.granted); id++ {
		g := d.groupFor(uint32(id))
		size := min(uint32(g.depth)+1, most)
		q, err := d.largestQueue(id, size, list)
		if err != nil {
			d.retire(queues)
			return err
		}
		queues = append(queues, q)
		if q.size < size {
			most = q.size
			d.reason("queues of at most %d commands: there is no more memory in one piece", most-1)
		}
		size = q.size
		if err = d.openVector(q, g.mode); err != nil {
			d.retire(queues)
			return err
		}
		var c nvme.Command
		vector := id
		if q.vec == nil {
			vector = 0
		}
		c.SetCreateIOCQ(id, q.cq.Addr, size, vector, q.vec != nil)
		if _, err = d.admin(ctx, &c); err == nil {
			c.SetCreateIOSQ(id, q.sq.Addr, size, id, 0)
			_, err = d.admin(ctx, &c)
		}
		if err != nil {
			d.retire(queues)
			return err
		}
	}
	if d.zero == nil {
		var err error
		if d.zero, err = d.hw.Alloc(1<<d.cc.PageShift(), "nvme zeros"); err != nil {
			d.retire(queues)
			return err
		}
	}
	d.share(queues)
	return nil
}

// largestQueue makes an I/O queue of up to size entries: half as many, and half again,
// when the transport has no piece of memory that is large enough (B-14). The depth is
// known before any memory is kept, so each ring is allocated once, at its size.
func (d *Device) largestQueue(id uint16, size uint32, list int64) (*queue, error) {
	for {
		q, err := newQueue(d, id, size, size-1, list)
		if !errors.Is(err, base.ErrNoSpace) || size == nvme.MinQueueEntries {
			return q, err
		}
		size = max(size/2, nvme.MinQueueEntries)
	}
}

// openVector gives a queue the interrupt vector with its own number; the admin
// queue has vector 0. A queue for which the device has none is polled (B-06).
func (d *Device) openVector(q *queue, m Mode) error {
	if m == Polled {
		return nil
	}
	if n := d.hw.Vectors(); int(q.id) >= n {
		if int(q.id) == max(n, 1) {
			d.reason("%d interrupt vectors: queues from %d on are polled", n, q.id)
		}
		return nil
	}
	v, err := d.hw.Vector(int(q.id))
	if err != nil {
		return err
	}
	q.vec = v
	d.reapers.Go(q.serve)
	return nil
}

// dwordTail is the offset in its first page at which a transfer needs most PRP
// entries.
const dwordTail = hw.PageSize - 4

// limits computes how large commands may be, in blocks.
func (d *Device) limits() {
	shift := d.geo.BlockShift
	blocks := func(bytes uint64) uint32 {
		return uint32(max(min(bytes>>shift, nvme.MaxBlocks), 1))
	}
	bytes := uint64(d.opts.Command)
	if n := d.id.MaxTransfer(d.cap.MinPageShift()); n != 0 {
		bytes = min(bytes, n)
	}
	d.limit = blocks(bytes)
	d.bulkLimit = blocks(uint64(max(d.opts.Bulk, 0)) / bulkCommands)
	d.zeroLimit = nvme.MaxBlocks
	if d.nvm.WZSL != 0 {
		d.zeroLimit = blocks(1 << min(uint(d.nvm.WZSL)+d.cap.MinPageShift(), 62))
	}
	d.discardLimit = math.MaxUint32
	if n := d.nvm.DMRSL.Get(); n != 0 {
		d.discardLimit = n
	}
	if n := d.nvm.DMSL.Get(); n != 0 {
		d.discardLimit = uint32(min(uint64(d.discardLimit), n))
	}
}

// enableEvents asks for the events that the driver acts on and gives the
// controller requests to report them with (Base 5.1.2). Both may fail.
func (d *Device) enableEvents(ctx context.Context) error {
	var c nvme.Command
	c.SetSetFeatures(nvme.FeatAsyncEvents, 0, nvme.EventSMART|d.id.OAES.Get()&(nvme.EventNamespace|nvme.EventFirmware))
	if _, err := d.admin(ctx, &c); err != nil {
		if statusOf(err) == nil {
			return err
		}
		d.reason("the controller reports no events: %v", err)
		return nil
	}
	d.aers = make([]*adminWait, min(int(d.id.AERL)+1, maxEvents))
	return d.requestEvents()
}

// requestEvents keeps the asynchronous event requests outstanding: it sends those
// whose event has been acted on.
func (d *Device) requestEvents() error {
	for i := range d.aers {
		if d.aers[i] != nil {
			continue
		}
		var c nvme.Command
		c.SetAsyncEventRequest()
		w := new(adminWait)
		if err := d.adminQ.Load().send(&c, w, hw.Forever); err != nil {
			return err
		}
		d.aers[i] = w
	}
	return nil
}
