// SPDX-License-Identifier: GPL-2.0
/*
 * Starting and stopping the controller, and what the kernel knows of it.
 *
 * The rule that everything here serves: memory is unmapped and unpinned only after
 * the controller was seen to be unable to reach it.
 */
#include <linux/delay.h>
#include <linux/eventfd.h>
#include <linux/iommu.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/jiffies.h>
#include <linux/moduleparam.h>

#include "internal.h"
#include "trace.h"

/* How long a controller may take to disable itself when CAP.TO is nonsense. */
#define DISABLE_MS_MIN	500
/* A controller that has failed will hardly obey: it gets this long. */
#define DISABLE_MS_CFS	1000
/* An exporter waits while its memory is taken from a device with pending reads. */
#define REVOKE_MS	1000
/* How long the bus may take to recover from an error: a reset, and a second to wake. */
#define RECOVERY_MS	10000

#ifdef UGDS_TEST_FAULTS
static bool never_stops;
module_param(never_stops, bool, 0600);
MODULE_PARM_DESC(never_stops, "for tests: nothing shows that a controller has stopped");
#else
#define never_stops false
#endif

/*
 * Both locks that starting and stopping a controller needs. While the bus recovers from an error
 * the registers answer nonsense, and what is found then says nothing about the
 * controller; the bus needs device_lock to go on. So this waits, but not for ever: a
 * recovery that failed leaves the device as it is. Whoever resets the function holds
 * device_lock, and puts the configuration of before back at the end.
 */
void ugds_lock(struct ugds_device *ud)
{
	unsigned long end = jiffies + msecs_to_jiffies(RECOVERY_MS);

	for (;;) {
		device_lock(&ud->pdev->dev);
		mutex_lock(&ud->lock);
		if (ud->pdev->error_state != pci_channel_io_frozen || time_after(jiffies, end))
			return;
		ugds_unlock(ud);
		msleep(20);
	}
}

void ugds_unlock(struct ugds_device *ud)
{
	mutex_unlock(&ud->lock);
	device_unlock(&ud->pdev->dev);
}

enum ugds_iommu ugds_iommu(struct ugds_device *ud)
{
	struct iommu_domain *d = iommu_get_domain_for_dev(&ud->pdev->dev);

	if (!d)
		return UGDS_IOMMU_NONE;
	if (!(d->type & __IOMMU_DOMAIN_PAGING))
		return UGDS_IOMMU_IDENTITY;
	if (d->type == IOMMU_DOMAIN_DMA_FQ)
		return UGDS_IOMMU_LAZY;
	return UGDS_IOMMU_STRICT;
}

/*
 * A lazy domain keeps unmapped addresses in the IOMMU's cache for some
 * milliseconds. This ends that before the pages behind them are given back.
 */
void ugds_flush_iotlb(struct ugds_device *ud)
{
	struct iommu_domain *d = iommu_get_domain_for_dev(&ud->pdev->dev);

	if (d && d->type == IOMMU_DOMAIN_DMA_FQ)
		iommu_flush_iotlb_all(d);
}

/* Tells the owner what changed. hw_lock is held. */
static void publish(struct ugds_device *ud)
{
	struct ugds_file *f = ud->owner;
	struct ugds_status *s;

	if (!f)
		return;
	s = page_address(f->status);
	WRITE_ONCE(s->why, ud->why);
	WRITE_ONCE(s->state, ud->state);
	WRITE_ONCE(s->revoked, ud->revoked);
	smp_wmb(); /* a reader that sees the new count sees the rest */
	WRITE_ONCE(s->events, s->events + 1);
	if (f->events)
		ugds_eventfd_signal(f->events);
}

/* Changes the state and tells the owner. hw_lock is held; nothing follows GONE. */
static void set_state(struct ugds_device *ud, enum ugds_state state, enum ugds_why why)
{
	if (ud->state == UGDS_GONE)
		return;
	ud->state = state;
	ud->why = why;
	publish(ud);
}

void ugds_set_state(struct ugds_device *ud, enum ugds_state state, enum ugds_why why)
{
	mutex_lock(&ud->hw_lock);
	set_state(ud, state, why);
	mutex_unlock(&ud->hw_lock);
}

