// Package meta keeps what is durable about a store: namespaces, objects and the
// last committed generation, in a Pebble database on a host disk. It is the
// only importer of Pebble, next to meta/metatest.
//
// A metadata directory holds
//
//	IDENTITY   which store, epoch and devices this is; checksummed, read before Pebble is opened
//	LOCK       flock: exclusive for an owner, shared for read-only openers
//	BALLAST    space that is given back when the disk is full
//	db/        the Pebble database
//
// Keys of the database: 0x00 singletons, 0x01 nsID(u32 BE) key, 0x02 namespace
// names. Every value carries a version and a CRC-32C over key and value.
//
// Commits are serial and each is one WAL write and one fdatasync. Readers see
// committed state only: what is still on its way to the disk is invisible, also
// when its outcome has become unknown.
//
// All file access of Pebble passes a wrapper with a one-way fence (fence.go).
// Once the fence is down nothing more is written by this DB, and the process
// lives on.
package meta
