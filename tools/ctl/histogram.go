package ctl

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets whose width is at most 1/64 of their
// value, so that quantiles of any number of them need little memory.
type histogram struct {
	counts [64 << histBits]int64
	n      int64
	max    time.Duration
}

const histBits = 6

func histBucket(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < 1<<histBits {
		return int(v)
	}
	shift := bits.Len64(v) - histBits - 1
	return (shift+1)<<histBits | int(v>>shift)&(1<<histBits-1)
}

// histTop is the largest duration of a bucket.
func histTop(b int) time.Duration {
	if b < 1<<histBits {
		return time.Duration(b)
	}
	shift := b>>histBits - 1
	return time.Duration((uint64(1<<histBits|b&(1<<histBits-1))+1)<<shift - 1)
}

func (h *histogram) add(d time.Duration) {
	h.counts[histBucket(d)]++
	h.n++
	h.max = max(h.max, d)
}

// quantile is the smallest duration that at least the share q does not exceed,
// up to the width of a bucket.
func (h *histogram) quantile(q float64) time.Duration {
	want := int64(q*float64(h.n) + 0.999999)
	for b, n := range h.counts {
		if want -= n; want <= 0 && n > 0 {
			return min(histTop(b), h.max)
		}
	}
	return h.max
}

// latencyDoc holds quantiles in seconds.
type latencyDoc struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

// doc is nil when nothing was measured.
func (h *histogram) doc() *latencyDoc {
	if h.n == 0 {
		return nil
	}
	q := func(q float64) float64 { return h.quantile(q).Seconds() }
	return &latencyDoc{h.n, q(0.5), q(0.9), q(0.99), q(0.999), h.max.Seconds()}
}
