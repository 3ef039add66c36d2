// Package crashtest is the crash laboratory of the store: disks with a volatile
// write cache, cuts of power at every device and metadata write of random
// workloads, and an oracle that compares what comes back with what was promised.
//
// A cut is one crash image. The devices and the metadata are kept together, at
// one instant, under the lock of a Lab; then one outcome is drawn for every
// write whose fate is open, the image is opened by the real store, swept, and
// compared key by key with the history of operations (I1, I2 and I6 of
// docs/architecture.md). docs/testing.md tells how to run it and how to replay
// a failure.
//
// The disks are Disk, a model of this package, or models of NVMe controllers behind
// the NVMe driver; newDevice makes either.
//
// What each cut may lose:
//
//	cut          device cache   commands in flight   metadata unsynced   process
//	everything   drawn          drawn                drawn               lost
//	SSD alone    drawn          drawn                kept                lives
//	host alone   kept           may land late        drawn               lost
//	metadata     kept           go on                drawn               lives until the fence
package crashtest
