// SPDX-License-Identifier: GPL-2.0
/*
 * The node of a controller: who may open it, and what the owner may ask.
 */
#include <linux/eventfd.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/security.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "internal.h"
#include "trace.h"

/* How often memory is mapped anew to get other bus addresses. */
#define PARK_TRIES	16

static void set_owner(struct ugds_device *ud, struct ugds_file *f)
{
	mutex_lock(&ud->hw_lock);
	ud->owner = f;
	if (f && ud->state != UGDS_GONE) {
		ud->state = UGDS_STOPPED;
		ud->why = UGDS_WHY_NONE;
		ud->revoked = 0;
	}
	mutex_unlock(&ud->hw_lock);
}

static struct ugds_file *file_new(struct ugds_device *ud, struct file *filp)
{
	struct ugds_file *f = kzalloc(sizeof(*f), GFP_KERNEL_ACCOUNT);

	if (!f)
		return NULL;
	f->status = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!f->status) {
		kfree(f);
		return NULL;
	}
	f->ud = ud;
	f->mm = current->mm;
	mmgrab(f->mm);
	f->pid = get_pid(task_tgid(current));
	f->mapping = filp->f_mapping;
	xa_init_flags(&f->regions, XA_FLAGS_ALLOC);
	INIT_LIST_HEAD(&f->parked);
	return f;
}

/* Frees a file whose regions have ended. */
static void file_free(struct ugds_file *f)
{
	if (f->events)
		eventfd_ctx_put(f->events);
	xa_destroy(&f->regions);
	put_page(f->status); /* the page stays while the process maps it */
	put_pid(f->pid);
	mmdrop(f->mm);
	kfree(f);
}

/*
 * Ends the use of a file: stopped is what ugds_stop() said. When nothing showed
 * that the controller has stopped, it may still write, so its memory stays pinned
 * and mapped, and this module loaded, until a reset succeeds. ud->lock is held.
 */
void ugds_file_end(struct ugds_file *f, int stopped)
{
	struct ugds_device *ud = f->ud;

	if (ud->bar)
		ugds_irqs_close(f);
	set_owner(ud, NULL);
	if (!stopped) {
		ugds_regions_end(f);
		file_free(f);
		return;
	}
	trace_ugds_step(MINOR(ud->dev.devt), UGDS_STEP_KEPT, f->count);
	pci_err(ud->pdev, "%s: the controller did not stop; %u regions of process %d stay pinned\n",
		dev_name(&ud->dev), f->count, pid_nr(f->pid));
	__module_get(THIS_MODULE);
	get_device(&ud->dev);
	ud->stuck = f;
}

/* Tries again to stop a controller that did not. Both locks are held. */
int ugds_retry_stuck(struct ugds_device *ud)
{
	struct ugds_file *f = ud->stuck;
	u32 how;

	if (!f)
		return 0;
	if (ugds_stop(ud, 0, true, &how))
		return -EIO;
	pci_info(ud->pdev, "%s: the controller has stopped after all\n", dev_name(&ud->dev));
	ud->stuck = NULL;
	ugds_regions_end(f);
	file_free(f);
	put_device(&ud->dev);
	module_put(THIS_MODULE); /* not the last: the driver is bound and in use */
	return 0;
}

/*
 * Who may open: with translated addresses the controller reaches only what its
 * owner gave it, so the permissions of the node decide. Otherwise it reaches all
 * memory, which is the power of CAP_SYS_RAWIO and forbidden under lockdown.
 */
static int admit(struct ugds_device *ud)
{
	int ret;
	u32 how;

	if (ud->gone || ud->state == UGDS_GONE)
		return -ENODEV;
	if (ud->owner)
		return -EBUSY;
	if (ud->refusal)
		return -EOPNOTSUPP;
	if (ugds_iommu(ud) < UGDS_IOMMU_LAZY) {
		if (!capable(CAP_SYS_RAWIO))
			return -EPERM;
		if (security_locked_down(LOCKDOWN_PCI_ACCESS))
			return -EACCES;
	}
	ret = ugds_retry_stuck(ud);
	/*
	 * Firmware, another driver or an owner whom it did not obey may have left it
	 * enabled, with queues in memory that is somebody else's by now.
	 */
	if (!ret && ugds_enabled(ud))
		ret = ugds_stop(ud, 0, false, &how);
	if (!ret && ud->state == UGDS_GONE)
		ret = -ENODEV;
	return ret;
}

