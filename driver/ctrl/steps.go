package ctrl

// The way of a simple entry, a read or a write of one segment that one command
// moves, in steps. The reference in C, tools/cref/c/full.c, takes the same ones in
// the same order, so that the processor time of the two can be compared; a test
// compares the lists. Change both, and both programs, together.
//
// Steps of a submission:
//  1. the device takes requests: its state is ready, and nobody closes it
//  2. the group of queues that is for batches of this shape
//  3. the batch has 1 to 16,384 entries and is not in flight; it is now
//  4. the answers of all entries are cleared, and the entries counted
//  5. the device's counts of what has not ended, and again whether it is closed
//  6. memory for the submission, from a pool
//  7. the clock, once
// Steps of a turn, which is up to 32 commands:
//  8. nobody waits for room before this batch, and it is not canceled
//  9. the queue with the fewest bytes in flight, its lock, and that it is alive
// 10. the region is held at its generation, for all entries that follow
// 11. what the device keeps of the region, and whether that may be used
// 12. the largest command, and this turn's part of the window of bytes in flight
// 13. how many identifiers and entries of the ring are free
// Steps of a command:
// 14. the entry is checked: operation, segments, region, generation, lengths,
//     alignment, bounds of device and region, boundary of the namespace
// 15. an identifier from the free list, with its next generation
// 16. the command, in the ring
// 17. its data pointer: one or two PRP entries, or a list copied from the table of
//     the region
// 18. the slot: submission, entry, bytes, deadline
// Steps at the end of a turn:
// 19. the queue's next deadline, and the doorbell, guarded against a fault
// 20. the queue's bytes in flight, unlock, the count of commands
// 21. what was taken too much of the window and of the region
// Steps of a wait:
// 22. the batch was submitted and has not ended
// 23. the lock of each queue that has commands in flight, and that it is alive
// Steps of a completion:
// 24. the phase tag and the status
// 25. the queue, the identifier with its generation, and the head are possible
// 26. the slot and its identifier are free
// 27. the answer of the entry; bytes, requests, holds and the window are summed up
// Steps at the end of a burst of completions:
// 28. the doorbell, guarded against a fault
// 29. the queue's bytes in flight and next deadline
// 30. the region is given back, then the window; statistics
// 31. the counts of what has not ended; the batch's answers; with the last of them
//     its waiter is woken, and the memory of the submission goes back to the pool
// 32. deadlines are judged
// 33. the batch is its owner's again
