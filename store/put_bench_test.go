package store_test

import (
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/ugds-store/ugds/store"
)

// BenchmarkSyncPut puts 4 KiB from 64 callers, each durable when it returns.
func BenchmarkSyncPut(b *testing.B) {
	x := newBox(b, box{sizes: []int64{1 << 30}})
	value := fill(1, 4096)
	var next atomic.Uint64
	b.SetParallelism(64 / runtime.GOMAXPROCS(0))
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		var key [16]byte
		for pb.Next() {
			binary.LittleEndian.PutUint64(key[:], next.Add(1))
			if err := x.ns.Put(bg, key[:], store.Bytes(value), store.PutOptions{}); err != nil {
				b.Error(err)
				return
			}
		}
	})
	st := x.s.Stats()
	b.ReportMetric(float64(st.RoundOps)/float64(st.Rounds), "puts/round")
}
