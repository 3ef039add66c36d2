// SPDX-License-Identifier: GPL-2.0
/*
 * MSI-X vectors, each of which signals an eventfd.
 */
#include <linux/eventfd.h>
#include <linux/interrupt.h>
#include <linux/slab.h>

#include "internal.h"

struct ugds_irq {
	struct eventfd_ctx *event;	/* NULL: not armed */
};

static irqreturn_t handler(int irq, void *arg)
{
	struct ugds_irq *q = arg;

	ugds_eventfd_signal(q->event);
	return IRQ_HANDLED;
}

u32 ugds_count_vectors(struct pci_dev *pdev)
{
	int n = pci_msix_vec_count(pdev);

	return clamp_t(int, n, 0, UGDS_VECTORS_MAX);
}

/*
 * Allocates the vectors for an owner. Without them f->irqs stays NULL and the owner
 * polls. ud->lock is held.
 */
void ugds_irqs_open(struct ugds_file *f)
{
	struct ugds_device *ud = f->ud;
	u32 want = ugds_count_vectors(ud->pdev);
	int n;

	ud->vectors = 0;
	if (!want)
		return;
	f->irqs = kcalloc(want, sizeof(*f->irqs), GFP_KERNEL_ACCOUNT);
	if (!f->irqs)
		return;
	n = pci_alloc_irq_vectors(ud->pdev, 1, want, PCI_IRQ_MSIX);
	if (n <= 0) {
		kfree(f->irqs);
		f->irqs = NULL;
		return;
	}
	ud->vectors = n;
}

static void disarm(struct ugds_file *f, u32 vector)
{
	struct ugds_irq *q = &f->irqs[vector];

	if (!q->event)
		return;
	free_irq(pci_irq_vector(f->ud->pdev, vector), q); /* waits for the handler */
	eventfd_ctx_put(q->event);
	q->event = NULL;
}

/* Gives the vectors back. ud->lock is held, and the driver is bound. */
void ugds_irqs_close(struct ugds_file *f)
{
	u32 i;

	if (!f->irqs)
		return;
	for (i = 0; i < f->ud->vectors; i++)
		disarm(f, i);
	pci_free_irq_vectors(f->ud->pdev);
	kfree(f->irqs);
	f->irqs = NULL;
	f->ud->vectors = 0;
}

/* Arms a vector, or disarms it. ud->lock is held. */
int ugds_irq_set(struct ugds_file *f, u32 vector, int eventfd)
{
	struct eventfd_ctx *event;
	struct ugds_irq *q;
	int ret;

	if (!f->irqs || vector >= f->ud->vectors)
		return -EINVAL;
	q = &f->irqs[vector];
	if (eventfd == -1) {
		disarm(f, vector);
		return 0;
	}
	if (q->event)
		return -EBUSY;
	event = eventfd_ctx_fdget(eventfd);
	if (IS_ERR(event))
		return PTR_ERR(event);
	q->event = event;
	ret = request_irq(pci_irq_vector(f->ud->pdev, vector), handler, 0,
			  dev_name(&f->ud->dev), q);
	if (ret) {
		q->event = NULL;
		eventfd_ctx_put(event);
	}
	return ret;
}
