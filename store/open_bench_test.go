package store_test

import (
	"encoding/binary"
	"flag"
	"testing"
	"time"

	"github.com/ugds-store/ugds/store"
)

var openCount = flag.Int("open-objects", 100000, "objects of BenchmarkOpen")

// BenchmarkOpen measures open to first hit by the number of objects.
func BenchmarkOpen(b *testing.B) {
	x := newBox(b, box{sizes: []int64{int64(*openCount)*4096*11/10 + 128<<20}, sparse: true})
	var key [16]byte
	items := make([]store.PutItem, 1000)
	for i := 0; i < *openCount; i += len(items) {
		for j := range items {
			binary.LittleEndian.PutUint64(key[:], uint64(i+j))
			items[j] = store.PutItem{Key: append([]byte(nil), key[:]...), Value: store.Bytes(key[:]),
				PutOptions: store.PutOptions{Durability: store.Relaxed}}
		}
		x.ns.PutBatch(bg, items)
		if items[0].Err != nil {
			b.Fatal(items[0].Err)
		}
	}
	b.ResetTimer()
	var open time.Duration
	for range b.N {
		x.close()
		x.openDevices()
		begin := time.Now()
		x.open()
		if _, err := x.ns.GetBytes(bg, key[:], store.GetOptions{}); err != nil {
			b.Fatal(err)
		}
		open += time.Since(begin)
	}
	st := x.s.Stats()
	b.ReportMetric(open.Seconds()/float64(b.N)/float64(st.Objects)*1e6, "s/million")
	b.ReportMetric(float64(st.IndexBytes)/float64(st.Objects), "B/object")
}
