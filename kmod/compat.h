/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What differs between kernels. The HAVE_ macros are answers of the
 * compile tests in probes/, never guesses from a version number.
 */
#ifndef UGDS_COMPAT_H
#define UGDS_COMPAT_H

#include <linux/eventfd.h>
#include <linux/iommu.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/msi.h>

#include "ugds_config.h"

static inline void ugds_eventfd_signal(struct eventfd_ctx *ctx)
{
#ifdef HAVE_EVENTFD_SIGNAL_PLAIN
	eventfd_signal(ctx);
#else
	eventfd_signal(ctx, 1);
#endif
}

static inline void ugds_vm_flags(struct vm_area_struct *vma, unsigned long set, unsigned long clear)
{
#ifdef HAVE_VM_FLAGS_SET
	vm_flags_mod(vma, set, clear);
#else
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
#endif
}

/* Tells whether a forged interrupt message of the device reaches only its owner. */
static inline bool ugds_isolated_msi(struct device *dev)
{
#ifdef HAVE_ISOLATED_MSI
	return msi_device_has_isolated_msi(dev);
#else
	return device_iommu_capable(dev, IOMMU_CAP_INTR_REMAP);
#endif
}

/* The importer's callback, and what the exporter of kmod/test calls. */
#ifdef HAVE_INVALIDATE_MAPPINGS
#define UGDS_MOVE_NOTIFY	invalidate_mappings
#define ugds_dma_buf_moved	dma_buf_invalidate_mappings
#else
#define UGDS_MOVE_NOTIFY	move_notify
#define ugds_dma_buf_moved	dma_buf_move_notify
#endif

#ifdef HAVE_IMPORT_NS_SYMBOL
#define UGDS_IMPORT_DMA_BUF	MODULE_IMPORT_NS(DMA_BUF)
#else
#define UGDS_IMPORT_DMA_BUF	MODULE_IMPORT_NS("DMA_BUF")
#endif

#endif /* UGDS_COMPAT_H */
