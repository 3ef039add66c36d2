// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of other devices, and taking it back.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>

#include "internal.h"
#include "trace.h"

/* How long work that the exporter has queued on the memory may take. */
#define FENCE_SECONDS	10

/*
 * The exporter moves the memory or takes it back, and holds its dma_resv. When this
 * returns, it does with the memory what it likes, so no access of the controller may
 * land afterwards. A strict domain guarantees that once the memory is unmapped, for
 * this region alone. In any other the controller itself is cut off first.
 */
static void ugds_moved(struct dma_buf_attachment *att)
{
	struct ugds_region *r = att->importer_priv;
	struct ugds_device *ud = r->file->ud;

	if (!r->sgt)
		return;
	if (ugds_iommu(ud) != UGDS_IOMMU_STRICT)
		ugds_isolate(ud, UGDS_WHY_REVOKED);
	ugds_region_died(r);
	ugds_count_revoked(ud);
	dma_buf_unmap_attachment(att, r->sgt, DMA_BIDIRECTIONAL);
	ugds_flush_iotlb(ud); /* the next owner may have the controller running in a moment */
	r->sgt = NULL;
	trace_ugds_step(MINOR(ud->dev.devt), UGDS_STEP_REVOKED, r->id);
}

static const struct dma_buf_attach_ops ugds_attach_ops = {
	.allow_peer2peer = true,
	.UGDS_MOVE_NOTIFY = ugds_moved,
};

/* Ends a UGDS_DMABUF region, or what there is of it. ud->lock is held. */
void ugds_detach(struct ugds_region *r)
{
	if (r->att) {
		dma_resv_lock(r->buf->resv, NULL);
		if (r->sgt)
			dma_buf_unmap_attachment(r->att, r->sgt, DMA_BIDIRECTIONAL);
		r->sgt = NULL;
		ugds_flush_iotlb(r->file->ud);
		if (r->exporter_pinned)
			dma_buf_unpin(r->att);
		dma_resv_unlock(r->buf->resv);
		dma_buf_detach(r->buf, r->att);
	}
	if (r->buf)
		dma_buf_put(r->buf);
}

/* Pins, maps and waits for the exporter's own work. The dma_resv is held. */
static int map_locked(struct ugds_region *r, struct ugds_import *a)
{
	long left;
	int ret;

	if (!(a->flags & UGDS_IMPORT_MOVABLE)) {
		ret = dma_buf_pin(r->att);
		if (ret) {
			a->why = UGDS_WHY_EXPORTER_PIN;
			return ret;
		}
		r->exporter_pinned = true;
	}
	r->sgt = dma_buf_map_attachment(r->att, DMA_BIDIRECTIONAL);
	if (IS_ERR(r->sgt)) {
		ret = PTR_ERR(r->sgt);
		r->sgt = NULL;
		a->why = UGDS_WHY_EXPORTER_MAP;
		return ret;
	}
	/* Pinning may have moved the memory, and the copy may not have ended. */
	left = dma_resv_wait_timeout(r->buf->resv, DMA_RESV_USAGE_KERNEL, true, FENCE_SECONDS * HZ);
	if (left > 0)
		return 0;
	a->why = UGDS_WHY_EXPORTER_MAP;
	return left ? left : -ETIMEDOUT;
}

static int attach(struct ugds_region *r, struct ugds_import *a)
{
	struct ugds_device *ud = r->file->ud;
	struct dma_buf_attachment *att;
	int ret;

	att = dma_buf_dynamic_attach(r->buf, &ud->pdev->dev, &ugds_attach_ops, r);
	if (IS_ERR(att)) {
		a->why = UGDS_WHY_ATTACH;
		return PTR_ERR(att);
	}
	r->att = att;
	ret = dma_resv_lock_interruptible(r->buf->resv, NULL);
	if (ret)
		return ret;
	ret = map_locked(r, a);
	/* Under the lock: afterwards the exporter may take the table back. */
	if (!ret && ugds_bounces(ud, r->sgt)) {
		a->why = UGDS_WHY_BOUNCE;
		ret = -EIO;
	}
	if (!ret)
		ret = ugds_region_list(r, r->sgt, a->offset, a->len);
	dma_resv_unlock(r->buf->resv);
	if (ret == -EINVAL)
		a->why = UGDS_WHY_MISALIGNED;
	if (ret == -ERANGE)
		a->why = UGDS_WHY_RANGE;
	return ret;
}

/*
 * Imports a dma-buf; flags, offset and length are checked. 1 is that of
 * ugds_region_add(). ud->lock is held.
 */
int ugds_import(struct ugds_file *f, struct ugds_import *a)
{
	struct ugds_region *r = ugds_region_new(f, UGDS_DMABUF);
	struct dma_buf *buf;
	int ret;

	if (!r)
		return -ENOMEM;
	buf = dma_buf_get(a->fd);
	if (IS_ERR(buf)) {
		ret = PTR_ERR(buf);
		goto drop;
	}
	r->buf = buf;
	if (a->offset > buf->size || a->len > buf->size - a->offset) {
		a->why = UGDS_WHY_RANGE;
		ret = -ERANGE;
		goto drop;
	}
	ret = attach(r, a);
	if (!ret)
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
