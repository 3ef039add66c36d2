/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * How user space drives one NVMe controller through ugds.ko.
 *
 * A node /dev/ugds_drvN (class ugds_drv) is one controller that was bound to the
 * driver by its driver_override. It has one opener at a time, and only the address
 * space that opened it may use the file. Closing the last descriptor, as the death
 * of its processes does, stops the controller before its memory is given back.
 *
 * The layout is the same for every processor: fields have fixed widths and natural
 * alignment, and padding is spelt out. Fields called reserved are zero, and so are
 * bits of flags that are not defined here; anything else is EINVAL.
 *
 * Compatibility: UGDS_IOC_INFO never changes. A module with another abi_version
 * may not know the rest. Abilities that came later have a bit in caps.
 */
#ifndef UGDS_UAPI_H
#define UGDS_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define UGDS_ABI_VERSION 1

/* Limits. */
#define UGDS_MAP_MAX		(1ULL << 36)	/* bytes of one mapping */
#define UGDS_ALLOC_MAX		(4ULL << 20)	/* bytes of one allocation */
#define UGDS_REGIONS_MAX	65536		/* regions of one file */
#define UGDS_VECTORS_MAX	256		/* interrupt vectors */
#define UGDS_SEGMENTS_MAX	4096		/* segments of one UGDS_IOC_SEGMENTS */
#define UGDS_STOP_MS_MAX	130000		/* CAP.TO is at most 127.5 s */

/*
 * mmap offsets: BAR 0 begins at 0 and is mapped uncached, without the pages of the
 * MSI-X table. The status page can only be read. The offset of an allocation is
 * what UGDS_IOC_ALLOC says. Mappings do not survive a fork.
 */
#define UGDS_MMAP_BAR		0ULL
#define UGDS_MMAP_STATUS	(1ULL << 40)

/* Who translates the addresses of the controller. */
enum ugds_iommu {
	UGDS_IOMMU_NONE = 0,	/* no IOMMU: bus addresses are physical */
	UGDS_IOMMU_IDENTITY,	/* an IOMMU that passes addresses through */
	UGDS_IOMMU_LAZY,	/* translated; the kernel flushes unmapped addresses later */
	UGDS_IOMMU_STRICT,	/* translated; what is unmapped faults at once */
};

/* Bits of ugds_info.caps. */
#define UGDS_CAP_DMABUF		(1ULL << 0)	/* UGDS_IOC_IMPORT */
#define UGDS_CAP_RESET		(1ULL << 1)	/* the function can be reset */
#define UGDS_CAP_NVIDIA		(1ULL << 2)	/* UGDS_IOC_NVIDIA */

struct ugds_info {
	__u32 abi_version;
	__u32 iommu;		/* enum ugds_iommu, when asked */
	__u64 caps;
	__u64 bar_size;		/* bytes of BAR 0 */
	__u64 table_start;	/* bytes of BAR 0 that cannot be mapped: from here */
	__u64 table_end;	/* to here; equal when there are none */
	__u32 vectors;		/* interrupt vectors, 0 if there are none */
	__u32 page_size;	/* of the kernel, bytes */
	__u32 pci_address;	/* domain << 16 | bus << 8 | device << 3 | function */
	__s32 numa_node;	/* -1 if unknown */
	__u16 vendor;		/* PCI identifiers */
	__u16 device;
	__u16 subsystem_vendor;
	__u16 subsystem_device;
	__u64 reserved[4];
};

/* State of the controller, as far as the kernel decides it. */
enum ugds_state {
	UGDS_STOPPED = 0,	/* it cannot reach memory */
	UGDS_RUNNING,		/* after UGDS_IOC_START */
	UGDS_ISOLATED,		/* the kernel cut it off; UGDS_IOC_STOP leads back */
	UGDS_GONE,		/* removed; only close is left */
};

