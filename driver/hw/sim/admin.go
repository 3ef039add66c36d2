package sim

import (
	"encoding/binary"
	"slices"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/nvme"
)

// admin executes an admin command (Base 5).
func (s *Sim) admin(o *op) (uint32, nvme.Status) {
	c := &o.cmd
	if c.FUSE() != 0 || c.CDW2.Get() != 0 || c.CDW3.Get() != 0 || c.MPTR.Get() != 0 {
		return 0, s.refuse(o, nvme.StatusInvalidField, "fields that must be zero are not (Base 4.1.1)")
	}
	switch c.OPC {
	case nvme.AdminIdentify:
		return 0, s.identify(o)
	case nvme.AdminCreateIOCQ:
		return 0, s.createCQ(o)
	case nvme.AdminCreateIOSQ:
		return 0, s.createSQ(o)
	case nvme.AdminDeleteIOSQ:
		return 0, s.deleteSQ(o)
	case nvme.AdminDeleteIOCQ:
		return 0, s.deleteCQ(o)
	case nvme.AdminSetFeatures, nvme.AdminGetFeatures:
		return s.feature(o)
	case nvme.AdminGetLogPage:
		return 0, s.logPage(o)
	case nvme.AdminAbort:
		return s.abort(o)
	case nvme.AdminDoorbellBuffer:
		return 0, s.doorbellBuffer(o)
	case nvme.AdminKeepAlive:
		return 0, 0
	}
	return 0, s.refuse(o, nvme.StatusInvalidOpcode, "not supported")
}

// identify answers Identify (Base 5.1.13).
func (s *Sim) identify(o *op) nvme.Status {
	page := make([]byte, nvme.IdentifySize)
	nsid := o.cmd.NSID.Get()
	switch o.cmd.CNS() {
	case nvme.CNSController:
		id := nvme.Overlay[nvme.IdentifyController](page)
		*id = s.cfg.Identify
		id.VID.Set(s.cfg.Vendor)
		id.VER.Set(uint32(s.cfg.VS))
		if n := len(s.media); n > 0 && id.NN.Get() == 0 {
			id.NN.Set(s.media[n-1].ns.ID)
		}
	case nvme.CNSNamespace:
		if nsid == 0 || nsid == nvme.NSIDAll || len(s.media) == 0 || nsid > s.media[len(s.media)-1].ns.ID {
			return s.refuse(o, nvme.StatusInvalidNS, "namespace %d does not exist", nsid)
		}
		if m := s.find(nsid); m != nil { // an inactive one is all zeros
			*nvme.Overlay[nvme.IdentifyNamespace](page) = *m.identify()
		}
	case nvme.CNSActiveList:
		if nsid >= 0xfffffffe {
			return s.refuse(o, nvme.StatusInvalidNS, "namespace list above %#x", nsid)
		}
		list, i := nvme.Overlay[nvme.NamespaceList](page), 0
		for _, m := range s.media {
			if m.ns.ID > nsid && !m.ns.Inactive && i < len(list) {
				list[i].Set(m.ns.ID)
				i++
			}
		}
	case nvme.CNSDescriptors:
		m := s.find(nsid)
		if m == nil {
			return s.refuse(o, nvme.StatusInvalidNS, "namespace %d is not active", nsid)
		}
		page[0], page[1] = nvme.NIDTNGUID, 16
		copy(page[4:20], s.cfg.Identify.SN[:])
		page[19] = byte(m.ns.ID)
		if s.cap.CSS()&nvme.CSSIO != 0 {
			page[20], page[21], page[24] = nvme.NIDTCSI, 1, m.ns.CommandSet
		}
	case nvme.CNSControllerCSI:
		*nvme.Overlay[nvme.IdentifyControllerNVM](page) = s.cfg.NVM
	default:
		return nvme.StatusInvalidField | nvme.StatusDNR
	}
	return s.toHost(o, page)
}

// checkQueue refuses identifiers, sizes and addresses of new queues.
func (s *Sim) checkQueue(o *op, exists bool, entrySize uint64) nvme.Status {
	id, n := o.cmd.Queue()
	base := o.cmd.PRP1.Get()
	contiguous, _, _ := o.cmd.CQAttributes()
	switch {
	case id == 0 || uint32(id) > s.cfg.MaxQueues || exists:
		return s.refuse(o, nvme.StatusInvalidQID, "queue %d exists or cannot", id)
	case uint32(id) > s.granted():
		return s.refuse(o, nvme.StatusInvalidQID, "queue %d is more than Number of Queues granted", id)
	case n < nvme.MinQueueEntries || n > s.cap.QueueEntries():
		return s.refuse(o, nvme.StatusInvalidQSize, "%d entries, MQES allows %d", n, s.cap.QueueEntries())
	case !contiguous:
		return s.refuse(o, nvme.StatusInvalidField, "a queue that is not contiguous")
	case base%hw.PageSize != 0:
		return s.refuse(o, nvme.StatusPRPOffset, "the queue begins at %#x", base)
	}
	for at := uint64(0); at < uint64(n)*entrySize; at += hw.PageSize {
		if s.bus.view(base+at, 1) == nil {
			return s.refuse(o, nvme.StatusTransferError, "the queue at %#x is not in memory that can be reached", base)
		}
	}
	return 0
}

