package ctl

import (
	"encoding/hex"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ugds-store/ugds/store"
)

// hexMark begins a key that is shown in hexadecimal.
const hexMark = "hex:"

// parseKey reads a key from the command line.
func (t *Target) parseKey(verb, s string) ([]byte, error) {
	key := []byte(s)
	if t.Hex {
		var err error
		if key, err = hex.DecodeString(strings.TrimPrefix(s, hexMark)); err != nil {
			return nil, usage(verb, "key %q is not hexadecimal", s)
		}
	}
	if len(key) == 0 || len(key) > store.MaxKeyLen {
		return nil, usage(verb, "a key of %d bytes: 1 to %d are possible", len(key), store.MaxKeyLen)
	}
	return key, nil
}

// parsePrefix reads the beginning of keys, which may be empty.
func (t *Target) parsePrefix(verb, s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	return t.parseKey(verb, s)
}

// showKey prints a key on one line: as it is if it is printable text, else as
// hex:…, so that no key can be taken for another.
func (t *Target) showKey(key []byte) string {
	if t.Hex {
		return hex.EncodeToString(key)
	}
	if printable(key) {
		return string(key)
	}
	return hexMark + hex.EncodeToString(key)
}

// showName prints the name of a namespace on one line.
func showName(name string) string {
	if printable([]byte(name)) {
		return name
	}
	return strconv.QuoteToASCII(name)
}

func printable(key []byte) bool {
	if !utf8.Valid(key) || strings.HasPrefix(string(key), hexMark) {
		return false
	}
	for _, r := range string(key) {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// keyDoc is a key in a document: the bytes, and the text if there is one.
type keyDoc struct {
	Key    *string `json:"key"` // null if the key is not printable text
	KeyHex string  `json:"key_hex"`
}

func docKey(key []byte) keyDoc {
	d := keyDoc{KeyHex: hex.EncodeToString(key)}
	if printable(key) {
		s := string(key)
		d.Key = &s
	}
	return d
}
