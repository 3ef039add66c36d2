package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/ugds-store/ugds/alloc"
	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/meta"
)

// opening collects what Open and Check learn before anything is changed.
type opening struct {
	devs   []driver.Device // in the order of the pool
	ios    []*blockIO
	quorum []quorum
	layout Layout
	key    [16]byte
	top    mark     // the highest commit mark of all devices
	seq    []uint64 // highest mark sequence of each device
	id     meta.Identity
	// readOnly is why the store can only be read, or nil.
	readOnly error
}

func (p *opening) close() {
	for _, io := range p.ios {
		io.close()
	}
}

// examine reads superblocks, marks and the metadata's identity, and refuses
// what does not belong together. It changes nothing.
func examine(ctx context.Context, devices []driver.Device, mo meta.Options) (*opening, error) {
	if len(devices) == 0 || len(devices) > MaxStoreDevices {
		return nil, base.Errorf("open", "store", ErrInvalid, "%d devices, the limit is 1 to %d", len(devices), MaxStoreDevices)
	}
	p := &opening{}
	err := p.readDevices(ctx, devices)
	if err == nil {
		err = p.readIdentity(mo)
	}
	if err == nil {
		err = p.readMarks(ctx)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// What an owner can do about parts that do not belong together.
const (
	devicesHint = "name the devices of one store, each once; ugdsctl device list tells what they hold"
	partsHint   = "name the metadata and the devices of one store"
	emptyHint   = "format begins an empty store, and every value would be lost"
)

// readDevices reads the superblocks and puts the devices in the order of the pool.
func (p *opening) readDevices(ctx context.Context, devices []driver.Device) error {
	n := len(devices)
	p.devs, p.quorum, p.ios = make([]driver.Device, n), make([]quorum, n), make([]*blockIO, n)
	var first *superblock
	ios := make([]*blockIO, 0, n)
	defer func() {
		for i := range p.ios { // whatever did not get a place is closed here
			if p.ios[i] == nil {
				p.ios = ios
				return
			}
		}
	}()
	for _, d := range devices {
		io, err := newBlockIO(d)
		if err != nil {
			return err
		}
		ios = append(ios, io)
		q, err := io.readSupers(ctx)
		if err != nil {
			return err
		}
		s := q.super
		if first == nil {
			first = s
		}
		target := d.Info().Target
		switch {
		case s.StoreID != first.StoreID:
			return base.WithHint(base.Errorf("open", target, ErrMismatch, "it belongs to store %v, not to %v", s.StoreID, first.StoreID), devicesHint)
		case len(s.Devices) != n:
			return base.WithHint(base.Errorf("open", target, ErrMismatch, "the store has %d devices, %d were given", len(s.Devices), n), devicesHint)
		case p.devs[s.Index] != nil:
			return base.WithHint(base.Errorf("open", target, ErrMismatch, "it is device %d, and so is %s", s.Index, p.devs[s.Index].Info().Target), devicesHint)
		case s.SlabSize != first.SlabSize || s.FPKey != first.FPKey:
			return base.WithHint(base.Errorf("open", target, ErrMismatch, "its superblock differs from that of %s", devices[0].Info().Target), devicesHint)
		}
		p.devs[s.Index], p.ios[s.Index], p.quorum[s.Index] = d, io, q
		if !q.whole {
			p.readOnly = base.WithHint(base.Errorf("open", target, ErrReadOnly, "only %d of %d superblock copies is valid", q.valid, superCopies),
				"get what is needed out of it, and only then format the device anew")
		}
	}
	p.key = first.FPKey
	p.layout = Layout{StoreID: first.StoreID, Version: first.Version, SlabBytes: first.SlabSize}
	for _, q := range p.quorum {
		p.layout.Devices = append(p.layout.Devices, q.super.Layout)
		p.layout.PoolBytes += int64(q.super.Layout.Slabs) * first.SlabSize
		p.layout.Epoch = max(p.layout.Epoch, q.super.Epoch)
	}
	return nil
}

// readIdentity compares the metadata directory with the superblocks, before
// Pebble is opened.
func (p *opening) readIdentity(mo meta.Options) (err error) {
	if p.id, err = meta.ReadIdentity(mo); err != nil {
		return err
	}
	if ID(p.id.Store) != p.layout.StoreID {
		return base.WithHint(base.Errorf("open", mo.Dir, ErrMismatch, "this metadata belongs to store %v, the devices to %v",
			ID(p.id.Store), p.layout.StoreID), partsHint)
	}
	if len(p.id.Devices) != len(p.devs) {
		return base.WithHint(base.Errorf("open", mo.Dir, ErrMismatch, "this metadata knows %d devices, the superblocks %d",
			len(p.id.Devices), len(p.devs)), partsHint)
	}
	for i, q := range p.quorum {
		if ID(p.id.Devices[i]) != q.super.DeviceID {
			return base.WithHint(base.Errorf("open", mo.Dir, ErrMismatch, "device %d is %v in the metadata and %v on %s",
				i, ID(p.id.Devices[i]), q.super.DeviceID, p.devs[i].Info().Target), partsHint)
		}
		// The epoch rises in the metadata first, then on the devices.
		switch e := q.super.Epoch; {
		case p.id.Epoch < e:
			return base.WithHint(base.Errorf("open", mo.Dir, ErrMismatch, "the metadata is of epoch %d, %s of %d: it is an older copy",
				p.id.Epoch, p.devs[i].Info().Target, e), "bring the newest metadata back; "+emptyHint)
		case p.id.Epoch > e+1:
			return base.WithHint(base.Errorf("open", mo.Dir, ErrMismatch, "%s is of epoch %d, the metadata of %d: the device is an older copy",
				p.devs[i].Info().Target, e, p.id.Epoch), "bring the newest copy of the device back; "+emptyHint)
		}
	}
	return nil
}

func (p *opening) readMarks(ctx context.Context) error {
	p.seq = make([]uint64, len(p.devs))
	for i, io := range p.ios {
		top, seq, err := io.readMarks(ctx, p.layout.StoreID, p.layout.Devices[i].ID)
		if err != nil {
			return err
		}
		p.seq[i] = seq
		if top.Gen > p.top.Gen {
			p.top = top
		}
	}
	return nil
}

// checkHeader refuses a database that is older than what the devices prove.
func (p *opening) checkHeader(h meta.Header, dir string) error {
	hint := "bring the newest metadata back; " + emptyHint
	if h.Epoch != p.id.Epoch && h.Epoch+1 != p.id.Epoch {
		return base.WithHint(base.Errorf("open", dir, ErrMismatch, "the database is of epoch %d, the identity file of %d", h.Epoch, p.id.Epoch), "%s", hint)
	}
	if h.LastGen < p.top.Gen {
		return base.WithHint(base.Errorf("open", dir, ErrMismatch,
			"the last commit of the metadata is generation %d, a device proves %d: the metadata lost commits or is an older copy",
			h.LastGen, p.top.Gen), "%s", hint)
	}
	return nil
}

// Open opens a store on devices that the caller opened, and with them locked.
// Errors: ErrCorrupt (superblocks, overlapping objects, a damaged database),
// ErrMismatch (devices and metadata do not belong together, or one is an older
// copy), ErrLocked, ErrNotSupported (a later format). An Open that fails changed
// neither the devices nor any record.
func Open(ctx context.Context, o Options) (*Store, error) {
	o.fill()
	p, err := examine(ctx, o.Devices, o.Meta)
	if err != nil {
		return nil, err
	}
	if p.readOnly != nil {
		o.ReadOnly = true
	}
	s := newStore(o, p)
	if err := s.loadWith(ctx, p, s.loadAll); err != nil {
		s.abandon(ctx)
		return nil, err
	}
	if o.ReadOnly {
		s.setReadOnly(firstErr(p.readOnly, base.Errorf("change", "store", ErrReadOnly, "it was opened for reading")))
		return s, nil
	}
	err = s.reopenMeta(ctx)
	if err == nil {
		err = s.raiseEpoch(ctx, p)
	}
	if err != nil {
		s.abandon(ctx)
		return nil, err
	}
	s.start()
	return s, nil
}

func newStore(o Options, p *opening) *Store {
	s := &Store{opts: o, layout: p.layout, devs: p.devs, ios: p.ios, hash: newHasher(p.key),
		ns: make(map[string]*nsState), nsByID: make(map[uint32]*nsState),
		kick: make(chan struct{}, 1), flushed: make(chan *flushedRound), stop: make(chan struct{}), memAlign: 1,
		batches: [2]*meta.Batch{meta.NewBatch(), meta.NewBatch()}}
	s.disc.wake = make(chan struct{}, 1)
	s.marks.seq = p.seq
	s.gpu = newGPUSide(s, o.GPU)
	s.win = newWindows(s, &o)
	for _, d := range s.devs {
		s.memAlign = max(s.memAlign, d.Info().MemAlign)
	}
	return s
}

// abandon releases what a failed Open holds, also when its context is over.
func (s *Store) abandon(ctx context.Context) {
	if s.db != nil {
		_ = s.db.Close(context.WithoutCancel(ctx))
	}
	for _, io := range s.ios {
		io.close()
	}
	if s.stage != nil {
		_ = s.stage.close()
	}
	if s.idx != nil {
		s.idx.close()
	}
}

// loadWith opens the database and calls all, which builds the index and the free
// space from every record.
func (s *Store) loadWith(ctx context.Context, p *opening, all func(context.Context) error) (err error) {
	if s.pool, err = alloc.New(s.layout.allocGeometry()); err != nil {
		return err
	}
	if s.stage, err = newStaging(s.opts.StagingBytes, s.devs); err != nil {
		return err
	}
	// Everything is judged on a read-only database, since one that is opened for
	// writing is changed by that alone. A lost lock file, which readers need, is made
	// again before.
	if !s.opts.ReadOnly {
		if err := meta.RestoreLock(s.opts.Meta); err != nil {
			return err
		}
	}
	if err := s.openMeta(true); err != nil {
		return err
	}
	h := s.db.Header()
	if err := p.checkHeader(h, s.opts.Meta.Dir); err != nil {
		return err
	}
	if s.idx, err = newIndex(s.db.EstimateRecords()); err != nil {
		return err
	}
	names, err := s.db.Namespaces()
	if err != nil {
		return err
	}
	for _, m := range names {
		s.addNamespace(m)
	}
	s.q.gen = max(h.LastGen, p.top.Gen)
	s.marks.committed.Store(h.LastGen)
	s.space.mark = p.top.Gen
	if err := all(ctx); err != nil {
		return err
	}
	return s.idx.fit()
}

// openMeta opens the database.
func (s *Store) openMeta(readOnly bool) (err error) {
	o := s.opts.Meta
	o.ReadOnly = readOnly
	user := o.OnEvent
	o.OnEvent = func(e meta.Event) {
		s.events.emit(Event{Kind: EventMeta, Err: metaEvent(e)})
		if user != nil {
			user(e)
		}
	}
	s.db, err = meta.Open(o)
	return err
}

// reopenMeta opens the database for writing, after it was found right.
func (s *Store) reopenMeta(ctx context.Context) error {
	h := s.db.Header()
	if err := s.db.Close(ctx); err != nil {
		return base.Wrap("open", "metadata", err)
	}
	s.db = nil
	if err := s.openMeta(false); err != nil {
		return err
	}
	if now := s.db.Header(); now != h {
		return base.Errorf("open", s.opts.Meta.Dir, ErrMismatch, "the metadata changed while it was opened: %+v, then %+v", h, now)
	}
	return nil
}

// metaEvent puts an event of the metadata into words.
func metaEvent(e meta.Event) error {
	text := fmt.Sprintf("metadata %s: %s %s", e.Kind, e.Text, e.Path)
	if e.Duration > 0 {
		text += fmt.Sprintf(" for %v", e.Duration)
	}
	if e.Err != nil {
		return fmt.Errorf("%s: %w", text, e.Err)
	}
	return errors.New(text)
}

// overlapError marks a refusal of the allocator: the blocks belong to another
// object already, or cannot belong to any.
type overlapError struct{ err error }

var errOverlap = errors.New("overlap")

func (e *overlapError) Error() string   { return e.err.Error() }
func (e *overlapError) Unwrap() []error { return []error{errOverlap, e.err} }

// versionOf checks a record against the geometry. The extents are appended to
// buf.
func (s *Store) versionOf(key []byte, r *meta.Record, buf []alloc.Extent) (version, error) {
	v := version{gen: r.Gen, length: r.Length, crc: r.CRC, noCRC: r.Flags&meta.FlagNoChecksum != 0, exts: buf}
	var room int64
	for _, p := range r.Extents {
		e := alloc.Unpack(p)
		if int(e.Dev) >= len(s.devs) || !e.Valid() {
			return v, base.Errorf("load", keyText(key), ErrCorrupt, "extent %v", e)
		}
		v.exts = append(v.exts, e)
		room += e.Bytes()
	}
	pieces := 0
	if n := v.pieces(); n > 1 && !v.noCRC {
		pieces = n
	}
	if r.Length < 0 || r.Length > room || r.Gen == 0 || r.Gen > genMask || len(r.PieceCRCs) != pieces {
		return v, base.Errorf("load", keyText(key), ErrCorrupt, "length %d in %d bytes of extents, generation %d, %d checksums",
			r.Length, room, r.Gen, len(r.PieceCRCs))
	}
	s.q.gen = max(s.q.gen, r.Gen)
	return v, nil
}

// raiseEpoch makes this open distinguishable from every other: metadata first,
// synced, then all superblocks.
func (s *Store) raiseEpoch(ctx context.Context, p *opening) error {
	epoch := p.id.Epoch + 1
	// Devices may be one behind after a crash in here; raising the metadata by
	// two would make them look like older copies.
	for _, q := range p.quorum {
		if q.super.Epoch < p.id.Epoch {
			epoch = p.id.Epoch
		}
	}
	// What was read may lie in caches alone, where a process that was killed in here
	// left it. If power took that after the next step, the two would be too far apart.
	for i := range p.quorum {
		if err := flushIfVolatile(ctx, s.ios[i].dev); err != nil {
			return base.Wrap("flush", s.ios[i].dev.Info().Target, err)
		}
	}
	id := p.id
	id.Epoch = epoch
	if err := meta.WriteIdentity(s.opts.Meta, id); err != nil {
		return base.Wrap("open", "metadata", err)
	}
	if s.db.Header().Epoch < epoch {
		if err := s.db.RaiseEpoch(ctx, epoch); err != nil {
			return base.Wrap("open", "metadata", err)
		}
	}
	for i, q := range p.quorum {
		sb := *q.super
		sb.Epoch, sb.Seq = epoch, q.seq+1
		if err := s.ios[i].writeSupers(ctx, &sb, q.order); err != nil {
			return err
		}
		for range superCopies {
			s.paths.Add(ownWrite, base.StoreBlock)
		}
	}
	s.layout.Epoch, s.marks.epoch = epoch, epoch
	return nil
}

// start begins the goroutines.
func (s *Store) start() {
	for d := range s.devs {
		s.watch(d)
	}
	if s.win != nil {
		go s.win.run() // Close waits for it
	}
	s.loops.Add(3)
	go s.flushLoop()
	go s.commitLoop()
	go s.discardLoop()
	s.wake()
	for d := range s.devs {
		if s.devs[d].State() != driver.StateReady {
			d := d
			s.background(func() { s.recoverDevice(d) })
		}
	}
}

// IsRefusal tells whether an error of Open means that the devices and the
// metadata do not belong together or are damaged, as opposed to being busy.
func IsRefusal(err error) bool {
	return errors.Is(err, ErrMismatch) || errors.Is(err, ErrCorrupt)
}