static int ugds_open(struct inode *inode, struct file *filp)
{
	struct ugds_device *ud = container_of(inode->i_cdev, struct ugds_device, cdev);
	struct ugds_file *f;
	int ret;

	if ((filp->f_mode & (FMODE_READ | FMODE_WRITE)) != (FMODE_READ | FMODE_WRITE))
		return -EACCES;
	f = file_new(ud, filp);
	if (!f)
		return -ENOMEM;
	ugds_lock(ud);
	ret = admit(ud);
	if (!ret) {
		ugds_irqs_open(f);
		set_owner(ud, f);
		filp->private_data = f;
	}
	ugds_unlock(ud);
	if (ret) {
		file_free(f);
		return ret;
	}
	return nonseekable_open(inode, filp);
}

/*
 * The last descriptor is closed, or the process has died: its mappings are gone,
 * and nobody rings a doorbell any more.
 */
static int ugds_release(struct inode *inode, struct file *filp)
{
	struct ugds_file *f = filp->private_data;
	struct ugds_device *ud = f->ud;
	int stopped = 0;
	u32 how;

	get_device(&ud->dev);
	ugds_lock(ud);
	if (ud->bar) {
		stopped = ugds_stop(ud, 0, false, &how);
		ugds_file_end(f, stopped);
	} else if (ud->stuck != f) { /* remove() has ended its regions */
		ugds_file_end(f, 0);
	}
	ugds_unlock(ud);
	put_device(&ud->dev);
	return 0;
}

/*
 * Registers are mapped by faults, so that a removal can take them away: the zap and
 * a fault meet at vma_lock, and after it every fault is a SIGBUS.
 */
static vm_fault_t bar_fault(struct vm_fault *vmf)
{
	struct ugds_device *ud = vmf->vma->vm_private_data;
	u64 off = (u64)vmf->pgoff << PAGE_SHIFT;
	vm_fault_t ret = VM_FAULT_SIGBUS;

	mutex_lock(&ud->vma_lock);
	if (!ud->gone && off < ud->bar_size && (off < ud->table_start || off >= ud->table_end))
		ret = vmf_insert_pfn(vmf->vma, vmf->address,
				     (pci_resource_start(ud->pdev, 0) + off) >> PAGE_SHIFT);
	mutex_unlock(&ud->vma_lock);
	return ret;
}

static const struct vm_operations_struct bar_ops = {
	.fault = bar_fault,
};

/* Pages that were inserted stay; one that the process threw away is a SIGBUS. */
static const struct vm_operations_struct page_ops = {};

/* Takes the registers away from user space. ud->lock is held. */
void ugds_zap(struct ugds_device *ud)
{
	mutex_lock(&ud->vma_lock);
	ud->gone = true;
	mutex_unlock(&ud->vma_lock);
	if (ud->owner)
		unmap_mapping_range(ud->owner->mapping, UGDS_MMAP_BAR, ud->bar_size, 1);
	trace_ugds_step(MINOR(ud->dev.devt), UGDS_STEP_ZAP, 0);
}

static int map_bar(struct ugds_device *ud, struct vm_area_struct *vma, u64 off, u64 len)
{
	if (off > ud->bar_size || len > ud->bar_size - off)
		return -EINVAL;
	if (off < ud->table_end && off + len > ud->table_start)
		return -EACCES;
	ugds_vm_flags(vma, VM_IO | VM_PFNMAP, 0);
	vma->vm_page_prot = pgprot_noncached(vma->vm_page_prot);
	vma->vm_private_data = ud;
	vma->vm_ops = &bar_ops;
	return 0;
}

