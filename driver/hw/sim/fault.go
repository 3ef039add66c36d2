package sim

import (
	"slices"
	"time"

	"github.com/ugds-store/ugds/driver/nvme"
)

// Kind is a way in which a command, or the whole controller, fails.
type Kind uint8

// The kinds of faults.
const (
	FaultDelay          Kind = iota // it ends up to Delay later than it should
	FaultLose                       // it is never executed and never ends
	FaultLoseCompletion             // it is executed, but its completion is never posted
	FaultDuplicate                  // its completion is posted twice
	FaultWrongSQID                  // its completion names another submission queue
	FaultWildSQHD                   // its completion has a head that cannot be
	FaultUnknownCID                 // its completion names a command that is not in flight
	FaultStatus                     // it is not executed and ends with Status
	FaultFatal                      // the controller sets CSTS.CFS and stops
	FaultOnes                       // registers read as ones from now on, until Stop
	FaultRemove                     // the device is pulled out
	FaultPower                      // the power is cut
	faultKinds
)

var kindNames = [faultKinds]string{"delay", "lose", "lose completion", "duplicate", "wrong SQID", "wild SQHD",
	"unknown CID", "status", "fatal", "ones", "remove", "power"}

// String names the kind.
func (k Kind) String() string { return kindNames[k] }

// Rule makes commands fail. A command that several rules match takes the first.
type Rule struct {
	Kind  Kind
	Admin bool // admin commands instead of I/O commands
	// Ops are the opcodes meant; none means all, asynchronous event requests not
	// included.
	Ops []nvme.Opcode
	// From and To limit the rule to I/O commands whose first block lies in
	// [From, To); both 0 means all.
	From, To uint64
	Skip     int     // that many matching commands are spared first
	Count    int     // that many fail; 0 means all
	Chance   float64 // of each command after Skip; 0 means always
	Delay    time.Duration
	Status   nvme.Status // of FaultStatus; of FaultDuplicate, if not 0, the first time: the second says success
}

// twoFaced tells whether a command is not executed, fails, and ends once more, well.
func (r *Rule) twoFaced() bool { return r.Kind == FaultDuplicate && r.Status != 0 }

// matches tells whether the rule is about the command.
func (r *Rule) matches(c *nvme.Command, admin bool) bool {
	switch {
	case r.Admin != admin,
		len(r.Ops) == 0 && admin && c.OPC == nvme.AdminAsyncEvent,
		len(r.Ops) != 0 && !slices.Contains(r.Ops, c.OPC):
		return false
	}
	return r.To == 0 || !admin && c.SLBA() >= r.From && c.SLBA() < r.To
}

// Script replaces the rules in force.
func (s *Sim) Script(rules ...Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Locked().Script(rules...)
}

// Fired counts the faults of each kind since the model was opened.
func (s *Sim) Fired() map[Kind]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[Kind]int{}
	for k, n := range s.fired {
		if n != 0 {
			out[Kind(k)] = n
		}
	}
	return out
}

// draw finds the fault of a command, if any.
func (s *Sim) draw(c *nvme.Command, admin bool) *Rule {
	for _, r := range s.rules {
		if !r.matches(c, admin) {
			continue
		}
		if r.Skip > 0 {
			r.Skip--
			continue
		}
		if r.Count < 0 || r.Chance != 0 && s.rnd.Float64() >= r.Chance {
			continue
		}
		if r.Count > 0 {
			if r.Count--; r.Count == 0 {
				r.Count = -1 // used up
			}
		}
		s.fired[r.Kind]++
		return r
	}
	return nil
}

// Hold makes commands wait before they are executed, until it is called with
// false.
func (s *Sim) Hold(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = on
	s.wakeAll()
}

// Fatal sets CSTS.CFS: the controller stops by itself (Base 3.1.4.6).
func (s *Sim) Fatal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Locked().Fatal()
}

// Ones makes the registers read as ones until the next Stop: a link that is down.
func (s *Sim) Ones() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Locked().Ones()
}

// Remove pulls the device out, until Insert.
func (s *Sim) Remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove()
}

func (s *Sim) remove() {
	s.removed = true
	s.bus.master = false
	s.ops = s.ops[:0]
	s.wakeAll()
}

// Insert puts a device that was pulled out back, as after a power cut. Whoever
// drove it has closed it. Its namespaces are in memory: files were closed.
func (s *Sim) Insert() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removed {
		s.removed, s.closed = false, false
		s.power()
	}
}

// Power cuts the power for an instant: the cache and the commands in flight are
// there or not, block by block, and the controller is as after power on.
func (s *Sim) Power() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.power()
}

func (s *Sim) power() (loss Loss) {
	loss = s.landLate()
	for _, m := range s.media {
		kept, lost := m.lose(s.rnd)
		loss.Add(Loss{Kept: kept, Lost: lost})
	}
	s.powerOn()
	s.bus.master, s.unaware = false, true
	s.wakeAll()
	return loss
}
