package sim

import (
	"slices"

	"github.com/ugds-store/ugds/driver/nvme"
)

// maxEvents bounds the asynchronous events that wait for a request.
const maxEvents = 64

// park keeps an Asynchronous Event Request until there is an event (Base 5.1.2).
func (s *Sim) park(o *op) {
	if len(s.aers) > int(s.cfg.Identify.AERL) {
		s.end(o, 0, s.refuse(o, nvme.StatusEventLimit, "more than AERL %d", s.cfg.Identify.AERL))
		return
	}
	s.aers = append(s.aers, o)
	s.deliver()
}

// event reports an event to the host.
func (s *Sim) event(e nvme.AsyncEvent) {
	if len(s.events) < maxEvents && !slices.Contains(s.events, e) {
		s.events = append(s.events, e)
	}
	s.deliver()
}

func (s *Sim) deliver() {
	for len(s.events) > 0 && len(s.aers) > 0 {
		e, o := s.events[0], s.aers[0]
		s.events, s.aers = s.events[1:], s.aers[1:]
		s.end(o, uint32(e), 0)
	}
}

// Event raises an asynchronous event, if the host has enabled it.
func (s *Sim) Event(e nvme.AsyncEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	enabled := s.features[nvme.FeatAsyncEvents]
	switch {
	case e.Type() == nvme.EventTypeNotice && enabled&(1<<(8+e.Info())) == 0,
		e.Type() == nvme.EventTypeSMART && enabled&nvme.EventSMART == 0:
		return
	}
	if e.Type() == nvme.EventTypeNotice && e.Info() == nvme.EventInfoNamespaceChanged {
		for _, m := range s.media {
			if !slices.Contains(s.changed, m.ns.ID) {
				s.changed = append(s.changed, m.ns.ID)
			}
		}
	}
	s.event(e)
	s.wakeAll()
}

// SMART changes the health log.
func (s *Sim) SMART(change func(l *nvme.SMARTLog)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.smart)
}

// logError puts a failed command into the error log (Base 5.1.12.1.2).
func (s *Sim) logError(o *op, status nvme.Status) {
	var e nvme.ErrorLogEntry
	n := s.smart.ErrorLogEntries.Uint64() + 1
	s.smart.ErrorLogEntries.Set(n)
	if status.SCT() == nvme.SCTMedia {
		s.smart.MediaErrors.Set(s.smart.MediaErrors.Uint64() + 1)
	}
	e.Count.Set(n)
	e.SQID.Set(o.sq.id)
	e.CID = o.cmd.CID
	e.Status.Set(uint16(status) << 1)
	e.NSID = o.cmd.NSID
	if o.sq.id != 0 {
		e.LBA.Set(o.cmd.SLBA())
	}
	s.errors = slices.Insert(s.errors, 0, e)
	s.errors = s.errors[:min(len(s.errors), int(s.cfg.Identify.ELPE)+1)]
}

// logPage answers Get Log Page (Base 5.1.12).
func (s *Sim) logPage(o *op) nvme.Status {
	lid, size, offset, _ := o.cmd.LogPage()
	var page []byte
	switch lid {
	case nvme.LogError:
		page = make([]byte, 64*(int(s.cfg.Identify.ELPE)+1))
		copy(nvme.OverlaySlice[nvme.ErrorLogEntry](page), s.errors)
	case nvme.LogSMART:
		page = make([]byte, 512)
		*nvme.Overlay[nvme.SMARTLog](page) = s.smart
	case nvme.LogFirmware:
		page = make([]byte, 512)
		l := nvme.Overlay[nvme.FirmwareLog](page)
		l.AFI = 1
		copy(l.Slots[0][:], s.cfg.Identify.FR[:])
	case nvme.LogChangedNamespaces:
		page = make([]byte, 4096)
		for i, id := range slices.Sorted(slices.Values(s.changed)) {
			nvme.Overlay[nvme.NamespaceList](page)[i].Set(id)
		}
		s.changed = nil
	default:
		return nvme.StatusInvalidLog | nvme.StatusDNR
	}
	if offset > uint64(len(page)) || offset != 0 && s.cfg.Identify.LPA&4 == 0 {
		return nvme.StatusInvalidField | nvme.StatusDNR
	}
	// What is past the end of the page is undefined; here it is zero.
	out := make([]byte, min(size, 1<<20))
	copy(out, page[offset:])
	return s.toHost(o, out)
}
