// SPDX-License-Identifier: GPL-2.0
/* Name spaces of symbols are bare words; strings since 6.13. */
#include <linux/module.h>
MODULE_IMPORT_NS(DMA_BUF);
