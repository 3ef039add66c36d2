/*
 * A driver for the instant controller that takes the steps of ours, one by one, in
 * the order of the list below. It has the way of simple entries only (one segment,
 * one command): whatever would leave that way ends the program. The same list
 * stands in driver/ctrl/steps.go, and a test compares the two.
 *
 * Steps of a submission:
 *  1. the device takes requests: its state is ready, and nobody closes it
 *  2. the group of queues that is for batches of this shape
 *  3. the batch has 1 to 16,384 entries and is not in flight; it is now
 *  4. the answers of all entries are cleared, and the entries counted
 *  5. the device's counts of what has not ended, and again whether it is closed
 *  6. memory for the submission, from a pool
 *  7. the clock, once
 * Steps of a turn, which is up to 32 commands:
 *  8. nobody waits for room before this batch, and it is not canceled
 *  9. the queue with the fewest bytes in flight, its lock, and that it is alive
 * 10. the region is held at its generation, for all entries that follow
 * 11. what the device keeps of the region, and whether that may be used
 * 12. the largest command, and this turn's part of the window of bytes in flight
 * 13. how many identifiers and entries of the ring are free
 * Steps of a command:
 * 14. the entry is checked: operation, segments, region, generation, lengths,
 *     alignment, bounds of device and region, boundary of the namespace
 * 15. an identifier from the free list, with its next generation
 * 16. the command, in the ring
 * 17. its data pointer: one or two PRP entries, or a list copied from the table of
 *     the region
 * 18. the slot: submission, entry, bytes, deadline
 * Steps at the end of a turn:
 * 19. the queue's next deadline, and the doorbell, guarded against a fault
 * 20. the queue's bytes in flight, unlock, the count of commands
 * 21. what was taken too much of the window and of the region
 * Steps of a wait:
 * 22. the batch was submitted and has not ended
 * 23. the lock of each queue that has commands in flight, and that it is alive
 * Steps of a completion:
 * 24. the phase tag and the status
 * 25. the queue, the identifier with its generation, and the head are possible
 * 26. the slot and its identifier are free
 * 27. the answer of the entry; bytes, requests, holds and the window are summed up
 * Steps at the end of a burst of completions:
 * 28. the doorbell, guarded against a fault
 * 29. the queue's bytes in flight and next deadline
 * 30. the region is given back, then the window; statistics
 * 31. the counts of what has not ended; the batch's answers; with the last of them
 *     its waiter is woken, and the memory of the submission goes back to the pool
 * 32. deadlines are judged
 * 33. the batch is its owner's again
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cref.h"

#define MAX_BATCHES 256
#define MAX_BATCH 16384
#define IN_ROW 32
#define SMALL_BATCH 4
#define SMALL_REQUEST (64 << 10)
#define SMALL_MEMORY 10000000ll /* ns */
#define BULK_REQUEST (256 << 10)
#define MAX_IN_FLIGHT (96ll << 20)
#define DEADLINE 30000000000ll /* ns */
#define FOREVER INT64_MAX
#define BLOCK_SHIFT 12

enum { READ, WRITE, FLUSH, DISCARD, ZEROES, OPS };
enum { STATE_READY };
enum { PART, WHOLE, SIMPLE };

struct table { /* the PRP entries of a region */
	uint64_t *entries;
	uint64_t count, skip;
	unsigned shift;
};

struct attached { /* what the device keeps of a region */
	const struct device *dev;
	struct table table;
	bool aligned, is_long, revocable;
};

struct region {
	uint64_t hold; /* generation << 32 | holds */
	int64_t size;
	int devices;
	struct attached *attached; /* one for each device */
};

struct seg {
	struct region *region;
	uint32_t gen;
	int64_t off, len;
};

struct request {
	uint8_t op;
	bool fua;
	int64_t off, len;
	struct seg *segs;
	int nsegs;
	int64_t done;
	int err;
};

struct batch {
	struct request *reqs;
	int n;
	int64_t left;
	bool active, canceled, sleeping;
	struct group *poller;
};

struct run { /* a submission until its last entry has ended */
	struct batch *b;
	struct run *next;
};

struct slot {
	uint16_t cid;
	bool live;
	uint8_t kind;
	bool parked, aborted;
	uint8_t tries, opc;
	struct run *run;
	int64_t i, off, n, load, bulk, due;
	uint64_t *list, list_bus;
};

