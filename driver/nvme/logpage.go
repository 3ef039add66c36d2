package nvme

import "strings"

// Log page identifiers (Base 5.1.12).
const (
	LogError             = 0x01 // ErrorLogEntry, several
	LogSMART             = 0x02 // SMARTLog
	LogFirmware          = 0x03 // FirmwareLog
	LogChangedNamespaces = 0x04 // NamespaceList
)

// ErrorLogEntry is one entry of the Error Information page (Base 5.1.12.1.2),
// newest first. An entry with a count of 0 is empty.
type ErrorLogEntry struct {
	Count        Le64
	SQID         Le16
	CID          Le16
	Status       Le16 // phase tag in bit 0
	ParamErr     Le16 // byte in bits 7:0 and bit in bits 10:8 of the bad parameter
	LBA          Le64
	NSID         Le32
	VendorInfo   uint8
	TRTYPE       uint8
	_            [2]byte
	Specific     Le64
	_            [23]byte
	LogPageVerns uint8
}

// StatusField is the status without the phase tag.
func (e *ErrorLogEntry) StatusField() Status { return Status(e.Status.Get() >> 1) }

// SMARTLog is the SMART / Health Information page (Base 5.1.12.1.3).
type SMARTLog struct {
	CriticalWarning     uint8
	CompositeKelvin     Le16 // temperature; 0: not reported
	AvailableSpare      uint8
	SpareThreshold      uint8
	PercentageUsed      uint8 // may pass 100, stops at 255
	EnduranceWarnings   uint8
	_                   [25]byte
	DataUnitsRead       Le128
	DataUnitsWritten    Le128
	HostReads           Le128
	HostWrites          Le128
	BusyMinutes         Le128
	PowerCycles         Le128
	PowerOnHours        Le128
	UnsafeShutdowns     Le128
	MediaErrors         Le128
	ErrorLogEntries     Le128
	WarningTempMinutes  Le32
	CriticalTempMinutes Le32
	SensorKelvin        [8]Le16
	_                   [296]byte
}

// DataUnit is the unit of DataUnitsRead and DataUnitsWritten, in bytes.
const DataUnit = 512 * 1000

// Bits of CriticalWarning.
const (
	WarnSpare       = 1 << 0
	WarnTemperature = 1 << 1
	WarnReliability = 1 << 2
	WarnReadOnly    = 1 << 3
	WarnBackup      = 1 << 4
	WarnPMR         = 1 << 5
)

// Warnings puts the critical warnings in words, "" for none.
func (s *SMARTLog) Warnings() string {
	var out []string
	for i, text := range []string{"spare below its threshold", "temperature outside its limits",
		"reliability degraded", "media read-only", "backup of the volatile memory failed",
		"persistent memory region unreliable"} {
		if s.CriticalWarning&(1<<i) != 0 {
			out = append(out, text)
		}
	}
	if s.CriticalWarning&0xc0 != 0 {
		out = append(out, "unknown warning")
	}
	return strings.Join(out, ", ")
}

// FirmwareLog is the Firmware Slot Information page (Base 5.1.12.1.4).
type FirmwareLog struct {
	AFI   uint8 // active slot in bits 2:0, the one after the next reset in bits 6:4
	_     [7]byte
	Slots [7][8]byte
	_     [448]byte
}

// Active is the active slot, 1 to 7, and the revision in it. A slot of 0 is one
// that the controller does not tell.
func (l *FirmwareLog) Active() (slot uint8, revision string) {
	return l.slot(l.AFI & 7)
}

// Next is the slot that becomes active at the next reset, 0 when it stays.
func (l *FirmwareLog) Next() (slot uint8, revision string) {
	return l.slot(l.AFI >> 4 & 7)
}

func (l *FirmwareLog) slot(n uint8) (uint8, string) {
	if n == 0 {
		return 0, ""
	}
	return n, text(l.Slots[n-1][:])
}

// AsyncEvent is DW0 of the completion of an Asynchronous Event Request (Base
// 5.1.2.1).
type AsyncEvent uint32

// Types of asynchronous events.
const (
	EventTypeError     = 0
	EventTypeSMART     = 1
	EventTypeNotice    = 2
	EventTypeImmediate = 3
	EventTypeIOCommand = 6
	EventTypeVendor    = 7
)

// Information of the events that the driver acts on.
const (
	EventInfoInvalidDoorbell   = 0 // of EventTypeError: write to an invalid doorbell register
	EventInfoInvalidValue      = 1 // of EventTypeError: invalid doorbell write value
	EventInfoReliability       = 0 // of EventTypeSMART
	EventInfoTemperature       = 1 // of EventTypeSMART
	EventInfoSpare             = 2 // of EventTypeSMART
	EventInfoNamespaceChanged  = 0 // of EventTypeNotice
	EventInfoFirmwareActivates = 1 // of EventTypeNotice
)

// MakeAsyncEvent encodes an event and the log page that tells more.
func MakeAsyncEvent(typ, info, lid uint8) AsyncEvent {
	return AsyncEvent(uint32(typ&7) | uint32(info)<<8 | uint32(lid)<<16)
}

// Type is the type of the event.
func (e AsyncEvent) Type() uint8 { return uint8(e) & 7 }

// Info is the event within its type.
func (e AsyncEvent) Info() uint8 { return uint8(e >> 8) }

// LogPage is the page to read to clear the event.
func (e AsyncEvent) LogPage() uint8 { return uint8(e >> 16) }

// String puts the event in words.
func (e AsyncEvent) String() string {
	types := [8]string{"error", "health", "notice", "immediate", "type 4", "type 5", "I/O command", "vendor"}
	infos := map[[2]uint8]string{
		{EventTypeError, 0}: "write to an invalid doorbell", {EventTypeError, 1}: "invalid doorbell value",
		{EventTypeError, 2}: "diagnostic failure", {EventTypeError, 3}: "persistent internal error",
		{EventTypeError, 4}: "transient internal error", {EventTypeError, 5}: "firmware image load error",
		{EventTypeSMART, 0}: "reliability", {EventTypeSMART, 1}: "temperature threshold",
		{EventTypeSMART, 2}: "spare below threshold", {EventTypeNotice, 0}: "namespace attributes changed",
		{EventTypeNotice, 1}: "firmware activation starting",
	}
	if s := infos[[2]uint8{e.Type(), e.Info()}]; s != "" {
		return types[e.Type()] + ": " + s
	}
	return types[e.Type()] + ": information " + hex2(e.Info())
}

func hex2(v uint8) string {
	const digits = "0123456789ABCDEF"
	return string([]byte{digits[v>>4], digits[v&15], 'h'})
}
