// Package bench measures the store beside what it is built on: raw slots of one
// preallocated file, one file per object, Pebble holding the values, and the
// bare loop of the durable steps that a commit cannot do without.
//
// A figure of one process says little, so each contestant runs several times in
// a process of its own, in turns with the others, on files that were written
// before. Values are distinct, made from a seed, and compared byte by byte after
// the clock has stopped. What is put is durable before it stops. A contestant
// that has counters of its own must agree with what was asked of it to one
// percent, or the run fails. docs/performance.md describes the method.
package bench