struct tally {
	int64_t load, bulk;
	unsigned used; /* a bit for each operation */
	int64_t ops[OPS], bytes[OPS];
	struct region *region;
	uint32_t holds;
	struct run *run;
	int ended;
};

struct queue {
	struct device *dev;
	uint16_t id, mask;
	pthread_mutex_t lock;
	bool dead, phase;
	struct command *sq;
	struct completion *cq;
	volatile uint32_t *sq_bell, *cq_bell;
	uint32_t size, tail, rung, head, cq_head;
	struct slot *slots;
	uint16_t *spare;
	int spares, depth, parked;
	int64_t load;
	struct tally tally;
	int64_t bytes, due; /* also read without the lock */
};

struct group {
	struct device *dev;
	struct queue **queues;
	int n;
	int waiting; /* for room */
};

struct device {
	uint32_t state, nsid;
	bool closing, revocable;
	int64_t capacity, block, most, bulk_limit;
	unsigned shift;
	uint64_t boundary;
	int64_t small, window, bulk, in_flight, unended;
	int64_t ops[OPS], bytes[OPS], errors, in_row, commands;
	struct group latency, deep;
	struct timespec start;
};

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_SEQ_CST)
#define ADD(x, v) __atomic_add_fetch(&(x), (v), __ATOMIC_SEQ_CST)
#define LIKELY(x) __builtin_expect(!!(x), 1)

static struct device dev;
static struct queue queue;
static struct region region;
static struct batch batches[MAX_BATCHES];
static __thread struct run *runs;      /* the pool */
static __thread jmp_buf *volatile guard; /* where a fault of a register goes */
static volatile uint64_t zero;

static _Noreturn void unlikely(void) { abort(); }

static int64_t now(const struct device *d)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (t.tv_sec - d->start.tv_sec) * 1000000000ll + t.tv_nsec - d->start.tv_nsec;
}

static inline uint32_t next(const struct queue *q, uint32_t i) { return i + 1 == q->size ? 0 : i + 1; }

static inline uint32_t dist(const struct queue *q, uint32_t i, uint32_t j)
{
	return j < i ? j + q->size - i : j - i;
}

/* Steps 19 and 28: a signal handler would jump to the guard. */
static bool ring_guarded(volatile uint32_t *bell, uint32_t v)
{
	jmp_buf here, *old = guard;

	if (_setjmp(here)) {
		guard = old;
		return false;
	}
	guard = &here;
	ring(bell, v);
	guard = old;
	return true;
}

/* Steps 30 and 31. */
static void release(struct tally *t)
{
	if (t->holds) {
		if ((uint32_t)ADD(t->region->hold, -(uint64_t)t->holds) > -t->holds - 1)
			unlikely();
		t->holds = 0;
	}
	t->region = NULL;
}

static void end_batch(struct batch *b, int n, struct run *r)
{
	int64_t left = ADD(b->left, -(int64_t)n);

	if (left < 0)
		unlikely();
	if (left)
		return;
	if (LOAD(b->sleeping))
		unlikely(); /* a waiter that sleeps would be woken */
	r->b = NULL;
	r->next = runs;
	runs = r;
}

static void publish(struct device *d, struct tally *t)
{
	release(t);
	if (t->load) {
		ADD(d->window, -t->load);
		t->load = 0;
	}
	if (t->bulk) {
		ADD(d->bulk, -t->bulk);
		t->bulk = 0;
	}
	for (; t->used; t->used &= t->used - 1) {
		int op = __builtin_ctz(t->used);

		ADD(d->bytes[op], t->bytes[op]);
		t->bytes[op] = 0;
		if (t->ops[op]) {
			ADD(d->ops[op], t->ops[op]);
			t->ops[op] = 0;
			if (LOAD(d->in_row))
				STORE(d->in_row, 0);
		}
	}
	if (t->run) {
		struct run *r = t->run;
		int n = t->ended;

		t->run = NULL;
		t->ended = 0;
		ADD(d->in_flight, -(int64_t)n);
		end_batch(r->b, n, r);
		ADD(d->unended, -(int64_t)n);
	}
}

static void count(struct tally *t, int op, int n, int64_t bytes)
{
	if (n) {
		t->used |= 1u << op;
		t->ops[op] += n;
		t->bytes[op] += bytes;
	}
}

