/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the files of ugds.ko share.
 *
 * Locks, outermost first:
 *
 *   device_lock(&pdev->dev)  of the driver core: a function reset needs it, and
 *                            probe and remove run under it
 *   ugds_device.lock         open and close, start, stop and reset, interrupts,
 *                            the DMA API; never held while user memory is touched
 *   dma_resv of a dma-buf    taken inside it to map and unmap; exporters call
 *                            ugds_moved() with it held. For memory of NVIDIA's
 *                            driver its locks, and nv_lock inside them
 *   ugds_device.hw_lock      bus mastering, the state and the status page; a leaf,
 *                            and no memory is allocated under it: reclaim may run
 *                            an exporter, which comes back through ugds_moved()
 *
 *   mmap_lock                of the process, in mmap and page faults
 *   ugds_device.vma_lock     inside mmap_lock and inside ugds_device.lock: the
 *                            table of regions, and "gone" as faults see it
 */
#ifndef UGDS_INTERNAL_H
#define UGDS_INTERNAL_H

#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/scatterlist.h>
#include <linux/xarray.h>

#include "compat.h"
#include "uapi/ugds.h"

#define UGDS_NAME	"ugds"

/* The memory page of the NVMe specification: segments are made of whole ones. */
#define UGDS_NVME_PAGE	4096

/* Nobody syncs mappings of host memory: where that would matter they are refused. */
#define UGDS_DMA_ATTRS	DMA_ATTR_SKIP_CPU_SYNC

/* Registers of an NVMe controller that the module itself uses (Base 3.1.4). */
#define NVME_CAP	0x00
#define NVME_CC		0x14
#define NVME_CC_EN	BIT(0)
#define NVME_CC_SHN	GENMASK(15, 14)
#define NVME_CSTS	0x1c
#define NVME_CSTS_RDY	BIT(0)
#define NVME_CSTS_CFS	BIT(1)
#define NVME_BAR_MIN	0x2000	/* registers and the first page of doorbells */

struct ugds_file;

/* One controller. It lives until its node is closed and its driver unbound. */
struct ugds_device {
	struct device dev;		/* its release frees this */
	struct cdev cdev;
	struct pci_dev *pdev;		/* a reference */
	u64 bar_size;
	u64 table_start;		/* pages of the MSI-X table in BAR 0 */
	u64 table_end;
	u32 vectors;
	const char *refusal;		/* why nobody may open it, or NULL */
	struct pci_saved_state *config;	/* as it was when the driver took it */

	struct mutex lock;		/* as said above */
	struct ugds_file *stuck;	/* what a controller that did not stop may still use */
	struct task_struct *resetting;	/* whose function reset is ours */

	struct mutex vma_lock;		/* as said above */
	bool gone;			/* written under lock and vma_lock */

	struct mutex hw_lock;		/* as said above */
	struct ugds_file *owner;	/* written under lock and hw_lock */
	void __iomem *bar;		/* the same; NULL once the driver let go */
	enum ugds_state state;
	enum ugds_why why;
	u32 revoked;
};

/* One open file. */
struct ugds_file {
	struct ugds_device *ud;
	struct mm_struct *mm;		/* who may use it, and pays for pinned memory */
	struct pid *pid;		/* for messages */
	struct address_space *mapping;
	struct page *status;
	struct eventfd_ctx *events;	/* under hw_lock */
	struct ugds_irq *irqs;		/* ud->vectors of them, or NULL */
	struct xarray regions;		/* changed under lock and vma_lock */
	u32 last_region;
	u32 count;
	atomic_t dead;			/* regions that are, and have not ended */
	struct list_head parked;	/* regions that nobody gets: see ugds_region_add() */
};

enum ugds_kind { UGDS_HOST, UGDS_QUEUE, UGDS_DMABUF, UGDS_NVIDIA };

