// Package kdrv reaches a controller through our kernel module, ugds.ko: the seam hw
// over a node /dev/ugds_drvN. kmod/uapi/ugds.h is the interface, docs/hardware.md
// tells how to build and bind.
//
// The module pins memory, gives bus addresses, imports dma-bufs, and stops the
// controller when its owner dies, before it unpins. Without an IOMMU, or with one
// that passes addresses through, the bus addresses of all devices are the same, so
// memory of a GPU can be reached directly; with a translating one, where the
// exporter of the dma-buf maps it for our device.
//
// The kernel can cut the controller off by itself: when the exporter of imported
// memory takes it back, when the bus fails, or when somebody resets the function. A
// page that the kernel writes tells so. Every register access looks at it first, so
// that a driver notices at its next access, and Notices says it as well.
package kdrv