/* Step 27, for completions of one submission and one region. */
static int answer(struct queue *q, const uint16_t *done, int most)
{
	struct tally *t = &q->tally;
	struct slot *first = &q->slots[done[0]];
	struct run *run = first->run;
	struct request *reqs = run->b->reqs;
	struct region *r = reqs[first->i].segs[0].region;
	int64_t load = 0, written = 0;
	int n, writes = 0;

	if (run != t->run) {
		if (t->run)
			publish(q->dev, t);
		t->run = run;
	}
	if (r != t->region) {
		release(t);
		t->region = r;
	}
	for (n = 0; n < most; n++) {
		struct slot *s = &q->slots[done[n]];
		struct request *e;

		if (s->run != run)
			break;
		e = &reqs[s->i];
		if (e->segs[0].region != r)
			break;
		load += s->n;
		if (e->op == WRITE) {
			written += s->n;
			writes++;
		}
		e->done = s->n;
	}
	q->load -= load;
	t->load += load;
	count(t, WRITE, writes, written);
	count(t, READ, n - writes, load - written);
	t->holds += n;
	t->ended += n;
	return n;
}

/* Steps 24 to 26, then 27. */
static int quick_reap(struct queue *q)
{
	uint32_t head = q->head, told = dist(q, q->head, q->rung), at = q->cq_head;
	int before = q->spares, k = before, i;

	for (;;) {
		struct completion *c = &q->cq[at];
		uint32_t dw3 = load_dw3(c), to, step;
		uint16_t cid = (uint16_t)dw3;
		struct slot *s;

		if (!(dw3 & DW3_PHASE) == q->phase || dw3 >> 17)
			break;
		if (c->sqid != q->id || (cid & q->mask) >= q->depth)
			break;
		s = &q->slots[cid & q->mask];
		to = c->sqhd;
		step = dist(q, head, to);
		if (s->cid != cid || s->kind != SIMPLE || to >= q->size || step > told)
			break;
		s->live = false;
		s->kind = PART;
		q->spare[k++] = cid & q->mask;
		head = to;
		told -= step;
		if (++at == q->size) {
			at = 0;
			q->phase = !q->phase;
		}
	}
	q->spares = k;
	q->head = head;
	q->cq_head = at;
	for (i = before; i < k;)
		i += answer(q, q->spare + i, k - i);
	return k - before;
}

/* Steps 24 to 31. */
static int reap(struct queue *q)
{
	int n = 0, k;

	while ((k = quick_reap(q)) || !(load_dw3(&q->cq[q->cq_head]) & DW3_PHASE) != q->phase) {
		if (!k && !(k = quick_reap(q))) /* it may have come in between */
			unlikely();             /* a completion that is not simple */
		n += k;
	}
	if (!n) {
		if (q->parked)
			unlikely();
		return 0;
	}
	if (!ring_guarded(q->cq_bell, q->cq_head) || q->parked)
		unlikely();
	STORE(q->bytes, q->load);
	if (q->spares == q->depth)
		STORE(q->due, FOREVER);
	publish(q->dev, &q->tally);
	return n;
}

/* A submission; what follows is of its turn. */
struct burst {
	struct device *d;
	struct group *g;
	struct batch *b;
	struct run *run;
	int64_t now, due;
	struct queue *q;
	int n;
	int64_t most, spare;
	struct region *region;
	uint32_t gen, holds;
	struct attached *at;
};

static void unhold(struct burst *u)
{
	if (u->holds) {
		if ((uint32_t)ADD(u->region->hold, -(uint64_t)u->holds) > -u->holds - 1)
			unlikely();
		u->holds = 0;
	}
}

/* Steps 19 to 21. */
static void leave(struct burst *u)
{
	struct queue *q = u->q;

	unhold(u);
	if (!q)
		return;
	if (u->n && u->due < LOAD(q->due))
		STORE(q->due, u->due);
	if (q->tail != q->rung && !q->dead) {
		q->rung = q->tail;
		if (!ring_guarded(q->sq_bell, q->tail))
			unlikely();
	}
	STORE(q->bytes, q->load);
	pthread_mutex_unlock(&q->lock);
	ADD(u->d->commands, u->n);
	if (u->spare)
		ADD(u->d->window, -u->spare);
	u->q = NULL;
	u->n = 0;
	u->spare = 0;
}

