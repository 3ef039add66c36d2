// SPDX-License-Identifier: GPL-2.0
/*
 * The table of regions, what they cost, and queue memory.
 */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/sort.h>

#include "internal.h"
#include "trace.h"

/*
 * Pinned pages count in pinned_vm of the process, which is held to RLIMIT_MEMLOCK
 * as RDMA does it. Queue memory counts as well: it cannot be swapped either.
 */
int ugds_charge(struct ugds_file *f, unsigned long npages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	s64 now = atomic64_add_return(npages, &f->mm->pinned_vm);

	if (now <= (s64)limit || capable(CAP_IPC_LOCK))
		return 0;
	atomic64_sub(npages, &f->mm->pinned_vm);
	return -ENOMEM;
}

void ugds_uncharge(struct ugds_file *f, unsigned long npages)
{
	atomic64_sub(npages, &f->mm->pinned_vm);
}

/*
 * Tells whether the kernel copies the memory instead of mapping it, or would have
 * to flush caches: nobody syncs these mappings. A translated mapping of whole pages
 * is never copied, and some kernels cannot answer for one.
 */
bool ugds_bounces(struct ugds_device *ud, struct sg_table *sgt)
{
	struct scatterlist *sg;
	int i;

	if (ugds_iommu(ud) >= UGDS_IOMMU_LAZY)
		return false;
	for_each_sgtable_dma_sg(sgt, sg, i) {
		if (dma_need_sync(&ud->pdev->dev, sg_dma_address(sg)))
			return true;
		cond_resched();
	}
	return false;
}

/* Walks [skip, skip + len) of a mapped table; fills segs if there is room for them. */
static int walk(struct sg_table *sgt, u64 skip, u64 len, struct ugds_segment *segs, u32 *n)
{
	struct ugds_segment last = {};
	struct scatterlist *sg;
	u32 count = 0;
	int i;

	for_each_sgtable_dma_sg(sgt, sg, i) {
		u64 addr = sg_dma_address(sg), size = sg_dma_len(sg);

		cond_resched();
		if (skip >= size) {
			skip -= size;
			continue;
		}
		addr += skip;
		size = min(size - skip, len);
		skip = 0;
		len -= size;
		if ((addr | size) & (UGDS_NVME_PAGE - 1))
			return -EINVAL;
		if (count && last.addr + last.len == addr) {
			last.len += size;
		} else {
			last = (struct ugds_segment){ addr, size };
			count++;
		}
		if (segs)
			segs[count - 1] = last;
		if (!len)
			break;
	}
	*n = count;
	return len ? -ERANGE : 0;
}

/*
 * Lists what the controller sees of a mapped table. -EINVAL for pieces that are not
 * whole NVMe pages, -ERANGE when the table is shorter than asked for.
 */
int ugds_region_list(struct ugds_region *r, struct sg_table *sgt, u64 skip, u64 len)
{
	int ret = walk(sgt, skip, len, NULL, &r->nsegs);

	if (ret)
		return ret;
	r->segs = kvcalloc(r->nsegs, sizeof(*r->segs), GFP_KERNEL_ACCOUNT);
	if (!r->segs)
		return -ENOMEM;
	return walk(sgt, skip, len, r->segs, &r->nsegs);
}

struct ugds_region *ugds_region_new(struct ugds_file *f, enum ugds_kind kind)
{
	struct ugds_region *r = kzalloc(sizeof(*r), GFP_KERNEL_ACCOUNT);

	if (r) {
		r->file = f;
		r->kind = kind;
	}
	return r;
}

static int by_address(const void *a, const void *b)
{
	const struct ugds_segment *x = a, *y = b;

	cond_resched(); /* a sort of millions takes seconds */
	return x->addr < y->addr ? -1 : x->addr > y->addr;
}

/*
 * Sorts the segments of a dead region, which nobody gets to see any more, and merges
 * what touches. ud->lock is held.
 */
static void sort_dead(struct ugds_region *d)
{
	u32 i, n = 0;

	if (d->sorted)
		return;
	sort(d->segs, d->nsegs, sizeof(*d->segs), by_address, NULL);
	for (i = 1; i < d->nsegs; i++) {
		struct ugds_segment *last = &d->segs[n], *s = &d->segs[i];

		if (s->addr <= last->addr + last->len)
			last->len = max(last->len, s->addr + s->len - last->addr);
		else
			d->segs[++n] = *s;
		cond_resched();
	}
	d->nsegs = d->nsegs ? n + 1 : 0;
	d->sorted = true;
}

