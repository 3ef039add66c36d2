package store

import (
	"context"
	"sync"
	"time"

	"github.com/ugds-store/ugds/internal/base"
)

// Lease holds the versions that a Lookup found: later replaces and deletes do
// not change what its holder reads, and their space is not reused. Its expiry is
// a guard against holders that forget it, and never cuts a get in flight. Leases
// end with the process. Safe for concurrent use.
type Lease struct {
	n    *Namespace
	lead int

	mu    sync.Mutex
	held  []leased
	over  error // ErrClosed after Release, ErrLeaseExpired after the time
	until time.Time
	timer *time.Timer

	// What a lookup of one short key needs is here and not in memory of its own.
	one   [1]leased
	short [64]byte
}

// leased is the version of one key; sh is nil when it was not there.
type leased struct {
	held
	key []byte
}

// Lookup tells how many leading keys are present and leases the versions found.
// It stops at the first key missing unless All is set. The lease must be
// released. Errors: ErrInvalid for a bad key or more than 65,536 of them.
func (n *Namespace) Lookup(ctx context.Context, keys [][]byte, o LookupOptions) (*Lease, error) {
	if err := n.enter("look up", len(keys)); err != nil {
		return nil, err
	}
	defer n.s.gate.leave()
	if o.TTL < 0 {
		return nil, base.Errorf("look up", n.ns.name, ErrInvalid, "time to live %v", o.TTL)
	}
	l := &Lease{n: n, lead: -1}
	texts := l.short[:0]
	if l.held = l.one[:0]; len(keys) > len(l.one) {
		l.held = make([]leased, 0, len(keys))
	}
	for i, k := range keys {
		err := checkKey("look up", k)
		var h held
		if err == nil {
			h, err = n.hold(ctx, k, true)
		}
		if err != nil && !isNotFound(err) {
			l.end(ErrClosed)
			return nil, err
		}
		if err != nil {
			l.held = append(l.held, leased{})
			if l.lead < 0 {
				l.lead = i
			}
			if !o.All {
				break
			}
			continue
		}
		texts = append(texts, k...)
		l.held = append(l.held, leased{held: h, key: texts[len(texts)-len(k):]})
	}
	if l.lead < 0 {
		l.lead = len(keys)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = time.Now().Add(ttl(o.TTL))
	l.timer = time.AfterFunc(ttl(o.TTL), l.expire)
	return l, nil
}

func ttl(d time.Duration) time.Duration {
	if d <= 0 {
		return DefaultTTL
	}
	return d
}

// Len is the number of leading keys that are present.
func (l *Lease) Len() int { return l.lead }

// Present tells whether key i was found.
func (l *Lease) Present(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return i >= 0 && i < len(l.held) && l.held[i].sh != nil
}

// Size is the length of the value of key i in bytes, -1 when it was not found or
// the lease is over.
func (l *Lease) Size(i int) int64 {
	h, err := l.use(i)
	if err != nil {
		return -1
	}
	defer l.n.s.unpin(h.sh, h.v.gen)
	return h.v.length
}

// use takes a hold of its own on version i, so that the end of the lease does
// not touch a get in flight.
func (l *Lease) use(i int) (leased, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil {
		return leased{}, base.Wrap("use", "lease", l.over)
	}
	if i < 0 || i >= len(l.held) {
		return leased{}, base.Errorf("use", "lease", ErrOutOfRange, "key %d of %d", i, len(l.held))
	}
	h := l.held[i]
	if h.sh == nil {
		return leased{}, base.Errorf("use", "lease", ErrNotFound, "key %d was not there", i)
	}
	h.sh.mu.Lock()
	h.sh.pin(h.v.gen)
	h.sh.mu.Unlock()
	return h, nil
}

// Get reads the leased version of key i; see Namespace.Get. ErrLeaseExpired
// after the time to live, ErrClosed after Release.
func (l *Lease) Get(ctx context.Context, i int, dst Buffers, o GetOptions) (int64, error) {
	items := [1]LeaseItem{{Index: i, Dst: dst, GetOptions: o}}
	l.GetBatch(ctx, items[:])
	return items[0].N, items[0].Err
}

// LeaseItem is one entry of Lease.GetBatch; N and Err are its answer.
type LeaseItem struct {
	Index int
	Dst   Buffers
	GetOptions
	N   int64
	Err error
}

// GetBatch reads leased versions, at most MaxBatchKeys, as one deep submission.
func (l *Lease) GetBatch(ctx context.Context, items []LeaseItem) {
	err := l.n.enter("get", len(items))
	if err == nil {
		defer l.n.s.gate.leave()
	}
	gets := make([]*getItem, 0, len(items))
	of := make([]int, 0, len(items))
	for i := range items {
		li := &items[i]
		li.N = 0
		if li.Err = firstErr(err, li.Dst.check("get")); li.Err != nil {
			continue
		}
		h, err := l.use(li.Index)
		if li.Err = err; err == nil {
			gets = append(gets, &getItem{gi: &GetItem{Key: h.key, Dst: li.Dst, GetOptions: li.GetOptions}, h: h.held})
			of = append(of, i)
		}
	}
	l.n.readAll(ctx, gets)
	for k, g := range gets {
		items[of[k]].N, items[of[k]].Err = g.gi.N, g.gi.Err
	}
}

// Renew lets the lease live for d from now on; 0 means DefaultTTL.
func (l *Lease) Renew(d time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil {
		return base.Wrap("renew", "lease", l.over)
	}
	l.until = time.Now().Add(ttl(d))
	l.timer.Reset(ttl(d))
	return nil
}

// Release ends the lease. Releasing twice is harmless.
func (l *Lease) Release() { l.end(ErrClosed) }

func (l *Lease) expire() { l.end(ErrLeaseExpired) }

func (l *Lease) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	late := why == ErrLeaseExpired && time.Now().Before(l.until) // renewed when its timer had fired
	if l.over != nil || late {
		return
	}
	l.over = why
	if l.timer != nil {
		l.timer.Stop()
	}
	for _, h := range l.held {
		if h.sh != nil {
			l.n.s.unpin(h.sh, h.v.gen)
		}
	}
}

