package main

import (
	"errors"
	"fmt"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/xfer"
)

// depth: pieces of a cached file in the order of streams, all as one request of one
// stream, and as a request of each of as many streams.
func (r *rig) depth() (err error) {
	const piece = 4 << 20
	streams := int(min(64, *size/piece))
	m, err := r.mover(xfer.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close(ctx)) }()
	o, err := m.NewOrder(ctx, xfer.OrderOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close(ctx)) }()
	var all []gpu.Stream
	var joined []*xfer.Ordered
	for range streams {
		s, err := r.d.NewStream()
		if err != nil {
			return err
		}
		defer s.Close()
		q, err := o.Join(s)
		if err != nil {
			return err
		}
		defer q.Close()
		all, joined = append(all, s), append(joined, q)
	}
	list := make([]xfer.Piece, streams)
	for i := range list {
		at := int64(i) * piece
		list[i] = xfer.Piece{End: xfer.File(r.f), Ptr: r.mem.Ptr(), Span: xfer.Span{Off: at, N: piece, At: at}}
	}
	wait := func(used []gpu.Stream, reqs []*xfer.Request) error {
		for _, s := range used {
			if err := finish(s); err != nil {
				return err
			}
		}
		for _, q := range reqs {
			if err := q.Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	one := func() error {
		q, err := joined[0].Submit(ctx, list...)
		if err != nil {
			return err
		}
		return wait(all[:1], []*xfer.Request{q})
	}
	many := func() error {
		var reqs []*xfer.Request
		for i, q := range joined {
			req, err := q.Submit(ctx, list[i])
			if err != nil {
				return err
			}
			reqs = append(reqs, req)
		}
		return wait(all, reqs)
	}
	took, err := turns(3**rounds, many, one)
	if err != nil {
		return err
	}
	n := int64(streams) * piece
	ratio := times(took[0], took[1])
	fmt.Printf("%d pieces of 4 MiB of a cached file: as one request of one stream %.1f GiB/s, of %d streams %.1f GiB/s, ratio %.2f\n",
		streams, rate(n, mid(took[1])), streams, rate(n, mid(took[0])), ratio)
	r.atLeast(0.95, ratio, "(d) one stream with %d pieces under way beside %d streams", streams, streams)
	return r.check(r.mem.Ptr(), r.ref[:n], "pieces in the order of streams")
}
