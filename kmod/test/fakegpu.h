/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The test-only module that plays a GPU: it exports a range of the BAR of
 * any PCI device as a dma-buf, through /dev/ugds_fakegpu.
 */
#ifndef UGDS_FAKEGPU_H
#define UGDS_FAKEGPU_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* The exporter maps once at attach and never moves, as most drivers do. */
#define FAKEGPU_STATIC		(1U << 0)
/* It answers a pin with EOPNOTSUPP, as a driver that always moves. */
#define FAKEGPU_NO_PIN		(1U << 1)

struct fakegpu_export {
	__u32 pci_address;	/* domain << 16 | bus << 8 | device << 3 | function */
	__u32 bar;
	__u64 offset;		/* bytes, whole pages */
	__u64 len;
	__u32 flags;
	__s32 fd;		/* out: the dma-buf */
};

/* Tells importers of a dma-buf that its memory moves; with lose, for good. */
struct fakegpu_move {
	__s32 fd;
	__u32 lose;		/* mapping it again fails */
};

#define FAKEGPU_TYPE	0xC8
#define FAKEGPU_EXPORT	_IOWR(FAKEGPU_TYPE, 0, struct fakegpu_export)
#define FAKEGPU_MOVE	_IOW(FAKEGPU_TYPE, 1, struct fakegpu_move)

#endif /* UGDS_FAKEGPU_H */
