// A fake libamdhip64.so for tests. See fakegpu.h.
#include "fakegpu.h"

typedef int hipError_t;
enum { INVALID = 1, NOMEM = 2, NODEV = 100, BADDEV = 101, NOSUPP = 801 };

#define ENTER(name)            \
	do {                       \
		int e = enter(#name);  \
		if (e)                 \
			return e;          \
	} while (0)

static __thread int current; // HIP has a current device a thread, 0 at first

uintptr_t fake_current(void) { return current; }
void fake_use(long d) { current = d; }
uintptr_t fake_alloc(long n, long kind, long rdma) { return add(0, n, kind, 0); }
void fake_free(uintptr_t p) { drop(p, 1); }

hipError_t hipInit(unsigned flags) { ENTER(hipInit); return knobs[K_COUNT] ? 0 : NODEV; }
hipError_t hipDriverGetVersion(int *v) { *v = 70000000; return 0; }
const char *hipGetErrorName(hipError_t e) {
	switch (e) {
	case INVALID: return "hipErrorInvalidValue";
	case NOMEM: return "hipErrorOutOfMemory";
	case NODEV: return "hipErrorNoDevice";
	case NOSUPP: return "hipErrorNotSupported";
	}
	return "hipErrorUnknown";
}
hipError_t hipGetDeviceCount(int *n) { *n = knobs[K_COUNT]; return 0; }
hipError_t hipGetDevice(int *d) { ENTER(hipGetDevice); *d = current; return 0; }
hipError_t hipSetDevice(int d) {
	ENTER(hipSetDevice);
	if (d < 0 || d >= knobs[K_COUNT])
		return BADDEV;
	current = d;
	return 0;
}
hipError_t hipDeviceGetName(char *s, int n, int d) { snprintf(s, n, "Fake Instinct %d", d); return 0; }
hipError_t hipDeviceGetUuid(char *u, int d) { memset(u, 0xb0 + d, 16); return 0; }
hipError_t hipDeviceTotalMem(size_t *n, int d) { *n = 1ul << 34; return 0; }
hipError_t hipDeviceGetPCIBusId(char *s, int n, int d) { snprintf(s, n, "0000:%02X:00.0", 0x2a + d); return 0; }
hipError_t hipMalloc(uintptr_t *p, size_t n) { ENTER(hipMalloc); *p = add(0, n, DEVICE, current); return *p ? 0 : NOMEM; }
hipError_t hipFree(uintptr_t p) { ENTER(hipFree); return drop(p, 1) ? 0 : INVALID; }
hipError_t hipHostMalloc(uintptr_t *p, size_t n, unsigned flags) {
	ENTER(hipHostMalloc);
	*p = add(0, n, HOST, 0);
	return flags == 3 ? 0 : INVALID;
}
hipError_t hipHostFree(uintptr_t p) { ENTER(hipHostFree); return drop(p, 1) ? 0 : INVALID; }
hipError_t hipHostRegister(uintptr_t p, size_t n, unsigned flags) {
	ENTER(hipHostRegister);
	if (flags != 3 && flags != 11)
		return INVALID;
	return add(p, n, HOST, 0) ? 0 : NOMEM;
}
hipError_t hipHostUnregister(uintptr_t p) { ENTER(hipHostUnregister); return drop(p, 0) ? 0 : INVALID; }
hipError_t hipHostGetDevicePointer(uintptr_t *d, uintptr_t p, unsigned flags) { ENTER(hipHostGetDevicePointer); *d = p; return inside(p, 1, HOST) ? 0 : INVALID; }
hipError_t hipMemcpyHtoDAsync(uintptr_t d, uintptr_t h, size_t n, uintptr_t s) {
	ENTER(hipMemcpyHtoDAsync);
	if (!inside(d, n, DEVICE) || !inside(h, n, HOST))
		return INVALID;
	memcpy((void *)d, (void *)h, n);
	return 0;
}
hipError_t hipMemcpyDtoHAsync(uintptr_t h, uintptr_t d, size_t n, uintptr_t s) {
	ENTER(hipMemcpyDtoHAsync);
	if (!inside(d, n, DEVICE) || !inside(h, n, HOST))
		return INVALID;
	memcpy((void *)h, (void *)d, n);
	return 0;
}
hipError_t hipPointerGetAttribute(void *v, int a, uintptr_t p) {
	ENTER(hipPointerGetAttribute);
	struct block *b = find(p);
	if (!b)
		return INVALID;
	switch (a) {
	case 2: *(uint32_t *)v = memory_type(b); return 0;
	case 7: *(uint64_t *)v = b->id; return 0;
	case 8: *(uint8_t *)v = b->kind == MANAGED; return 0;
	case 9: *(int *)v = b->device; return 0;
	case 11: *(uint64_t *)v = b->p; return 0;
	case 12: *(uint64_t *)v = b->n; return 0;
	}
	return INVALID;
}
hipError_t hipStreamCreateWithFlags(uintptr_t *s, unsigned flags) { ENTER(hipStreamCreateWithFlags); *s = 1000 + current; return flags == 1 ? hold(1) : INVALID; }
hipError_t hipStreamDestroy(uintptr_t s) { ENTER(hipStreamDestroy); return hold(-1); }
hipError_t hipStreamQuery(uintptr_t s) { ENTER(hipStreamQuery); return 0; }
hipError_t hipStreamWaitEvent(uintptr_t s, uintptr_t e, unsigned flags) { ENTER(hipStreamWaitEvent); return 0; }
hipError_t hipEventCreateWithFlags(uintptr_t *e, unsigned flags) { ENTER(hipEventCreateWithFlags); *e = 7; return flags == 2 ? hold(1) : INVALID; }
hipError_t hipEventDestroy(uintptr_t e) { ENTER(hipEventDestroy); return hold(-1); }
hipError_t hipEventRecord(uintptr_t e, uintptr_t s) { ENTER(hipEventRecord); return 0; }
hipError_t hipEventQuery(uintptr_t e) { ENTER(hipEventQuery); return 0; }
hipError_t hipLaunchHostFunc(uintptr_t s, void (*fn)(void *), void *arg) {
	ENTER(hipLaunchHostFunc);
	on_thread(fn, arg);
	return 0;
}

#ifndef FAKE_OLD // what older runtimes lack
hipError_t hipMemGetHandleForAddressRange(int *fd, uintptr_t p, size_t n, int type, unsigned long long flags) {
	ENTER(hipMemGetHandleForAddressRange);
	*fd = null_fd();
	return type == 1 && !flags ? 0 : INVALID;
}
hipError_t hipPointerSetAttribute(const unsigned *v, int a, uintptr_t p) {
	ENTER(hipPointerSetAttribute);
	return a == 6 && *v == 1 && inside(p, 1, DEVICE) ? 0 : INVALID;
}
typedef struct { unsigned char b[64]; } Handle;
hipError_t hipIpcGetMemHandle(Handle *h, uintptr_t p) {
	ENTER(hipIpcGetMemHandle);
	for (int i = 0; i < 64; i++)
		h->b[i] = i * 5 + 2;
	memcpy(h->b, &p, 8);
	return 0;
}
hipError_t hipIpcOpenMemHandle(uintptr_t *p, Handle h, unsigned flags) {
	ENTER(hipIpcOpenMemHandle);
	for (int i = 8; i < 64; i++)
		if (h.b[i] != (unsigned char)(i * 5 + 2))
			return INVALID;
	memcpy(p, h.b, 8);
	return flags == 1 ? hold(1) : INVALID;
}
hipError_t hipIpcCloseMemHandle(uintptr_t p) { ENTER(hipIpcCloseMemHandle); return hold(-1); }
hipError_t hipStreamIsCapturing(uintptr_t s, int *v) { ENTER(hipStreamIsCapturing); *v = knobs[K_CAPTURING]; return 0; }
hipError_t hipStreamWriteValue64(uintptr_t s, uintptr_t p, uint64_t v, unsigned flags) {
	ENTER(hipStreamWriteValue64);
	if (!knobs[K_MEMOPS])
		return NOSUPP;
	if (!inside(p, 8, 0) || flags)
		return INVALID;
	if (!knobs[K_STUCK])
		__atomic_store_n((uint64_t *)p, v, __ATOMIC_RELEASE);
	return 0;
}
hipError_t hipStreamWaitValue64(uintptr_t s, uintptr_t p, uint64_t v, unsigned flags, uint64_t mask) {
	ENTER(hipStreamWaitValue64);
	return inside(p, 8, 0) && !flags && mask == ~0ul ? 0 : INVALID;
}
#endif
