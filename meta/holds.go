package meta

import (
	"os"
	"path/filepath"
)

// Holds tells whether dir is a metadata directory of a store, as far as this process can
// see: it holds an identity, or a database beside what may be left of one.
func Holds(dir string) bool {
	if _, err := ReadIdentity(Options{Dir: dir, ReadOnly: true}); err == nil {
		return true
	}
	there := func(name string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return err == nil
	}
	return there(databaseName) && (there(identityName) || there(lockName))
}
