package hip

import "github.com/ugds-store/ugds/internal/dl"

// The functions of the HIP runtime that this package calls.
const (
	hipInit = iota
	hipDriverGetVersion
	hipGetErrorName
	hipGetDeviceCount
	hipGetDevice
	hipSetDevice
	hipDeviceGetName
	hipDeviceGetUUID
	hipDeviceTotalMem
	hipDeviceGetPCIBusID
	hipMalloc
	hipFree
	hipHostMalloc
	hipHostFree
	hipHostRegister
	hipHostUnregister
	hipHostGetDevicePointer
	hipMemcpyHtoDAsync
	hipMemcpyDtoHAsync
	hipMemGetHandleForAddressRange
	hipPointerGetAttribute
	hipPointerSetAttribute
	hipIpcGetMemHandle
	hipIpcOpenMemHandle
	hipIpcCloseMemHandle
	hipStreamCreateWithFlags
	hipStreamDestroy
	hipStreamQuery
	hipStreamIsCapturing
	hipStreamWaitEvent
	hipStreamWriteValue64
	hipStreamWaitValue64
	hipLaunchHostFunc
	hipEventCreateWithFlags
	hipEventDestroy
	hipEventRecord
	hipEventQuery
	symbolCount
)

// table gives the symbols, in the order of the constants.
func table() []dl.Symbol {
	must := func(name string) dl.Symbol { return dl.Symbol{Name: name} }
	may := func(name string) dl.Symbol { return dl.Symbol{Name: name, Optional: true} }
	return []dl.Symbol{
		hipInit:                        must("hipInit"),
		hipDriverGetVersion:            must("hipDriverGetVersion"),
		hipGetErrorName:                must("hipGetErrorName"),
		hipGetDeviceCount:              must("hipGetDeviceCount"),
		hipGetDevice:                   must("hipGetDevice"),
		hipSetDevice:                   must("hipSetDevice"),
		hipDeviceGetName:               must("hipDeviceGetName"),
		hipDeviceGetUUID:               may("hipDeviceGetUuid"),
		hipDeviceTotalMem:              must("hipDeviceTotalMem"),
		hipDeviceGetPCIBusID:           may("hipDeviceGetPCIBusId"),
		hipMalloc:                      must("hipMalloc"),
		hipFree:                        must("hipFree"),
		hipHostMalloc:                  must("hipHostMalloc"),
		hipHostFree:                    must("hipHostFree"),
		hipHostRegister:                must("hipHostRegister"),
		hipHostUnregister:              must("hipHostUnregister"),
		hipHostGetDevicePointer:        must("hipHostGetDevicePointer"),
		hipMemcpyHtoDAsync:             must("hipMemcpyHtoDAsync"),
		hipMemcpyDtoHAsync:             must("hipMemcpyDtoHAsync"),
		hipMemGetHandleForAddressRange: may("hipMemGetHandleForAddressRange"),
		hipPointerGetAttribute:         must("hipPointerGetAttribute"),
		hipPointerSetAttribute:         may("hipPointerSetAttribute"),
		hipIpcGetMemHandle:             may("hipIpcGetMemHandle"),
		hipIpcOpenMemHandle:            may("hipIpcOpenMemHandle"),
		hipIpcCloseMemHandle:           may("hipIpcCloseMemHandle"),
		hipStreamCreateWithFlags:       must("hipStreamCreateWithFlags"),
		hipStreamDestroy:               must("hipStreamDestroy"),
		hipStreamQuery:                 must("hipStreamQuery"),
		hipStreamIsCapturing:           may("hipStreamIsCapturing"),
		hipStreamWaitEvent:             must("hipStreamWaitEvent"),
		hipStreamWriteValue64:          may("hipStreamWriteValue64"),
		hipStreamWaitValue64:           may("hipStreamWaitValue64"),
		hipLaunchHostFunc:              may("hipLaunchHostFunc"),
		hipEventCreateWithFlags:        must("hipEventCreateWithFlags"),
		hipEventDestroy:                must("hipEventDestroy"),
		hipEventRecord:                 must("hipEventRecord"),
		hipEventQuery:                  must("hipEventQuery"),
	}
}

// Numbers of hipError_t that this package tells apart. HIP took CUDA's.
const (
	errInvalidValue   = 1
	errOutOfMemory    = 2
	errNoDevice       = 100
	errInvalidHandle  = 400
	errNotFound       = 500
	errNotReady       = 600
	errIllegalAddress = 700
	errNotSupported   = 801
)

// Numbers of hipPointer_attribute.
const (
	ptrMemoryType    = 2
	ptrSyncMemOps    = 6
	ptrBufferID      = 7
	ptrIsManaged     = 8
	ptrDeviceOrdinal = 9
	ptrRangeStart    = 11
	ptrRangeSize     = 12
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
	ipcLazyPeerAccess = 1
)
