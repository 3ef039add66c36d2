// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of NVIDIA GPUs through the interface that NVIDIA's driver has for peers, for
 * where it cannot export a dma-buf. Built only with NVIDIA_SRC: see Makefile.
 *
 * The driver says in a callback that memory is being freed; when that returns, no
 * access of the controller may land. It may hold locks of its own then, so nv_lock is
 * never held around a function of the driver that takes those. And it may still be
 * on its way into the callback when the pages have been put back: so it is given a
 * number to look up, and not a pointer.
 */
#include <linux/slab.h>
#include <linux/types.h>
#include <linux/xarray.h>

#include <nv-p2p.h>

#include "internal.h"
#include "trace.h"

struct ugds_nv {
	u32 id;					/* in nv_regions */
	u64 addr;
	bool lost;				/* freed before it was mapped */
	struct nvidia_p2p_page_table *table;	/* NULL once it was freed */
	struct nvidia_p2p_dma_mapping *mapping;	/* the same, or not mapped yet */
};

/* Inside ud->lock and NVIDIA's locks, around hw_lock: all of the above but addr. */
static DEFINE_MUTEX(nv_lock);
static DEFINE_XARRAY_ALLOC1(nv_regions);

/* The memory goes: what dma-bufs do in ugds_moved(). nv_lock is held. */
static void take_back(struct ugds_region *r)
{
	struct ugds_device *ud = r->file->ud;
	struct ugds_nv *nv = r->nv;

	if (!nv->mapping) { /* nobody has been told an address */
		nv->lost = true;
		return;
	}
	if (ugds_iommu(ud) != UGDS_IOMMU_STRICT)
		ugds_isolate(ud, UGDS_WHY_REVOKED);
	ugds_region_died(r);
	ugds_count_revoked(ud);
	nvidia_p2p_dma_unmap_pages(ud->pdev, nv->table, nv->mapping);
	ugds_flush_iotlb(ud);
	nvidia_p2p_free_page_table(nv->table); /* drivers of today do it themselves */
	nv->mapping = NULL;
	nv->table = NULL;
	trace_ugds_step(MINOR(ud->dev.devt), UGDS_STEP_REVOKED, r->id);
}

static void freed(void *data)
{
	struct ugds_region *r;

	mutex_lock(&nv_lock);
	r = xa_load(&nv_regions, (unsigned long)data);
	if (r)
		take_back(r);
	mutex_unlock(&nv_lock);
}

/* Ends a UGDS_NVIDIA region, or what there is of it. ud->lock is held. */
void ugds_nvidia_end(struct ugds_region *r)
{
	struct nvidia_p2p_page_table *table;
	struct ugds_nv *nv = r->nv;

	if (!nv)
		return;
	mutex_lock(&nv_lock);
	if (nv->id)
		xa_erase(&nv_regions, nv->id);
	if (nv->mapping) {
		nvidia_p2p_dma_unmap_pages(r->file->ud->pdev, nv->table, nv->mapping);
		ugds_flush_iotlb(r->file->ud);
	}
	table = nv->lost ? NULL : nv->table;
	mutex_unlock(&nv_lock);
	/* The driver looks for the table in a list: it may be gone by now. */
	if (table)
		nvidia_p2p_put_pages(0, 0, nv->addr, table);
	kfree(nv);
}

/* Lists the pages of a mapping; there is room for len. nv_lock is held. */
static int list_pages(struct ugds_region *r, u64 len)
{
	struct nvidia_p2p_dma_mapping *m = r->nv->mapping;
	struct ugds_segment *last = NULL;
	u32 i;

	if (!NVIDIA_P2P_DMA_MAPPING_VERSION_COMPATIBLE(m) ||
	    m->page_size_type != NVIDIA_P2P_PAGE_SIZE_64KB || m->entries != len / UGDS_NVIDIA_PAGE)
		return -EOPNOTSUPP;
	for (i = 0; i < m->entries; i++) {
		u64 addr = m->dma_addresses[i];

		if (addr & (UGDS_NVME_PAGE - 1))
			return -EINVAL;
		if (last && last->addr + last->len == addr) {
			last->len += UGDS_NVIDIA_PAGE;
		} else {
			last = &r->segs[r->nsegs++];
			*last = (struct ugds_segment){ addr, UGDS_NVIDIA_PAGE };
		}
		cond_resched();
	}
	return 0;
}

/* The driver's errors are those of the kernel, but for one. */
static int error_of(int ret)
{
	return ret == -ENOTSUPP ? -EOPNOTSUPP : ret;
}

static int get_and_map(struct ugds_region *r, struct ugds_nvidia *a)
{
	struct nvidia_p2p_dma_mapping *mapping;
	struct nvidia_p2p_page_table *table;
	struct ugds_nv *nv = r->nv;
	int ret;

	a->why = UGDS_WHY_EXPORTER_PIN;
	ret = nvidia_p2p_get_pages(0, 0, a->addr, a->len, &table, freed,
				   (void *)(unsigned long)nv->id);
	if (ret)
		return error_of(ret);
	mutex_lock(&nv_lock);
	if (nv->lost) {
		nvidia_p2p_free_page_table(table);
		ret = -EFAULT;
	} else if (!NVIDIA_P2P_PAGE_TABLE_VERSION_COMPATIBLE(table)) {
		ret = -EOPNOTSUPP;
	}
	nv->table = table;
	mutex_unlock(&nv_lock);
	if (ret)
		return ret;
	a->why = UGDS_WHY_EXPORTER_MAP;
	ret = nvidia_p2p_dma_map_pages(r->file->ud->pdev, table, &mapping);
	if (ret)
		return error_of(ret);
	mutex_lock(&nv_lock);
	if (nv->lost) {
		nvidia_p2p_free_dma_mapping(mapping);
		nvidia_p2p_free_page_table(table);
		ret = -EFAULT;
	} else {
		nv->mapping = mapping;
		ret = list_pages(r, a->len);
	}
	mutex_unlock(&nv_lock);
	return ret;
}

/*
 * Maps memory of a GPU; flags, address and length are checked. 1 is that of
 * ugds_region_add(). ud->lock is held.
 */
int ugds_nvidia_map(struct ugds_file *f, struct ugds_nvidia *a)
{
	struct ugds_region *r = ugds_region_new(f, UGDS_NVIDIA);
	int ret = -ENOMEM;

	if (!r)
		return -ENOMEM;
	r->nv = kzalloc(sizeof(*r->nv), GFP_KERNEL_ACCOUNT);
	r->segs = kvcalloc(a->len / UGDS_NVIDIA_PAGE, sizeof(*r->segs), GFP_KERNEL_ACCOUNT);
	if (!r->nv || !r->segs)
		goto drop;
	r->nv->addr = a->addr;
	ret = xa_alloc(&nv_regions, &r->nv->id, r, xa_limit_31b, GFP_KERNEL_ACCOUNT);
	if (ret)
		goto drop;
	ret = get_and_map(r, a);
	if (ret)
		goto drop;
	a->why = UGDS_WHY_NONE;
	ret = ugds_region_add(r);
	if (ret > 0)
		return ret;
	if (ret)
		goto drop;
	a->region = r->id;
	a->segments = r->nsegs;
	return 0;
drop:
	ugds_region_drop(r);
	return ret;
}
