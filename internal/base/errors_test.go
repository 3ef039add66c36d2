package base

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestParts(t *testing.T) {
	inner := WithHint(Errorf("read", "object", ErrCorrupt, "checksum"), "put it anew")
	for _, c := range []struct {
		err         error
		cause, hint string
	}{
		{errors.New("plain"), "plain", ""},
		{Wrap("open", "x", errors.New("plain")), "plain", ""},
		{inner, "corrupt: checksum", "put it anew"},
		{Wrap("verify", "key", inner), "read object: corrupt: checksum", "put it anew"},
		{fmt.Errorf("while: %w", Wrap("get", "", inner)), "while: get: read object: corrupt: checksum", "put it anew"},
		{WithHint(Wrap("get", "k", ErrBusy), "later"), "busy", "later"},
		{WithHint(fmt.Errorf("odd: %w", ErrBusy), "later"), "odd: busy", "later"},
		{Errorf("get", "k", ErrCorrupt, "%w", inner), "corrupt: read object: corrupt: checksum", "put it anew"},
	} {
		if cause, hint := Parts(c.err); cause != c.cause || hint != c.hint {
			t.Errorf("%v: %q and %q, want %q and %q", c.err, cause, hint, c.cause, c.hint)
		}
	}
}

// TestCutOff: what is too small is found behind the class, and the hint names the size that
// brings the rest back where it is known.
func TestCutOff(t *testing.T) {
	for want, why := range map[string]*TooSmall{
		"open x: corrupt: it has only 7 bytes (if it was a device of a store": {Bytes: 7},
		"open x: corrupt: it has only 7 bytes of 4096 (it was cut off or is":  {Bytes: 7, Made: 4096},
	} {
		err := fmt.Errorf("while: %w", CutOff("x", ErrCorrupt, why))
		var got *TooSmall
		if !errors.As(err, &got) || got != why || !errors.Is(err, ErrCorrupt) || !strings.HasPrefix(err.Error(), "while: "+want) ||
			why.Made > 0 != strings.Contains(err.Error(), "truncate -s 4096 ") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestKeyText(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "a key/with é": "a key/with é", "\x00\xff": "hex:00ff", "a\nb": "hex:610a62", "hex:00": "hex:6865783a3030",
		"\u200b": "hex:e2808b", "\xff": "hex:ff",
	} {
		if got := KeyText([]byte(in)); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}