/* Why: the cause of a state, or of a refused request. */
enum ugds_why {
	UGDS_WHY_NONE = 0,
	UGDS_WHY_REVOKED,	/* an exporter took its memory back */
	UGDS_WHY_PCI_ERROR,	/* the bus reported an error */
	UGDS_WHY_RESET,		/* somebody else reset the function */
	UGDS_WHY_REMOVED,	/* the device was unplugged or its driver unbound */
	UGDS_WHY_SHUTDOWN,	/* the machine shuts down, or boots another kernel */
	UGDS_WHY_MISALIGNED,	/* address, offset, length or segments, to pages */
	UGDS_WHY_TOO_LARGE,	/* a limit above */
	UGDS_WHY_MEMLOCK,	/* RLIMIT_MEMLOCK */
	UGDS_WHY_BOUNCE,	/* the kernel would copy through memory of its own */
	UGDS_WHY_PIN,		/* the pages cannot be pinned for long */
	UGDS_WHY_DMA,		/* the DMA layer cannot map the memory */
	UGDS_WHY_ATTACH,	/* the exporter does not let this device attach */
	UGDS_WHY_EXPORTER_PIN,	/* the exporter does not pin */
	UGDS_WHY_EXPORTER_MAP,	/* the exporter does not map */
	UGDS_WHY_RANGE,		/* the range is not inside the dma-buf */
	UGDS_WHY_NOT_STOPPED,	/* a former owner's controller could not be stopped */
	UGDS_WHY_NOT_BUILT,	/* the module was built without it */
};

/*
 * The status page. When events has changed, something else has; the eventfd of
 * UGDS_IOC_EVENTS is signalled after each change.
 */
struct ugds_status {
	__u32 events;		/* changes so far */
	__u32 state;		/* enum ugds_state */
	__u32 why;		/* enum ugds_why of the state */
	__u32 revoked;		/* regions taken back so far, each told before its unmap */
};

/*
 * Lets the controller reach memory. It waits while somebody resets the function or the
 * bus recovers from an error. ESTALE when it is isolated, ENODEV when gone, EIO when
 * the bus does not recover, EBUSY when CC.EN or CSTS.RDY is set: it may still have the
 * queues of an owner before, and UGDS_IOC_STOP with UGDS_STOP_RESET ends that.
 */
#define UGDS_IOC_START		_IO(UGDS_IOC_TYPE, 1)

/* Bits of ugds_stop.flags and of ugds_stop.how. */
#define UGDS_STOP_RESET		(1U << 0)	/* in: reset the function in any case */
#define UGDS_HOW_DISABLED	(1U << 0)	/* CSTS.RDY became 0 after CC.EN = 0 */
#define UGDS_HOW_QUIET		(1U << 1)	/* bus mastering off, nothing pending */
#define UGDS_HOW_RESET		(1U << 2)	/* the function was reset */
#define UGDS_HOW_GONE		(1U << 3)	/* the device is not there any more */

/*
 * Stops the controller, whatever state it is in: CC.EN = 0, bus mastering off, and
 * a function reset if it did not obey or UGDS_STOP_RESET asks for it. When it
 * succeeds, no access of the controller can land any more; how tells what showed
 * that. EIO: nothing is known.
 */
struct ugds_stop {
	__u32 flags;
	__u32 timeout_ms;	/* for CSTS.RDY = 0; 0 is what CAP.TO says */
	__u32 how;		/* out */
	__u32 reserved;
};

/*
 * What the requests for memory have in common. EBUSY with UGDS_WHY_REVOKED: behind an
 * IOMMU every address that the kernel offered is one of a region that was taken back and
 * not ended yet. Those are kept off from now on, so asking again may help; ending that
 * region does.
 */

/*
 * Pins pages of the caller and maps them for the controller, which may read and
 * write them. They count against RLIMIT_MEMLOCK (VmPin in /proc/PID/status).
 */
struct ugds_map {
	__u64 addr;		/* a multiple of page_size */
	__u64 len;		/* bytes, a multiple of page_size */
	__u32 flags;		/* 0 */
	__u32 region;		/* out */
	__u32 segments;		/* out */
	__u32 why;		/* out, on error: enum ugds_why */
};

/*
 * The exporter may move or revoke the memory at any time, which ends the region.
 * Without this flag the exporter is asked to pin it first.
 */
