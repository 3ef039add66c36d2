package ctl

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

// parseKey reads a key from the command line.
func (t *Target) parseKey(verb, s string) ([]byte, error) {
	key := []byte(s)
	if t.Hex {
		var err error
		if key, err = hex.DecodeString(strings.TrimPrefix(s, base.HexMark)); err != nil {
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

// showKey prints a key on one line.
func (t *Target) showKey(key []byte) string {
	if t.Hex {
		return hex.EncodeToString(key)
	}
	return base.KeyText(key)
}

// showName prints the name of a namespace on one line.
func showName(name string) string {
	if base.PrintableKey([]byte(name)) {
		return name
	}
	return strconv.QuoteToASCII(name)
}

// nameDoc is the namespace of what a document tells. JSON strings are UTF-8, names
// any bytes.
type nameDoc struct {
	Namespace    string `json:"namespace"`     // other bytes replaced by U+FFFD
	NamespaceHex string `json:"namespace_hex"` // the bytes
}

func docName(name string) nameDoc { return nameDoc{name, hex.EncodeToString([]byte(name))} }

// namespaceDoc is a namespace in a list.
type namespaceDoc struct {
	Name    string      `json:"name"`     // as in nameDoc
	NameHex string      `json:"name_hex"` // the bytes
	Usage   store.Usage `json:"usage"`
}

func docNamespaces(list []store.NamespaceInfo) []namespaceDoc {
	out := make([]namespaceDoc, 0, len(list))
	for _, n := range list {
		out = append(out, namespaceDoc{n.Name, hex.EncodeToString([]byte(n.Name)), n.Usage})
	}
	return out
}

// keyDoc is a key in a document: the bytes, and the text if there is one.
type keyDoc struct {
	Key    *string `json:"key"` // null if the key is not printable text
	KeyHex string  `json:"key_hex"`
}

func docKey(key []byte) keyDoc {
	d := keyDoc{KeyHex: hex.EncodeToString(key)}
	if base.PrintableKey(key) {
		s := string(key)
		d.Key = &s
	}
	return d
}