static int map_queue(struct ugds_file *f, struct vm_area_struct *vma, u64 off)
{
	struct ugds_region *r;
	int ret = -EINVAL;

	mutex_lock(&f->ud->vma_lock);
	r = xa_load(&f->regions, off >> 40);
	if (r && r->kind == UGDS_QUEUE && !(off & (UGDS_MMAP_STATUS - 1)))
		ret = vm_map_pages_zero(vma, r->pages, r->npages);
	mutex_unlock(&f->ud->vma_lock);
	return ret;
}

static int ugds_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct ugds_file *f = filp->private_data;
	u64 off = (u64)vma->vm_pgoff << PAGE_SHIFT;
	u64 len = vma->vm_end - vma->vm_start;

	if (current->mm != f->mm)
		return -EPERM;
	if (!(vma->vm_flags & VM_SHARED) || vma->vm_flags & VM_EXEC)
		return -EINVAL;
	ugds_vm_flags(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP, VM_MAYEXEC);
	if (off < UGDS_MMAP_STATUS)
		return map_bar(f->ud, vma, off, len);
	vma->vm_ops = &page_ops;
	if (off != UGDS_MMAP_STATUS)
		return map_queue(f, vma, off);
	if (len != PAGE_SIZE || vma->vm_flags & VM_WRITE)
		return -EINVAL;
	ugds_vm_flags(vma, 0, VM_MAYWRITE);
	return vm_insert_page(vma, vma->vm_start, f->status);
}

static int do_info(struct ugds_file *f, struct ugds_info *a)
{
	struct ugds_device *ud = f->ud;
	struct pci_dev *pdev = ud->pdev;

	memset(a, 0, sizeof(*a));
	a->abi_version = UGDS_ABI_VERSION;
	a->page_size = PAGE_SIZE;
	a->bar_size = ud->bar_size;
	a->table_start = ud->table_start;
	a->table_end = ud->table_end;
	a->pci_address = pci_domain_nr(pdev->bus) << 16 | pci_dev_id(pdev);
	a->numa_node = dev_to_node(&pdev->dev);
	a->vendor = pdev->vendor;
	a->device = pdev->device;
	a->subsystem_vendor = pdev->subsystem_vendor;
	a->subsystem_device = pdev->subsystem_device;
	mutex_lock(&ud->lock);
	a->iommu = ugds_iommu(ud);
	a->vectors = ud->vectors;
	a->caps = UGDS_CAPS_BUILT;
	if (!ud->gone && !pcie_reset_flr(pdev, true))
		a->caps |= UGDS_CAP_RESET;
	mutex_unlock(&ud->lock);
	return 0;
}

static int do_start(struct ugds_file *f)
{
	struct ugds_device *ud = f->ud;
	int ret;

	ugds_lock(ud);
	ret = ud->gone ? -ENODEV : ugds_start(ud);
	ugds_unlock(ud);
	return ret;
}

static int do_stop(struct ugds_file *f, struct ugds_stop *a)
{
	struct ugds_device *ud = f->ud;
	int ret = 0;

	if (a->flags & ~UGDS_STOP_RESET || a->reserved || a->timeout_ms > UGDS_STOP_MS_MAX)
		return -EINVAL;
	a->how = 0;
	ugds_lock(ud);
	if (ud->bar)
		ret = ugds_stop(ud, a->timeout_ms, a->flags & UGDS_STOP_RESET, &a->how);
	else if (ud->stuck == f) /* it was removed, and did not stop */
		ret = -EIO;
	else
		a->how = UGDS_HOW_GONE;
	ugds_unlock(ud);
	return ret;
}

/* What is left to say when every address was one of a dead region. */
static int no_address(int ret, __u32 *why)
{
	if (ret <= 0)
		return ret;
	*why = UGDS_WHY_REVOKED;
	return -EBUSY;
}

