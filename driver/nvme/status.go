package nvme

import (
	"fmt"

	"github.com/ugds-store/ugds/internal/base"
)

// Status is the Status field of a completion, without the phase tag (Base 4.2.3):
// SC in bits 7:0, SCT in bits 10:8, CRD in bits 12:11, More in bit 13, DNR in bit
// 14. Zero is success.
type Status uint16

// Status code types (SCT).
const (
	SCTGeneric  = 0 // generic command status
	SCTSpecific = 1 // command specific status
	SCTMedia    = 2 // media and data integrity errors
	SCTPath     = 3 // path related status
	SCTVendor   = 7 // vendor specific
)

// Flags of Status.
const (
	StatusDNR  Status = 1 << 14 // do not retry
	StatusMore Status = 1 << 13 // more information is in the error log
	statusCode Status = 0x7ff   // SCT and SC together
)

// MakeStatus puts a status code type and a status code together.
func MakeStatus(sct, sc uint8) Status { return Status(sct&7)<<8 | Status(sc) }

// Status codes that the driver or the model of a controller uses by name.
const (
	StatusSuccess         Status = 0x000
	StatusInvalidOpcode   Status = 0x001
	StatusInvalidField    Status = 0x002
	StatusIDConflict      Status = 0x003
	StatusTransferError   Status = 0x004
	StatusPowerLoss       Status = 0x005
	StatusInternal        Status = 0x006
	StatusAborted         Status = 0x007
	StatusSQDeleted       Status = 0x008
	StatusInvalidNS       Status = 0x00b
	StatusSequence        Status = 0x00c
	StatusSGLSegment      Status = 0x00d
	StatusSGLCount        Status = 0x00e
	StatusSGLDataLength   Status = 0x00f
	StatusSGLMetaLength   Status = 0x010
	StatusSGLType         Status = 0x011
	StatusPRPOffset       Status = 0x013
	StatusSGLOffset       Status = 0x016
	StatusInterrupted     Status = 0x021
	StatusTransientError  Status = 0x022
	StatusNSProtected     Status = 0x020
	StatusLBARange        Status = 0x080
	StatusCapacity        Status = 0x081
	StatusNSNotReady      Status = 0x082
	StatusInvalidCQ       Status = 0x100
	StatusInvalidQID      Status = 0x101
	StatusInvalidQSize    Status = 0x102
	StatusAbortLimit      Status = 0x103
	StatusEventLimit      Status = 0x105
	StatusInvalidVector   Status = 0x108
	StatusInvalidLog      Status = 0x109
	StatusInvalidQDelete  Status = 0x10c
	StatusReadOnlyRange   Status = 0x182
	StatusWriteFault      Status = 0x280
	StatusUnrecoveredRead Status = 0x281
	StatusGuard           Status = 0x282
	StatusCompareFailure  Status = 0x285
	StatusAccessDenied    Status = 0x286
	StatusDeallocated     Status = 0x287
)

// statusInfo is one line of the table of status codes.
type statusInfo struct {
	name  string
	class error // a class of base, or nil
	retry bool  // worth sending again when DNR is clear
}