/* Step 9. */
static void enter(struct burst *u)
{
	struct queue *best;
	int64_t least;

	if (u->q) {
		if (u->n < IN_ROW)
			return;
		leave(u);
	}
	if (!u->g->n)
		unlikely();
	best = u->g->queues[0];
	least = LOAD(best->bytes);
	for (int i = 1; i < u->g->n && least; i++) {
		int64_t n = LOAD(u->g->queues[i]->bytes);

		if (n < least) {
			best = u->g->queues[i];
			least = n;
		}
	}
	pthread_mutex_lock(&best->lock);
	if (best->dead || LOAD(u->d->state) != STATE_READY)
		unlikely();
	u->q = best;
	u->n = 0;
}

static inline int min(int a, int b) { return a < b ? a : b; }

/* Steps 10 and 11. */
static void hold_more(struct burst *u, const struct request *e, int left)
{
	const struct seg *g = e->segs;
	uint64_t v = LOAD(g->region->hold);
	int n = 1, i;

	unhold(u);
	if (left > 1 && e[1].nsegs && e[1].segs[0].region == g->region)
		n = min(left, IN_ROW - u->n % IN_ROW);
	do {
		if (v >> 32 != g->gen || !g->gen)
			unlikely();
	} while (!__atomic_compare_exchange_n(&g->region->hold, &v, v + n, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
	u->region = g->region;
	u->gen = g->gen;
	u->holds = n;
	for (i = 0; i < g->region->devices && g->region->attached[i].dev != u->d; i++)
		;
	if (i == g->region->devices || g->region->attached[i].revocable || !g->region->attached[i].aligned)
		unlikely();
	u->at = &g->region->attached[i];
}

/* Step 12. */
static void afford(struct burst *u, int64_t n, int left)
{
	if (u->spare < n) {
		int64_t want = n * min(left, IN_ROW - u->n);

		if (ADD(u->d->window, want) > MAX_IN_FLIGHT) {
			if (ADD(u->d->window, n - want) > MAX_IN_FLIGHT)
				unlikely();
			want = n;
		}
		u->spare += want;
	}
}

/* Steps 8 to 13: how many entries may follow. */
static int prepare(struct burst *u, const struct request *e, int left)
{
	struct device *d = u->d;
	struct queue *q;

	if (e->nsegs != 1 || e->op > WRITE || e->fua || LOAD(u->g->waiting) || LOAD(u->b->canceled) || !e->segs[0].region)
		unlikely();
	enter(u);
	if (!u->holds || e->segs[0].region != u->region || e->segs[0].gen != u->gen)
		hold_more(u, e, left);
	if (!u->at->table.entries || u->at->is_long)
		unlikely();
	q = u->q;
	u->most = d->most;
	if (d->bulk_limit && u->now - LOAD(d->small) < SMALL_MEMORY && u->most > BULK_REQUEST)
		u->most = BULK_REQUEST;
	if (e->len <= 0 || e->len > u->most)
		unlikely();
	afford(u, e->len, left);
	return min(min(min(left, u->holds), min(IN_ROW - u->n, q->spares)), dist(q, next(q, q->tail), q->head));
}

/* Step 14: how many of the entries are simple, and their bytes. */
static int simple(const struct burst *u, const struct request *e, int few, int64_t *bytes)
{
	const struct device *d = u->d;
	int64_t size = u->region->size, most = u->most, sum = 0;

	if (size < most)
		most = size;
	if (d->capacity < most)
		most = d->capacity;
	for (int i = 0; i < few; i++, e++) {
		const struct seg *g = e->segs;
		int64_t n = e->len;

		if (e->nsegs != 1 || e->op > WRITE || e->fua || g->region != u->region || g->gen != u->gen || g->len != n ||
		    (uint64_t)n - 1 >= (uint64_t)most || sum + n > u->spare || (e->off | n) & (d->block - 1) || g->off & 3 ||
		    (uint64_t)e->off > (uint64_t)(d->capacity - n) || (uint64_t)g->off > (uint64_t)(size - n) ||
		    (d->boundary && ((uint64_t)e->off >> d->shift) % d->boundary + ((uint64_t)n >> d->shift) > d->boundary)) {
			*bytes = sum;
			return i;
		}
		sum += n;
	}
	*bytes = sum;
	return few;
}

/* Step 17. */
static void point(const struct table *t, struct command *c, uint64_t off, uint64_t n, struct slot *s)
{
	uint64_t page = 1ull << t->shift, in, first, last;

	off += t->skip;
	in = off & (page - 1);
	first = off >> t->shift;
	if (first >= t->count)
		unlikely();
	c->prp1 = t->entries[first] + in;
	if (n <= page - in)
		return;
	last = (off + n - 1) >> t->shift;
	if (last >= t->count || last - first > PAGE / 8)
		unlikely();
	if (last == first + 1) {
		c->prp2 = t->entries[last];
		return;
	}
	memcpy(s->list, t->entries + first + 1, 8 * (last - first));
	c->prp2 = s->list_bus;
}

/* Steps 8 to 18: how many entries were sent. */
static int quick(struct burst *u, int from)
{
	struct request *e = u->b->reqs + from;
	int64_t bytes;
	int few = simple(u, e, prepare(u, e, u->b->n - from), &bytes);
	struct device *d = u->d;
	struct queue *q = u->q;
	const uint16_t *spare = q->spare + q->spares - few;
	uint32_t tail = q->tail;

	if (!few)
		unlikely();
	for (int i = 0; i < few; i++, e++) {
		struct slot *s = &q->slots[spare[i]];
		struct command *c = &q->sq[tail];
		uint8_t op = e->op == WRITE ? OP_WRITE : OP_READ;
		uint64_t slba = (uint64_t)e->off >> d->shift;
		uint32_t blocks = (uint32_t)(e->len >> d->shift);

		if (blocks - 1 > 0xffff)
			unlikely();
		if ((s->cid += q->mask + 1) == 0xffff)
			s->cid += q->mask + 1;
		*c = (struct command){.opc = op, .cid = s->cid, .nsid = d->nsid};
		c->cdw10 = (uint32_t)slba;
		c->cdw11 = (uint32_t)(slba >> 32);
		c->cdw12 = blocks - 1;
		point(&u->at->table, c, e->segs[0].off, e->len, s);
		s->live = true;
		s->kind = SIMPLE;
		s->parked = s->aborted = false;
		s->tries = 1;
		s->opc = op;
		s->run = u->run;
		s->i = from + i;
		s->off = s->bulk = 0;
		s->n = s->load = e->len;
		s->due = u->due;
		tail = next(q, tail);
	}
	q->tail = tail;
	q->spares -= few;
	q->load += bytes;
	u->spare -= bytes;
	u->n += few;
	u->holds -= few;
	return few;
}

/* Step 2. */
static struct group *group_of(struct device *d, const struct batch *b, bool *is_small)
{
	*is_small = false;
	if (b->n > SMALL_BATCH)
		return &d->deep;
	for (int i = 0; i < b->n; i++)
		if (b->reqs[i].len > SMALL_REQUEST || b->reqs[i].op > WRITE)
			return &d->deep;
	*is_small = true;
	return &d->latency;
}

/* Steps 3 and 4. */
static void start(struct batch *b, struct group *g)
{
	bool idle = false;

	if (b->n < 1 || b->n > MAX_BATCH ||
	    !__atomic_compare_exchange_n(&b->active, &idle, true, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) ||
	    LOAD(b->canceled))
		unlikely();
	for (int i = 0; i < b->n; i++) {
		b->reqs[i].done = 0;
		b->reqs[i].err = 0;
	}
	b->poller = g;
	STORE(b->left, b->n);
}

/* Step 6. */
static struct run *new_run(struct batch *b)
{
	struct run *r = runs;

	if (r)
		runs = r->next;
	else if (!(r = calloc(1, sizeof(*r))))
		unlikely();
	r->b = b;
	return r;
}

static void submit(struct device *d, struct batch *b)
{
	bool is_small;
	struct burst u = {.d = d, .b = b};

	if (LOAD(d->state) != STATE_READY || LOAD(d->closing))
		unlikely();
	u.g = group_of(d, b, &is_small);
	start(b, u.g);
	ADD(d->unended, b->n);
	if (LOAD(d->closing))
		unlikely();
	ADD(d->in_flight, b->n);
	u.run = new_run(b);
	u.now = now(d);
	u.due = u.now + DEADLINE;
	if (is_small)
		STORE(d->small, u.now);
	for (int i = 0, n = b->n; i < n;)
		i += quick(&u, i);
	leave(&u);
}

/* Steps 23 to 32. */
static int poll(struct group *g, int64_t at)
{
	int n = 0;

	for (int i = 0; i < g->n; i++) {
		struct queue *q = g->queues[i];

		if (LOAD(q->due) == FOREVER || pthread_mutex_trylock(&q->lock))
			continue;
		if (!q->dead)
			n += reap(q);
		if (!q->dead && at >= LOAD(q->due))
			unlikely(); /* somebody is late */
		pthread_mutex_unlock(&q->lock);
	}
	return n;
}

#define SPINS 32

/* Steps 22 to 33. */
static void wait(struct batch *b)
{
	if (!LOAD(b->active))
		unlikely();
	for (int empty = 0; LOAD(b->left);) {
		if (poll(b->poller, empty < SPINS ? 0 : now(b->poller->dev)))
			empty = 0;
		else if (++empty >= SPINS && LOAD(b->poller->dev->state) != STATE_READY)
			unlikely();
	}
	STORE(b->active, false);
}

__attribute__((noinline)) void counted_submit(int batch) { submit(&dev, &batches[batch]); }

__attribute__((noinline)) void counted_wait(int batch) { wait(&batches[batch]); }

static void *need(size_t n, size_t size)
{
	void *p = calloc(n, size);

	if (!p)
		unlikely();
	return p;
}

void driver_open(struct controller *c, uint64_t region_bytes)
{
	struct queue *q = &queue;
	struct queue **all = need(1, sizeof(*all));
	struct attached *at = need(1, sizeof(*at));
	uint64_t *lists = aligned_alloc(PAGE, QUEUE_SIZE * PAGE);

	if (!lists)
		unlikely();
	memset(lists, 0, QUEUE_SIZE * PAGE);
	*q = (struct queue){.dev = &dev, .id = 1, .mask = 0xff, .phase = true, .sq = c->sq, .cq = c->cq,
			    .sq_bell = c->sq_bell, .cq_bell = c->cq_bell, .size = QUEUE_SIZE, .depth = QUEUE_SIZE - 1, .due = FOREVER};
	pthread_mutex_init(&q->lock, NULL);
	q->slots = need(q->depth, sizeof(*q->slots));
	q->spare = need(q->depth, sizeof(*q->spare));
	for (int i = 0; i < q->depth; i++) {
		q->slots[i].cid = (uint16_t)i;
		q->slots[i].list = lists + (size_t)i * (PAGE / 8);
		q->slots[i].list_bus = LIST_BUS + (uint64_t)i * PAGE;
		q->spare[q->spares++] = (uint16_t)(q->depth - 1 - i);
	}
	dev = (struct device){.state = STATE_READY, .nsid = 1, .capacity = CAPACITY, .block = 1 << BLOCK_SHIFT,
			      .most = MAX_COMMAND, .bulk_limit = 640 << 10, .shift = BLOCK_SHIFT, .boundary = zero, .small = -SMALL_MEMORY};
	clock_gettime(CLOCK_MONOTONIC, &dev.start);
	all[0] = q;
	dev.latency = dev.deep = (struct group){.dev = &dev, .queues = all, .n = 1};
	at->dev = &dev;
	at->aligned = true;
	at->table.shift = 12;
	at->table.count = region_bytes / PAGE;
	at->table.entries = need(at->table.count, 8);
	for (uint64_t i = 0; i < at->table.count; i++)
		at->table.entries[i] = bus_page(i);
	region = (struct region){.hold = 1ull << 32, .size = (int64_t)region_bytes, .devices = 1, .attached = at};
}

void driver_add(int batch, struct place p)
{
	struct batch *b = &batches[batch];
	struct seg *s = need(1, sizeof(*s));

	*s = (struct seg){&region, 1, (int64_t)p.mem, (int64_t)p.len};
	b->reqs = realloc(b->reqs, (b->n + 1) * sizeof(*b->reqs));
	if (!b->reqs)
		unlikely();
	b->reqs[b->n++] = (struct request){.op = READ, .off = (int64_t)p.off, .len = (int64_t)p.len, .segs = s, .nsegs = 1};
}

uint64_t *driver_list(uint64_t bus) { return queue.slots[(bus - LIST_BUS) / PAGE].list; }

void driver_check(uint64_t ios)
{
	if ((uint64_t)dev.ops[READ] != ios || (uint64_t)dev.commands != ios || dev.in_flight || dev.unended || dev.window ||
	    region.hold != 1ull << 32 || queue.load || queue.spares != queue.depth)
		abort();
	for (int i = 0; i < MAX_BATCHES; i++)
		for (int k = 0; k < batches[i].n; k++)
			if (batches[i].reqs[k].err || batches[i].reqs[k].done != batches[i].reqs[k].len)
				abort();
}