static int do_map(struct ugds_file *f, struct ugds_map *a)
{
	int ret, n = 0;
	u64 end;

	a->why = UGDS_WHY_NONE;
	if (a->flags || !a->len || check_add_overflow(a->addr, a->len, &end) || end > ULONG_MAX)
		return -EINVAL;
	if (!PAGE_ALIGNED(a->addr | a->len)) {
		a->why = UGDS_WHY_MISALIGNED;
		return -EINVAL;
	}
	if (a->len > UGDS_MAP_MAX) {
		a->why = UGDS_WHY_TOO_LARGE;
		return -E2BIG;
	}
	while ((ret = ugds_map(f, a)) > 0 && ++n < PARK_TRIES)
		;
	return no_address(ret, &a->why);
}

static int do_import(struct ugds_file *f, struct ugds_import *a)
{
	int ret = -ENODEV, n = 0;

	a->why = UGDS_WHY_NONE;
	if (a->flags & ~UGDS_IMPORT_MOVABLE || a->reserved || !a->len)
		return -EINVAL;
	if (!PAGE_ALIGNED(a->offset | a->len)) {
		a->why = UGDS_WHY_MISALIGNED;
		return -EINVAL;
	}
	if (a->len > UGDS_MAP_MAX) {
		a->why = UGDS_WHY_TOO_LARGE;
		return -E2BIG;
	}
	mutex_lock(&f->ud->lock);
	if (!f->ud->gone)
		while ((ret = ugds_import(f, a)) > 0 && ++n < PARK_TRIES)
			;
	mutex_unlock(&f->ud->lock);
	return no_address(ret, &a->why);
}

static int do_nvidia(struct ugds_file *f, struct ugds_nvidia *a)
{
	int ret = -ENODEV, n = 0;
	u64 end;

	a->why = UGDS_WHY_NONE;
	if (a->flags || !a->len || check_add_overflow(a->addr, a->len, &end))
		return -EINVAL;
	if ((a->addr | a->len) & (UGDS_NVIDIA_PAGE - 1)) {
		a->why = UGDS_WHY_MISALIGNED;
		return -EINVAL;
	}
	if (a->len > UGDS_MAP_MAX) {
		a->why = UGDS_WHY_TOO_LARGE;
		return -E2BIG;
	}
	mutex_lock(&f->ud->lock);
	if (!f->ud->gone)
		while ((ret = ugds_nvidia_map(f, a)) > 0 && ++n < PARK_TRIES)
			;
	mutex_unlock(&f->ud->lock);
	return no_address(ret, &a->why);
}

static int do_alloc(struct ugds_file *f, struct ugds_alloc *a)
{
	int ret = -ENODEV, n = 0;

	a->why = UGDS_WHY_NONE;
	if (!a->len)
		return -EINVAL;
	if (a->len > UGDS_ALLOC_MAX) {
		a->why = UGDS_WHY_TOO_LARGE;
		return -E2BIG;
	}
	mutex_lock(&f->ud->lock);
	if (!f->ud->gone)
		while ((ret = ugds_alloc(f, a)) > 0 && ++n < PARK_TRIES)
			;
	mutex_unlock(&f->ud->lock);
	return no_address(ret, &a->why);
}

static int do_segments(struct ugds_file *f, struct ugds_segments *a)
{
	struct ugds_segment *copy = NULL;
	struct ugds_region *r;
	int ret = 0;

	if (a->reserved || a->count > UGDS_SEGMENTS_MAX)
		return -EINVAL;
	/* Copied twice, so that no lock is held while user memory is touched. */
	copy = kvcalloc(a->count, sizeof(*copy), GFP_KERNEL_ACCOUNT);
	if (!copy)
		return -ENOMEM;
	mutex_lock(&f->ud->lock);
	r = xa_load(&f->regions, a->region);
	if (!r) {
		ret = -ENOENT;
	} else if (READ_ONCE(r->dead)) {
		ret = -ESTALE;
	} else {
		a->count = min(a->count, r->nsegs - min(a->first, r->nsegs));
		memcpy(copy, r->segs + a->first, a->count * sizeof(*copy));
	}
	mutex_unlock(&f->ud->lock);
	if (!ret && copy_to_user(u64_to_user_ptr(a->list), copy, a->count * sizeof(*copy)))
		ret = -EFAULT;
	kvfree(copy);
	return ret;
}

