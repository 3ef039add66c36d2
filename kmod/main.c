// SPDX-License-Identifier: GPL-2.0
/*
 * The PCI driver: binding, removal, errors of the bus, power.
 *
 * The driver has no table of devices: it binds only to a controller whose
 * driver_override names it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cc_platform.h>
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/pm.h>
#include <linux/slab.h>

#include "internal.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

#define UGDS_MINORS	256

static dev_t ugds_devt;
static DEFINE_IDA(ugds_minors);

static struct class ugds_class = {
	.name = "ugds_drv",
};

/* Controllers that cannot drive all 64 bits of an address. */
static u64 dma_mask(struct pci_dev *pdev)
{
	if (pdev->vendor == PCI_VENDOR_ID_AMAZON)
		return DMA_BIT_MASK(48);
	return DMA_BIT_MASK(64);
}

static void ugds_dev_release(struct device *dev)
{
	struct ugds_device *ud = container_of(dev, struct ugds_device, dev);

	ida_free(&ugds_minors, MINOR(dev->devt));
	pci_dev_put(ud->pdev);
	kfree(ud->config);
	kfree(ud);
}

/* Attributes of the node, for people and for messages of ugdsctl. */
static ssize_t owner_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct ugds_device *ud = container_of(dev, struct ugds_device, dev);
	pid_t pid = 0;

	mutex_lock(&ud->lock);
	if (ud->owner)
		pid = pid_vnr(ud->owner->pid);
	mutex_unlock(&ud->lock);
	return sysfs_emit(buf, "%d\n", pid);
}
static DEVICE_ATTR_RO(owner);

static ssize_t iommu_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	static const char * const names[] = { "none", "identity", "lazy", "strict" };
	struct ugds_device *ud = container_of(dev, struct ugds_device, dev);

	return sysfs_emit(buf, "%s\n", names[ugds_iommu(ud)]);
}
static DEVICE_ATTR_RO(iommu);

static ssize_t refusal_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct ugds_device *ud = container_of(dev, struct ugds_device, dev);

	return sysfs_emit(buf, "%s\n", ud->refusal ?: "");
}
static DEVICE_ATTR_RO(refusal);

static struct attribute *ugds_attrs[] = {
	&dev_attr_owner.attr,
	&dev_attr_iommu.attr,
	&dev_attr_refusal.attr,
	NULL
};
ATTRIBUTE_GROUPS(ugds);

/* Finds the pages of BAR 0 that hold the table of interrupt messages. */
static void find_table(struct ugds_device *ud)
{
	struct pci_dev *pdev = ud->pdev;
	int entries = pci_msix_vec_count(pdev);
	u32 table;

	if (entries <= 0)
		return;
	pci_read_config_dword(pdev, pdev->msix_cap + PCI_MSIX_TABLE, &table);
	if (table & PCI_MSIX_TABLE_BIR)
		return;
	table &= PCI_MSIX_TABLE_OFFSET;
	ud->table_start = round_down((u64)table, PAGE_SIZE);
	ud->table_end = round_up((u64)table + entries * PCI_MSIX_ENTRY_SIZE, PAGE_SIZE);
}

/* Why nobody may use this controller through the module, or NULL. */
static const char *find_refusal(struct ugds_device *ud)
{
	struct device *dev = &ud->pdev->dev;

	if (ud->bar_size % PAGE_SIZE || !PAGE_ALIGNED(pci_resource_start(ud->pdev, 0)))
		return "BAR 0 does not fill pages of this kernel";
	if (cc_platform_has(CC_ATTR_MEM_ENCRYPT))
		return "memory encryption is active";
	if (!dev_is_dma_coherent(dev))
		return "its memory accesses are not coherent with the caches";
	find_table(ud);
	if (ud->table_start < NVME_BAR_MIN && ud->table_end) {
		if (!ugds_isolated_msi(dev))
			return "registers share a page with the MSI-X table, without remapping";
		/* A forged message reaches nobody else: the page can be mapped. */
		ud->table_start = 0;
		ud->table_end = 0;
	}
	return NULL;
}

