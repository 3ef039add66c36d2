// SPDX-License-Identifier: GPL-2.0
/* What always compiles. */
#include <linux/module.h>
#include <linux/dma-buf.h>
#include <linux/eventfd.h>
#include <linux/mm.h>
#include <linux/msi.h>
MODULE_LICENSE("GPL");
