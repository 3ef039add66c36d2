// SPDX-License-Identifier: GPL-2.0
/* Interrupt isolation is asked of the interrupt domain: 6.3. */
#include <linux/msi.h>
bool probe(struct device *dev);
bool probe(struct device *dev)
{
	return msi_device_has_isolated_msi(dev);
}
