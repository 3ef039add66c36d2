/* The instant controller and the modes of the C programs; see cref.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cref.h"

#define MAX_BATCHES 256
#define STRETCH 1000000 /* ns */
#define STRETCHES 100

static struct controller io;
static int batches, per;
static uint64_t runs; /* turns of every batch */

/* step completes everything that the doorbell shows; no data moves. */
static int step(struct controller *c)
{
	uint32_t tail = __atomic_load_n(c->sq_bell, __ATOMIC_ACQUIRE);
	int n = 0;

	for (; c->head != tail; n++) {
		uint16_t cid = c->sq[c->head].cid;
		struct completion *e = &c->cq[c->tail];

		if (++c->head == QUEUE_SIZE)
			c->head = 0;
		e->dw0 = 0;
		e->dw1 = 0;
		e->sqhd = (uint16_t)c->head;
		e->sqid = 1;
		__atomic_store_n(&e->dw3, cid | (c->phase ? DW3_PHASE : 0), __ATOMIC_RELEASE);
		if (++c->tail == QUEUE_SIZE) {
			c->tail = 0;
			c->phase = !c->phase;
		}
	}
	return n;
}

static void *pages(size_t n)
{
	void *p = aligned_alloc(PAGE, (n + PAGE - 1) / PAGE * PAGE);

	if (!p) {
		perror("cref");
		exit(1);
	}
	memset(p, 0, n);
	return p;
}

static void open_controller(struct controller *c)
{
	c->sq = pages(QUEUE_SIZE * sizeof(*c->sq));
	c->cq = pages(QUEUE_SIZE * sizeof(*c->cq));
	c->sq_bell = pages(PAGE);
	c->cq_bell = c->sq_bell + 1;
	c->phase = true;
}

static void turn(void)
{
	for (int b = 0; b < batches; b++) {
		counted_submit(b);
		step(&io);
		counted_wait(b);
	}
	runs++;
}

/* turn_again is turn with every batch in flight all the time. */
static void turn_again(void)
{
	for (int b = 0; b < batches; b++) {
		counted_wait(b);
		counted_submit(b);
	}
	runs++;
}

static struct controller lone;

static void turn_model(void)
{
	for (int b = 0; b < batches; b++) {
		*lone.sq_bell = (lone.head + per) % QUEUE_SIZE;
		step(&lone);
	}
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint64_t timed(int n, void (*fn)(void))
{
	uint64_t begin = now();

	while (n--)
		fn();
	return now() - begin;
}

/* calls is how many calls take a stretch, undisturbed. */
static int calls(void (*fn)(void))
{
	uint64_t best = 0, took;
	int n = 1;

	while (best < STRETCH) {
		n *= 2;
		best = UINT64_MAX;
		for (int i = 0; i < 3; i++)
			if ((took = timed(n, fn)) < best)
				best = took;
	}
	return n;
}

/*
 * fastest times stretches of two functions in turn (the second may be NULL), and
 * gives the nanoseconds a command of the shortest of each.
 */
static void fastest(void (*fn)(void), void (*other)(void), double *ns, double *other_ns)
{
	int n = calls(fn), m = other ? calls(other) : 0;
	uint64_t best = UINT64_MAX, other_best = UINT64_MAX, took;

	for (int i = 0; i < STRETCHES; i++) {
		if ((took = timed(n, fn)) < best)
			best = took;
		if (other && (took = timed(m, other)) < other_best)
			other_best = took;
	}
	*ns = (double)best / n / ((double)batches * per);
	if (other)
		*other_ns = (double)other_best / m / ((double)batches * per);
}

/* On one processor the two threads would take turns, which looks fast and is not. */
static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set)) {
		perror("cref: pin");
		exit(1);
	}
}

static bool stop;

static void *serve(void *unused)
{
	pin(1);
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
		for (int i = 0; i < 64; i++)
			step(&io);
	return unused;
}

static double duo(void)
{
	pthread_t t;
	double ns;

	pin(0);
	if ((errno = pthread_create(&t, NULL, serve, NULL))) {
		perror("cref");
		exit(1);
	}
	for (int b = 0; b < batches; b++)
		counted_submit(b);
	fastest(turn_again, NULL, &ns, NULL);
	for (int b = 0; b < batches; b++)
		counted_wait(b);
	runs++;
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	pthread_join(t, NULL);
	return ns;
}

/* digest says what the commands between head and doorbell are; FNV-1a. */
static uint64_t digest(void)
{
	uint64_t h = 14695981039346656037ull;
	char text[128];

	for (uint32_t i = io.head; i != *io.sq_bell; i = (i + 1) % QUEUE_SIZE) {
		const struct command *c = &io.sq[i];
		uint32_t count = (c->cdw12 & 0xffff) + 1;
		const uint64_t *list = &c->prp2;
		uint64_t slba = (uint64_t)c->cdw11 << 32 | c->cdw10;

		if (count > 2)
			list = driver_list(c->prp2);
		snprintf(text, sizeof(text), "%d %d %d %d %llu %x %llu", c->opc, c->flags, c->cid, c->nsid,
			 (unsigned long long)slba, c->cdw12, (unsigned long long)c->prp1);
		for (uint32_t k = 0;; k++) {
			for (char *p = text; *p; p++)
				h = (h ^ (uint8_t)*p) * 1099511628211ull;
			if (k + 1 == count)
				break;
			snprintf(text, sizeof(text), " %llu", (unsigned long long)list[k]);
		}
		h = (h ^ '\n') * 1099511628211ull;
	}
	return h;
}

static uint64_t digests(int turns)
{
	uint64_t sum = 0;

	for (int t = 0; t < turns; t++, runs++)
		for (int b = 0; b < batches; b++) {
			counted_submit(b);
			sum = sum * 31 + digest();
			step(&io);
			counted_wait(b);
		}
	return sum;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "time";
	uint64_t size = argc > 2 ? strtoull(argv[2], NULL, 0) : 4096;
	int depth, turns = argc > 5 ? atoi(argv[5]) : 100;

	per = argc > 3 ? atoi(argv[3]) : 32;
	depth = argc > 4 ? atoi(argv[4]) : 32;
	if (size < PAGE || size > MAX_COMMAND || size % PAGE || per < 1 || depth < per || depth % per ||
	    depth >= (int)QUEUE_SIZE || turns < 1) {
		fprintf(stderr, "usage: %s count|time|duo|digest SIZE BATCH DEPTH TURNS\n", argv[0]);
		return 2;
	}
	batches = depth / per;
	open_controller(&io);
	driver_open(&io, size * depth);
	for (int i = 0; i < depth; i++)
		driver_add(i / per, (struct place){i * SPREAD % (CAPACITY / size) * size, i * size, size});
	if (!strcmp(mode, "count")) {
		for (int i = 0; i < turns; i++)
			turn();
		printf("{\"ios\":%d}\n", turns * depth);
	} else if (!strcmp(mode, "time")) {
		double whole, model;

		open_controller(&lone);
		fastest(turn, turn_model, &whole, &model);
		printf("{\"ns\":%f,\"model\":%f}\n", whole, model);
	} else if (!strcmp(mode, "duo")) {
		printf("{\"ns\":%f}\n", duo());
	} else {
		printf("{\"digest\":\"%016llx\"}\n", (unsigned long long)digests(turns));
	}
	driver_check(runs * depth);
	return 0;
}
