/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The test-only module that plays NVIDIA's driver: memory of a GPU is the BAR of any
 * PCI device, at addresses of its own, and is controlled through /dev/ugds_fakenv.
 */
#ifndef UGDS_FAKENV_H
#define UGDS_FAKENV_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* The address of the first byte of the BAR. */
#define FAKENV_VA	0x1000000000ULL
#define FAKENV_PAGE	0x10000

/* Chooses the device that is the GPU. */
struct fakenv_gpu {
	__u32 pci_address;	/* domain << 16 | bus << 8 | device << 3 | function */
	__u32 bar;
};

/* Frees the memory at an address, as a cudaFree does. */
struct fakenv_free {
	__u64 addr;
};

#define FAKENV_TYPE	0xC9
#define FAKENV_GPU	_IOW(FAKENV_TYPE, 0, struct fakenv_gpu)
#define FAKENV_FREE	_IOW(FAKENV_TYPE, 1, struct fakenv_free)

#endif /* UGDS_FAKENV_H */
