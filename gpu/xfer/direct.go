package xfer

import (
	"context"
	"errors"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/internal/base"
)

// Why a transfer, or a part of it, is staged although a device reaches the memory.
const (
	reasonTail  = "partial last block"
	reasonShape = "it does not lie on whole blocks, or the memory not as the device needs it"
	reasonMany  = "small values of a call share bounce buffers"
	reasonOrder = "requests in the order of streams are staged"
)

// straight is a transfer of which whole blocks go between a device and GPU memory
// without a stop in host memory.
type straight struct {
	e     *extent
	off   int64 // into the extent
	ptr   gpu.Ptr
	n     int64 // whole blocks
	write bool
	peer  *Peer // its registration is held
	batch driver.Batch
	segs  []driver.Seg
}

// goStraight tells whether a transfer can begin directly, with the memory held; nil
// if not. ErrMismatch when the memory is known to have been freed.
func (m *Mover) goStraight(end Endpoint, off int64, p gpu.Ptr, n int64, write bool) (*straight, error) {
	e, ok := end.(*extent)
	if !ok || m.opt.Pairs == nil || m.table == nil || m.opt.Compat == CompatOn || n < m.opt.Threshold || off < 0 || n <= 0 {
		return nil, nil
	}
	whole := min(n, e.size-off) &^ (e.in.BlockSize - 1)
	if off%e.in.BlockSize != 0 || whole <= 0 || write && whole != n {
		return nil, nil
	}
	reg := m.table.Find(p, n)
	if reg == nil || reg.Device() != m.index {
		return nil, nil
	}
	err := reg.Check()
	if err == nil {
		err = reg.HoldNow()
	}
	if err != nil {
		return nil, err
	}
	peer, _ := m.opt.Pairs.Peer(reg)
	if peer == nil || peer.At(p)%e.in.MemAlign != 0 || m.opt.Pairs.why(peer, e.dev, !write) != "" {
		reg.Release()
		return nil, nil
	}
	return &straight{e: e, off: off, ptr: p, n: whole, write: write, peer: peer}, nil
}

// why makes the reason of a transfer with a device exact; otherwise is the reason where
// the device reaches the memory. The caller holds reg.
func (m *Mover) why(path *driver.PathKey, end Endpoint, reg *gpu.Registration, otherwise string) {
	if path.Reason != ReasonNoTransport {
		return
	}
	if reg == nil {
		path.Reason = ReasonUnregistered
		return
	}
	if _, reason := reg.Direct(); reason != "" {
		path.Reason = reason
		return
	}
	e, ok := end.(*extent)
	if !ok || m.opt.Pairs == nil {
		return
	}
	if peer, _ := m.opt.Pairs.Peer(reg); peer != nil {
		if path.Reason = m.opt.Pairs.why(peer, e.dev, !path.Write); path.Reason == "" {
			path.Reason = otherwise
		}
	}
}

// why is Peer.Why for a device of the list.
func (ps *Pairs) why(p *Peer, d driver.Device, toGPU bool) string {
	for i := range ps.opt.Devices {
		if ps.opt.Devices[i] == d {
			return p.Why(i, toGPU)
		}
	}
	return ReasonNoTransport
}

// moveStraight carries the transfer out, and stages what is left of n bytes behind the
// whole blocks.
func (m *Mover) moveStraight(ctx context.Context, s *straight, n int64) (int64, error) {
	path := driver.PathKey{Path: driver.PathDirect, Write: s.write}
	moved, err := m.runStraight(ctx, s, path)
	switch {
	case errors.Is(err, base.ErrTimeout):
		return 0, err
	case err != nil:
		m.paths.Fail(path)
		retry := driver.PathKey{Path: driver.PathStaged, Write: s.write, Reason: ReasonRetried}
		if m.opt.Strict || m.opt.Compat == CompatOff || errors.Is(err, base.ErrIsolated) || errors.Is(err, base.ErrDeviceGone) {
			return moved, err
		}
		return m.stage(ctx, s.e, s.off, s.ptr, n, s.write, retry) // from the beginning: it is not known what arrived
	case s.n == n:
		return n, nil
	}
	tail := driver.PathKey{Path: driver.PathTail, Write: s.write, Reason: reasonTail}
	rest, err := m.stage(ctx, s.e, s.off+s.n, s.ptr+gpu.Ptr(s.n), n-s.n, s.write, tail)
	return moved + rest, err
}

// runStraight gives the bytes moved from the beginning, and the error of the lowest
// offset. ErrTimeout when ctx ended first: the commands then end by themselves, and
// the memory stays registered until they have.
func (m *Mover) runStraight(ctx context.Context, s *straight, path driver.PathKey) (int64, error) {
	reg := s.peer.Registration()
	if err := m.enter(); err != nil {
		reg.Release()
		return 0, err
	}
	piece := s.n
	if m.opt.TaskBytes > 0 {
		piece = max(m.opt.TaskBytes, base.AlignUp(s.n/(driver.MaxBatch-1), s.e.in.BlockSize))
	}
	op := driver.OpRead
	if s.write {
		op = driver.OpWrite
	}
	region, at := s.peer.Region(), s.peer.At(s.ptr)
	for off := int64(0); off < s.n; off += piece {
		k := min(piece, s.n-off)
		s.segs = append(s.segs, region.Seg(at+off, k))
		s.batch.Reqs = append(s.batch.Reqs, driver.Request{Op: op, Off: s.e.off + s.off + off, Len: k})
	}
	for i := range s.segs {
		s.batch.Reqs[i].Segs = s.segs[i : i+1]
	}
	if err := s.e.dev.Submit(ctx, &s.batch); err != nil {
		m.dismiss(reg)
		return 0, err
	}
	if err := s.batch.Wait(ctx); err != nil {
		go func() {
			for s.batch.Wait(context.Background()) != nil { // the device's deadlines bound it
			}
			m.ended(s, path)
			m.dismiss(reg)
		}()
		return 0, err
	}
	defer m.dismiss(reg)
	return m.ended(s, path)
}

// ended counts what the commands carried, and makes it visible.
func (m *Mover) ended(s *straight, path driver.PathKey) (moved int64, err error) {
	for i := range s.batch.Reqs {
		q := &s.batch.Reqs[i]
		if q.Done > 0 {
			m.paths.Add(path, q.Done)
		}
		if err == nil {
			moved, err = moved+q.Done, q.Err
		}
	}
	if !s.write && err == nil && s.peer.NeedsFlush() {
		if err = s.peer.Flush(); err != nil {
			moved = 0
		}
	}
	if err != nil && s.e.dev.State() == driver.StateReady {
		s.peer.ps.broke(s.peer, s.e.dev, err)
	}
	return moved, err
}

// broke is Peer.Broke for a device of the list.
func (ps *Pairs) broke(p *Peer, d driver.Device, err error) {
	for i := range ps.opt.Devices {
		if ps.opt.Devices[i] == d {
			p.Broke(i, err)
		}
	}
}
