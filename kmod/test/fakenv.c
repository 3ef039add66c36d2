// SPDX-License-Identifier: GPL-2.0
/*
 * Plays the part of NVIDIA's driver that gives peers the memory of a GPU: the BAR of
 * a PCI device. For tests only: whoever may open the node gives away any BAR.
 *
 * It behaves as the open driver does: one lock, which it holds when it tells a client
 * that memory is freed; and after that call the pages, their table and the mappings
 * that are left go, whatever the client did.
 */
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include <nv-p2p.h>
#include "fakenv.h"

/* Memory that a client has. */
struct piece {
	struct list_head link;
	u64 addr;
	u64 len;
	void (*freed)(void *data);
	void *data;
	struct nvidia_p2p_page_table table;
	struct nvidia_p2p_dma_mapping *mapping;	/* under mapping_lock */
};

/* As in the driver: unmapping does not take the big lock, all else does. */
static DEFINE_MUTEX(big_lock);
static DEFINE_MUTEX(mapping_lock);
static LIST_HEAD(pieces);
static struct pci_dev *gpu;
static u32 gpu_bar;

static void unmap(struct nvidia_p2p_dma_mapping *m)
{
	u32 i;

	for (i = 0; i < m->entries; i++)
		dma_unmap_resource(&m->pci_dev->dev, m->dma_addresses[i], FAKENV_PAGE,
				   DMA_BIDIRECTIONAL, DMA_ATTR_SKIP_CPU_SYNC);
	kfree(m->dma_addresses);
	kfree(m);
}

/* Takes the mapping of a piece, if there is one and it is the wanted one or any. */
static void unmap_piece(struct piece *p, struct nvidia_p2p_dma_mapping *wanted)
{
	struct nvidia_p2p_dma_mapping *m;

	mutex_lock(&mapping_lock);
	m = p->mapping;
	if (m && (!wanted || m == wanted))
		p->mapping = NULL;
	else
		m = NULL;
	mutex_unlock(&mapping_lock);
	if (m)
		unmap(m);
}

static void free_piece(struct piece *p)
{
	unmap_piece(p, NULL);
	kfree(p);
}

int nvidia_p2p_get_pages(u64 p2p_token, u32 va_space, u64 virtual_address, u64 length,
			 struct nvidia_p2p_page_table **page_table,
			 void (*free_callback)(void *data), void *data)
{
	struct piece *p;
	int ret = -EINVAL;

	if (!length || (virtual_address | length) & (FAKENV_PAGE - 1) || !data)
		return -EINVAL;
	if (p2p_token || va_space || !free_callback)
		return -ENOTSUPP;
	p = kzalloc(sizeof(*p), GFP_KERNEL);
	if (!p)
		return -ENOMEM;
	p->addr = virtual_address;
	p->len = length;
	p->freed = free_callback;
	p->data = data;
	p->table.version = NVIDIA_P2P_PAGE_TABLE_VERSION;
	p->table.page_size = NVIDIA_P2P_PAGE_SIZE_64KB;
	p->table.entries = length / FAKENV_PAGE;
	mutex_lock(&big_lock);
	if (gpu && virtual_address >= FAKENV_VA &&
	    virtual_address - FAKENV_VA < pci_resource_len(gpu, gpu_bar) &&
	    length <= pci_resource_len(gpu, gpu_bar) - (virtual_address - FAKENV_VA)) {
		list_add(&p->link, &pieces);
		*page_table = &p->table;
		ret = 0;
	}
	mutex_unlock(&big_lock);
	if (ret)
		kfree(p);
	return ret;
}
EXPORT_SYMBOL(nvidia_p2p_get_pages);

/* Finds the piece of a table that may be gone: without a look into it. */
static struct piece *find(struct nvidia_p2p_page_table *table)
{
	struct piece *p;

	list_for_each_entry(p, &pieces, link)
		if (&p->table == table)
			return p;
	return NULL;
}

int nvidia_p2p_put_pages(u64 p2p_token, u32 va_space, u64 virtual_address,
			 struct nvidia_p2p_page_table *page_table)
{
	struct piece *p;

	mutex_lock(&big_lock);
	p = find(page_table);
	if (p)
		list_del(&p->link);
	mutex_unlock(&big_lock);
	if (p)
		free_piece(p);
	return 0;
}
EXPORT_SYMBOL(nvidia_p2p_put_pages);

