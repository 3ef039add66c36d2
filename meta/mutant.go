package meta

import "github.com/ugds-store/ugds/internal/mutant"

const applyUnsynced = mutant.Enabled
