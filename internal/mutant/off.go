//go:build !ugds_mutants

package mutant

// Enabled tells whether this build can switch safeguards off.
const Enabled = false

// On reports whether safeguard m is switched off: never, in this build.
func On(ID) bool { return false }

// Set panics: release builds cannot switch a safeguard off.
func Set(ID) { panic("mutant: built without the tag ugds_mutants") }
