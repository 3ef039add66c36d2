// SPDX-License-Identifier: GPL-2.0
/* eventfd_signal() without a count: 6.8. */
#include <linux/eventfd.h>
void probe(struct eventfd_ctx *ctx);
void probe(struct eventfd_ctx *ctx)
{
	eventfd_signal(ctx);
}
