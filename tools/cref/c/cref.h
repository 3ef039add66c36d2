/*
 * What the two C programs share: an instant controller with one queue pair in
 * plain memory, the requests, and the ways of running them. tools/cref/model.go
 * and load.go are the same in Go.
 */
#ifndef CREF_H
#define CREF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE 4096u
#define CAPACITY (4ull << 30)
#define QUEUE_SIZE 256u /* entries; a queue carries one command less */
#define MAX_COMMAND (2u << 20)
#define SPREAD 2654435761ull

/* A submission queue entry (NVMe Base 4.1). The machine is little-endian. */
struct command {
	uint8_t opc, flags;
	uint16_t cid;
	uint32_t nsid;
	uint32_t cdw2, cdw3;
	uint64_t mptr, prp1, prp2;
	uint32_t cdw10, cdw11, cdw12, cdw13, cdw14, cdw15;
};

/* A completion queue entry (NVMe Base 4.2). dw3 is identifier, phase and status. */
struct completion {
	uint32_t dw0, dw1;
	uint16_t sqhd, sqid;
	uint32_t dw3;
};

#define OP_WRITE 1
#define OP_READ 2
#define DW3_PHASE (1u << 16)

/* The registers of the queue, and the controller that looks at them. */
struct controller {
	struct command *sq;
	struct completion *cq;
	volatile uint32_t *sq_bell, *cq_bell;
	uint32_t head, tail;
	bool phase;
};

/* One read of the load: where on the device and where in the memory. */
struct place {
	uint64_t off, mem, len; /* bytes */
};

/* The bus address of page i of the memory; no two pages are adjacent. */
static inline uint64_t bus_page(uint64_t i) { return (1ull << 44) + 2 * PAGE * i; }

/* The bus address of a list page, by its number. */
#define LIST_BUS (1ull << 50)

/* A doorbell is one store, after all earlier ones; SFENCE as in our driver. */
static inline void ring(volatile uint32_t *bell, uint32_t v)
{
	__asm__ volatile("sfence" ::: "memory");
	*bell = v;
}

/* A completion's last doubleword, before the rest of it. */
static inline uint32_t load_dw3(const struct completion *e)
{
	return __atomic_load_n(&e->dw3, __ATOMIC_ACQUIRE);
}

/* What a program brings: it makes its batches and runs one of them. */
void driver_open(struct controller *c, uint64_t region_bytes);
void driver_add(int batch, struct place p);
void counted_submit(int batch); /* callgrind collects in these two */
void counted_wait(int batch);
uint64_t *driver_list(uint64_t bus); /* the list page at a bus address */
void driver_check(uint64_t ios);     /* aborts unless so many reads succeeded */

#endif