/* Takes the device: no DMA, no legacy interrupt, registers mapped. */
static int claim(struct ugds_device *ud)
{
	struct pci_dev *pdev = ud->pdev;
	int ret = pci_enable_device_mem(pdev);

	if (ret)
		return ret;
	/*
	 * Whoever had the device before may have left it running. PCI runtime
	 * power management keeps a bound device awake unless its driver lets go,
	 * which this one never does.
	 */
	pci_clear_master(pdev);
	pci_intx(pdev, 0);
	ret = pci_request_region(pdev, 0, UGDS_NAME);
	if (ret)
		goto disable;
	ud->bar_size = pci_resource_len(pdev, 0);
	ret = -ENODEV;
	if (!(pci_resource_flags(pdev, 0) & IORESOURCE_MEM) || ud->bar_size < NVME_BAR_MIN)
		goto release;
	ret = -ENOMEM;
	ud->bar = ioremap(pci_resource_start(pdev, 0), NVME_BAR_MIN);
	if (!ud->bar)
		goto release;
	ret = dma_set_mask_and_coherent(&pdev->dev, dma_mask(pdev));
	if (ret)
		goto unmap;
	dma_set_max_seg_size(&pdev->dev, UINT_MAX);
	ud->refusal = find_refusal(ud);
	/*
	 * For recovery from errors of the bus. What the core saves is not for that: it
	 * saves anew at each reset, and some kernels restore it only once.
	 */
	ret = pci_save_state(pdev);
	ud->config = pci_store_saved_state(pdev);
	if (ret || !ud->config) {
		ret = -ENOMEM;
		goto unmap;
	}
	return 0;
unmap:
	iounmap(ud->bar);
	ud->bar = NULL;
release:
	pci_release_region(pdev, 0);
disable:
	pci_disable_device(pdev);
	return ret;
}

/* Gives the device back. ud->lock is held, or nobody else knows the device. */
static void unclaim(struct ugds_device *ud)
{
	void __iomem *bar = ud->bar;

	mutex_lock(&ud->hw_lock);
	ud->bar = NULL;
	mutex_unlock(&ud->hw_lock);
	iounmap(bar);
	pci_release_region(ud->pdev, 0);
	pci_disable_device(ud->pdev);
}

static struct ugds_device *new_device(struct pci_dev *pdev)
{
	struct ugds_device *ud = kzalloc(sizeof(*ud), GFP_KERNEL);
	int minor;

	if (!ud)
		return ERR_PTR(-ENOMEM);
	minor = ida_alloc_max(&ugds_minors, UGDS_MINORS - 1, GFP_KERNEL);
	if (minor < 0) {
		kfree(ud);
		return ERR_PTR(minor);
	}
	ud->pdev = pci_dev_get(pdev);
	mutex_init(&ud->lock);
	mutex_init(&ud->vma_lock);
	mutex_init(&ud->hw_lock);
	device_initialize(&ud->dev);
	ud->dev.class = &ugds_class;
	ud->dev.parent = &pdev->dev;
	ud->dev.groups = ugds_groups;
	ud->dev.release = ugds_dev_release;
	ud->dev.devt = MKDEV(MAJOR(ugds_devt), minor);
	cdev_init(&ud->cdev, &ugds_fops);
	ud->cdev.owner = THIS_MODULE;
	return ud;
}

static int ugds_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct ugds_device *ud;
	int ret;

	if (id->vendor != PCI_ANY_ID) {
		pci_err(pdev, "not bound: write %s to driver_override, not to new_id\n", UGDS_NAME);
		return -ENODEV;
	}
	if (pdev->class != PCI_CLASS_STORAGE_EXPRESS) {
		pci_err(pdev, "not bound: class %#x is not an NVMe controller\n", pdev->class);
		return -ENODEV;
	}
	ud = new_device(pdev);
	if (IS_ERR(ud))
		return PTR_ERR(ud);
	ret = dev_set_name(&ud->dev, "ugds_drv%d", MINOR(ud->dev.devt));
	if (ret)
		goto put;
	ret = claim(ud);
	if (ret)
		goto put;
	pci_set_drvdata(pdev, ud);
	ret = cdev_device_add(&ud->cdev, &ud->dev);
	if (ret) {
		unclaim(ud);
		goto put;
	}
	if (ud->refusal)
		pci_warn(pdev, "%s cannot be opened: %s\n", dev_name(&ud->dev), ud->refusal);
	return 0;
put:
	put_device(&ud->dev);
	return ret;
}

/*
 * The driver is unbound or the device unplugged, and the node may be open. Its
 * owner loses the registers first, so that it cannot start the controller again;
 * then the controller stops; then its memory goes.
 */
static void ugds_remove(struct pci_dev *pdev)
{
	struct ugds_device *ud = pci_get_drvdata(pdev);
	struct ugds_file *f;
	int stopped;
	u32 how;

	cdev_device_del(&ud->cdev, &ud->dev); /* waits for readers of attributes */
	mutex_lock(&ud->lock);
	ugds_zap(ud);
	ugds_retry_stuck(ud);
	f = ud->owner;
	stopped = ugds_stop(ud, 0, false, &how);
	ugds_set_state(ud, UGDS_GONE, UGDS_WHY_REMOVED);
	if (f) {
		pci_info(pdev, "%s: removed while process %d has it open\n",
			 dev_name(&ud->dev), pid_nr(f->pid));
		if (stopped) {
			ugds_file_end(f, stopped);
		} else {
			ugds_irqs_close(f);
			ugds_regions_end(f);
		}
	}
	unclaim(ud);
	mutex_unlock(&ud->lock);
	pci_set_drvdata(pdev, NULL);
	put_device(&ud->dev);
}

