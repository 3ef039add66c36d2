package nvme

import "fmt"

// Opcode is the OPC field. Admin and I/O commands share the numbers; the queue
// tells which is meant.
type Opcode uint8

// Admin opcodes (Base 5, figure "Opcodes for Admin Commands").
const (
	AdminDeleteIOSQ     Opcode = 0x00
	AdminCreateIOSQ     Opcode = 0x01
	AdminGetLogPage     Opcode = 0x02
	AdminDeleteIOCQ     Opcode = 0x04
	AdminCreateIOCQ     Opcode = 0x05
	AdminIdentify       Opcode = 0x06
	AdminAbort          Opcode = 0x08
	AdminSetFeatures    Opcode = 0x09
	AdminGetFeatures    Opcode = 0x0a
	AdminAsyncEvent     Opcode = 0x0c
	AdminNamespaceMgmt  Opcode = 0x0d
	AdminFirmwareCommit Opcode = 0x10
	AdminFirmwareImage  Opcode = 0x11
	AdminSelfTest       Opcode = 0x14
	AdminNamespaceAtt   Opcode = 0x15
	AdminKeepAlive      Opcode = 0x18
	AdminDoorbellBuffer Opcode = 0x7c
	AdminFormatNVM      Opcode = 0x80
	AdminSecuritySend   Opcode = 0x81
	AdminSecurityRecv   Opcode = 0x82
	AdminSanitize       Opcode = 0x84
)

// I/O opcodes (Base 7; NVM 3.3).
const (
	OpFlush         Opcode = 0x00
	OpWrite         Opcode = 0x01
	OpRead          Opcode = 0x02
	OpWriteUncorr   Opcode = 0x04
	OpCompare       Opcode = 0x05
	OpWriteZeroes   Opcode = 0x08
	OpDSM           Opcode = 0x09
	OpVerify        Opcode = 0x0c
	OpReservReg     Opcode = 0x0d
	OpReservReport  Opcode = 0x0e
	OpReservAcquire Opcode = 0x11
	OpReservRelease Opcode = 0x15
	OpCopy          Opcode = 0x19
)

var adminNames = map[Opcode]string{
	AdminDeleteIOSQ: "delete I/O submission queue", AdminCreateIOSQ: "create I/O submission queue",
	AdminGetLogPage: "get log page", AdminDeleteIOCQ: "delete I/O completion queue",
	AdminCreateIOCQ: "create I/O completion queue", AdminIdentify: "identify", AdminAbort: "abort",
	AdminSetFeatures: "set features", AdminGetFeatures: "get features",
	AdminAsyncEvent: "asynchronous event request", AdminNamespaceMgmt: "namespace management",
	AdminFirmwareCommit: "firmware commit", AdminFirmwareImage: "firmware image download",
	AdminSelfTest: "device self-test", AdminNamespaceAtt: "namespace attachment",
	AdminKeepAlive: "keep alive", AdminDoorbellBuffer: "doorbell buffer config",
	AdminFormatNVM: "format nvm", AdminSecuritySend: "security send",
	AdminSecurityRecv: "security receive", AdminSanitize: "sanitize",
}

var ioNames = map[Opcode]string{
	OpFlush: "flush", OpWrite: "write", OpRead: "read", OpWriteUncorr: "write uncorrectable",
	OpCompare: "compare", OpWriteZeroes: "write zeroes", OpDSM: "dataset management",
	OpVerify: "verify", OpReservReg: "reservation register", OpReservReport: "reservation report",
	OpReservAcquire: "reservation acquire", OpReservRelease: "reservation release", OpCopy: "copy",
}

// Name is the command's name on the admin queue or on an I/O queue, or its
// number in hexadecimal.
func (o Opcode) Name(admin bool) string {
	names := ioNames
	if admin {
		names = adminNames
	}
	if s := names[o]; s != "" {
		return s
	}
	return fmt.Sprintf("opcode %02Xh", uint8(o))
}

// DataDirection is the direction of the data that an opcode moves. It is part of
// the number (Base 4.1.1).
type DataDirection uint8

// The values of DataDirection.
const (
	NoData         DataDirection = 0
	HostToDevice   DataDirection = 1
	DeviceToHost   DataDirection = 2
	BothDirections DataDirection = 3
)

// Direction is what the lowest two bits of the opcode say.
func (o Opcode) Direction() DataDirection { return DataDirection(o & 3) }