// statusTable is what the driver knows about status codes. A code that is not
// here has no class and is not retried.
var statusTable = map[Status]statusInfo{
	StatusSuccess:         {"Successful Completion", nil, false},
	StatusInvalidOpcode:   {"Invalid Command Opcode", base.ErrNotSupported, false},
	StatusInvalidField:    {"Invalid Field in Command", base.ErrInvalid, false},
	StatusIDConflict:      {"Command ID Conflict", base.ErrCorrupt, false},
	StatusTransferError:   {"Data Transfer Error", nil, true},
	StatusPowerLoss:       {"Commands Aborted due to Power Loss Notification", base.ErrIsolated, false},
	StatusInternal:        {"Internal Error", nil, true},
	StatusAborted:         {"Command Abort Requested", base.ErrTimeout, false},
	StatusSQDeleted:       {"Command Aborted due to SQ Deletion", base.ErrIsolated, false},
	0x009:                 {"Command Aborted due to Failed Fused Command", nil, false},
	0x00a:                 {"Command Aborted due to Missing Fused Command", nil, false},
	StatusInvalidNS:       {"Invalid Namespace or Format", base.ErrNotFound, false},
	StatusSequence:        {"Command Sequence Error", base.ErrInvalid, false},
	StatusSGLSegment:      {"Invalid SGL Segment Descriptor", base.ErrInvalid, false},
	StatusSGLCount:        {"Invalid Number of SGL Descriptors", base.ErrInvalid, false},
	StatusSGLDataLength:   {"Data SGL Length Invalid", base.ErrInvalid, false},
	StatusSGLMetaLength:   {"Metadata SGL Length Invalid", base.ErrInvalid, false},
	StatusSGLType:         {"SGL Descriptor Type Invalid", base.ErrInvalid, false},
	0x012:                 {"Invalid Use of Controller Memory Buffer", base.ErrInvalid, false},
	StatusPRPOffset:       {"PRP Offset Invalid", base.ErrMisaligned, false},
	0x014:                 {"Atomic Write Unit Exceeded", base.ErrOutOfRange, false},
	0x015:                 {"Operation Denied", base.ErrReadOnly, false},
	StatusSGLOffset:       {"SGL Offset Invalid", base.ErrMisaligned, false},
	0x01c:                 {"Sanitize Failed", base.ErrNotSupported, false},
	0x01d:                 {"Sanitize In Progress", base.ErrBusy, true},
	0x01e:                 {"SGL Data Block Granularity Invalid", base.ErrMisaligned, false},
	StatusNSProtected:     {"Namespace is Write Protected", base.ErrReadOnly, false},
	StatusInterrupted:     {"Command Interrupted", base.ErrBusy, true},
	StatusTransientError:  {"Transient Transport Error", nil, true},
	0x024:                 {"Admin Command Media Not Ready", base.ErrBusy, true},
	StatusLBARange:        {"LBA Out of Range", base.ErrOutOfRange, false},
	StatusCapacity:        {"Capacity Exceeded", base.ErrNoSpace, false},
	StatusNSNotReady:      {"Namespace Not Ready", base.ErrBusy, true},
	0x083:                 {"Reservation Conflict", base.ErrInUse, false},
	0x084:                 {"Format In Progress", base.ErrBusy, true},
	StatusInvalidCQ:       {"Completion Queue Invalid", base.ErrInvalid, false},
	StatusInvalidQID:      {"Invalid Queue Identifier", base.ErrInvalid, false},
	StatusInvalidQSize:    {"Invalid Queue Size", base.ErrOutOfRange, false},
	StatusAbortLimit:      {"Abort Command Limit Exceeded", base.ErrBusy, false},
	StatusEventLimit:      {"Asynchronous Event Request Limit Exceeded", base.ErrBusy, false},
	StatusInvalidVector:   {"Invalid Interrupt Vector", base.ErrInvalid, false},
	StatusInvalidLog:      {"Invalid Log Page", base.ErrNotSupported, false},
	StatusInvalidQDelete:  {"Invalid Queue Deletion", base.ErrBusy, false},
	0x10d:                 {"Feature Identifier Not Saveable", base.ErrNotSupported, false},
	0x10e:                 {"Feature Not Changeable", base.ErrReadOnly, false},
	0x180:                 {"Conflicting Attributes", base.ErrInvalid, false},
	0x181:                 {"Invalid Protection Information", base.ErrInvalid, false},
	StatusReadOnlyRange:   {"Attempted Write to Read Only Range", base.ErrReadOnly, false},
	0x183:                 {"Command Size Limit Exceeded", base.ErrOutOfRange, false},
	StatusWriteFault:      {"Write Fault", nil, true},
	StatusUnrecoveredRead: {"Unrecovered Read Error", base.ErrCorrupt, true},
	StatusGuard:           {"End-to-end Guard Check Error", base.ErrCorrupt, false},
	0x283:                 {"End-to-end Application Tag Check Error", base.ErrCorrupt, false},
	0x284:                 {"End-to-end Reference Tag Check Error", base.ErrCorrupt, false},
	StatusCompareFailure:  {"Compare Failure", base.ErrMismatch, false},
	StatusAccessDenied:    {"Access Denied", base.ErrReadOnly, false},
	StatusDeallocated:     {"Deallocated or Unwritten Logical Block", base.ErrNotFound, false},
	0x300:                 {"Internal Path Error", nil, true},
	0x360:                 {"Controller Pathing Error", nil, true},
	0x370:                 {"Host Pathing Error", nil, true},
	0x371:                 {"Command Aborted By Host", base.ErrIsolated, false},
}

// OK tells whether the command succeeded.
func (s Status) OK() bool { return s&statusCode == 0 }

// Code is SCT and SC without the flags; compare it with the constants.
func (s Status) Code() Status { return s & statusCode }

// SC is the status code.
func (s Status) SC() uint8 { return uint8(s) }

// SCT is the status code type.
func (s Status) SCT() uint8 { return uint8(s>>8) & 7 }

// CRD is the index, 1 to 3, of the command retry delay in the identify data, or
// 0 for none (Base 4.2.3).
func (s Status) CRD() uint8 { return uint8(s>>11) & 3 }

// WithCRD is s with a command retry delay index.
func (s Status) WithCRD(i uint8) Status { return s&^(3<<11) | Status(i&3)<<11 }

// More tells whether the error log has more.
func (s Status) More() bool { return s&StatusMore != 0 }

// DNR tells whether the same command would fail again.
func (s Status) DNR() bool { return s&StatusDNR != 0 }

// Retry tells whether the command is worth sending again: the code is one of
// those that pass, and the controller does not rule it out.
func (s Status) Retry() bool { return !s.DNR() && statusTable[s.Code()].retry }

// Class is the class of internal/base that the status belongs to, or nil.
func (s Status) Class() error { return statusTable[s.Code()].class }

// String is for example "2/81h Unrecovered Read Error, do not retry".
func (s Status) String() string {
	name := statusTable[s.Code()].name
	switch {
	case name != "":
	case s.SCT() == SCTVendor:
		name = "Vendor Specific"
	default:
		name = "unknown status"
	}
	out := fmt.Sprintf("%d/%02Xh %s", s.SCT(), s.SC(), name)
	if s.DNR() {
		out += ", do not retry"
	}
	if s.CRD() != 0 {
		out += fmt.Sprintf(", retry delay %d", s.CRD())
	}
	if s.More() {
		out += ", more in the error log"
	}
	return out
}

// StatusError is a command that the controller ended with a status other than
// success. errors.Is sees the status's class.
type StatusError struct {
	Op     Opcode
	Admin  bool   // the command was on the admin queue
	Status Status // never success
	DW0    uint32 // command specific result
}

// Error names the command and the status.
func (e *StatusError) Error() string {
	return e.Op.Name(e.Admin) + ": NVMe status " + e.Status.String()
}

// Unwrap is the status's class, or nil.
func (e *StatusError) Unwrap() error { return e.Status.Class() }

// Err is nil for success and a *StatusError otherwise.
func (s Status) Err(op Opcode, admin bool, dw0 uint32) error {
	if s.OK() {
		return nil
	}
	return &StatusError{op, admin, s, dw0}
}