// granted is how many I/O queues of each kind there may be.
func (s *Sim) granted() uint32 {
	if v, ok := s.features[nvme.FeatNumberOfQueues]; ok {
		sq, cq := nvme.GrantedQueues(v)
		return min(sq, cq)
	}
	return 1
}

// createCQ is Create I/O Completion Queue (Base 5.2.1).
func (s *Sim) createCQ(o *op) nvme.Status {
	id, n := o.cmd.Queue()
	_, ien, vector := o.cmd.CQAttributes()
	if st := s.checkQueue(o, s.cqs[id] != nil, nvme.CompletionSize); st != 0 {
		return st
	}
	if ien && int(vector) >= len(s.vectors) {
		return s.refuse(o, nvme.StatusInvalidVector, "vector %d of %d", vector, len(s.vectors))
	}
	if s.cc.IOCQES() != nvme.IOCQES {
		return s.refuse(o, nvme.StatusInvalidQSize, "CC.IOCQES is %d", s.cc.IOCQES())
	}
	s.cqs[id] = &cq{id: id, base: o.cmd.PRP1.Get(), size: n, phase: true, interrupt: ien, vector: vector}
	return 0
}

// createSQ is Create I/O Submission Queue (Base 5.2.2).
func (s *Sim) createSQ(o *op) nvme.Status {
	id, n := o.cmd.Queue()
	_, _, cqid := o.cmd.SQAttributes()
	if st := s.checkQueue(o, s.findSQ(id) != nil, nvme.CommandSize); st != 0 {
		return st
	}
	c := s.cqs[cqid]
	if c == nil || cqid == 0 {
		return s.refuse(o, nvme.StatusInvalidCQ, "completion queue %d does not exist", cqid)
	}
	if s.cc.IOSQES() != nvme.IOSQES {
		return s.refuse(o, nvme.StatusInvalidQSize, "CC.IOSQES is %d", s.cc.IOSQES())
	}
	c.queues++
	s.sqs = append(s.sqs, &sq{id: id, cq: c, base: o.cmd.PRP1.Get(), size: n, flying: map[uint16]*op{}})
	return 0
}

// deleteSQ is Delete I/O Submission Queue (Base 5.2.4). Commands in flight end
// with Command Aborted due to SQ Deletion.
func (s *Sim) deleteSQ(o *op) nvme.Status {
	id, _ := o.cmd.Queue()
	q := s.findSQ(id)
	if q == nil || id == 0 {
		return s.refuse(o, nvme.StatusInvalidQID, "submission queue %d does not exist", id)
	}
	for cid := range sortedKeys(q.flying) {
		s.landOp(q.flying[cid])
		s.cancel(q.flying[cid], nvme.StatusSQDeleted)
	}
	s.removeSQ(q)
	return 0
}

// deleteCQ is Delete I/O Completion Queue (Base 5.2.3).
func (s *Sim) deleteCQ(o *op) nvme.Status {
	id, _ := o.cmd.Queue()
	switch c := s.cqs[id]; {
	case c == nil || id == 0:
		return s.refuse(o, nvme.StatusInvalidQID, "completion queue %d does not exist", id)
	case c.queues > 0:
		return s.refuse(o, nvme.StatusInvalidQDelete, "completion queue %d has %d submission queues", id, c.queues)
	}
	delete(s.cqs, id)
	return 0
}

// cancel ends a command that was not executed.
func (s *Sim) cancel(o *op, status nvme.Status) {
	delete(o.sq.flying, o.cmd.CID.Get())
	o.sq.cq.flying--
	o.ended = true
	s.post(o.sq.cq, s.completion(o, 0, status))
}