/* Tells whether s meets a segment of a dead region, which is sorted. */
static bool meets(struct ugds_region *d, const struct ugds_segment *s)
{
	u32 low = 0, high = d->nsegs;

	while (low < high) {
		u32 mid = low + (high - low) / 2;

		if (d->segs[mid].addr + d->segs[mid].len <= s->addr)
			low = mid + 1;
		else
			high = mid;
	}
	return low < d->nsegs && d->segs[low].addr < s->addr + s->len;
}

/*
 * Tells whether bus addresses of r are those of a region that its exporter took back
 * and its owner has not ended. Both may have millions of segments. ud->lock is held.
 */
static bool overlaps_dead(struct ugds_region *r)
{
	struct ugds_region *d;
	unsigned long id;
	u32 i;

	if (!atomic_read(&r->file->dead) || ugds_iommu(r->file->ud) < UGDS_IOMMU_LAZY)
		return false;
	xa_for_each(&r->file->regions, id, d) {
		cond_resched();
		if (!READ_ONCE(d->dead))
			continue;
		sort_dead(d);
		for (i = 0; i < r->nsegs; i++) {
			if (meets(d, &r->segs[i]))
				return true;
			cond_resched();
		}
	}
	return false;
}

/* Notes that the exporter takes the region back; before it is unmapped. */
void ugds_region_died(struct ugds_region *r)
{
	WRITE_ONCE(r->dead, true);
	atomic_inc(&r->file->dead);
}

static void drop_parked(struct ugds_file *f, bool all)
{
	struct ugds_region *r, *next;

	list_for_each_entry_safe(r, next, &f->parked, link) {
		if (!all && !READ_ONCE(r->dead))
			continue;
		list_del(&r->link);
		ugds_region_drop(r);
		cond_resched();
	}
}

/*
 * Ends the parked regions when no dead one is left, and those that have died themselves,
 * which keep addresses from nobody any more. ud->lock is held.
 */
static void unpark(struct ugds_file *f)
{
	drop_parked(f, false);
	if (!atomic_read(&f->dead))
		drop_parked(f, true);
}

/*
 * Gives the region an identifier and enters it in the table. Identifiers start
 * again only after 2^20, so that a late UNMAP does not hit another region; they
 * must fit above UGDS_MMAP_STATUS in a file offset. ud->lock is held.
 *
 * 1 means that the region got bus addresses that commands may still name, of memory
 * that was taken back behind a strict IOMMU: what they do must hit nothing. So the
 * region is parked, which keeps those addresses from everybody, and the caller makes
 * another one.
 */
int ugds_region_add(struct ugds_region *r)
{
	struct ugds_file *f = r->file;
	struct ugds_device *ud = f->ud;
	int ret;

	if (f->count >= UGDS_REGIONS_MAX)
		return -ENOSPC;
	if (overlaps_dead(r)) {
		list_add_tail(&r->link, &f->parked);
		return 1;
	}
	mutex_lock(&ud->vma_lock);
	ret = xa_alloc_cyclic(&f->regions, &r->id, r, XA_LIMIT(2, (1 << 20) - 1),
			      &f->last_region, GFP_KERNEL_ACCOUNT);
	mutex_unlock(&ud->vma_lock);
	if (ret < 0)
		return ret;
	f->count++;
	return 0;
}

/*
 * Takes the memory of a region away from the controller and gives it back. The
 * controller has stopped, or its owner says that no command names the memory.
 * ud->lock is held.
 */
void ugds_region_drop(struct ugds_region *r)
{
	trace_ugds_step(MINOR(r->file->ud->dev.devt), UGDS_STEP_UNMAP, r->id);
	switch (r->kind) {
	case UGDS_HOST:
		ugds_unpin(r);
		break;
	case UGDS_QUEUE:
		ugds_free(r);
		break;
	case UGDS_DMABUF:
		ugds_detach(r);
		break;
	case UGDS_NVIDIA:
		ugds_nvidia_end(r);
		break;
	}
	if (r->dead)
		atomic_dec(&r->file->dead);
	kvfree(r->segs);
	kfree(r);
}

/* Ends one region. ud->lock is held. */
int ugds_region_end(struct ugds_file *f, u32 id)
{
	struct ugds_region *r;

	mutex_lock(&f->ud->vma_lock);
	r = xa_erase(&f->regions, id);
	mutex_unlock(&f->ud->vma_lock);
	if (!r)
		return -ENOENT;
	f->count--;
	ugds_region_drop(r);
	unpark(f);
	return 0;
}

