// SPDX-License-Identifier: GPL-2.0
/*
 * Exports the BAR of a PCI device as a dma-buf. For tests only: whoever
 * may open the node reads and writes any BAR.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "../compat.h"
#include "fakegpu.h"

struct fakegpu {
	struct pci_dev *pdev;
	phys_addr_t phys;
	size_t len;
	u32 flags;
	bool lost;	/* under the dma_resv */
};

static struct sg_table *gpu_map(struct dma_buf_attachment *att, enum dma_data_direction dir)
{
	struct fakegpu *g = att->dmabuf->priv;
	struct sg_table *sgt;
	dma_addr_t addr;

	if (g->lost)
		return ERR_PTR(-ENODEV);
	sgt = kzalloc(sizeof(*sgt), GFP_KERNEL);
	if (!sgt)
		return ERR_PTR(-ENOMEM);
	if (sg_alloc_table(sgt, 1, GFP_KERNEL)) {
		kfree(sgt);
		return ERR_PTR(-ENOMEM);
	}
	addr = dma_map_resource(att->dev, g->phys, g->len, dir, DMA_ATTR_SKIP_CPU_SYNC);
	if (dma_mapping_error(att->dev, addr)) {
		sg_free_table(sgt);
		kfree(sgt);
		return ERR_PTR(-EIO);
	}
	/* Device memory has no pages: only the bus address counts. */
	sg_set_page(sgt->sgl, NULL, g->len, 0);
	sg_dma_address(sgt->sgl) = addr;
	sg_dma_len(sgt->sgl) = g->len;
	return sgt;
}

static void gpu_unmap(struct dma_buf_attachment *att, struct sg_table *sgt,
		      enum dma_data_direction dir)
{
	dma_unmap_resource(att->dev, sg_dma_address(sgt->sgl), sg_dma_len(sgt->sgl), dir,
			   DMA_ATTR_SKIP_CPU_SYNC);
	sg_free_table(sgt);
	kfree(sgt);
}

static int gpu_attach(struct dma_buf *buf, struct dma_buf_attachment *att)
{
	return att->peer2peer ? 0 : -EOPNOTSUPP;
}

static int gpu_pin(struct dma_buf_attachment *att)
{
	struct fakegpu *g = att->dmabuf->priv;

	return g->flags & FAKEGPU_NO_PIN ? -EOPNOTSUPP : 0;
}

static void gpu_unpin(struct dma_buf_attachment *att)
{
}

static int gpu_mmap(struct dma_buf *buf, struct vm_area_struct *vma)
{
	struct fakegpu *g = buf->priv;

	vma->vm_page_prot = pgprot_noncached(vma->vm_page_prot);
	return io_remap_pfn_range(vma, vma->vm_start, (g->phys >> PAGE_SHIFT) + vma->vm_pgoff,
				  vma->vm_end - vma->vm_start, vma->vm_page_prot);
}

static void gpu_release(struct dma_buf *buf)
{
	struct fakegpu *g = buf->priv;

	pci_dev_put(g->pdev);
	kfree(g);
}

static const struct dma_buf_ops dynamic_ops = {
	.attach = gpu_attach,
	.pin = gpu_pin,
	.unpin = gpu_unpin,
	.map_dma_buf = gpu_map,
	.unmap_dma_buf = gpu_unmap,
	.mmap = gpu_mmap,
	.release = gpu_release,
};

static const struct dma_buf_ops static_ops = {
	.map_dma_buf = gpu_map,
	.unmap_dma_buf = gpu_unmap,
	.mmap = gpu_mmap,
	.release = gpu_release,
};

/* Fills in where the range is. */
static int find(struct fakegpu *g, struct fakegpu_export *a)
{
	u64 size;

	g->pdev = pci_get_domain_bus_and_slot(a->pci_address >> 16, (a->pci_address >> 8) & 0xff,
					      a->pci_address & 0xff);
	if (!g->pdev)
		return -ENODEV;
	if (a->bar >= PCI_STD_NUM_BARS || !(pci_resource_flags(g->pdev, a->bar) & IORESOURCE_MEM))
		return -EINVAL;
	size = pci_resource_len(g->pdev, a->bar);
	if (!a->len || !PAGE_ALIGNED(a->offset | a->len) || a->offset > size ||
	    a->len > size - a->offset)
		return -EINVAL;
	g->phys = pci_resource_start(g->pdev, a->bar) + a->offset;
	g->len = a->len;
	g->flags = a->flags;
	return 0;
}

static int do_export(struct fakegpu_export *a)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct fakegpu *g = kzalloc(sizeof(*g), GFP_KERNEL);
	struct dma_buf *buf;
	int ret;

	if (!g)
		return -ENOMEM;
	ret = find(g, a);
	if (ret)
		goto put;
	info.ops = a->flags & FAKEGPU_STATIC ? &static_ops : &dynamic_ops;
	info.size = g->len;
	info.flags = O_RDWR | O_CLOEXEC;
	info.priv = g;
	buf = dma_buf_export(&info);
	if (IS_ERR(buf)) {
		ret = PTR_ERR(buf);
		goto put;
	}
	ret = dma_buf_fd(buf, O_CLOEXEC);
	if (ret < 0) {
		dma_buf_put(buf); /* which frees g */
		return ret;
	}
	a->fd = ret;
	return 0;
put:
	pci_dev_put(g->pdev);
	kfree(g);
	return ret;
}

static int do_move(struct fakegpu_move *a)
{
	struct dma_buf *buf = dma_buf_get(a->fd);
	struct fakegpu *g;
	int ret = -EINVAL;

	if (IS_ERR(buf))
		return PTR_ERR(buf);
	if (buf->ops == &dynamic_ops) {
		g = buf->priv;
		dma_resv_lock(buf->resv, NULL);
		g->lost = a->lose;
		ugds_dma_buf_moved(buf);
		dma_resv_unlock(buf->resv);
		ret = 0;
	}
	dma_buf_put(buf);
	return ret;
}

static long gpu_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	void __user *user = (void __user *)arg;
	struct fakegpu_export e;
	struct fakegpu_move m;
	int ret;

	switch (cmd) {
	case FAKEGPU_EXPORT:
		if (copy_from_user(&e, user, sizeof(e)))
			return -EFAULT;
		ret = do_export(&e);
		if (!ret && copy_to_user(user, &e, sizeof(e)))
			ret = -EFAULT; /* the descriptor stays: this is for tests */
		return ret;
	case FAKEGPU_MOVE:
		if (copy_from_user(&m, user, sizeof(m)))
			return -EFAULT;
		return do_move(&m);
	}
	return -ENOTTY;
}

static const struct file_operations gpu_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = gpu_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice gpu_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "ugds_fakegpu",
	.fops = &gpu_fops,
	.mode = 0600,
};
module_misc_device(gpu_misc);

MODULE_DESCRIPTION("exports a PCI BAR as a dma-buf, for tests of ugds");
MODULE_LICENSE("GPL");
UGDS_IMPORT_DMA_BUF;
