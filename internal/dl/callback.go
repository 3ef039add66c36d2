package dl

import (
	"sync"

	"github.com/ugds-store/ugds/internal/base"
)

// MaxCallbacks is how many C functions the process may make of Go functions.
// Each one occupies a place in a table of fixed size for ever (F-09), so that
// bindings make one and pass it an index.
const MaxCallbacks = 4

// callbacks are the C functions made so far, by name, and the calls under way.
type callbacks struct {
	mu    sync.Mutex
	made  map[string]uintptr
	next  uintptr
	calls map[uintptr]func()
}

// process is state of the process, because C functions made of Go functions
// are: they cannot be given back.
var process = newCallbacks()

func newCallbacks() *callbacks {
	return &callbacks{made: map[string]uintptr{}, calls: map[uintptr]func(){}}
}

// function gives the C function of that name, and makes it on first use.
func (c *callbacks) function(name string, make func() uintptr) (uintptr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.made[name]; p != 0 {
		return p, nil
	}
	if len(c.made) == MaxCallbacks {
		return 0, base.Errorf("make callback", name, base.ErrNotSupported, "%d exist, the limit", MaxCallbacks)
	}
	p := make()
	c.made[name] = p
	return p, nil
}

// add keeps fn until run is called with its number, which is never 0.
func (c *callbacks) add(fn func()) uintptr {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	c.calls[c.next] = fn
	return c.next
}

// run calls the function of that number and forgets it. An unknown number is
// ignored: a driver that calls twice must not end the process.
func (c *callbacks) run(id uintptr) {
	c.mu.Lock()
	fn := c.calls[id]
	delete(c.calls, id)
	c.mu.Unlock()
	if fn != nil {
		fn()
	}
}

// Once prepares a single call of fn by C: a function of the C type
// void (*)(void *) and the argument that C must pass to it. fn runs on a thread
// of the library and must neither block nor call the library. Every Once of the
// process shares one C function. If C will not call after all, call cancel.
func Once(link *Linker, fn func()) (function, argument uintptr, cancel func(), err error) {
	return process.once(link, fn)
}

func (c *callbacks) once(link *Linker, fn func()) (function, argument uintptr, cancel func(), err error) {
	function, err = c.function("once", func() uintptr {
		return link.Callback(func(id uintptr) uintptr {
			c.run(id)
			return 0
		})
	})
	if err != nil {
		return 0, 0, nil, err
	}
	id := c.add(fn)
	return function, id, func() { c.forget(id) }, nil
}

func (c *callbacks) forget(id uintptr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, id)
}
