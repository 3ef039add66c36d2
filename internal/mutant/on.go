//go:build ugds_mutants

package mutant

import "sync/atomic"

// Enabled tells whether this build can switch safeguards off.
const Enabled = true

var active atomic.Int32

// On reports whether safeguard m is switched off.
func On(m ID) bool { return ID(active.Load()) == m }

// Set switches exactly safeguard m off; None switches all on again.
func Set(m ID) { active.Store(int32(m)) }