/*
 * Tells the owner that a region has died, before the region is unmapped: a command whose
 * accesses were dropped may end well, and the owner looks here before it believes that.
 */
void ugds_count_revoked(struct ugds_device *ud)
{
	mutex_lock(&ud->hw_lock);
	ud->revoked++;
	publish(ud);
	mutex_unlock(&ud->hw_lock);
}

/*
 * Tells whether the controller answers no more, and tells its owner: one that has lost its
 * power without a notice. hw_lock is held.
 */
static bool is_gone(struct ugds_device *ud)
{
	if (pci_channel_offline(ud->pdev) || pci_device_is_present(ud->pdev))
		return false;
	set_state(ud, UGDS_GONE, UGDS_WHY_REMOVED);
	return true;
}

/*
 * Whether the controller may still work on queues of an owner before: what stopped it
 * was the end of bus mastering alone, which ugds_start() would give back to it.
 */
bool ugds_enabled(struct ugds_device *ud)
{
	return readl(ud->bar + NVME_CC) & NVME_CC_EN || readl(ud->bar + NVME_CSTS) & NVME_CSTS_RDY;
}

/* Lets the controller reach memory. device_lock and ud->lock are held. */
int ugds_start(struct ugds_device *ud)
{
	int ret = 0;

	mutex_lock(&ud->hw_lock);
	switch (ud->state) {
	case UGDS_STOPPED:
		/* The end of a recovery takes bus mastering away, whoever had set it. */
		if (pci_channel_offline(ud->pdev)) {
			ret = -EIO;
			break;
		}
		if (is_gone(ud)) {
			ret = -ENODEV;
			break;
		}
		if (ugds_enabled(ud)) {
			ret = -EBUSY;
			break;
		}
		pci_set_master(ud->pdev);
		trace_ugds_step(MINOR(ud->dev.devt), UGDS_STEP_START, 0);
		set_state(ud, UGDS_RUNNING, UGDS_WHY_NONE);
		break;
	case UGDS_RUNNING:
		if (is_gone(ud))
			ret = -ENODEV;
		break;
	case UGDS_ISOLATED:
		ret = -ESTALE;
		break;
	default:
		ret = -ENODEV;
	}
	mutex_unlock(&ud->hw_lock);
	return ret;
}

/*
 * Clears CC.EN and waits for CSTS.RDY = 0, at most limit_ms, or what CAP.TO says
 * when that is 0. 0 means that the controller has shown that it is disabled.
 */
static int disable(struct ugds_device *ud, u32 limit_ms)
{
	u32 cc = readl(ud->bar + NVME_CC);
	u32 csts = readl(ud->bar + NVME_CSTS);
	unsigned long end;
	bool midway;

	if (PCI_POSSIBLE_ERROR(cc) || PCI_POSSIBLE_ERROR(csts))
		return -ENODEV;
	if (!limit_ms)
		limit_ms = ((lo_hi_readq(ud->bar + NVME_CAP) >> 24) & 0xff) * 500;
	limit_ms = clamp_t(u32, limit_ms, DISABLE_MS_MIN, UGDS_STOP_MS_MAX);
	if (csts & NVME_CSTS_CFS)
		limit_ms = min_t(u32, limit_ms, DISABLE_MS_CFS);
	/*
	 * While it becomes ready RDY is 0 already: that proves nothing, and the
	 * specification forbids clearing EN then. Bus mastering has to do.
	 */
	midway = (cc & NVME_CC_EN) && !(csts & (NVME_CSTS_RDY | NVME_CSTS_CFS));
	if (cc & NVME_CC_EN)
		writel(cc & ~(u32)(NVME_CC_EN | NVME_CC_SHN), ud->bar + NVME_CC);
	end = jiffies + msecs_to_jiffies(limit_ms);
	for (;;) {
		bool late = time_after(jiffies, end);

		csts = readl(ud->bar + NVME_CSTS);
		if (PCI_POSSIBLE_ERROR(csts))
			return -ENODEV;
		if (!(csts & NVME_CSTS_RDY))
			return midway ? -EAGAIN : 0;
		if (late)
			return -ETIMEDOUT;
		usleep_range(50, 200);
	}
}