#define UGDS_IMPORT_MOVABLE	(1U << 0)

/* Maps a range of a dma-buf for the controller. */
struct ugds_import {
	__s32 fd;
	__u32 flags;
	__u64 offset;		/* a multiple of page_size */
	__u64 len;		/* bytes, a multiple of page_size */
	__u32 region;		/* out */
	__u32 segments;		/* out */
	__u32 why;		/* out, on error */
	__u32 reserved;
};

/* Pages in which NVIDIA's driver hands out memory, bytes. */
#define UGDS_NVIDIA_PAGE	0x10000ULL

/*
 * Maps memory of an NVIDIA GPU of the caller, which CUDA has allocated, for where
 * the driver cannot export it as a dma-buf. Freeing it ends the region, as a
 * revocation by an exporter does. EOPNOTSUPP, with UGDS_WHY_NOT_BUILT, when the module
 * was built without it.
 */
struct ugds_nvidia {
	__u64 addr;		/* in CUDA, a multiple of UGDS_NVIDIA_PAGE */
	__u64 len;		/* bytes, a multiple of UGDS_NVIDIA_PAGE */
	__u32 flags;		/* 0 */
	__u32 region;		/* out */
	__u32 segments;		/* out */
	__u32 why;		/* out, on error */
};

/*
 * Gives zeroed memory for queues, which is contiguous for the controller and
 * coherent, near it. It is mapped into the process at mmap_offset, and counts
 * against RLIMIT_MEMLOCK.
 */
struct ugds_alloc {
	__u64 len;		/* bytes; rounded up to pages */
	__u64 bus_addr;		/* out */
	__u64 mmap_offset;	/* out */
	__u32 region;		/* out */
	__u32 why;		/* out, on error */
};

struct ugds_segment {
	__u64 addr;		/* bus address */
	__u64 len;		/* bytes */
};

/*
 * Copies segments of a region, in the order of its memory; neighbours are merged.
 * ENOENT for an unknown region; ESTALE once its exporter took it back.
 */
struct ugds_segments {
	__u32 region;
	__u32 first;		/* the first segment wanted */
	__u32 count;		/* in: how many fit at list; out: how many were copied */
	__u32 reserved;
	__u64 list;		/* address of an array of struct ugds_segment */
};

/* Ends a region. The caller knows that no command names its memory. */
struct ugds_unmap {
	__u32 region;
	__u32 reserved;
};

/* Signals an eventfd at each interrupt of a vector; EBUSY if it has one. */
struct ugds_vector {
	__u32 vector;
	__s32 eventfd;		/* -1 ends it */
};

/* Signals an eventfd when the status page changes. */
struct ugds_events {
	__s32 eventfd;		/* -1 ends it */
	__u32 reserved;
};

#define UGDS_IOC_TYPE		0xC7
#define UGDS_IOC_INFO		_IOR(UGDS_IOC_TYPE, 0, struct ugds_info)
#define UGDS_IOC_STOP		_IOWR(UGDS_IOC_TYPE, 2, struct ugds_stop)
#define UGDS_IOC_MAP		_IOWR(UGDS_IOC_TYPE, 3, struct ugds_map)
#define UGDS_IOC_IMPORT		_IOWR(UGDS_IOC_TYPE, 4, struct ugds_import)
#define UGDS_IOC_ALLOC		_IOWR(UGDS_IOC_TYPE, 5, struct ugds_alloc)
#define UGDS_IOC_SEGMENTS	_IOWR(UGDS_IOC_TYPE, 6, struct ugds_segments)
#define UGDS_IOC_UNMAP		_IOW(UGDS_IOC_TYPE, 7, struct ugds_unmap)
#define UGDS_IOC_VECTOR		_IOW(UGDS_IOC_TYPE, 8, struct ugds_vector)
#define UGDS_IOC_EVENTS		_IOW(UGDS_IOC_TYPE, 9, struct ugds_events)
#define UGDS_IOC_NVIDIA		_IOWR(UGDS_IOC_TYPE, 10, struct ugds_nvidia)

#endif /* UGDS_UAPI_H */
