// A fake libcuda.so.1 for tests. See fakegpu.h.
#include "fakegpu.h"

typedef int CUresult;
enum { INVALID = 1, NOMEM = 2, NODEV = 100, BADCTX = 201, ILLEGAL = 700, NOSUPP = 801 };

#define ENTER(name)            \
	do {                       \
		int e = enter(#name);  \
		if (e)                 \
			return e;          \
	} while (0)
// OWN is for calls about memory of one GPU: they need that GPU's own context.
#define OWN(p)                                                        \
	do {                                                              \
		CONTEXT();                                                    \
		struct block *own = find(p);                                  \
		if (own && stack[depth - 1] != 100 + (uintptr_t)own->device)  \
			return BADCTX;                                            \
	} while (0)
#define CONTEXT()                             \
	do {                                      \
		if (knobs[K_NEED_CONTEXT] && !depth)  \
			return BADCTX;                    \
	} while (0)

CUresult cuInit(unsigned flags) {
	ENTER(cuInit);
	return knobs[K_COUNT] ? 0 : NODEV;
}
CUresult cuDriverGetVersion(int *v) { ENTER(cuDriverGetVersion); *v = 13000; return 0; }
CUresult cuGetErrorName(CUresult e, const char **s) {
	switch (e) {
	case INVALID: *s = "CUDA_ERROR_INVALID_VALUE"; return 0;
	case NOMEM: *s = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
	case NODEV: *s = "CUDA_ERROR_NO_DEVICE"; return 0;
	case BADCTX: *s = "CUDA_ERROR_INVALID_CONTEXT"; return 0;
	case ILLEGAL: *s = "CUDA_ERROR_ILLEGAL_ADDRESS"; return 0;
	case NOSUPP: *s = "CUDA_ERROR_NOT_SUPPORTED"; return 0;
	}
	return INVALID;
}
CUresult cuDeviceGetCount(int *n) { ENTER(cuDeviceGetCount); *n = knobs[K_COUNT]; return 0; }
CUresult cuDeviceGet(int *d, int i) { ENTER(cuDeviceGet); *d = i; return 0; }
CUresult cuDeviceGetName(char *s, int n, int d) { ENTER(cuDeviceGetName); snprintf(s, n, "Fake GPU %d", d); return 0; }
CUresult cuDeviceGetUuid_v2(char *u, int d) { memset(u, 0xa0 + d, 16); return 0; }
CUresult cuDeviceTotalMem_v2(size_t *n, int d) { *n = 1ul << 33; return 0; }
CUresult cuDeviceGetPCIBusId(char *s, int n, int d) { snprintf(s, n, "0000:%02X:00.0", 0x1a + d); return 0; }
CUresult cuDeviceGetAttribute(int *v, int a, int d) {
	switch (a) {
	case 75: *v = knobs[K_CAPABILITY] / 10; return 0;
	case 76: *v = knobs[K_CAPABILITY] % 10; return 0;
	case 117: *v = knobs[K_FLUSH]; return 0;
	case 118: *v = knobs[K_ORDERING]; return 0;
	case 122: *v = knobs[K_MEMOPS]; return 0;
	case 124: *v = knobs[K_DMABUF]; return 0;
	}
	return INVALID;
}

// Contexts: 100 + device.
CUresult cuDevicePrimaryCtxRetain(uintptr_t *c, int d) { ENTER(cuDevicePrimaryCtxRetain); *c = 100 + d; return hold(1); }
CUresult cuDevicePrimaryCtxRelease_v2(int d) { ENTER(cuDevicePrimaryCtxRelease_v2); return hold(-1); }
CUresult cuCtxPushCurrent_v2(uintptr_t c) {
	ENTER(cuCtxPushCurrent_v2);
	if (!c || depth == DEPTH)
		return BADCTX;
	stack[depth++] = c;
	return 0;
}
CUresult cuCtxPopCurrent_v2(uintptr_t *c) {
	if (!depth)
		return BADCTX;
	*c = stack[--depth];
	return 0;
}
uintptr_t fake_current(void) { return depth ? stack[depth - 1] : 0; }

CUresult cuMemAlloc_v2(uintptr_t *p, size_t n) {
	ENTER(cuMemAlloc_v2);
	CONTEXT();
	if (n > 1ul << 33)
		return NOMEM;
	*p = add(0, n, DEVICE, stack[depth - 1] - 100);
	return *p ? 0 : NOMEM;
}
uintptr_t fake_alloc(long n, long kind, long rdma) {
	uintptr_t p = add(0, n, kind, 0);
	find(p)->rdma = rdma;
	return p;
}
CUresult cuMemFree_v2(uintptr_t p) { ENTER(cuMemFree_v2); CONTEXT(); return drop(p, 1) ? 0 : INVALID; }
CUresult cuMemHostAlloc(uintptr_t *p, size_t n, unsigned flags) {
	ENTER(cuMemHostAlloc);
	CONTEXT();
	if (flags != 3)
		return INVALID;
	*p = add(0, n, HOST, 0);
	return *p ? 0 : NOMEM;
}
CUresult cuMemFreeHost(uintptr_t p) { ENTER(cuMemFreeHost); CONTEXT(); return drop(p, 1) ? 0 : INVALID; }
CUresult cuMemHostRegister_v2(uintptr_t p, size_t n, unsigned flags) {
	ENTER(cuMemHostRegister_v2);
	CONTEXT();
	if (flags != 3 && flags != 11)
		return INVALID;
	return add(p, n, HOST, 0) ? 0 : NOMEM;
}
CUresult cuMemHostUnregister(uintptr_t p) { ENTER(cuMemHostUnregister); CONTEXT(); return drop(p, 0) ? 0 : INVALID; }
CUresult cuMemHostGetDevicePointer_v2(uintptr_t *d, uintptr_t p, unsigned flags) {
	ENTER(cuMemHostGetDevicePointer_v2);
	CONTEXT();
	*d = p;
	return inside(p, 1, HOST) ? 0 : INVALID;
}

CUresult cuMemcpyHtoDAsync_v2(uintptr_t d, const void *h, size_t n, uintptr_t s) {
	ENTER(cuMemcpyHtoDAsync_v2);
	CONTEXT();
	if (!inside(d, n, DEVICE) || !inside((uintptr_t)h, n, HOST))
		return INVALID;
	memcpy((void *)d, h, n);
	return 0;
}
CUresult cuMemcpyDtoHAsync_v2(void *h, uintptr_t d, size_t n, uintptr_t s) {
	ENTER(cuMemcpyDtoHAsync_v2);
	CONTEXT();
	if (!inside(d, n, DEVICE) || !inside((uintptr_t)h, n, HOST))
		return INVALID;
	memcpy(h, (void *)d, n);
	return 0;
}

static int attribute(uint64_t *v, int a, struct block *b) {
	switch (a) {
	case 1: *v = b && b->kind == DEVICE ? 100 + b->device : 0; break;
	case 2: *(uint32_t *)v = b ? memory_type(b) : 0; break;
	case 7: *v = b ? b->id : 0; break;
	case 8: *(uint8_t *)v = b && b->kind == MANAGED; break;
	case 9: *(int *)v = b ? b->device : -2; break;
	case 11: *v = b ? b->p : 0; break;
	case 12: *v = b ? b->n : 0; break;
	case 15: *(uint8_t *)v = b && b->rdma; break;
	case 18: case 19: case 20: *v = 0; break;
	default: return INVALID;
	}
	return 0;
}
CUresult cuPointerGetAttribute(uint64_t *v, int a, uintptr_t p) {
	struct block *b = find(p);
	return b ? attribute(v, a, b) : INVALID;
}
CUresult cuPointerGetAttributes(unsigned n, int *a, uint64_t **v, uintptr_t p) {
	ENTER(cuPointerGetAttributes);
	for (unsigned i = 0; i < n; i++)
		if (attribute(v[i], a[i], find(p)))
			return INVALID;
	return 0;
}
CUresult cuEventCreate(uintptr_t *e, unsigned flags) { ENTER(cuEventCreate); CONTEXT(); *e = 7; return flags == 2 ? hold(1) : INVALID; }
CUresult cuEventDestroy_v2(uintptr_t e) { ENTER(cuEventDestroy_v2); CONTEXT(); return hold(-1); }
CUresult cuEventRecord(uintptr_t e, uintptr_t s) { ENTER(cuEventRecord); CONTEXT(); return 0; }
CUresult cuEventQuery(uintptr_t e) { ENTER(cuEventQuery); CONTEXT(); return 0; }
CUresult cuStreamCreate(uintptr_t *s, unsigned flags) {
	ENTER(cuStreamCreate);
	CONTEXT();
	*s = 1000 + stack[depth - 1];
	return flags == 1 ? hold(1) : INVALID;
}
CUresult cuStreamDestroy_v2(uintptr_t s) { ENTER(cuStreamDestroy_v2); CONTEXT(); return hold(-1); }
CUresult cuStreamQuery(uintptr_t s) { ENTER(cuStreamQuery); CONTEXT(); return 0; }
CUresult cuStreamWaitEvent(uintptr_t s, uintptr_t e, unsigned flags) { ENTER(cuStreamWaitEvent); CONTEXT(); return 0; }
CUresult cuLaunchHostFunc(uintptr_t s, void (*fn)(void *), void *arg) {
	ENTER(cuLaunchHostFunc);
	CONTEXT();
	on_thread(fn, arg);
	return 0;
}

#ifndef FAKE_OLD // what drivers of some years ago lack
CUresult cuMemGetHandleForAddressRange(int *fd, uintptr_t p, size_t n, int type, unsigned long long flags) {
	ENTER(cuMemGetHandleForAddressRange);
	OWN(p);
	if (type != 1 || flags)
		return NOSUPP;
	*fd = null_fd();
	return 0;
}
CUresult cuPointerSetAttribute(const unsigned *v, int a, uintptr_t p) {
	ENTER(cuPointerSetAttribute);
	OWN(p);
	return a == 6 && *v == 1 && inside(p, 1, DEVICE) ? 0 : INVALID;
}
CUresult cuFlushGPUDirectRDMAWrites(int target, int scope) {
	ENTER(cuFlushGPUDirectRDMAWrites);
	CONTEXT();
	return target == 0 && scope == 100 ? 0 : INVALID;
}
typedef struct { unsigned char b[64]; } Handle;
CUresult cuIpcGetMemHandle(Handle *h, uintptr_t p) {
	ENTER(cuIpcGetMemHandle);
	OWN(p);
	for (int i = 0; i < 64; i++)
		h->b[i] = i * 3 + 1;
	memcpy(h->b, &p, 8);
	return 0;
}
CUresult cuIpcOpenMemHandle_v2(uintptr_t *p, Handle h, unsigned flags) {
	ENTER(cuIpcOpenMemHandle_v2);
	CONTEXT();
	for (int i = 8; i < 64; i++)
		if (h.b[i] != (unsigned char)(i * 3 + 1))
			return INVALID;
	memcpy(p, h.b, 8);
	return flags == 1 ? hold(1) : INVALID;
}
CUresult cuIpcCloseMemHandle(uintptr_t p) { ENTER(cuIpcCloseMemHandle); CONTEXT(); return hold(-1); }
CUresult cuStreamGetCtx(uintptr_t s, uintptr_t *c) { ENTER(cuStreamGetCtx); *c = s - 1000; return 0; }
CUresult cuStreamIsCapturing(uintptr_t s, int *v) { ENTER(cuStreamIsCapturing); CONTEXT(); *v = knobs[K_CAPTURING]; return 0; }
CUresult cuStreamWriteValue64_v2(uintptr_t s, uintptr_t p, uint64_t v, unsigned flags) {
	ENTER(cuStreamWriteValue64_v2);
	CONTEXT();
	if (!inside(p, 8, 0) || flags)
		return INVALID;
	if (!knobs[K_STUCK])
		__atomic_store_n((uint64_t *)p, v, __ATOMIC_RELEASE);
	return 0;
}
CUresult cuStreamWaitValue64_v2(uintptr_t s, uintptr_t p, uint64_t v, unsigned flags) {
	ENTER(cuStreamWaitValue64_v2);
	CONTEXT();
	return inside(p, 8, 0) && !flags ? 0 : INVALID;
}
CUresult cuModuleLoadData(uintptr_t *m, const char *image) {
	ENTER(cuModuleLoadData);
	CONTEXT();
	*m = 55;
	return strstr(image, ".entry ugds_move(") && strstr(image, ".entry ugds_sum(") &&
		strstr(image, ".entry ugds_watch(") ? hold(1) : INVALID;
}
CUresult cuModuleUnload(uintptr_t m) { ENTER(cuModuleUnload); CONTEXT(); return hold(-1); }
CUresult cuModuleGetFunction(uintptr_t *f, uintptr_t m, const char *name) {
	ENTER(cuModuleGetFunction);
	CONTEXT();
	const char *names[] = {"ugds_move", "ugds_sum", "ugds_watch"};
	for (*f = 66; *f < 69; ++*f)
		if (!strcmp(name, names[*f - 66]))
			return m == 55 ? 0 : 500;
	return 500;
}
CUresult cuFuncLoad(uintptr_t f) { ENTER(cuFuncLoad); CONTEXT(); return f >= 66 && f < 69 ? 0 : INVALID; }
CUresult cuLaunchKernel(uintptr_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
	unsigned shared, uintptr_t s, void **params, void **extra) {
	ENTER(cuLaunchKernel);
	CONTEXT();
	if (f < 66 || f > 68 || !gx || gy != 1 || gz != 1 || bx != 256 || by != 1 || bz != 1 || shared || extra)
		return INVALID;
	if (f == 67)
		return run_sums(*(struct sum **)params[0], *(unsigned *)params[1]) ? 0 : ILLEGAL;
	if (f == 68) // it would occupy the GPU with more blocks than one
		return gx == 1 && *(unsigned *)params[1] == 1 && run_watch(*(struct watch **)params[0]) ? 0 : ILLEGAL;
	return run_moves(*(struct move **)params[0], *(unsigned *)params[1]) ? 0 : ILLEGAL;
}
#endif
