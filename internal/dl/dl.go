// Package dl calls functions of C libraries that are loaded while the program
// runs, without cgo. It is one of the five places where unsafe is allowed.
//
// The package holds no dynamic linker of its own: whoever imports one hands it
// in as a Linker. So a build without GPU support links none, and stays static.
//
// What the caller must keep true: the arguments of a Call have the number and
// the meaning that the C declaration says; memory that C keeps after the call
// returned is off the Go heap and outlives that use; memory that C uses during
// the call only comes from a Frame or from Pinned.
package dl

import (
	"strings"

	"github.com/ugds-store/ugds/internal/base"
)

// Linker is the dynamic linker of the process. All functions must be safe for
// concurrent use.
type Linker struct {
	// Open loads a library with lazy binding and local names (dlopen).
	Open func(name string) (handle uintptr, err error)
	// Sym finds a symbol (dlsym).
	Sym func(handle uintptr, name string) (addr uintptr, err error)
	// Call calls a C function with integer arguments and gives its result.
	Call func(fn uintptr, args ...uintptr) uintptr
	// Callback makes a C function of a Go function with integer arguments. Such
	// a function is never given back.
	Callback func(fn any) uintptr
}

// Symbol is one entry of a library's table. The table is data: the constants
// that index it are the names by which a binding calls.
type Symbol struct {
	Name     string
	Optional bool // the library may lack it; Has tells
}

// Library is a loaded library with its resolved symbols. It is never unloaded,
// since drivers keep threads of their own. Safe for concurrent use.
type Library struct {
	name    string
	link    *Linker
	symbols []Symbol
	addrs   []uintptr
}

// Open loads the first of the names that can be loaded and resolves the table.
// ErrNotSupported when none loads, with every linker message, or when a symbol
// that is not optional is missing, with its name.
func Open(link *Linker, symbols []Symbol, names ...string) (*Library, error) {
	var handle uintptr
	var why []string
	l := &Library{link: link, symbols: symbols, addrs: make([]uintptr, len(symbols))}
	for _, name := range names {
		h, err := link.Open(name)
		if err == nil && h != 0 {
			l.name, handle = name, h
			break
		}
		if err != nil {
			why = append(why, err.Error())
		}
	}
	if handle == 0 {
		return nil, base.Errorf("load", strings.Join(names, ", "), base.ErrNotSupported, "%s", strings.Join(why, "; "))
	}
	for i, s := range symbols {
		addr, err := link.Sym(handle, s.Name)
		if err == nil && addr != 0 {
			l.addrs[i] = addr
		} else if !s.Optional {
			return nil, base.Errorf("load", l.name, base.ErrNotSupported, "it has no function %s", s.Name)
		}
	}
	return l, nil
}

// Name is the name under which the library was loaded.
func (l *Library) Name() string { return l.name }

// Symbol names entry i of the table.
func (l *Library) Symbol(i int) string { return l.symbols[i].Name }

// Has tells whether the library has entry i of the table.
func (l *Library) Has(i int) bool { return l.addrs[i] != 0 }

// Call calls entry i of the table, which the library must have.
func (l *Library) Call(i int, args ...uintptr) uintptr {
	if l.addrs[i] == 0 {
		panic("dl: " + l.name + " has no function " + l.symbols[i].Name)
	}
	return l.link.Call(l.addrs[i], args...)
}

// BlockBytes is the size of the structures that CallBlock passes by value: the
// handles of the interprocess calls of CUDA and HIP.
const BlockBytes = 64

// CallBlock calls entry i as fn(first, block, last) with block passed by value.
func (l *Library) CallBlock(i int, first uintptr, block *[BlockBytes]byte, last uintptr) uintptr {
	var r uintptr
	Pinned(block[:], func(addr uintptr) { r = l.Call(i, blockArgs(first, block, addr, last)...) })
	return r
}
