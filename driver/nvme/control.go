package nvme

import "github.com/ugds-store/ugds/internal/base"

// CC is the Controller Configuration property (Base 3.1.4.5).
type CC uint32

// Bits and fields of CC.
const (
	CCEnable CC = 1 << 0 // EN

	ccCSSShift    = 4
	ccMPSShift    = 7
	ccAMSShift    = 11
	ccSHNShift    = 14
	ccIOSQESShift = 16
	ccIOCQESShift = 20
)

// ccKnown are the bits that a driver may set; the rest is reserved. CRIME, bit
// 24, belongs to controllers that are ready without their media.
const ccKnown CC = 1 | 7<<ccCSSShift | 15<<ccMPSShift | 7<<ccAMSShift | 3<<ccSHNShift |
	15<<ccIOSQESShift | 15<<ccIOCQESShift | 1<<24

// Exponents of the sizes of queue entries of the NVM command set (NVM 2.2).
const (
	IOSQES = 6 // 64 bytes
	IOCQES = 4 // 16 bytes
)

// Shutdown is the SHN field of CC: how the host announces a shutdown.
type Shutdown uint8

// The values of Shutdown (Base 3.1.4.5).
const (
	ShutdownNone   Shutdown = 0
	ShutdownNormal Shutdown = 1
	ShutdownAbrupt Shutdown = 2
)

// Arbitration is the AMS field of CC.
type Arbitration uint8

// The values of Arbitration.
const (
	RoundRobin         Arbitration = 0
	WeightedRoundRobin Arbitration = 1
)

// MakeCC is the configuration for a controller with capabilities c, with memory
// pages of 1<<pageShift bytes and EN set. It fails with ErrNotSupported when the
// controller cannot use such pages.
func MakeCC(c CAP, pageShift uint, ams Arbitration) (CC, error) {
	if pageShift < c.MinPageShift() || pageShift > c.MaxPageShift() {
		return 0, base.Errorf("configure", "controller", base.ErrNotSupported,
			"memory pages of 2^%d bytes: CAP.MPSMIN and MPSMAX allow 2^%d to 2^%d",
			pageShift, c.MinPageShift(), c.MaxPageShift())
	}
	css := CC(0) // the NVM command set alone
	if c.CSS()&CSSNVM == 0 {
		css = 6 // all supported command sets; Base 3.1.4.5, CSS 110b
	}
	return CCEnable | css<<ccCSSShift | CC(pageShift-minPageShift)<<ccMPSShift | CC(ams)<<ccAMSShift |
		IOSQES<<ccIOSQESShift | IOCQES<<ccIOCQESShift, nil
}

// Enabled is the EN bit.
func (c CC) Enabled() bool { return c&CCEnable != 0 }

// CSS is the selected command set.
func (c CC) CSS() uint8 { return uint8(c>>ccCSSShift) & 7 }

// PageShift is the exponent of the memory page size (MPS).
func (c CC) PageShift() uint { return uint(c>>ccMPSShift)&15 + minPageShift }

// AMS is the selected arbitration.
func (c CC) AMS() Arbitration { return Arbitration(c>>ccAMSShift) & 7 }

// SHN is the shutdown notification.
func (c CC) SHN() Shutdown { return Shutdown(c>>ccSHNShift) & 3 }

// IOSQES is the exponent of the submission queue entry size.
func (c CC) IOSQES() uint8 { return uint8(c>>ccIOSQESShift) & 15 }

// IOCQES is the exponent of the completion queue entry size.
func (c CC) IOCQES() uint8 { return uint8(c>>ccIOCQESShift) & 15 }

// Reserved are the bits that no driver may set.
func (c CC) Reserved() CC { return c &^ ccKnown }

// WithShutdown is c with the shutdown notification s.
func (c CC) WithShutdown(s Shutdown) CC { return c&^(3<<ccSHNShift) | CC(s)<<ccSHNShift }

// Disabled is c with EN clear.
func (c CC) Disabled() CC { return c &^ CCEnable }

// CSTS is the Controller Status property (Base 3.1.4.6).
type CSTS uint32

// Bits of CSTS.
const (
	CSTSReady      CSTS = 1 << 0 // RDY
	CSTSFatal      CSTS = 1 << 1 // CFS
	CSTSReset      CSTS = 1 << 4 // NSSRO: an NVM subsystem reset occurred; write 1 to clear
	CSTSPaused     CSTS = 1 << 5 // PP: processing paused
	cstsSHSTShift       = 2
	CSTSGone       CSTS = ^CSTS(0)
	cstsSHSTMask   CSTS = 3 << cstsSHSTShift
	shutdownActive      = 1
	shutdownDone        = 2
)

// Gone tells whether every bit is set: no device answers at that address.
func (s CSTS) Gone() bool { return s == CSTSGone }

// Ready is the RDY bit; a device that is gone is not ready.
func (s CSTS) Ready() bool { return s&CSTSReady != 0 && !s.Gone() }

// Fatal is the CFS bit; a device that is gone is not fatal but gone.
func (s CSTS) Fatal() bool { return s&CSTSFatal != 0 && !s.Gone() }

// ShutdownActive tells whether a shutdown is being processed (SHST 01b).
func (s CSTS) ShutdownActive() bool { return !s.Gone() && s>>cstsSHSTShift&3 == shutdownActive }

// ShutdownDone tells whether a shutdown was processed (SHST 10b).
func (s CSTS) ShutdownDone() bool { return !s.Gone() && s>>cstsSHSTShift&3 == shutdownDone }

// WithShutdown is s with SHST set to active or done, or cleared.
func (s CSTS) WithShutdown(active, done bool) CSTS {
	s &^= cstsSHSTMask
	switch {
	case done:
		s |= shutdownDone << cstsSHSTShift
	case active:
		s |= shutdownActive << cstsSHSTShift
	}
	return s
}

// Check tells whether the controller is alive: ErrDeviceGone when it does not
// answer, ErrIsolated when it reports a fatal status. The error is a *FieldError.
func (s CSTS) Check() error {
	switch {
	case s.Gone():
		return gone("CSTS", uint64(s))
	case s.Fatal():
		return &FieldError{"CSTS.CFS", uint64(s), "the controller reports a fatal status", base.ErrIsolated}
	}
	return nil
}

// AQA is the Admin Queue Attributes property (Base 3.1.4.8).
type AQA uint32

// MakeAQA encodes the sizes of the admin queues, each MinQueueEntries to
// MaxAdminEntries.
func MakeAQA(sqEntries, cqEntries uint32) AQA {
	return AQA(zeroBased(sqEntries, MaxAdminEntries, "admin queue entries") |
		zeroBased(cqEntries, MaxAdminEntries, "admin queue entries")<<16)
}

// SQEntries is the size of the admin submission queue.
func (a AQA) SQEntries() uint32 { return uint32(a)&0xfff + 1 }

// CQEntries is the size of the admin completion queue.
func (a AQA) CQEntries() uint32 { return uint32(a>>16)&0xfff + 1 }
