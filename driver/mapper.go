package driver

// Mapper is a device or file whose cached content the processor can see in place:
// through the page cache, where reads of a GPU need no copy by the processor.
type Mapper interface {
	// MapRead maps [off, off+n) for reading; off is a multiple of the page size.
	// Only GPUs and readers that catch faults may touch the bytes: a page that the
	// file has lost ends the process. Unmap must be called once. ErrNotSupported
	// where there is no page cache over the content.
	MapRead(off, n int64) (mem []byte, unmap func() error, err error)
}

// Stamp tells whether a file that others may change has changed. Two equal stamps
// mean that it has not, as far as the kernel's clock can tell: it may be as coarse
// as 10 ms.
type Stamp struct {
	Size   int64 // bytes
	Dev    uint64
	Ino    uint64
	Change int64 // time of the last change of data or attributes, nanoseconds since 1970
}

// Stamper is a Mapper of content that its caller does not own.
type Stamper interface {
	Mapper
	// Stamp describes the file as it is now.
	Stamp() (Stamp, error)
}
