// Package store keeps named objects on devices that it owns: put, get, lookup
// with leases, ranges, batches, recovery and check.
//
// The promise is I1, right or absent: after any crash a lookup gives the exact
// bytes of the key's last put in some prefix of the commit order, or "not
// found". docs/architecture.md states all ten rules, docs/on-disk.md the format.
//
// A value goes to the device first, then a commit round makes it durable: the
// round closes the set of finished operations, flushes every device that holds
// data of the set, commits one metadata batch, then publishes. Space freed by a
// round is handed out again only after a commit mark that covers the round is
// durable on a device.
//
// Everything in this package is safe for concurrent use unless it says
// otherwise. Calls that block take a context; when it ends, the call returns,
// while memory and extents of commands still in flight stay owned by the store.
package store
