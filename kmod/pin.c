// SPDX-License-Identifier: GPL-2.0
/*
 * Pages of the process, pinned and mapped.
 */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "internal.h"
#include "trace.h"

/* Pins what r->npages says from addr on, into r->pinned. No lock is held. */
static int pin(struct ugds_region *r, unsigned long addr)
{
	const unsigned int batch = PAGE_SIZE / sizeof(struct page *);
	const unsigned int entry = dma_get_max_seg_size(&r->file->ud->pdev->dev);
	struct page **pages = (struct page **)__get_free_page(GFP_KERNEL);
	unsigned long left = r->npages;
	int ret = 0;

	if (!pages)
		return -ENOMEM;
	while (left) {
		int got;

		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		cond_resched();
		got = pin_user_pages_fast(addr, min_t(unsigned long, left, batch),
					  FOLL_WRITE | FOLL_LONGTERM, pages);
		if (got <= 0) {
			ret = got ? got : -EFAULT;
			break;
		}
		left -= got;
		addr += (unsigned long)got << PAGE_SHIFT;
		/* Neighbouring pages become one entry, so huge pages cost little. */
		ret = sg_alloc_append_table_from_pages(&r->pinned, pages, got, 0,
						       (unsigned long)got << PAGE_SHIFT,
						       entry, left, GFP_KERNEL_ACCOUNT);
		if (ret) {
			unpin_user_pages(pages, got);
			break;
		}
	}
	free_page((unsigned long)pages);
	return ret;
}

/* Unmaps and unpins a UGDS_HOST region. */
void ugds_unpin(struct ugds_region *r)
{
	struct ugds_device *ud = r->file->ud;
	struct sg_table *sgt = &r->pinned.sgt;
	struct scatterlist *sg;
	int i;

	if (r->mapped) {
		dma_unmap_sgtable(&ud->pdev->dev, sgt, DMA_BIDIRECTIONAL, UGDS_DMA_ATTRS);
		ugds_flush_iotlb(ud);
	}
	trace_ugds_step(MINOR(ud->dev.devt), UGDS_STEP_UNPIN, r->npages);
	for_each_sgtable_sg(sgt, sg, i) {
		unpin_user_page_range_dirty_lock(sg_page(sg), sg->length >> PAGE_SHIFT, true);
		cond_resched();
	}
	sg_free_append_table(&r->pinned);
	ugds_uncharge(r->file, r->npages);
}

/* Maps the pinned pages. ud->lock is held, and the driver is bound. */
static int map(struct ugds_region *r, struct ugds_map *a)
{
	struct ugds_device *ud = r->file->ud;
	int ret;

	ret = dma_map_sgtable(&ud->pdev->dev, &r->pinned.sgt, DMA_BIDIRECTIONAL, UGDS_DMA_ATTRS);
	if (ret) {
		a->why = UGDS_WHY_DMA;
		return ret;
	}
	r->mapped = true;
	if (ugds_bounces(ud, &r->pinned.sgt)) {
		a->why = UGDS_WHY_BOUNCE;
		return -EIO;
	}
	ret = ugds_region_list(r, &r->pinned.sgt, 0, a->len);
	if (ret)
		return ret;
	return ugds_region_add(r);
}

/*
 * Pins and maps user memory; address and length are checked. The pages are pinned
 * before any lock is taken, since that takes mmap_lock and may wait for I/O. 1 is
 * that of ugds_region_add().
 */
int ugds_map(struct ugds_file *f, struct ugds_map *a)
{
	struct ugds_device *ud = f->ud;
	struct ugds_region *r = ugds_region_new(f, UGDS_HOST);
	int ret;

	if (!r)
		return -ENOMEM;
	r->npages = a->len >> PAGE_SHIFT;
	ret = ugds_charge(f, r->npages);
	if (ret) {
		a->why = UGDS_WHY_MEMLOCK;
		kfree(r);
		return ret;
	}
	ret = pin(r, a->addr);
	if (ret)
		a->why = UGDS_WHY_PIN;
	mutex_lock(&ud->lock);
	if (!ret && ud->gone)
		ret = -ENODEV;
	if (!ret)
		ret = map(r, a);
	if (ret < 0) {
		ugds_region_drop(r);
	} else if (!ret) {
		a->region = r->id;
		a->segments = r->nsegs;
	}
	mutex_unlock(&ud->lock);
	return ret;
}