static int do_unmap(struct ugds_file *f, struct ugds_unmap *a)
{
	int ret;

	if (a->reserved)
		return -EINVAL;
	mutex_lock(&f->ud->lock);
	/* What a removed controller that did not stop may still use stays. */
	ret = f->ud->stuck == f ? -EIO : ugds_region_end(f, a->region);
	mutex_unlock(&f->ud->lock);
	return ret;
}

static int do_vector(struct ugds_file *f, struct ugds_vector *a)
{
	int ret;

	mutex_lock(&f->ud->lock);
	ret = f->ud->gone ? -ENODEV : ugds_irq_set(f, a->vector, a->eventfd);
	mutex_unlock(&f->ud->lock);
	return ret;
}

static int do_events(struct ugds_file *f, struct ugds_events *a)
{
	struct eventfd_ctx *next = NULL;

	if (a->reserved)
		return -EINVAL;
	if (a->eventfd != -1) {
		next = eventfd_ctx_fdget(a->eventfd);
		if (IS_ERR(next))
			return PTR_ERR(next);
	}
	mutex_lock(&f->ud->hw_lock);
	swap(f->events, next);
	mutex_unlock(&f->ud->hw_lock);
	if (next)
		eventfd_ctx_put(next);
	return 0;
}

union ugds_arg {
	struct ugds_info info;
	struct ugds_stop stop;
	struct ugds_map map;
	struct ugds_import import;
	struct ugds_alloc alloc;
	struct ugds_segments segments;
	struct ugds_unmap unmap;
	struct ugds_vector vector;
	struct ugds_events events;
	struct ugds_nvidia nvidia;
};

static int dispatch(struct ugds_file *f, unsigned int cmd, union ugds_arg *a)
{
	switch (cmd) {
	case UGDS_IOC_INFO:
		return do_info(f, &a->info);
	case UGDS_IOC_START:
		return do_start(f);
	case UGDS_IOC_STOP:
		return do_stop(f, &a->stop);
	case UGDS_IOC_MAP:
		return do_map(f, &a->map);
	case UGDS_IOC_IMPORT:
		return do_import(f, &a->import);
	case UGDS_IOC_ALLOC:
		return do_alloc(f, &a->alloc);
	case UGDS_IOC_SEGMENTS:
		return do_segments(f, &a->segments);
	case UGDS_IOC_UNMAP:
		return do_unmap(f, &a->unmap);
	case UGDS_IOC_VECTOR:
		return do_vector(f, &a->vector);
	case UGDS_IOC_EVENTS:
		return do_events(f, &a->events);
	case UGDS_IOC_NVIDIA:
		return do_nvidia(f, &a->nvidia);
	}
	return -ENOTTY;
}

/*
 * Copies the argument in, does it, and copies it out: with an error too, since
 * the argument then says why. A region whose identifier could not be told to the
 * caller stays until the file is closed.
 */
static long ugds_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	struct ugds_file *f = filp->private_data;
	void __user *user = (void __user *)arg;
	size_t size = _IOC_SIZE(cmd);
	union ugds_arg a = {};
	int ret;

	if (current->mm != f->mm)
		return -EPERM;
	if (_IOC_TYPE(cmd) != UGDS_IOC_TYPE || size > sizeof(a))
		return -ENOTTY;
	if (_IOC_DIR(cmd) & _IOC_WRITE && copy_from_user(&a, user, size))
		return -EFAULT;
	ret = dispatch(f, cmd, &a);
	if (_IOC_DIR(cmd) & _IOC_READ && ret != -ENOTTY && copy_to_user(user, &a, size))
		return -EFAULT;
	return ret;
}

const struct file_operations ugds_fops = {
	.owner = THIS_MODULE,
	.open = ugds_open,
	.release = ugds_release,
	.mmap = ugds_mmap,
	.unlocked_ioctl = ugds_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};
