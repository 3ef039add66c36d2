package crashtest

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/ugds-store/ugds/internal/testenv"
)

// valueMagic begins every 512 bytes of a value.
const valueMagic = 0xc7a5b10c

// Labels of payloads that are not values.
const (
	labelSuper = 1<<63 | 1
	labelMark  = 1<<63 | 2
)

// fillValue writes the value of operation id into b. Each 512 bytes say whose
// they are and where in the value they belong; the rest is noise made from the
// seed, so that no two operations write the same bytes.
func fillValue(b []byte, seed, id uint64) {
	testenv.Fill(b, seed^id*0x9e3779b97f4a7c15)
	var head [24]byte
	binary.LittleEndian.PutUint32(head[0:], valueMagic)
	binary.LittleEndian.PutUint64(head[8:], id)
	binary.LittleEndian.PutUint64(head[16:], seed)
	for i := 0; i < len(b); i += 512 {
		binary.LittleEndian.PutUint32(head[4:], uint32(i/512))
		copy(b[i:], head[:])
	}
}

// valueID reads whose value begins with b; 0 if b is not the begin of a value
// or too short to tell.
func valueID(b string) uint64 {
	if len(b) < 16 || binary.LittleEndian.Uint32([]byte(b[:4])) != valueMagic {
		return 0
	}
	return binary.LittleEndian.Uint64([]byte(b[8:16]))
}

// labelPayload says what a device write carries.
func labelPayload(b string) uint64 {
	switch {
	case strings.HasPrefix(b, "uGDSsup"):
		return labelSuper
	case strings.HasPrefix(b, "uGDSmrk"):
		return labelMark
	}
	return valueID(b)
}

// The keys of a workload. Their text can be found in the metadata log.
const keyMark = "crash-key-"

// keyName is key number i; the width keeps keys distinct as substrings.
func keyName(i int) []byte { return fmt.Appendf(nil, "%s%05d", keyMark, i) }

// record is a change of a key that a write to the metadata log carries.
type record struct {
	key  int
	kind OpKind
}

// recordsIn finds the records in a write to the metadata log: a kind, the length
// of the database key, and the key itself with one byte and a namespace of four
// before its name. A record that the log's own framing cuts in two is missed; a
// state is then counted less often than it occurred.
func recordsIn(b []byte) []record {
	const before, nameLen = 5, len(keyMark) + 5
	var out []record
	s := string(b)
	for at := 0; ; {
		i := strings.Index(s[at:], keyMark)
		if i < 0 {
			return out
		}
		at += i
		n, err := strconv.Atoi(s[min(at+len(keyMark), len(s)):min(at+nameLen, len(s))])
		if err == nil && at >= before+2 && s[at-before-1] == byte(before+nameLen) {
			kind := KindPut
			if s[at-before-2] == 0 {
				kind = KindDelete
			}
			out = append(out, record{n, kind})
		}
		at += len(keyMark)
	}
}

// keyNumber undoes keyName; -1 for any other key.
func keyNumber(key []byte) int {
	s, ok := strings.CutPrefix(string(key), keyMark)
	n, err := strconv.Atoi(s)
	if !ok || err != nil {
		return -1
	}
	return n
}
