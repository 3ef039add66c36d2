package store

import (
	"hash/crc32"
	"runtime/debug"
	"sync"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	gpuxfer "github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
)

// Bounds of windows.
const (
	// minWindow is the least value that gets one, in bytes.
	minWindow = base.MiB
	// windowSeen bounds how many values are remembered that were read once: the
	// second read of a value is what makes a window.
	windowSeen = 4096
	// windowQueue bounds the windows that wait to be opened; more are not.
	windowQueue = 64
)

// window is one version of an object in the reach of the GPUs: its extents, mapped
// through the page cache and registered for reading. It holds the version as a
// reader does, so that its extents are neither handed out nor discarded (I2), and
// ends as soon as the version leaves the index: what would be written there past
// the page cache, a GPU would not see.
type window struct {
	h     held
	parts []windowPart
	bytes int64 // of the extents

	// Under windows.mu.
	users int    // gets that copy from it
	last  uint64 // the clock at the last use
	dead  bool
}

type windowPart struct {
	w    *gpuxfer.Window
	end  gpuxfer.Endpoint
	from int64 // of the value
	n    int64
}

// windows are those of a store. One goroutine opens and ends them: registering
// takes a millisecond and more, and the end hangs while a stream of a GPU waits.
type windows struct {
	s      *Store
	budget int64

	mu    sync.Mutex
	wake  *sync.Cond
	byGen map[uint64]*window // a nil one is being opened
	seen  map[uint64]struct{}
	open  []held    // to be opened
	ends  []*window // to be ended
	bytes int64
	clock uint64
	stop  bool
	done  chan struct{}
	count WindowStats
}

// WindowStats of the windows over the store's own files.
type WindowStats struct {
	Windows int64 `json:"windows"` // now
	Bytes   int64 `json:"bytes"`   // that they cover
	Opened  int64 `json:"opened"`
	Refused int64 `json:"refused"` // by the device, the library or a checksum
	Hits    int64 `json:"hits"`    // gets that needed no device
}

// newWindows gives nil where there are none to be. They are for stores that only
// their owner writes: one that was opened for reading may have a writer beside it.
func newWindows(s *Store, o *Options) *windows {
	if o.GPU.Backend == nil || o.GPU.WindowBytes <= 0 || o.ReadOnly {
		return nil
	}
	w := &windows{s: s, budget: o.GPU.WindowBytes, byGen: map[uint64]*window{}, seen: map[uint64]struct{}{}, done: make(chan struct{})}
	w.wake = sync.NewCond(&w.mu)
	return w
}

// take gives the window of a version that the caller holds, for use until give. The
// second time that a value has none it asks for one.
func (ws *windows) take(h held) *window {
	if ws == nil || h.v.length < minWindow || h.v.gen > ws.s.marks.committed.Load() {
		return nil
	}
	ws.mu.Lock()
	ws.clock++
	w, known := ws.byGen[h.v.gen]
	ask := false
	switch _, again := ws.seen[h.v.gen]; {
	case w != nil && !w.dead:
		w.users++
		w.last = ws.clock
		ws.count.Hits++
	case known || ws.stop:
		w = nil
	case !again:
		w = nil
		if len(ws.seen) >= windowSeen {
			clear(ws.seen)
		}
		ws.seen[h.v.gen] = struct{}{}
	default:
		w, ask = nil, len(ws.open) < windowQueue
		if ask {
			delete(ws.seen, h.v.gen)
			ws.byGen[h.v.gen] = nil
		}
	}
	ws.mu.Unlock()
	if !ask {
		return w
	}
	h.sh.mu.Lock() // the caller holds the version: it is still there
	h.sh.pin(h.v.gen)
	h.sh.mu.Unlock()
	ws.mu.Lock()
	ws.open = append(ws.open, h)
	ws.mu.Unlock()
	ws.wake.Signal()
	return nil
}

