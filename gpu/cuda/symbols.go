package cuda

import "github.com/ugds-store/ugds/internal/dl"

// The functions of the CUDA Driver API that this package calls. Names with a
// suffix are the ones that today's headers mean by the plain name.
const (
	cuInit = iota
	cuDriverGetVersion
	cuGetErrorName
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetUuid
	cuDeviceGetAttribute
	cuDeviceTotalMem
	cuDeviceGetPCIBusID
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxPushCurrent
	cuCtxPopCurrent
	cuMemAlloc
	cuMemFree
	cuMemHostAlloc
	cuMemFreeHost
	cuMemHostRegister
	cuMemHostUnregister
	cuMemHostGetDevicePointer
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuMemGetHandleForAddressRange
	cuPointerGetAttribute
	cuPointerGetAttributes
	cuPointerSetAttribute
	cuFlushGPUDirectRDMAWrites
	cuIpcGetMemHandle
	cuIpcOpenMemHandle
	cuIpcCloseMemHandle
	cuStreamCreate
	cuStreamDestroy
	cuStreamQuery
	cuStreamGetCtx
	cuStreamIsCapturing
	cuStreamWaitEvent
	cuStreamWriteValue64
	cuStreamWaitValue64
	cuLaunchHostFunc
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventQuery
	cuModuleLoadData
	cuModuleUnload
	cuModuleGetFunction
	cuFuncLoad
	cuLaunchKernel
	symbolCount
)

// table gives the symbols, in the order of the constants.
func table() []dl.Symbol {
	must := func(name string) dl.Symbol { return dl.Symbol{Name: name} }
	may := func(name string) dl.Symbol { return dl.Symbol{Name: name, Optional: true} }
	return []dl.Symbol{
		cuInit:                        must("cuInit"),
		cuDriverGetVersion:            must("cuDriverGetVersion"),
		cuGetErrorName:                must("cuGetErrorName"),
		cuDeviceGetCount:              must("cuDeviceGetCount"),
		cuDeviceGet:                   must("cuDeviceGet"),
		cuDeviceGetName:               must("cuDeviceGetName"),
		cuDeviceGetUuid:               may("cuDeviceGetUuid_v2"),
		cuDeviceGetAttribute:          must("cuDeviceGetAttribute"),
		cuDeviceTotalMem:              must("cuDeviceTotalMem_v2"),
		cuDeviceGetPCIBusID:           may("cuDeviceGetPCIBusId"),
		cuDevicePrimaryCtxRetain:      must("cuDevicePrimaryCtxRetain"),
		cuDevicePrimaryCtxRelease:     must("cuDevicePrimaryCtxRelease_v2"),
		cuCtxPushCurrent:              must("cuCtxPushCurrent_v2"),
		cuCtxPopCurrent:               must("cuCtxPopCurrent_v2"),
		cuMemAlloc:                    must("cuMemAlloc_v2"),
		cuMemFree:                     must("cuMemFree_v2"),
		cuMemHostAlloc:                must("cuMemHostAlloc"),
		cuMemFreeHost:                 must("cuMemFreeHost"),
		cuMemHostRegister:             must("cuMemHostRegister_v2"),
		cuMemHostUnregister:           must("cuMemHostUnregister"),
		cuMemHostGetDevicePointer:     must("cuMemHostGetDevicePointer_v2"),
		cuMemcpyHtoDAsync:             must("cuMemcpyHtoDAsync_v2"),
		cuMemcpyDtoHAsync:             must("cuMemcpyDtoHAsync_v2"),
		cuMemGetHandleForAddressRange: may("cuMemGetHandleForAddressRange"),
		cuPointerGetAttribute:         must("cuPointerGetAttribute"),
		cuPointerGetAttributes:        must("cuPointerGetAttributes"),
		cuPointerSetAttribute:         may("cuPointerSetAttribute"),
		cuFlushGPUDirectRDMAWrites:    may("cuFlushGPUDirectRDMAWrites"),
		cuIpcGetMemHandle:             may("cuIpcGetMemHandle"),
		cuIpcOpenMemHandle:            may("cuIpcOpenMemHandle_v2"),
		cuIpcCloseMemHandle:           may("cuIpcCloseMemHandle"),
		cuStreamCreate:                must("cuStreamCreate"),
		cuStreamDestroy:               must("cuStreamDestroy_v2"),
		cuStreamQuery:                 must("cuStreamQuery"),
		cuStreamGetCtx:                may("cuStreamGetCtx"),
		cuStreamIsCapturing:           may("cuStreamIsCapturing"),
		cuStreamWaitEvent:             must("cuStreamWaitEvent"),
		cuStreamWriteValue64:          may("cuStreamWriteValue64_v2"),
		cuStreamWaitValue64:           may("cuStreamWaitValue64_v2"),
		cuLaunchHostFunc:              may("cuLaunchHostFunc"),
		cuEventCreate:                 must("cuEventCreate"),
		cuEventDestroy:                must("cuEventDestroy_v2"),
		cuEventRecord:                 must("cuEventRecord"),
		cuEventQuery:                  must("cuEventQuery"),
		cuModuleLoadData:              may("cuModuleLoadData"),
		cuModuleUnload:                may("cuModuleUnload"),
		cuModuleGetFunction:           may("cuModuleGetFunction"),
		cuFuncLoad:                    may("cuFuncLoad"), // from CUDA 12.4 on
		cuLaunchKernel:                may("cuLaunchKernel"),
	}
}

// Numbers of CUresult that this package tells apart.
const (
	errInvalidValue   = 1
	errOutOfMemory    = 2
	errNoDevice       = 100
	errInvalidContext = 201
	errInvalidHandle  = 400
	errNotFound       = 500
	errNotReady       = 600
	errIllegalAddress = 700
	errNotPermitted   = 800
	errNotSupported   = 801
)

// Numbers of CUdevice_attribute.
const (
	attrProcessors    = 16 // multiprocessors
	attrMajor         = 75
	attrMinor         = 76
	attrFlushOptions  = 117 // bit 0: the host can flush
	attrWriteOrdering = 118
	attrMemOps64      = 122 // the second version, 64 bits
	attrDMABuf        = 124
)

// Numbers of CUpointer_attribute.
const (
	ptrContext       = 1
	ptrMemoryType    = 2
	ptrSyncMemOps    = 6
	ptrBufferID      = 7
	ptrIsManaged     = 8
	ptrDeviceOrdinal = 9
	ptrRangeStart    = 11
	ptrRangeSize     = 12
	ptrRDMACapable   = 15
	ptrMappingSize   = 18
	ptrMappingBase   = 19
	ptrMemoryBlockID = 20
)

// Other constants of the API.
const (
	memoryTypeHost   = 1
	memoryTypeDevice = 2

	streamNonBlocking = 1
	eventNoTiming     = 2
	waitValueGEQ      = 0
	captureActive     = 1
	handleDMABuf      = 1
	flushTargetCtx    = 0
	flushToOwner      = 100
	ipcLazyPeerAccess = 1
)
