// Package nvme is what the NVMe specification says, as Go types: commands,
// completions, registers, identify data, log pages, features and status codes,
// the builders of data pointers (PRP and SGL), and the table of known quirks. It
// does no I/O and knows no clock; times are numbers of milliseconds or
// microseconds.
//
// The sources are the NVM Express Base Specification 2.1, the NVM Command Set
// Specification 1.1 and the PCIe Transport Specification 1.1. Comments cite them
// as "Base 3.1.4.1", "NVM 3.3.4" and "PCIe 3.1.2". Names are the specification's.
//
// Structures that a controller reads or writes are made of bytes and of the
// types Le16, Le32 and Le64 alone. So they have no padding and an alignment of
// one byte, and the byte order is part of the type. Overlay puts them over raw
// bytes. A test holds the size of each structure and the offset of each field
// against the specification's numbers: without package unsafe, which has no
// place here, the compiler cannot be asked.
//
// Values are not synchronized: a structure in memory that a controller may touch
// belongs to whoever owns the queue or the command at that moment.
package nvme
