package meta

import (
	"encoding/binary"
	"hash/crc32"
	"strconv"

	"github.com/ugds-store/ugds/internal/base"
)

// The first byte of a key tells its kind.
const (
	tagSingleton = 0x00
	tagObject    = 0x01
	tagNamespace = 0x02
)

// The singletons, each an 8-byte number except the store's identifier.
var (
	keySchema  = []byte{tagSingleton, 1}
	keyStore   = []byte{tagSingleton, 2}
	keyEpoch   = []byte{tagSingleton, 3}
	keyLastGen = []byte{tagSingleton, 4}
	keyNextNS  = []byte{tagSingleton, 5}
)

// schemaVersion is the version of the whole layout in the database.
const schemaVersion = 1

const objectPrefixLen = 5 // tag and namespace

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendObjectKey appends the database key of an object.
func appendObjectKey(dst []byte, ns uint32, key []byte) []byte {
	dst = append(dst, tagObject)
	dst = binary.BigEndian.AppendUint32(dst, ns)
	return append(dst, key...)
}

// namespaceKey is the database key of a namespace name.
func namespaceKey(name string) []byte {
	return append([]byte{tagNamespace}, name...)
}

// sum is the CRC-32C that guards value under key, so that neither a damaged
// value nor one that landed under another key is believed.
func sum(key, value []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, key), castagnoli, value)
}

func checkKey(ns uint32, key []byte) error {
	if ns == 0 {
		return base.Errorf("metadata", "", base.ErrInvalid, "namespace id 0")
	}
	if len(key) < MinKeyLen || len(key) > MaxKeyLen {
		return base.Errorf("metadata", "", base.ErrInvalid, "key of %d bytes (%d to %d are possible)",
			len(key), MinKeyLen, MaxKeyLen)
	}
	return nil
}

// singletonLen is version, eight bytes of number, checksum.
const singletonLen = 1 + 8 + 4

// encodeSingleton is the value of a numeric singleton.
func encodeSingleton(key []byte, v uint64) []byte {
	b := append(make([]byte, 0, singletonLen), 1)
	b = binary.LittleEndian.AppendUint64(b, v)
	return binary.LittleEndian.AppendUint32(b, sum(key, b))
}

func decodeSingleton(key, b []byte) (uint64, error) {
	if len(b) != singletonLen || b[0] != 1 || binary.LittleEndian.Uint32(b[9:]) != sum(key, b[:9]) {
		return 0, base.Errorf("metadata", "", base.ErrCorrupt, "singleton %x holds %x", key, b)
	}
	return binary.LittleEndian.Uint64(b[1:]), nil
}

// storeLen is version, identifier, checksum.
const storeLen = 1 + 16 + 4

func encodeStore(id [16]byte) []byte {
	b := append([]byte{1}, id[:]...)
	return binary.LittleEndian.AppendUint32(b, sum(keyStore, b))
}

func decodeStore(b []byte) (id [16]byte, err error) {
	if len(b) != storeLen || b[0] != 1 || binary.LittleEndian.Uint32(b[17:]) != sum(keyStore, b[:17]) {
		return id, base.Errorf("metadata", "", base.ErrCorrupt, "store identifier %x", b)
	}
	copy(id[:], b[1:])
	return id, nil
}

// printKey shows a database key in messages, shortened.
func printKey(k []byte) string {
	const most = 80
	if len(k) > objectPrefixLen && k[0] == tagObject {
		s := strconv.Quote(string(k[objectPrefixLen:min(len(k), objectPrefixLen+most)]))
		return "namespace " + strconv.FormatUint(uint64(binary.BigEndian.Uint32(k[1:])), 10) + " key " + s
	}
	return strconv.Quote(string(k[:min(len(k), most)]))
}
