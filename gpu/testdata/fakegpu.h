// The common part of the fake GPU libraries that tests compile: memory that is
// really the host's, a log of calls, failures on demand, and a check that calls
// which need a context have one. Work runs at once, in the calling thread.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 4096, LOG = 4000, KNOBS = 32, DEPTH = 64 };
enum { HOST = 1, DEVICE = 2, MANAGED = 3 };

// Knobs that tests set.
enum { K_COUNT, K_ORDERING, K_FLUSH, K_DMABUF, K_MEMOPS, K_CAPTURING, K_CAPABILITY, K_NEED_CONTEXT, K_STUCK };

struct block {
	uintptr_t p;
	size_t n;
	uint64_t id;
	int kind, device, rdma;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static long knobs[KNOBS] = {[K_COUNT] = 2, [K_ORDERING] = 100, [K_FLUSH] = 1, [K_DMABUF] = 1, [K_MEMOPS] = 1,
	[K_CAPABILITY] = 90, [K_NEED_CONTEXT] = 1};
static struct block blocks[BLOCKS];
static uint64_t next_id = 1;
static char text[LOG + 1];
static char fail_name[64], failed[64];
static long held; // streams, events, contexts, modules and mappings that are open
static int fail_after, fail_code;
static __thread uintptr_t stack[DEPTH];
static __thread int depth;

void fake_set(long knob, long value) { knobs[knob] = value; }

// fake_fail lets the call after the next `after` calls of a function fail; "*" is
// any function.
void fake_fail(const char *name, long after, long code) {
	pthread_mutex_lock(&mu);
	snprintf(fail_name, sizeof fail_name, "%s", name);
	fail_after = (int)after;
	fail_code = (int)code;
	failed[0] = 0;
	pthread_mutex_unlock(&mu);
}

// fake_failed names the function that failed as it was asked to.
const char *fake_failed(void) { return failed; }

long fake_held(void) { return held; }

static int hold(int change) {
	__atomic_add_fetch(&held, change, __ATOMIC_RELAXED);
	return 0;
}

const char *fake_log(void) { return text; }

void fake_clear(void) {
	pthread_mutex_lock(&mu);
	text[0] = 0;
	pthread_mutex_unlock(&mu);
}

long fake_blocks(void) {
	long n = 0;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < BLOCKS; i++)
		n += blocks[i].p != 0;
	pthread_mutex_unlock(&mu);
	return n;
}

// enter logs a call and gives the failure that was asked for, or 0.
static int enter(const char *name) {
	int code = 0;
	pthread_mutex_lock(&mu);
	size_t used = strlen(text);
	if (used + strlen(name) + 2 < LOG) {
		strcat(text, name);
		strcat(text, " ");
	}
	if (fail_code && (!strcmp(name, fail_name) || !strcmp("*", fail_name)) && fail_after-- == 0) {
		code = fail_code;
		snprintf(failed, sizeof failed, "%s", name);
		fail_code = 0;
	}
	pthread_mutex_unlock(&mu);
	return code;
}

static struct block *find(uintptr_t p) {
	for (int i = 0; i < BLOCKS; i++)
		if (blocks[i].p && p >= blocks[i].p && p < blocks[i].p + blocks[i].n)
			return &blocks[i];
	return NULL;
}

// add notes memory; p 0 allocates it.
static uintptr_t add(uintptr_t p, size_t n, int kind, int device) {
	void *m = (void *)p;
	if (!m && posix_memalign(&m, 65536, n ? n : 1))
		return 0;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < BLOCKS; i++)
		if (!blocks[i].p) {
			blocks[i] = (struct block){(uintptr_t)m, n, next_id++, kind, device, kind == DEVICE};
			pthread_mutex_unlock(&mu);
			return (uintptr_t)m;
		}
	pthread_mutex_unlock(&mu);
	return 0;
}

// drop forgets the memory that begins at p; 0 if there is none.
static int drop(uintptr_t p, int release) {
	int found = 0;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < BLOCKS && !found; i++)
		if (p && blocks[i].p == p) {
			blocks[i].p = 0;
			found = 1;
		}
	pthread_mutex_unlock(&mu);
	if (found && release)
		free((void *)p);
	return found;
}

// inside tells whether a range is memory of a kind, 0 for any.
static int inside(uintptr_t p, size_t n, int kind) {
	pthread_mutex_lock(&mu);
	struct block *b = find(p);
	int ok = b && p + n <= b->p + b->n && (!kind || (b->kind & kind));
	pthread_mutex_unlock(&mu);
	return ok;
}

struct call {
	void (*fn)(void *);
	void *arg;
};

static void *run_call(void *p) {
	struct call *c = p;
	c->fn(c->arg);
	return NULL;
}

// on_thread calls back from a thread that Go did not make.
static void on_thread(void (*fn)(void *), void *arg) {
	pthread_t t;
	struct call c = {fn, arg};
	pthread_create(&t, NULL, run_call, &c);
	pthread_join(t, NULL);
}

struct move {
	uint64_t src, dst, n;
};

static int run_moves(struct move *t, unsigned count) {
	for (unsigned i = 0; i < count; i++) {
		if (!inside(t[i].src, t[i].n, 0) || !inside(t[i].dst, t[i].n, 0))
			return 0;
		memcpy((void *)t[i].dst, (void *)t[i].src, t[i].n);
	}
	return 1;
}

struct sum {
	uint64_t p, n;
	uint32_t part, unused;
};

// run_sums does bit by bit what the checksum kernel says of itself: the range with
// zeros up to the next 16 bytes, each word times x to the bits that follow it.
static int run_sums(struct sum *t, unsigned count) {
	const uint32_t poly = 0x82f63b78;
	for (unsigned i = 0; i < count; i++) {
		uint64_t end = t[i].p + t[i].n, stop = (end + 15) / 16 * 16;
		uint32_t crc = 0;
		if (t[i].n && !inside(t[i].p, t[i].n, 0))
			return 0;
		for (uint64_t at = t[i].p; at < stop; at++) {
			crc ^= at < end ? *(uint8_t *)at : 0;
			for (int k = 0; k < 8; k++)
				crc = crc >> 1 ^ (crc & 1 ? poly : 0);
		}
		for (int k = 0; k < 32; k++) // a register has x^32 too much
			crc = crc >> 31 ? (crc ^ poly) << 1 | 1 : crc << 1;
		t[i].part = crc;
	}
	return 1;
}

// memory_type is what drivers say of managed memory: where its page is just now.
static int memory_type(const struct block *b) {
	static int page;
	return b->kind == MANAGED ? 1 + (page++ & 1) : b->kind == HOST ? 1 : 2;
}

static int null_fd(void) { return open("/dev/zero", O_RDWR); } // without O_CLOEXEC: that is for the caller to set

struct watch {
	uint64_t src, dst, n, value, ns, begun, ended, unused;
};

// run_watch looks once: work runs in the calling thread, so that nobody could write
// meanwhile.
static int run_watch(struct watch *w) {
	if (!inside((uintptr_t)w, sizeof *w, HOST) || !inside(w->src, w->n, 0) || !inside(w->dst, w->n, 0))
		return 0;
	w->begun = 1;
	w->ended = 2;
	if (*(uint64_t *)(w->src + w->n - 8) == w->value) {
		memcpy((void *)w->dst, (void *)w->src, w->n);
		w->ended = 1;
	}
	return 1;
}
