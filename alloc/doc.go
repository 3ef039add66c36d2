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
// format of the device. Let S be the blocks of a slab. The sizes b run through
// 1, 2, … 16 and then in eight equal steps from each power of two to the next:
// 18, 20, … 32, 36, 40, … 64, 72, … up to S/2. Each gives the class
//
//	S / (S / b)    (divisions rounded down)
//
// blocks long, the longest that has as many slots in a slab as b would have;
// equal ones count once. So
//
//   - a value leaves less than 1/8 of its slot empty where the steps are finer
//     than the slot counts. Where they are not, from about S/8 on, it takes the
//     1/n of a slab that it cannot avoid: up to 1/3 of a slot is empty between
//     S/3 and S/2, 1/4 between S/4 and S/3, 1/5 between S/5 and S/4;
//   - the rest at the end of a slab is shorter than one block for each slot;
//   - the sizes that caches like, a power of two times 1, 9/8, … 15/8, waste
//     nothing that the slot count would not waste anyway.
//
// A slab of 64 KiB has 6 classes, one of 4 MiB 44, one of 64 MiB 76.
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
