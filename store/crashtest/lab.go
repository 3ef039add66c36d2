package crashtest

import (
	"sync"

	"github.com/ugds-store/ugds/driver"
)

// StepKind says what changed at a step.
type StepKind uint8

// The kinds of steps. A command of a device is submitted, takes effect in the
// cache (perhaps piecewise), and is answered.
const (
	StepSubmit StepKind = iota
	StepEffect
	StepAnswer
	StepPower // the device lost power or came back
	StepMeta  // the metadata file system changed
)

// String names the kind.
func (k StepKind) String() string {
	return [...]string{"submit", "effect", "answer", "power", "meta"}[k]
}

// Step is one change of a device or of the metadata. Index counts all steps of
// a Lab: it is the "write index" of a cut.
type Step struct {
	Index int64
	Kind  StepKind
	Disk  int // index of the disk in the Lab, -1 for the metadata
	Op    driver.Op
	Off   int64  // of the command
	Len   int64  // of the command
	Label uint64 // which operation the payload belongs to, 0 if it says nothing
	Text  string // StepMeta and StepPower: what happened
}

// Lab is the world in which a cut happens. Its disks and its metadata file
// system make each change under one lock, so that a hook sees, and can keep,
// one instant of all of them. The zero value is ready.
type Lab struct {
	mu    sync.Mutex
	index int64
	disks []device
	hook  func(Step)
	label func(payload string) uint64
	trace *Trace
}

// SetHook makes the Lab call fn after every step, with its lock held: nothing
// of the world moves until fn returns. fn may keep images, and must not call a
// disk or the file system in any other way.
func (l *Lab) SetHook(fn func(Step)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hook = fn
}

// SetLabel makes the Lab call fn for the payload of every write; the answer is
// kept with the write and appears in steps.
func (l *Lab) SetLabel(fn func(payload string) uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.label = fn
}

// SetTrace makes the Lab keep its latest steps in t.
func (l *Lab) SetTrace(t *Trace) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trace = t
}

// Steps is the number of steps so far.
func (l *Lab) Steps() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.index
}

// Locked calls fn with the lock held.
func (l *Lab) Locked(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn()
}

// note records a step. The lock is held.
func (l *Lab) note(s Step) {
	l.index++
	s.Index = l.index
	if l.trace != nil {
		l.trace.add(s)
	}
	if l.hook != nil {
		l.hook(s)
	}
}