// give ends one use.
func (ws *windows) give(w *window) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.users--; w.users == 0 && w.dead {
		ws.ends = append(ws.ends, w)
		ws.wake.Signal()
	}
}

// retire ends a window after its last use. The caller may hold the lock of a shard.
func (ws *windows) retire(w *window) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.retireLocked(w)
}

func (ws *windows) retireLocked(w *window) {
	if w.dead {
		return
	}
	w.dead = true
	if w.users == 0 {
		ws.ends = append(ws.ends, w)
		ws.wake.Signal()
	}
}

// run opens and ends windows until the store closes.
func (ws *windows) run() {
	defer close(ws.done)
	for {
		ws.mu.Lock()
		for len(ws.ends) == 0 && len(ws.open) == 0 && !(ws.stop && len(ws.byGen) == 0) {
			ws.wake.Wait()
		}
		ends, open := ws.ends, ws.open
		ws.ends, ws.open = nil, nil
		over := ws.stop && len(ws.byGen) == 0
		ws.mu.Unlock()
		if over {
			return
		}
		for _, w := range ends {
			ws.end(w)
		}
		for _, h := range open {
			ws.add(h)
		}
	}
}

// close ends every window; no call is inside the store. The channel is closed when
// the last one is gone, which takes as long as a stream of a GPU waits.
func (ws *windows) close() <-chan struct{} {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.stop = true
	for _, w := range ws.byGen {
		if w != nil {
			ws.retireLocked(w)
		}
	}
	ws.wake.Signal()
	return ws.done
}

// add opens a window, or forgets the version.
func (ws *windows) add(h held) {
	w := &window{h: h}
	for _, e := range h.v.exts {
		w.bytes += e.Bytes()
	}
	err := ws.room(w)
	if err == nil {
		err = ws.s.openWindow(w)
	}
	if err == nil {
		err = w.verify()
	}
	h.sh.mu.Lock()
	p := h.sh.pins[h.v.gen] // ours is among them
	p.window = w
	gone := p.dead || p.lost
	h.sh.mu.Unlock()
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.byGen[h.v.gen] = w
	ws.bytes += w.bytes
	if err != nil {
		ws.count.Refused++
	} else {
		ws.count.Opened++
	}
	if err != nil || gone || ws.stop {
		ws.retireLocked(w)
	}
}

// room makes room in the budget by ending the windows that were not used for the
// longest time. ErrNoSpace when those in use leave too little.
func (ws *windows) room(w *window) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	free := ws.budget - ws.bytes
	for free < w.bytes {
		var old *window
		for _, o := range ws.byGen {
			if o != nil && !o.dead && o.users == 0 && (old == nil || o.last < old.last) {
				old = o
			}
		}
		if old == nil {
			return base.Errorf("open", "window", ErrNoSpace, "%d bytes, %d of %d are free", w.bytes, ws.budget-ws.bytes, ws.budget)
		}
		free += old.bytes
		old.dead = true
		ws.mu.Unlock()
		ws.end(old)
		ws.mu.Lock()
	}
	return nil
}

// end unregisters and unmaps a window that nobody uses, and lets go of the version.
// Where that fails a GPU may still read: the extents then stay.
func (ws *windows) end(w *window) {
	ok := true
	for _, p := range w.parts {
		ok = p.w.Close() == nil && ok
	}
	w.h.sh.mu.Lock()
	w.h.sh.pins[w.h.v.gen].window = nil
	w.h.sh.mu.Unlock()
	ws.mu.Lock()
	delete(ws.byGen, w.h.v.gen)
	ws.bytes -= w.bytes
	ws.mu.Unlock()
	if ok {
		ws.s.unpin(w.h.sh, w.h.v.gen)
	}
}

