package sim

import (
	"time"

	"github.com/ugds-store/ugds/driver/nvme"
)

// Moment is a point in the life of an I/O command.
type Moment uint8

// The moments, in order. A command may end without having been executed.
const (
	Fetched  Moment = iota // taken from its queue: from now on its data may move
	Executed               // its data has moved, and nobody knows yet
	Ended                  // its completion was posted
)

// Seen is an I/O command at a moment.
type Seen struct {
	Moment  Moment
	ID      uint64 // of the command, never used again
	Queue   uint16
	Command *nvme.Command
	Status  nvme.Status   // at Executed and Ended
	Begin   time.Duration // when it was fetched
	Now     time.Duration
	s       *Sim
	o       *op
}

// Data is the memory that a read or write names, in pieces; nil if it cannot be
// reached. It is good until the observer returns.
func (x *Seen) Data() [][]byte {
	m := x.s.find(x.Command.NSID.Get())
	if m == nil {
		return nil
	}
	mem, st := x.s.pieces(x.o, uint64(x.Command.Blocks())<<m.ns.BlockShift)
	if st != 0 {
		return nil
	}
	return mem
}

// Observe calls fn at each moment of each I/O command; nil ends that. fn is called
// with the lock of the model held: it may use Locked, of this and of other models
// with the same lock, and must not block.
func (s *Sim) Observe(fn func(Seen)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observer = fn
}

func (s *Sim) observe(m Moment, o *op, status nvme.Status) {
	if s.observer == nil || o.sq.id == 0 {
		return
	}
	s.watched = true
	s.observer(Seen{m, o.seq, o.sq.id, &o.cmd, status, o.begin, s.now, s, o})
	s.watched = false
}

// cutNow does what an observer asked for, now that the model is not in the middle
// of a command.
func (s *Sim) cutNow() bool {
	cut := s.powerCut
	if cut == nil {
		return false
	}
	s.powerCut = nil
	cut()
	return true
}

// Locked is a model whose lock, Config.Lock, the caller holds.
type Locked struct{ s *Sim }

// Locked is for callers that hold the lock.
func (s *Sim) Locked() Locked { return Locked{s} }

// Power is Sim.Power. Called by the observer of the same model, it waits until the
// present command has gone its step; then is called when it is done.
func (l Locked) Power(then func(Loss)) {
	if l.s.watched {
		l.s.powerCut = func() { then(l.s.power()) }
		return
	}
	then(l.s.power())
}

// Fatal is Sim.Fatal.
func (l Locked) Fatal() {
	l.s.csts |= nvme.CSTSFatal
	l.s.wakeAll()
}

// Ones is Sim.Ones.
func (l Locked) Ones() {
	l.s.ones = true
	l.s.wakeAll()
}

// Script is Sim.Script.
func (l Locked) Script(rules ...Rule) {
	l.s.rules = l.s.rules[:0]
	for _, r := range rules {
		l.s.rules = append(l.s.rules, &r)
	}
}

// Image is one instant of a model: its namespaces with what is in the cache, and
// the commands in flight with their data. Models can be made of it any number of
// times.
type Image struct {
	cfg     Config
	media   []*media
	flying  []late
	cc      nvme.CC
	enabled bool // the controller had been brought up
}

// Fate is what an image went through before it became a model.
type Fate uint8

// The fates.
const (
	// PowerLost: the cache and the commands in flight are there or not, block by
	// block.
	PowerLost Fate = iota
	// HostLost: the controller lives. It is enabled, its cache is kept, and
	// commands in flight may land until the next driver has stopped it.
	HostLost
	// AllEnded: nothing happened to it, and every command in flight was executed.
	AllEnded
)

// Image keeps this instant. The namespaces are in memory, not in a file.
func (l Locked) Image() *Image {
	s := l.s
	im := &Image{cfg: s.cfg, cc: s.cc, enabled: s.cc.Enabled() && s.csts.Ready()}
	for _, m := range s.media {
		im.media = append(im.media, m.clone())
	}
	im.flying = append(im.flying, s.late...)
	for o := range s.inFlight() {
		if x, ok := s.collect(o); ok {
			im.flying = append(im.flying, x)
		}
	}
	return im
}

// Open makes a model of an image. change, if not nil, may change everything of its
// Config but the namespaces.
func (im *Image) Open(fate Fate, change func(c *Config)) (*Sim, Loss, error) {
	cfg := im.cfg
	if change != nil {
		change(&cfg)
	}
	var content []*media
	for _, m := range im.media {
		content = append(content, m.clone())
	}
	s, err := open(cfg, content)
	if err != nil {
		return nil, Loss{}, err
	}
	var loss Loss
	for i := range im.flying {
		l := &im.flying[i]
		switch {
		case fate == AllEnded:
			loss.Add(s.landPart(l, func() bool { return true }))
		case fate == HostLost && s.rnd.IntN(2) == 0:
			s.late = append(s.late, *l)
		default:
			loss.Add(s.land(l))
		}
	}
	switch {
	case fate == PowerLost:
		loss.Add(s.power())
		s.unaware = false
	case fate == HostLost && im.enabled:
		s.cc, s.csts = im.cc, s.csts|nvme.CSTSReady
	}
	return s, loss, nil
}

// Late is how many commands of a host that died have not landed yet.
func (s *Sim) Late() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.late)
}

// Read copies what a read of a namespace would return.
func (l Locked) Read(namespace int, off uint64, p []byte) { l.s.media[namespace].read(p, off) }

// Write changes the content of a namespace, as if it had been there from the
// beginning.
func (l Locked) Write(namespace int, off uint64, p []byte) { l.s.media[namespace].put(p, off) }
