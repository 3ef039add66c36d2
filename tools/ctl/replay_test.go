package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/store"
)

// madeTrace is a trace of the right shape, and its text.
func madeTrace(r *rand.Rand, requests int) (text string, all [][]uint64) {
	var b strings.Builder
	clock := 0
	all = testenv.Trace(r, requests)
	for _, ids := range all {
		clock += r.IntN(2000)
		list, _ := json.Marshal(ids)
		fmt.Fprintf(&b, `{"timestamp": %d, "input_length": %d, "output_length": 7, "hash_ids": %s}`+"\n", clock, 512*len(ids), list)
	}
	return b.String(), all
}

func (l *lab) replay(t *testing.T, ctx context.Context, text string, o ReplayOptions) (replayDoc, error) {
	t.Helper()
	l.out.Reset()
	l.Stdin, l.JSON = strings.NewReader(text), true
	defer func() { l.JSON = false }()
	o.Trace = Std
	err := Replay(ctx, l.Env, l.target, o)
	var d replayDoc
	if l.out.Len() == 0 && ExitCode(err) == ExitUsage {
		return d, err // wrong arguments print no document
	}
	if jerr := json.Unmarshal(l.out.Bytes(), &d); jerr != nil {
		t.Fatalf("%v in %q, after %v", jerr, l.out, err)
	}
	return d, err
}

// TestReplay: the counts are those of one by one, on a new store, in the middle,
// and after everything was put; every byte is compared.
func TestReplay(t *testing.T) {
	for _, block := range []int64{1, 4095, 4096, 10000} {
		l := newLab(t)
		text, all := madeTrace(testenv.Seed(t), 150)
		there := map[uint64]bool{}
		for _, part := range []int{50, 150, 150} {
			refs, hits, puts := testenv.CountTrace(all[:part], there)
			d, err := l.replay(t, t.Context(), text, ReplayOptions{BlockBytes: block, Verify: true, Limit: part % 150})
			if err != nil {
				t.Fatal(err)
			}
			if d.Requests != int64(part) || d.References != refs || d.Hits != hits || d.Puts != puts ||
				d.BytesPut != puts*block || d.BytesGot != hits*block || d.Verified != hits {
				t.Fatalf("blocks of %d: %+v; want %d references, %d hits, %d puts", block, d, refs, hits, puts)
			}
			if d.Latency.Request.Count != int64(part) || d.Latency.Request.P50 > d.Latency.Request.Max {
				t.Errorf("latencies %+v", d.Latency.Request)
			}
		}
	}
}

// TestReplayCalls: the gets of a request are one call and its puts another; a block
// that stands in it again is a hit, read behind the puts.
func TestReplayCalls(t *testing.T) {
	l := newLab(t)
	const text = `{"timestamp": 0, "hash_ids": [1, 2, 3, 1]}` + "\n" + `{"timestamp": 0, "hash_ids": [1, 2, 3, 4, 5]}` + "\n" +
		`{"timestamp": 0, "hash_ids": [5, 4, 3, 2, 1]}` + "\n"
	d, err := l.replay(t, t.Context(), text, ReplayOptions{BlockBytes: 4096, Verify: true})
	if err != nil || d.Hits != 9 || d.Puts != 5 || d.Latency.Get.Count != 3 || d.Latency.Put.Count != 2 || d.Latency.Request.Count != 3 {
		t.Errorf("%v: %+v, gets %+v, puts %+v", err, d, d.Latency.Get, d.Latency.Put)
	}
}

// TestReplayFindsWrongBytes: a block that is not what its id says is an error,
// also when it has another length.
func TestReplayFindsWrongBytes(t *testing.T) {
	l := newLab(t)
	l.put(t, "trace/7", []byte("not the block"))
	const text = `{"timestamp": 0, "hash_ids": [7]}`
	_, err := l.replay(t, t.Context(), text, ReplayOptions{BlockBytes: 13, Verify: true})
	if !errors.Is(err, base.ErrCorrupt) {
		t.Errorf("wrong bytes: %v", err)
	}
	for _, size := range []int64{12, 14, 4096} {
		if _, err = l.replay(t, t.Context(), text, ReplayOptions{BlockBytes: size}); !errors.Is(err, base.ErrMismatch) {
			t.Errorf("another length, %d: %v", size, err)
		}
	}
	d, err := l.replay(t, t.Context(), text, ReplayOptions{BlockBytes: 13})
	if err != nil || d.Hits != 1 || d.Verified != 0 {
		t.Errorf("without --verify: %+v, %v", d, err)
	}
}

