package base

import (
	"encoding/hex"
	"strings"
	"unicode"
	"unicode/utf8"
)

// HexMark begins a key that is shown in hexadecimal.
const HexMark = "hex:"

// KeyText shows a key on one line: as it is when it is printable text, else as
// HexMark and hexadecimal, so that no key can be taken for another.
func KeyText(key []byte) string {
	if PrintableKey(key) {
		return string(key)
	}
	return HexMark + hex.EncodeToString(key)
}

// PrintableKey tells whether KeyText shows the key as it is.
func PrintableKey(key []byte) bool {
	if !utf8.Valid(key) || strings.HasPrefix(string(key), HexMark) {
		return false
	}
	for _, r := range string(key) {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}
