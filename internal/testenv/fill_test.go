package testenv

import (
	"bytes"
	"testing"
)

// TestFill: a beginning is the same whatever the length, and no block of 16
// bytes comes twice, of one seed or of its neighbour.
func TestFill(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(3) {
		b := bytes.Repeat([]byte{0xee}, 40007)
		Fill(b, seed)
		short := make([]byte, 33)
		if Fill(short, seed); !bytes.Equal(short, b[:33]) {
			t.Errorf("seed %d: the beginning depends on the length", seed)
		}
		for at := 0; at+16 <= len(b); at += 16 {
			if s := string(b[at : at+16]); seen[s] {
				t.Fatalf("seed %d offset %d: seen before", seed, at)
			} else {
				seen[s] = true
			}
		}
	}
}
