package base

import (
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestCombineCRC32C(t *testing.T) {
	tab := crc32.MakeTable(crc32.Castagnoli)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		a, b := make([]byte, rng.IntN(1<<uint(i%17))), make([]byte, rng.IntN(1<<uint(i%16+1)))
		for _, s := range [][]byte{a, b} {
			for j := range s {
				s[j] = byte(rng.Uint32())
			}
		}
		want := crc32.Checksum(append(append([]byte(nil), a...), b...), tab)
		got := CombineCRC32C(crc32.Checksum(a, tab), crc32.Checksum(b, tab), int64(len(b)))
		if got != want {
			t.Fatalf("lengths %d and %d: %08x, want %08x", len(a), len(b), got, want)
		}
	}
}

func TestShiftCRC32C(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		crc, bits := rng.Uint32(), rng.Int64N(1<<40)-1<<39
		there := ShiftCRC32C(crc, bits)
		if back := ShiftCRC32C(there, -bits); back != crc {
			t.Fatalf("%08x by %d and back: %08x", crc, bits, back)
		}
		if once := NewCRC32CShift(bits).Of(crc); once != there {
			t.Fatalf("%08x by %d: %08x with tables, %08x without", crc, bits, once, there)
		}
		if step := ShiftCRC32C(ShiftCRC32C(crc, bits-1), 1); step != there {
			t.Fatalf("%08x by %d: %08x in two steps, %08x in one", crc, bits, step, there)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "4096": 4096, "4KiB": 4096, "4k": 4096, "1.5MiB": 3 << 19, "4GiB": 4 << 30,
		"2TB": 2 << 40, " 64 MiB ": 64 << 20, "9223372036854775807": 1<<63 - 1,
	} {
		if got, err := ParseBytes(in); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"": "write a number", "-1": "negative", "-4KiB": "negative", "4X": "unknown unit", "GiB": "write a number", "1e3": "unknown unit",
		"9223372036854775808": "write a number", "8388608TiB": "too large", "0.3": "write a number", "1..2": "write a number",
	} {
		if got, err := ParseBytes(in); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d, %v, want ErrInvalid and %q", in, got, err, want)
		}
	}
}

func TestFormatBytes(t *testing.T) {
	for in, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 20: "1.0 MiB", 1<<20 - 1: "1.0 MiB",
		5 << 30: "5.0 GiB", -4096: "-4.0 KiB", 1 << 50: "1024.0 TiB",
	} {
		if got := FormatBytes(in); got != want {
			t.Errorf("%d: %q, want %q", in, got, want)
		}
	}
}

func TestCheckRange(t *testing.T) {
	for _, c := range []struct {
		off, n, size int64
		ok           bool
	}{
		{0, 0, 0, true}, {0, 1, 0, false}, {5, 5, 10, true}, {5, 6, 10, false}, {10, 0, 10, true},
		{11, 0, 10, false}, {-1, 1, 10, false}, {1, -1, 10, false}, {1, 1<<63 - 1, 10, false},
	} {
		if got := CheckRange(c.off, c.n, c.size); got != c.ok {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestErrorText(t *testing.T) {
	err := WithHint(Errorf("open", "/x", ErrLocked, "pid %d: %w", 7, io.EOF), "stop it")
	if got, want := err.Error(), "open /x: locked by another owner: pid 7: EOF (stop it)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if !errors.Is(err, ErrLocked) || !errors.Is(err, io.EOF) || errors.Is(err, ErrBusy) {
		t.Error("class or cause lost")
	}
	if Wrap("a", "b", nil) != nil {
		t.Error("nil wrapped")
	}
}
