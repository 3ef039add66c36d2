package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

// ReplayOptions of Replay.
type ReplayOptions struct {
	Trace      string  // a file, or Std
	BlockBytes int64   // of each block
	Limit      int     // requests; 0 is all
	Verify     bool    // compare every byte that is read
	Speed      float64 // of the trace's clock; 0 does not wait
	Sync       bool    // each put returns when it is durable
}

// Bounds of ReplayOptions.
const (
	MaxReplayBlock = 64 * base.MiB
	maxReplaySpeed = 1e9
)

// replayDoc is the answer. Latencies are those of one call with all blocks of a
// request, and of whole requests.
type replayDoc struct {
	header
	nameDoc
	BlockBytes int64   `json:"block_bytes"`
	Requests   int64   `json:"requests"`
	References int64   `json:"references"`
	Hits       int64   `json:"hits"`
	Puts       int64   `json:"puts"`
	BytesPut   int64   `json:"bytes_put"`
	BytesGot   int64   `json:"bytes_got"`
	Verified   int64   `json:"verified"` // hits whose every byte was compared
	Seconds    float64 `json:"seconds"`  // the last flush included
	GPU        *gpuDoc `json:"gpu,omitempty"`
	Latency    struct {
		Request *latencyDoc `json:"request,omitempty"`
		Get     *latencyDoc `json:"get,omitempty"`
		Put     *latencyDoc `json:"put,omitempty"`
	} `json:"latency"`
}

// Replay runs a trace of block references against the store, as a cache would:
// each block of a request is read if it is there and put if it is not. An
// interrupt ends it between two requests, with what was counted so far.
func Replay(ctx context.Context, e *Env, t *Target, o ReplayOptions) error {
	if err := cmp.Or(o.check(), t.heedsGPUSet("replay")); err != nil {
		return e.fail("replay", err)
	}
	in, total, err := openTrace(e, o.Trace)
	if err != nil {
		return e.fail("replay", err)
	}
	defer in.Close()
	p := &replay{o: o, doc: replayDoc{nameDoc: docName(t.namespace()), BlockBytes: o.BlockBytes}}
	err = e.with(ctx, "replay", t, false, func(s *session) error {
		n, err := s.Namespace(ctx, t.namespace(), store.NamespaceOptions{Create: true})
		if err != nil {
			return err
		}
		p.s, p.n = s, n
		bar := e.progress("replay", total)
		defer bar.Done()
		return p.run(ctx, newTrace(o.Trace, &counted{r: reader{ctx, in, o.Trace}, bar: bar}))
	})
	if p.s == nil {
		return e.fail("replay", err)
	}
	return p.report(e, err)
}

func (o *ReplayOptions) check() error {
	switch {
	case o.Trace == "":
		return usage("replay", "which trace? --trace FILE")
	case o.BlockBytes == 0:
		return usage("replay", "which size of blocks? --block-bytes SIZE")
	case o.BlockBytes < 0 || o.BlockBytes > MaxReplayBlock:
		return usage("replay", "--block-bytes %s: 1 to %s are possible", FlagBytes(o.BlockBytes), base.FormatBytes(MaxReplayBlock))
	case o.Limit < 0:
		return usage("replay", "--limit %d is negative", o.Limit)
	case !(o.Speed >= 0 && o.Speed <= maxReplaySpeed):
		return usage("replay", "--speed %v: a positive factor, or 0 not to wait", o.Speed)
	}
	return nil
}

func openTrace(e *Env, name string) (io.ReadCloser, int64, error) {
	if name == Std {
		return io.NopCloser(e.Stdin), 0, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, base.Wrap("replay", name, pathCause(err))
	}
	st, err := f.Stat()
	if err == nil && st.IsDir() {
		err = base.Errorf("replay", name, base.ErrInvalid, "it is a directory")
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, st.Size(), nil
}

// replay is a replay under way.
type replay struct {
	o   ReplayOptions
	s   *session
	n   *store.Namespace
	doc replayDoc

	request, get, put histogram
	blocks            replayBlocks
}

// run works through the trace. Store calls do not end with ctx: a request is
// finished, then the replay stops.
func (p *replay) run(ctx context.Context, t *trace) (err error) {
	p.blocks.init(p.o.BlockBytes, p.s)
	defer p.blocks.close()
	begin := time.Now()
	defer func() {
		if ferr := p.s.Flush(context.WithoutCancel(ctx)); err == nil {
			err = ferr
		}
		p.doc.Seconds, p.doc.GPU = time.Since(begin).Seconds(), p.s.gpuDoc()
	}()
	clock := pace{speed: p.o.Speed, begin: begin}
	for p.o.Limit == 0 || p.doc.Requests < int64(p.o.Limit) {
		r, err := t.next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		if err := clock.wait(ctx, r.Timestamp); err != nil {
			return err
		}
		started := time.Now()
		if err := p.one(context.WithoutCancel(ctx), r.IDs); err != nil {
			return err
		}
		p.request.add(time.Since(started))
		p.doc.Requests++
	}
	return nil
}

// pace keeps to the timestamps of the trace.
type pace struct {
	speed float64
	begin time.Time
	first float64
	began bool
}

func (c *pace) wait(ctx context.Context, at float64) error {
	if ctx.Err() != nil {
		return interrupted{}
	}
	if c.speed == 0 {
		return nil
	}
	if !c.began {
		c.began, c.first = true, at
	}
	left := time.Duration((at-c.first)/c.speed*1e6) - time.Since(c.begin)
	if left <= 0 {
		return nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return interrupted{}
	}
}

// report writes what was counted, also when the replay did not reach the end.
func (p *replay) report(e *Env, err error) error {
	d := &p.doc
	d.header = head("replay", err)
	d.Latency.Request, d.Latency.Get, d.Latency.Put = p.request.doc(), p.get.doc(), p.put.doc()
	if e.JSON {
		return errors.Join(e.emit(d), err)
	}
	verified := "no byte compared (--verify does)"
	if p.o.Verify {
		verified = fmt.Sprintf("every byte of %d compared", d.Verified)
	}
	rows := [][2]string{
		row("requests", "%d with %d references", d.Requests, d.References),
		row("hits", "%d, %s read, %s", d.Hits, base.FormatBytes(d.BytesGot), verified),
		row("puts", "%d, %s written", d.Puts, base.FormatBytes(d.BytesPut)),
		row("time", "%.2f s, %.0f references a second", d.Seconds, float64(d.References)/max(d.Seconds, 1e-9)),
	}
	rows = append(rows, d.GPU.rows()...)
	for _, l := range []struct {
		name string
		doc  *latencyDoc
	}{{"request", d.Latency.Request}, {"get call", d.Latency.Get}, {"put call", d.Latency.Put}} {
		if l.doc != nil {
			rows = append(rows, row(l.name, "%s", l.doc.text()))
		}
	}
	return errors.Join(e.table(rows...), err)
}

func (l *latencyDoc) text() string {
	ms := func(s float64) string { return fmt.Sprintf("%.3f", s*1000) }
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, p99.9 %s, max %s ms (%d)", ms(l.P50), ms(l.P90), ms(l.P99), ms(l.P999), ms(l.Max), l.Count)
}