// openWindow maps and registers the extents.
func (s *Store) openWindow(w *window) error {
	var at int64
	dev := s.opts.GPU.Backend.Devices()[0] // registered memory is portable
	for _, e := range w.h.v.exts {
		m, ok := s.devs[e.Dev].(driver.Mapper)
		if !ok {
			return base.Errorf("map", s.devs[e.Dev].Info().Target, ErrNotSupported, "it has no page cache")
		}
		n := min(e.Bytes(), w.h.v.length-at)
		win, err := gpuxfer.OpenWindow(dev, m, e.Off(), e.Bytes())
		if err != nil {
			return err
		}
		w.parts = append(w.parts, windowPart{win, win.Endpoint(), at, n})
		at += n
	}
	return nil
}

// verify compares the checksums of what is mapped with those of the version. A page
// that cannot be read is a fault, which is caught.
func (w *window) verify() (err error) {
	v := &w.h.v
	if v.noCRC {
		return nil
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = base.Errorf("read", "window", ErrCorrupt, "a page of the file cannot be read: %v", r)
		}
	}()
	crc, piece := uint32(0), 0
	for _, p := range w.parts {
		for at := int64(0); at < p.n; {
			pos := p.from + at
			n := min(p.n-at, PieceBytes-pos%PieceBytes)
			crc = crc32.Update(crc, castagnoli, p.w.Bytes()[at:at+n])
			if at += n; (pos+n)%PieceBytes == 0 || pos+n == v.length {
				want := v.crc
				if v.pieces() > 1 {
					want = v.sums[piece]
				}
				if crc != want {
					return base.Errorf("read", "window", ErrCorrupt, "checksum of piece %d is %08x, it was stored as %08x", piece, crc, want)
				}
				crc, piece = 0, piece+1
			}
		}
	}
	return nil
}

// windowGet is a get that is served by a window.
type windowGet struct {
	g *getItem
	w *window
}

// useWindow takes the window for a get into GPU memory, if there is one.
func (s *Store) useWindow(g *getItem) (windowGet, bool) {
	if s.win == nil || g.it.gpu == nil || g.it.n < minWindow || !g.it.verify && !g.it.v.noCRC {
		return windowGet{}, false
	}
	for i := range g.it.cur.bufs {
		if r := &g.it.cur.bufs[i]; r.GPU == 0 && r.size() > 0 {
			return windowGet{}, false
		}
	}
	w := s.win.take(g.h)
	return windowGet{g, w}, w != nil
}

// copyWindows moves the gets that have windows, and ends their use. Errors go to
// the gets.
func (s *Store) copyWindows(all []windowGet) {
	f := &flight{s: s, op: driver.OpRead}
	for k, wg := range all {
		it := &wg.g.it
		f.xfers = append(f.xfers, xfer{it: it})
		cur, off, left := it.cur, it.off, it.n
		for _, p := range wg.w.parts {
			for left > 0 && off >= p.from && off < p.from+p.n {
				cur.skipEmpty()
				r := &cur.bufs[cur.i]
				n := min(left, p.from+p.n-off, r.size()-cur.pos)
				f.moves = append(f.moves, gpuMove{k, it, gpuWay{dev: it.gpu.ranges[cur.i].dev},
					gpuxfer.Item{End: p.end, Off: off - p.from, Ptr: r.GPU + gpu.Ptr(r.Off+cur.pos), Len: n}})
				cur.pos += n
				off, left = off+n, left-n
			}
		}
	}
	f.move()
	doubt := false
	for k := range f.xfers {
		x := &f.xfers[k]
		if x.it.err == nil {
			x.it.err = x.err
		}
		doubt = doubt || x.err != nil && gpuxfer.InDoubt(x.err)
	}
	for _, wg := range all {
		if !doubt { // else a GPU may still read them: they stay
			s.win.give(wg.w)
		}
	}
}

func (ws *windows) stats() *WindowStats {
	if ws == nil {
		return nil
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	st := ws.count
	st.Bytes = ws.bytes
	for _, w := range ws.byGen {
		if w != nil && !w.dead {
			st.Windows++
		}
	}
	return &st
}
