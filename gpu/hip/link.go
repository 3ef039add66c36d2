//go:build !nogpu

package hip

import (
	"github.com/ebitengine/purego"

	"github.com/ugds-store/ugds/internal/dl"
)

// linker is the dynamic linker of the process. It makes the program a dynamic
// one; a build with the tag nogpu has none.
func linker() (*dl.Linker, error) {
	return &dl.Linker{
		Open: func(name string) (uintptr, error) { return purego.Dlopen(name, purego.RTLD_LAZY|purego.RTLD_LOCAL) },
		Sym:  purego.Dlsym,
		Call: func(fn uintptr, args ...uintptr) uintptr {
			r, _, _ := purego.SyscallN(fn, args...)
			return r
		},
		Callback: purego.NewCallback,
	}, nil
}
