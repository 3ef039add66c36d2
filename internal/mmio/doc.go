// Package mmio reads and writes device registers, doorbells and queue entries in
// the way a device sees them. It is one of the five places where unsafe and
// assembly are allowed.
package mmio