/*
 * Takes bus mastering away and waits until no read of the device is pending. The
 * answer to the configuration read that shows this has pushed every earlier write
 * of the device before it, so those have landed too. hw_lock is held.
 */
static bool quiet(struct ugds_device *ud)
{
	u16 command;
	bool done;

	pci_clear_master(ud->pdev);
	pci_read_config_word(ud->pdev, PCI_COMMAND, &command);
	done = !PCI_POSSIBLE_ERROR(command) && !(command & PCI_COMMAND_MASTER) &&
	       pci_wait_for_pending_transaction(ud->pdev);
	trace_ugds_step(MINOR(ud->dev.devt), UGDS_STEP_MASTER_OFF, done);
	return done;
}

/* Resets the function, and nothing but the function. device_lock is held. */
static int reset_function(struct ugds_device *ud)
{
	int ret;

	ud->resetting = current; /* ugds_reset_prepare() is called from here */
	pci_cfg_access_lock(ud->pdev);
	ret = pci_reset_function_locked(ud->pdev);
	pci_cfg_access_unlock(ud->pdev);
	ud->resetting = NULL;
	trace_ugds_step(MINOR(ud->dev.devt), UGDS_STEP_RESET, ret);
	return ret;
}

/*
 * Stops the controller. 0 means that none of its accesses can land any more, and
 * how says what showed it; -EIO means that nothing did. device_lock and ud->lock
 * are held, and the driver is bound.
 */
int ugds_stop(struct ugds_device *ud, u32 timeout_ms, bool reset, u32 *how)
{
	int err;

	*how = 0;
	if (!pci_device_is_present(ud->pdev)) {
		*how = UGDS_HOW_GONE;
		ugds_set_state(ud, UGDS_GONE, UGDS_WHY_REMOVED);
		return 0;
	}
	err = disable(ud, timeout_ms);
	trace_ugds_step(MINOR(ud->dev.devt), UGDS_STEP_DISABLE, err);
	if (!err)
		*how |= UGDS_HOW_DISABLED;
	mutex_lock(&ud->hw_lock);
	if (quiet(ud))
		*how |= UGDS_HOW_QUIET;
	mutex_unlock(&ud->hw_lock);
	/*
	 * With bus mastering off a reset is not needed for safety, but a controller
	 * that did not obey is of no use to the next owner without one.
	 */
	if ((reset || err) && !reset_function(ud))
		*how |= UGDS_HOW_RESET;
	if (never_stops)
		*how = 0;
	else if (!*how && !pci_device_is_present(ud->pdev))
		*how = UGDS_HOW_GONE;
	trace_ugds_step(MINOR(ud->dev.devt), UGDS_STEP_STOPPED, *how);
	if (!*how)
		return -EIO;
	if (*how & UGDS_HOW_GONE)
		ugds_set_state(ud, UGDS_GONE, UGDS_WHY_REMOVED);
	else
		ugds_set_state(ud, UGDS_STOPPED, UGDS_WHY_NONE);
	return 0;
}

/*
 * Cuts a running controller off, for a reason that is not its owner's. It sleeps,
 * for three seconds at most.
 *
 * Bus mastering goes first: that is what stops a piece of hardware. The model of a
 * controller, in a virtual machine, may have looked memory up when a command began,
 * and go on with it; so the controller is disabled too, which ends its commands.
 *
 * The owner is told before either: it must not find a controller that fails and, knowing
 * nothing, start it again under this. A start or stop of its own waits for hw_lock.
 */
void ugds_isolate(struct ugds_device *ud, enum ugds_why why)
{
	mutex_lock(&ud->hw_lock);
	if (ud->state == UGDS_RUNNING) {
		bool off;
		int err;

		trace_ugds_step(MINOR(ud->dev.devt), UGDS_STEP_ISOLATED, why);
		set_state(ud, UGDS_ISOLATED, why);
		off = quiet(ud);
		err = ud->bar ? disable(ud, REVOKE_MS) : 0;
		trace_ugds_step(MINOR(ud->dev.devt), UGDS_STEP_DISABLE, err);
		if (!off && err && pci_device_is_present(ud->pdev))
			pci_err(ud->pdev, "%s: neither bus mastering nor CC.EN stopped the controller\n",
				dev_name(&ud->dev));
	}
	mutex_unlock(&ud->hw_lock);
}