/* Ends all regions, when the controller has stopped. ud->lock is held. */
void ugds_regions_end(struct ugds_file *f)
{
	struct ugds_region *r;
	unsigned long id;

	drop_parked(f, true); /* first, so that no end looks through them */
	xa_for_each(&f->regions, id, r) {
		ugds_region_end(f, id);
		cond_resched();
	}
}

static void free_pages_of(struct ugds_region *r)
{
	unsigned long i;

	for (i = 0; i < r->npages; i++)
		__free_page(r->pages[i]);
	kvfree(r->pages);
	r->pages = NULL;
}

/*
 * Takes single pages that lie in one piece. They are ordinary pages with a count
 * of their own: a mapping of the process keeps them alive, whatever becomes of the
 * region and the device.
 */
static int take_pages(struct ugds_region *r, unsigned long npages)
{
	const gfp_t gfp = GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN | __GFP_RETRY_MAYFAIL;
	unsigned int order = get_order(npages << PAGE_SHIFT);
	struct page *first;
	unsigned long i;

	r->pages = kvcalloc(npages, sizeof(*r->pages), GFP_KERNEL_ACCOUNT);
	if (!r->pages)
		return -ENOMEM;
	first = alloc_pages_node(dev_to_node(&r->file->ud->pdev->dev), gfp, order);
	if (!first)
		return -ENOMEM;
	split_page(first, order);
	for (i = 0; i < 1UL << order; i++) {
		if (i < npages)
			r->pages[i] = first + i;
		else
			__free_page(first + i);
	}
	r->npages = npages;
	return 0;
}

/* Takes the memory of a UGDS_QUEUE region back. */
void ugds_free(struct ugds_region *r)
{
	struct ugds_device *ud = r->file->ud;
	unsigned long npages = r->npages;

	if (r->mapped) {
		dma_unmap_page_attrs(&ud->pdev->dev, r->addr, npages << PAGE_SHIFT,
				     DMA_BIDIRECTIONAL, UGDS_DMA_ATTRS);
		ugds_flush_iotlb(ud);
	}
	free_pages_of(r);
	ugds_uncharge(r->file, npages);
}

/* Queue memory: a->len is checked. 1 is that of ugds_region_add(). ud->lock is held. */
int ugds_alloc(struct ugds_file *f, struct ugds_alloc *a)
{
	struct ugds_device *ud = f->ud;
	unsigned long npages = PAGE_ALIGN(a->len) >> PAGE_SHIFT;
	struct ugds_region *r = ugds_region_new(f, UGDS_QUEUE);
	int ret;

	if (!r)
		return -ENOMEM;
	ret = ugds_charge(f, npages);
	if (ret) {
		a->why = UGDS_WHY_MEMLOCK;
		kfree(r);
		return ret;
	}
	ret = take_pages(r, npages);
	if (ret) {
		ugds_uncharge(f, npages); /* r->npages is 0: drop does not */
		goto drop;
	}
	r->addr = dma_map_page_attrs(&ud->pdev->dev, r->pages[0], 0, npages << PAGE_SHIFT,
				     DMA_BIDIRECTIONAL, UGDS_DMA_ATTRS);
	if (dma_mapping_error(&ud->pdev->dev, r->addr)) {
		a->why = UGDS_WHY_DMA;
		ret = -EIO;
		goto drop;
	}
	r->mapped = true;
	if (ugds_iommu(ud) < UGDS_IOMMU_LAZY && dma_need_sync(&ud->pdev->dev, r->addr)) {
		a->why = UGDS_WHY_BOUNCE;
		ret = -EIO;
		goto drop;
	}
	r->segs = kvcalloc(1, sizeof(*r->segs), GFP_KERNEL_ACCOUNT);
	if (!r->segs) {
		ret = -ENOMEM;
		goto drop;
	}
	r->segs[0] = (struct ugds_segment){ r->addr, (u64)npages << PAGE_SHIFT };
	r->nsegs = 1;
	ret = ugds_region_add(r);
	if (ret > 0)
		return ret;
	if (ret)
		goto drop;
	a->region = r->id;
	a->bus_addr = r->addr;
	a->mmap_offset = (u64)r->id << 40;
	return 0;
drop:
	ugds_region_drop(r);
	return ret;
}