/* Memory that the controller can reach. */
struct ugds_region {
	struct ugds_file *file;
	enum ugds_kind kind;
	u32 id;
	bool dead;			/* its exporter took it back */
	bool sorted;			/* segs are, which only those of a dead one may be */
	struct list_head link;		/* in ugds_file.parked */
	unsigned long npages;		/* charged */
	u32 nsegs;
	struct ugds_segment *segs;

	struct sg_append_table pinned;	/* UGDS_HOST */
	bool mapped;

	struct page **pages;		/* UGDS_QUEUE */
	dma_addr_t addr;

	struct dma_buf *buf;		/* UGDS_DMABUF; sgt under its dma_resv */
	struct dma_buf_attachment *att;
	struct sg_table *sgt;
	bool exporter_pinned;

	struct ugds_nv *nv;		/* UGDS_NVIDIA */
};

/* hw.c: the controller itself. */
void ugds_lock(struct ugds_device *ud);
void ugds_unlock(struct ugds_device *ud);
enum ugds_iommu ugds_iommu(struct ugds_device *ud);
void ugds_flush_iotlb(struct ugds_device *ud);
bool ugds_enabled(struct ugds_device *ud);
int ugds_start(struct ugds_device *ud);
int ugds_stop(struct ugds_device *ud, u32 timeout_ms, bool reset, u32 *how);
void ugds_isolate(struct ugds_device *ud, enum ugds_why why);
void ugds_set_state(struct ugds_device *ud, enum ugds_state state, enum ugds_why why);
void ugds_count_revoked(struct ugds_device *ud);

/* region.c, pin.c, dmabuf.c: memory. */
int ugds_region_list(struct ugds_region *r, struct sg_table *sgt, u64 skip, u64 len);
int ugds_region_add(struct ugds_region *r);
void ugds_region_died(struct ugds_region *r);
struct ugds_region *ugds_region_new(struct ugds_file *f, enum ugds_kind kind);
void ugds_region_drop(struct ugds_region *r);
int ugds_region_end(struct ugds_file *f, u32 id);
void ugds_regions_end(struct ugds_file *f);
bool ugds_bounces(struct ugds_device *ud, struct sg_table *sgt);
int ugds_charge(struct ugds_file *f, unsigned long npages);
void ugds_uncharge(struct ugds_file *f, unsigned long npages);

int ugds_map(struct ugds_file *f, struct ugds_map *a);
void ugds_unpin(struct ugds_region *r);
int ugds_alloc(struct ugds_file *f, struct ugds_alloc *a);
void ugds_free(struct ugds_region *r);
int ugds_import(struct ugds_file *f, struct ugds_import *a);
void ugds_detach(struct ugds_region *r);

/* nvpeer.c: memory of NVIDIA GPUs, in modules that were built for it. */
#ifdef UGDS_WITH_NVIDIA
#define UGDS_CAPS_BUILT	(UGDS_CAP_DMABUF | UGDS_CAP_NVIDIA)
int ugds_nvidia_map(struct ugds_file *f, struct ugds_nvidia *a);
void ugds_nvidia_end(struct ugds_region *r);
#else
#define UGDS_CAPS_BUILT	UGDS_CAP_DMABUF
static inline int ugds_nvidia_map(struct ugds_file *f, struct ugds_nvidia *a)
{
	a->why = UGDS_WHY_NOT_BUILT;
	return -EOPNOTSUPP;
}

static inline void ugds_nvidia_end(struct ugds_region *r)
{
}
#endif

/* irq.c: interrupts. */
u32 ugds_count_vectors(struct pci_dev *pdev);
void ugds_irqs_open(struct ugds_file *f);
void ugds_irqs_close(struct ugds_file *f);
int ugds_irq_set(struct ugds_file *f, u32 vector, int eventfd);

/* file.c: the node; main.c: the driver. */
extern const struct file_operations ugds_fops;
void ugds_zap(struct ugds_device *ud);
void ugds_file_end(struct ugds_file *f, int stopped);
int ugds_retry_stuck(struct ugds_device *ud);

#endif /* UGDS_INTERNAL_H */
