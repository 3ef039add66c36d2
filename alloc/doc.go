// Package alloc decides which blocks of the devices are free. It is arithmetic
// only: no I/O, no clock, no goroutines.
//
// # Slabs and slots
//
// The space of a pool is cut into slabs of one size, a power of two of 4 KiB
// blocks that the format chooses (SlabBlocksFor). A slab is free, or cut into
// equal slots of one class, or handed out whole. Which class a slab has is
// decided when its first slot is taken and forgotten when its last slot is
// freed. Nothing of this is stored: the extents of the durable objects say it
// all, and Restore rebuilds the pool from them in any order.
//
// An extent is one slot, or a run of whole slabs that follow each other on one
// device. Its length says which: below a slab it is the length of the class, and
// the extent begins at a multiple of that length from the start of its slab;
// from a slab on it is a multiple of the slab.
//
// # Class table
//
// Extents on disk depend on the class table, so the rule below is part of the
// format of the device. With S the blocks of a slab and all divisions rounded
// down, the largest class is S/2, and the class below b is
//
//	next = max(b - 1 - b/8, 1)
//	next = S / (S / next)
//	if next >= b { next = S / (S/b + 1) }
//
// until it is 1. The first line bounds the waste: a value that is one block too
// long for the class below leaves at most one eighth of its slot empty. The
// second line makes a class as long as it can be without having fewer slots in
// a slab, so the rest at the end of a slab is shorter than one block for each
// slot. The third line steps to one slot more where classes are coarse: between
// S/8 and S/2 there is no length that would fit more values into a slab, and the
// waste is up to 1/3 (S/3 to S/2), 1/4 (S/4 to S/3), 1/5 and so on. A slab of
// 4 MiB has 36 classes, one of 64 MiB has 56.
//
// # Shapes
//
// A value of at most half a slab takes exactly one extent: the smallest class
// that holds it. A longer one takes whole slabs for as much of it as they hold,
// and for its tail
//
//  1. one slot, or one more whole slab, if that leaves at most 1/8 of it empty
//     (1/4 if the whole value is of at most 1 MiB, which keeps it in one
//     extent); else
//  2. the two slots that leave least empty, if that is at most 1/8 of them; else
//  3. the three slots that leave least empty; else one as in 1.
//
// Whole slabs that happen to follow each other become one extent. The shape is
// no part of the format: a reader takes the extents of a record as they are.
//
// With no slab free, a value of at most half a slab takes a slot of a larger
// class, of up to twice the size. A longer one is composed of the free slabs and
// of at most 64 free slots, from the largest down. Only then ErrNoSpace.
//
// # Order
//
// The slots of a slab are taken in address order. A slab that was full and lost
// a slot queues behind the other partly used slabs of its class, so it may become
// empty before it is needed; an empty slab is free for every class at once. A
// new slab comes from the device with the most free slabs and is the lowest one
// there. All of this takes constant time in the number of objects and slabs.
//
// # Discards
//
// A slab that became empty is free, and a candidate for a discard as long as it
// stays free. TakeDiscard takes it out of the free ones, DoneDiscard puts it back
// clean. In between it is never handed out: a discard that the device carries
// out late would destroy what was written to the slab after it.
//
// # Memory
//
// A slab costs 32 bytes and two bits. If it is cut into more than 64 slots it
// also has a bitmap of one bit for each of its blocks; bitmaps are kept for
// reuse. None of it has pointers for the collector to follow.
package alloc