/*
 * Shutdown and kexec: the next kernel must not meet a running controller. The owner
 * may still run, so it loses the registers, as in a removal.
 */
static void ugds_shutdown(struct pci_dev *pdev)
{
	struct ugds_device *ud = pci_get_drvdata(pdev);
	u32 how;

	mutex_lock(&ud->lock);
	ugds_zap(ud);
	ugds_stop(ud, 0, false, &how);
	ugds_set_state(ud, UGDS_GONE, UGDS_WHY_SHUTDOWN);
	mutex_unlock(&ud->lock);
}

/* The state of a controller in use cannot be saved: only its owner knows it. */
static int ugds_suspend(struct device *dev)
{
	struct ugds_device *ud = dev_get_drvdata(dev);
	int ret = 0;

	mutex_lock(&ud->lock);
	if (ud->owner || ud->stuck) {
		pci_notice(ud->pdev, "%s: no suspend while process %d %s\n", dev_name(&ud->dev),
			   pid_nr((ud->owner ?: ud->stuck)->pid),
			   ud->owner ? "has it open" : "left it running");
		ret = -EBUSY;
	}
	mutex_unlock(&ud->lock);
	return ret;
}

static int ugds_resume(struct device *dev)
{
	struct ugds_device *ud = dev_get_drvdata(dev);

	pci_clear_master(ud->pdev);
	return 0;
}

static DEFINE_SIMPLE_DEV_PM_OPS(ugds_pm_ops, ugds_suspend, ugds_resume);

/*
 * An error of the bus cuts the controller off; its owner stops it, which resets the
 * function if need be, and starts again.
 */
static pci_ers_result_t ugds_error_detected(struct pci_dev *pdev, pci_channel_state_t state)
{
	struct ugds_device *ud = pci_get_drvdata(pdev);

	ugds_isolate(ud, UGDS_WHY_PCI_ERROR);
	if (state == pci_channel_io_perm_failure)
		return PCI_ERS_RESULT_DISCONNECT;
	if (state == pci_channel_io_frozen)
		return PCI_ERS_RESULT_NEED_RESET;
	return PCI_ERS_RESULT_CAN_RECOVER;
}

/* After a reset of the slot the function knows nothing. Bus mastering stays off. */
static pci_ers_result_t ugds_slot_reset(struct pci_dev *pdev)
{
	struct ugds_device *ud = pci_get_drvdata(pdev);

	if (pci_load_saved_state(pdev, ud->config))
		return PCI_ERS_RESULT_DISCONNECT;
	pci_restore_state(pdev);
	pci_clear_master(pdev);
	return PCI_ERS_RESULT_RECOVERED;
}

/* Somebody resets the function, through sysfs for example; or we do. */
static void ugds_reset_prepare(struct pci_dev *pdev)
{
	struct ugds_device *ud = pci_get_drvdata(pdev);

	if (ud->resetting != current)
		ugds_isolate(ud, UGDS_WHY_RESET);
}

static const struct pci_error_handlers ugds_errors = {
	.error_detected = ugds_error_detected,
	.slot_reset = ugds_slot_reset,
	.reset_prepare = ugds_reset_prepare,
};

static struct pci_driver ugds_driver = {
	.name = UGDS_NAME,
	.probe = ugds_probe,
	.remove = ugds_remove,
	.shutdown = ugds_shutdown,
	.err_handler = &ugds_errors,
	.driver.pm = pm_sleep_ptr(&ugds_pm_ops),
};

static int __init ugds_init(void)
{
	int ret = alloc_chrdev_region(&ugds_devt, 0, UGDS_MINORS, UGDS_NAME);

	if (ret)
		return ret;
	ret = class_register(&ugds_class);
	if (ret)
		goto region;
	ret = pci_register_driver(&ugds_driver);
	if (ret)
		goto class;
	return 0;
class:
	class_unregister(&ugds_class);
region:
	unregister_chrdev_region(ugds_devt, UGDS_MINORS);
	return ret;
}
module_init(ugds_init);

static void __exit ugds_exit(void)
{
	pci_unregister_driver(&ugds_driver);
	class_unregister(&ugds_class);
	unregister_chrdev_region(ugds_devt, UGDS_MINORS);
	ida_destroy(&ugds_minors);
}
module_exit(ugds_exit);

MODULE_DESCRIPTION("NVMe controllers for user space, with peer memory");
MODULE_LICENSE("GPL");
MODULE_VERSION("1.0");
UGDS_IMPORT_DMA_BUF;