// feature is Set Features and Get Features (Base 5.1.25, 5.1.11).
func (s *Sim) feature(o *op) (uint32, nvme.Status) {
	fid, v := o.cmd.Feature(), o.cmd.CDW11.Get()
	set := o.cmd.OPC == nvme.AdminSetFeatures
	switch fid {
	case nvme.FeatNumberOfQueues:
		if set {
			if v&0xffff == 0xffff || v>>16 == 0xffff {
				return 0, s.refuse(o, nvme.StatusInvalidField, "%#x queues (Base 5.1.25.2.1)", v)
			}
			if len(s.sqs) > 1 || len(s.cqs) > 1 {
				return 0, s.refuse(o, nvme.StatusSequence, "number of queues after queues were created")
			}
			n := min(s.cfg.MaxQueues, 1+min(v&0xffff, v>>16))
			if s.cfg.Grant != 0 {
				n = s.cfg.Grant
			}
			s.features[fid] = nvme.QueueCounts(n)
		}
		return s.features[fid], 0
	case nvme.FeatVolatileCache:
		if !s.cfg.Identify.VolatileCache() {
			return 0, nvme.StatusInvalidField | nvme.StatusDNR
		}
		if _, ok := s.features[fid]; !ok {
			s.features[fid] = 1
		}
		if set {
			s.features[fid] = v & 1
			for _, m := range s.media {
				m.flush()
				m.cached = v&1 != 0
			}
		}
		return s.features[fid], 0
	case nvme.FeatPowerManagement:
		if set && nvme.PowerStateIndex(v) > s.cfg.Identify.NPSS {
			return 0, s.refuse(o, nvme.StatusInvalidField, "power state %d, NPSS is %d", v, s.cfg.Identify.NPSS)
		}
		if set {
			s.features[fid] = v
		}
		return s.features[fid], 0
	case nvme.FeatAPST:
		return s.transitionsFeature(o, set)
	case nvme.FeatArbitration, nvme.FeatTemperature, nvme.FeatErrorRecovery,
		nvme.FeatCoalescing, nvme.FeatVectorConfig, nvme.FeatAsyncEvents:
		if set {
			s.features[fid] = v
		}
		return s.features[fid], 0
	}
	return 0, nvme.StatusInvalidField | nvme.StatusDNR
}

// transitionsFeature is Autonomous Power State Transition, which has a table of 256
// bytes beside its value (Base 5.1.25.1.6).
func (s *Sim) transitionsFeature(o *op, set bool) (uint32, nvme.Status) {
	if s.cfg.Identify.APSTA&1 == 0 {
		return 0, nvme.StatusInvalidField | nvme.StatusDNR
	}
	if !set {
		return s.features[nvme.FeatAPST], s.toHost(o, s.apst[:])
	}
	table := make([]byte, len(s.apst))
	if st := s.fromHost(o, table); st != 0 {
		return 0, st
	}
	copy(s.apst[:], table)
	s.features[nvme.FeatAPST] = o.cmd.CDW11.Get()
	return s.features[nvme.FeatAPST], 0
}

// Feature is the present value of a feature, and of its table for FeatAPST.
func (s *Sim) Feature(fid uint8) (v uint32, table []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fid == nvme.FeatAPST {
		table = slices.Clone(s.apst[:])
	}
	return s.features[fid], table
}

// defaultFeatures is what a reset leaves (Base 4.4): a controller that may save
// power does.
func (s *Sim) defaultFeatures() {
	clear(s.features)
	clear(s.apst[:])
	if n := s.cfg.Identify.NPSS; n > 0 {
		s.features[nvme.FeatPowerManagement] = 1
		if s.cfg.Identify.APSTA&1 != 0 {
			s.features[nvme.FeatAPST] = 1
			binary.LittleEndian.PutUint64(s.apst[:], nvme.APSTEntry(n, 500))
		}
	}
}

// abort is Abort (Base 5.1.1): only a command that was not executed can be. A part
// of its data may have moved.
func (s *Sim) abort(o *op) (uint32, nvme.Status) {
	sqid, cid := o.cmd.AbortTarget()
	q := s.findSQ(sqid)
	if q == nil {
		return 1, s.refuse(o, nvme.StatusInvalidField, "submission queue %d does not exist", sqid)
	}
	outstanding := 0
	for _, x := range o.sq.flying {
		if x.cmd.OPC == nvme.AdminAbort {
			outstanding++
		}
	}
	if outstanding > int(s.cfg.Identify.ACL)+1 {
		return 1, s.refuse(o, nvme.StatusAbortLimit, "%d at a time, ACL allows %d", outstanding, s.cfg.Identify.ACL+1)
	}
	target := q.flying[cid]
	if target == nil || target == o || target.done || s.cfg.NoAborts {
		return 1, 0
	}
	s.aers = slices.DeleteFunc(s.aers, func(x *op) bool { return x == target })
	if q.id != 0 {
		s.landOp(target)
	}
	s.cancel(target, nvme.StatusAborted)
	return 0, 0
}