// Reader reads one version of an object, whatever happens to its key. It must be
// closed. Safe for concurrent use.
type Reader struct {
	n   *Namespace
	key []byte
	h   held

	mu     sync.Mutex
	closed bool
}

// NewReader opens the object for reading. ErrNotFound when there is none.
func (n *Namespace) NewReader(ctx context.Context, key []byte) (*Reader, error) {
	if err := n.s.gate.enter("get", n.ns.name); err != nil {
		return nil, err
	}
	defer n.s.gate.leave()
	if err := checkKey("get", key); err != nil {
		return nil, err
	}
	h, err := n.hold(ctx, key, true)
	if err != nil {
		return nil, err
	}
	return &Reader{n: n, key: append([]byte(nil), key...), h: h}, nil
}

// Size of the value in bytes.
func (r *Reader) Size() int64 { return r.h.v.length }

// use takes a hold for one read, so that Close does not touch it: without one the
// space of the version may be another's.
func (r *Reader) use() (held, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return held{}, base.Wrap("read", keyText(r.key), ErrClosed)
	}
	r.h.sh.mu.Lock()
	defer r.h.sh.mu.Unlock()
	r.h.sh.pin(r.h.v.gen)
	return r.h, nil
}

// ReadRange reads len(p) bytes at off. ErrOutOfRange past the end, ErrClosed after
// Close.
func (r *Reader) ReadRange(ctx context.Context, p []byte, off int64) error {
	return r.ReadBuffers(ctx, Bytes(p), off)
}

// Close ends the hold; reads under way go on. Closing twice is harmless.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		r.n.s.unpin(r.h.sh, r.h.v.gen)
	}
	return nil
}
