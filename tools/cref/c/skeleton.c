/*
 * The smallest loop that submits and completes polled reads: an identifier from a
 * free list, a command, one doorbell a batch; a phase tag, a callback, one doorbell
 * a burst. Nothing is checked, nobody else is expected, nothing can fail.
 */
#include <stdlib.h>

#include "cref.h"

#define MAX_BATCHES 256
#define MAX_REQS 256

struct batch;

struct tracker {
	void (*done)(struct batch *b);
	struct batch *arg;
	uint64_t *list;
};

struct batch {
	int n, left;
	struct place reqs[MAX_REQS];
};

static struct controller *dev;
static struct batch batches[MAX_BATCHES];
static struct tracker trackers[QUEUE_SIZE];
static uint16_t spare[QUEUE_SIZE];
static int spares;
static uint32_t tail, cq_head;
static bool phase = true;
static uint64_t ended;

void driver_open(struct controller *c, uint64_t region_bytes)
{
	uint64_t *lists = aligned_alloc(PAGE, QUEUE_SIZE * PAGE);

	(void)region_bytes;
	if (!lists)
		abort();
	dev = c;
	for (int i = QUEUE_SIZE - 2; i >= 0; i--) {
		trackers[i].list = lists + i * (PAGE / 8);
		spare[spares++] = (uint16_t)i;
	}
}

void driver_add(int batch, struct place p)
{
	struct batch *b = &batches[batch];

	b->reqs[b->n++] = p;
}

static void one_less(struct batch *b)
{
	b->left--;
	ended++;
}

__attribute__((noinline)) void counted_submit(int batch)
{
	struct batch *b = &batches[batch];

	b->left = b->n;
	for (int i = 0; i < b->n; i++) {
		const struct place *p = &b->reqs[i];
		uint16_t cid = spare[--spares];
		struct tracker *t = &trackers[cid];
		struct command *c = &dev->sq[tail];
		uint64_t page = p->mem / PAGE, pages = p->len / PAGE;

		t->done = one_less;
		t->arg = b;
		*c = (struct command){.opc = OP_READ, .cid = cid, .nsid = 1, .prp1 = bus_page(page)};
		c->cdw10 = (uint32_t)(p->off / PAGE);
		c->cdw11 = (uint32_t)(p->off / PAGE >> 32);
		c->cdw12 = (uint32_t)pages - 1;
		if (pages == 2) {
			c->prp2 = bus_page(page + 1);
		} else if (pages > 2) {
			for (uint64_t k = 1; k < pages; k++)
				t->list[k - 1] = bus_page(page + k);
			c->prp2 = LIST_BUS + (uint64_t)cid * PAGE;
		}
		if (++tail == QUEUE_SIZE)
			tail = 0;
	}
	ring(dev->sq_bell, tail);
}

__attribute__((noinline)) void counted_wait(int batch)
{
	struct batch *b = &batches[batch];

	while (b->left) {
		uint32_t before = cq_head;

		for (;;) {
			struct completion *e = &dev->cq[cq_head];
			uint32_t dw3 = load_dw3(e);
			uint16_t cid = (uint16_t)dw3;

			if (!(dw3 & DW3_PHASE) == phase)
				break;
			if (++cq_head == QUEUE_SIZE) {
				cq_head = 0;
				phase = !phase;
			}
			trackers[cid].done(trackers[cid].arg);
			spare[spares++] = cid;
		}
		if (cq_head != before)
			ring(dev->cq_bell, cq_head);
	}
}

uint64_t *driver_list(uint64_t bus) { return trackers[(bus - LIST_BUS) / PAGE].list; }

void driver_check(uint64_t ios)
{
	if (ended != ios)
		abort();
}
