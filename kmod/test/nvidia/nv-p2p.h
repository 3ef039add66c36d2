/* SPDX-License-Identifier: GPL-2.0 */
/*
 * As much of the interface for peers of NVIDIA's driver as the module uses, for
 * tests: what fakenv.c plays. A build for real GPUs takes the file of this name from
 * the driver that is installed, and never this one.
 */
#ifndef UGDS_TEST_NV_P2P_H
#define UGDS_TEST_NV_P2P_H

#include <linux/types.h>

struct pci_dev;

/* Versions of structures: the upper half must match, the lower not be smaller. */
#define NVIDIA_P2P_PAGE_TABLE_VERSION	0x00010002
#define NVIDIA_P2P_DMA_MAPPING_VERSION	0x00020003

static inline bool nvidia_p2p_test_version(u32 is, u32 want)
{
	return is >> 16 == want >> 16 && (is & 0xffff) >= (want & 0xffff);
}

#define NVIDIA_P2P_PAGE_TABLE_VERSION_COMPATIBLE(p) \
	nvidia_p2p_test_version((p)->version, NVIDIA_P2P_PAGE_TABLE_VERSION)
#define NVIDIA_P2P_DMA_MAPPING_VERSION_COMPATIBLE(p) \
	nvidia_p2p_test_version((p)->version, NVIDIA_P2P_DMA_MAPPING_VERSION)

enum nvidia_p2p_page_size_type {
	NVIDIA_P2P_PAGE_SIZE_4KB = 0,
	NVIDIA_P2P_PAGE_SIZE_64KB,
	NVIDIA_P2P_PAGE_SIZE_128KB,
};

struct nvidia_p2p_page;

struct nvidia_p2p_page_table {
	u32 version;
	u32 page_size;
	struct nvidia_p2p_page **pages;
	u32 entries;
	u8 *gpu_uuid;
};

struct nvidia_p2p_dma_mapping {
	u32 version;
	enum nvidia_p2p_page_size_type page_size_type;
	u32 entries;
	u64 *dma_addresses;
	void *private;
	struct pci_dev *pci_dev;
};

int nvidia_p2p_get_pages(u64 p2p_token, u32 va_space, u64 virtual_address, u64 length,
			 struct nvidia_p2p_page_table **page_table,
			 void (*free_callback)(void *data), void *data);
int nvidia_p2p_put_pages(u64 p2p_token, u32 va_space, u64 virtual_address,
			 struct nvidia_p2p_page_table *page_table);
int nvidia_p2p_dma_map_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *page_table,
			     struct nvidia_p2p_dma_mapping **dma_mapping);
int nvidia_p2p_dma_unmap_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *page_table,
			       struct nvidia_p2p_dma_mapping *dma_mapping);
int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table);
int nvidia_p2p_free_dma_mapping(struct nvidia_p2p_dma_mapping *dma_mapping);

#endif /* UGDS_TEST_NV_P2P_H */