int nvidia_p2p_dma_map_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *page_table,
			     struct nvidia_p2p_dma_mapping **dma_mapping)
{
	struct nvidia_p2p_dma_mapping *m = kzalloc(sizeof(*m), GFP_KERNEL);
	phys_addr_t at;
	struct piece *p;
	int ret = -ENOMEM;

	if (!m)
		return -ENOMEM;
	mutex_lock(&big_lock);
	p = find(page_table);
	if (!p) {
		ret = -EINVAL;
		goto out;
	}
	at = pci_resource_start(gpu, gpu_bar) + (p->addr - FAKENV_VA);
	m->version = NVIDIA_P2P_DMA_MAPPING_VERSION;
	m->page_size_type = NVIDIA_P2P_PAGE_SIZE_64KB;
	m->pci_dev = peer;
	m->dma_addresses = kcalloc(p->table.entries, sizeof(u64), GFP_KERNEL);
	if (!m->dma_addresses)
		goto out;
	for (; m->entries < p->table.entries; m->entries++) {
		dma_addr_t addr = dma_map_resource(&peer->dev, at, FAKENV_PAGE,
						   DMA_BIDIRECTIONAL, DMA_ATTR_SKIP_CPU_SYNC);

		ret = dma_mapping_error(&peer->dev, addr);
		if (ret)
			goto out;
		m->dma_addresses[m->entries] = addr;
		at += FAKENV_PAGE;
	}
	mutex_lock(&mapping_lock);
	p->mapping = m;
	mutex_unlock(&mapping_lock);
	*dma_mapping = m;
	m = NULL;
	ret = 0;
out:
	mutex_unlock(&big_lock);
	if (m)
		unmap(m);
	return ret;
}
EXPORT_SYMBOL(nvidia_p2p_dma_map_pages);

int nvidia_p2p_dma_unmap_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *page_table,
			       struct nvidia_p2p_dma_mapping *dma_mapping)
{
	unmap_piece(container_of(page_table, struct piece, table), dma_mapping);
	return 0;
}
EXPORT_SYMBOL(nvidia_p2p_dma_unmap_pages);

/* Both do nothing, as in the driver. */
int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table)
{
	return 0;
}
EXPORT_SYMBOL(nvidia_p2p_free_page_table);

int nvidia_p2p_free_dma_mapping(struct nvidia_p2p_dma_mapping *dma_mapping)
{
	return 0;
}
EXPORT_SYMBOL(nvidia_p2p_free_dma_mapping);

/* Frees every piece that holds an address. */
static void do_free(u64 addr)
{
	struct piece *p, *next;

	mutex_lock(&big_lock);
	list_for_each_entry_safe(p, next, &pieces, link) {
		if (addr < p->addr || addr - p->addr >= p->len)
			continue;
		list_del(&p->link);
		p->freed(p->data);
		free_piece(p);
	}
	mutex_unlock(&big_lock);
}

static int do_gpu(struct fakenv_gpu *a)
{
	struct pci_dev *pdev;
	int ret = -EBUSY;

	if (a->bar >= PCI_STD_NUM_BARS)
		return -EINVAL;
	pdev = pci_get_domain_bus_and_slot(a->pci_address >> 16, (a->pci_address >> 8) & 0xff,
					   a->pci_address & 0xff);
	if (!pdev)
		return -ENODEV;
	mutex_lock(&big_lock);
	if (list_empty(&pieces)) {
		swap(gpu, pdev);
		gpu_bar = a->bar;
		ret = 0;
	}
	mutex_unlock(&big_lock);
	pci_dev_put(pdev);
	return ret;
}

static long nv_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	void __user *user = (void __user *)arg;
	struct fakenv_gpu g;
	struct fakenv_free f;

	switch (cmd) {
	case FAKENV_GPU:
		return copy_from_user(&g, user, sizeof(g)) ? -EFAULT : do_gpu(&g);
	case FAKENV_FREE:
		if (copy_from_user(&f, user, sizeof(f)))
			return -EFAULT;
		do_free(f.addr);
		return 0;
	}
	return -ENOTTY;
}

static const struct file_operations nv_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = nv_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice nv_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "ugds_fakenv",
	.fops = &nv_fops,
	.mode = 0600,
};

static int __init nv_init(void)
{
	return misc_register(&nv_misc);
}
module_init(nv_init);

static void __exit nv_exit(void)
{
	misc_deregister(&nv_misc);
	pci_dev_put(gpu);
}
module_exit(nv_exit);

MODULE_DESCRIPTION("plays NVIDIA's driver to peers, for tests of ugds");
MODULE_LICENSE("GPL");