// TestReplayStops: an interrupt ends the replay after a request; what was
// counted is told, and is in the store.
func TestReplayStops(t *testing.T) {
	l := newLab(t)
	text, all := madeTrace(testenv.Seed(t), 40)
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	defer w.Close()
	go func() {
		lines := strings.SplitAfter(text, "\n")
		_, _ = io.WriteString(w, strings.Join(lines[:10], "")+lines[10][:20])
		_, _ = io.WriteString(w, lines[10][20:21]) // taken when the ten requests are done
		cancel()
	}()
	l.out.Reset()
	l.Stdin, l.JSON = r, true
	err := Replay(ctx, l.Env, l.target, ReplayOptions{Trace: Std, BlockBytes: 4096})
	l.JSON = false
	if ExitCode(err) != ExitInterrupted {
		t.Fatalf("%v", err)
	}
	var d replayDoc
	if err := json.Unmarshal(l.out.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	refs, hits, puts := testenv.CountTrace(all[:10], map[uint64]bool{})
	if d.Error == nil || d.Error.Class != "interrupted" || d.Requests != 10 || d.References != refs || d.Hits != hits || d.Puts != puts {
		t.Fatalf("%+v; want %d, %d, %d", d, refs, hits, puts)
	}
	if n := int64(strings.Count(l.keys(t), "\n")); n != puts {
		t.Errorf("%d keys, %d puts", n, puts)
	}
}

func TestReplaySpeed(t *testing.T) {
	l := newLab(t)
	const text = "{\"timestamp\": 100, \"hash_ids\": [1]}\n\n{\"timestamp\": 2100, \"hash_ids\": [1]}\n"
	begin := time.Now()
	if d, err := l.replay(t, t.Context(), text, ReplayOptions{BlockBytes: 1, Speed: 10}); err != nil || d.Hits != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	if took := time.Since(begin); took < 200*time.Millisecond {
		t.Errorf("2 s at ten times the speed took %v", took)
	}
}

func TestReplayRefusals(t *testing.T) {
	l := newLab(t)
	for _, text := range []string{"x", `{"timestamp": 1}`, `{"hash_ids": [1]}`, `{"timestamp": 0, "hash_ids": [-1]}`,
		`{"timestamp": 0, "hash_ids": ["a"]}`, `{"timestamp": 0, "hash_ids": [1, null]}`, `{"timestamp": 0, "hash_ids": [1]`} {
		if _, err := l.replay(t, t.Context(), text, ReplayOptions{BlockBytes: 1}); ExitCode(err) != ExitUsage || !strings.Contains(err.Error(), "line 1") || strings.Contains(err.Error(), "traceRequest") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, o := range []ReplayOptions{{}, {BlockBytes: -1}, {BlockBytes: MaxReplayBlock + 1}, {BlockBytes: 1, Limit: -1},
		{BlockBytes: 1, Speed: -1}, {BlockBytes: 1, Speed: 1e300}} {
		if _, err := l.replay(t, t.Context(), "", o); ExitCode(err) != ExitUsage {
			t.Errorf("%+v: %v", o, err)
		}
	}
	text, _ := madeTrace(testenv.Seed(t), 3000)
	_, err := l.replay(t, t.Context(), text, ReplayOptions{BlockBytes: 1 << 20})
	if !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("a full store: %v", err)
	}
}

// TestHistogram covers I-05: quantiles of known data, within the width of a bucket.
func TestHistogram(t *testing.T) {
	var h histogram
	if h.doc() != nil {
		t.Error("nothing was measured, yet there is a document")
	}
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Microsecond)
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.001: 1, 0.5: 500, 0.99: 990, 0.999: 999, 1: 1000} {
		got := h.quantile(q)
		if want *= time.Microsecond; got < want || got > want+want/64 {
			t.Errorf("quantile %v: %v, want %v", q, got, want)
		}
	}
	for v := time.Duration(0); v >= 0 && v < 1<<62; v += v/1000 + 1 {
		if b := histBucket(v); histTop(b) < v || b > 0 && histTop(b-1) >= v || b >= len(h.counts) {
			t.Fatalf("%d is in bucket %d, which ends at %d", v, b, histTop(b))
		}
	}
	if b := histBucket(1<<63 - 1); b >= len(h.counts) {
		t.Errorf("the longest duration is in bucket %d of %d", b, len(h.counts))
	}
}
