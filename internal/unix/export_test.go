package unix

// KdrvStructs are the structures of the module's interface and their fields in C,
// in order.
var KdrvStructs = []struct {
	C      string
	V      any
	Fields string
}{
	{"ugds_info", KdrvInfo{}, "abi_version iommu caps bar_size table_start table_end vectors page_size pci_address " +
		"numa_node vendor device subsystem_vendor subsystem_device reserved"},
	{"ugds_status", KdrvStatus{}, "events state why revoked"},
	{"ugds_stop", KdrvStop{}, "flags timeout_ms how reserved"},
	{"ugds_map", KdrvMap{}, "addr len flags region segments why"},
	{"ugds_import", KdrvImport{}, "fd flags offset len region segments why reserved"},
	{"ugds_alloc", KdrvAlloc{}, "len bus_addr mmap_offset region why"},
	{"ugds_nvidia", KdrvNVIDIA{}, "addr len flags region segments why"},
	{"ugds_segment", KdrvSegment{}, "addr len"},
	{"ugds_segments", kdrvSegments{}, "region first count reserved list"},
	{"ugds_unmap", kdrvUnmap{}, "region reserved"},
	{"ugds_vector", kdrvVector{}, "vector eventfd"},
	{"ugds_events", kdrvEvents{}, "eventfd reserved"},
}

// KdrvValues are the numbers that both sides must agree on.
var KdrvValues = map[string]uint64{
	"UGDS_IOC_INFO": kdrvInfoNr, "UGDS_IOC_START": kdrvStartNr, "UGDS_IOC_STOP": kdrvStopNr, "UGDS_IOC_MAP": kdrvMapNr,
	"UGDS_IOC_IMPORT": kdrvImportNr, "UGDS_IOC_ALLOC": kdrvAllocNr, "UGDS_IOC_SEGMENTS": kdrvSegmentsNr,
	"UGDS_IOC_UNMAP": kdrvUnmapNr, "UGDS_IOC_VECTOR": kdrvVectorNr, "UGDS_IOC_EVENTS": kdrvEventsNr,
	"UGDS_IOC_NVIDIA": kdrvNVIDIANr, "UGDS_CAP_NVIDIA": KdrvCapNVIDIA, "UGDS_NVIDIA_PAGE": KdrvNVIDIAPage,
	"UGDS_ABI_VERSION": KdrvABIVersion, "UGDS_MAP_MAX": KdrvMapMax, "UGDS_ALLOC_MAX": KdrvAllocMax,
	"UGDS_SEGMENTS_MAX": KdrvSegmentsMax, "UGDS_STOP_MS_MAX": KdrvStopMsMax, "UGDS_MMAP_STATUS": KdrvMmapStatus,
	"UGDS_CAP_DMABUF": KdrvCapDMABuf, "UGDS_CAP_RESET": KdrvCapReset, "UGDS_STOP_RESET": KdrvStopReset,
	"UGDS_IMPORT_MOVABLE": KdrvImportMovable, "UGDS_IOMMU_NONE": uint64(KdrvIOMMUNone),
	"UGDS_IOMMU_IDENTITY": uint64(KdrvIOMMUIdentity), "UGDS_IOMMU_LAZY": uint64(KdrvIOMMULazy),
	"UGDS_IOMMU_STRICT": uint64(KdrvIOMMUStrict), "UGDS_STOPPED": uint64(KdrvStopped), "UGDS_RUNNING": uint64(KdrvRunning),
	"UGDS_ISOLATED": uint64(KdrvIsolated), "UGDS_GONE": uint64(KdrvGone), "UGDS_WHY_NOT_BUILT": uint64(KdrvWhyNotBuilt),
	"UGDS_WHY_EXPORTER_PIN":               uint64(KdrvWhyExporterPin),
	"offsetof(struct ugds_status, state)": KdrvStatusState, "offsetof(struct ugds_status, why)": KdrvStatusWhy,
	"offsetof(struct ugds_status, revoked)": KdrvStatusRevoked,
}

// KdrvWhys is how many reasons have words.
const KdrvWhys = KdrvWhy(len(kdrvWhys))
