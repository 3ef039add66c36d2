package doctest

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/tools/ctl"
)

const kib, mib = 1 << 10, 1 << 20

var le = binary.LittleEndian

// stat is the part of ugdsctl stat --json that the test compares with.
type stat struct {
	Layout struct {
		StoreID   string `json:"store_id"`
		Epoch     uint64 `json:"epoch"`
		SlabBytes int64  `json:"slab_bytes"`
		Devices   []struct {
			ID         string `json:"id"`
			TableOff   int64  `json:"slot_table_off"`
			TableBytes int64  `json:"slot_table_bytes"`
			SlabOff    int64  `json:"slab_off"`
			Slabs      uint32 `json:"slabs"`
		} `json:"devices"`
	} `json:"layout"`
}

// TestOnDisk reads a device with nothing but the numbers of docs/on-disk.md.
func TestOnDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	ctx, out := context.Background(), new(bytes.Buffer)
	e := &ctl.Env{Stdin: strings.NewReader("the value"), Stdout: out, Stderr: io.Discard}
	target := &ctl.Target{Dir: dir}
	const capacity = 65 * mib
	if err := ctl.Format(ctx, e, target, ctl.FormatOptions{Size: capacity, Yes: true}); err != nil {
		t.Fatal(err)
	}
	if err := ctl.Put(ctx, e, target, ctl.PutOptions{Key: "k", File: ctl.Std}); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	e.JSON = true
	if err := ctl.Stat(ctx, e, target); err != nil {
		t.Fatal(err)
	}
	var s stat
	if err := json.Unmarshal(out.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "data.ugds"))
	if err != nil {
		t.Fatal(err)
	}
	checkLabel(t, raw)
	checkSupers(t, raw, &s)
	checkMarks(t, raw, &s)
	checkSlabs(t, raw, &s)
	checkIdentity(t, filepath.Join(dir, "meta", "IDENTITY"), &s)
}

func checkLabel(t *testing.T, raw []byte) {
	if raw[510] != 0x55 || raw[511] != 0xaa || raw[446+4] != 0xda || string(raw[3:13]) != "uGDS Store" {
		t.Errorf("label % x", raw[:512])
	}
}

func checkSupers(t *testing.T, raw []byte, s *stat) {
	c := int64(len(raw))
	d := s.Layout.Devices[0]
	for i, off := range []int64{64 * kib, 128 * kib, c - 128*kib, c - 64*kib} {
		b := raw[off : off+4*kib]
		if string(b[:8]) != "uGDSsup\x00" {
			t.Fatalf("copy %d: no magic at %d", i, off)
		}
		if crc32.Checksum(b[:4092], crc32.MakeTable(crc32.Castagnoli)) != le.Uint32(b[4092:]) {
			t.Errorf("copy %d: checksum", i)
		}
		for name, ok := range map[string]bool{
			"version": le.Uint32(b[8:]) == 1, "number": le.Uint32(b[12:]) == uint32(i),
			"epoch": le.Uint64(b[24:]) == s.Layout.Epoch, "store": hex.EncodeToString(b[32:48]) == s.Layout.StoreID,
			"device": hex.EncodeToString(b[48:64]) == d.ID, "place": le.Uint32(b[64:]) == 0,
			"devices": le.Uint32(b[68:]) == 1, "time": le.Uint64(b[72:]) > 1<<30, "key": !bytes.Equal(b[80:96], make([]byte, 16)),
			"slab size": le.Uint64(b[96:]) == uint64(s.Layout.SlabBytes), "capacity": le.Uint64(b[104:]) == uint64(c),
			"table": le.Uint64(b[112:]) == uint64(d.TableOff), "table length": le.Uint64(b[120:]) == uint64(d.TableBytes),
			"first slab": le.Uint64(b[128:]) == uint64(d.SlabOff), "slabs": le.Uint32(b[136:]) == d.Slabs,
			"marks": le.Uint32(b[140:]) == 64, "ring": le.Uint64(b[144:]) == 256*kib,
			"identities": hex.EncodeToString(b[512:528]) == d.ID,
		} {
			if !ok {
				t.Errorf("copy %d: %s is not where the document says", i, name)
			}
		}
	}
}

func checkMarks(t *testing.T, raw []byte, s *stat) {
	var top uint64
	for i := range 64 {
		b := raw[256*kib+i*4*kib:][:4*kib]
		if string(b[:8]) != "uGDSmrk\x00" {
			continue
		}
		if crc32.Checksum(b[:4092], crc32.MakeTable(crc32.Castagnoli)) != le.Uint32(b[4092:]) ||
			le.Uint32(b[8:]) != 1 || hex.EncodeToString(b[16:32]) != s.Layout.StoreID ||
			hex.EncodeToString(b[32:48]) != s.Layout.Devices[0].ID ||
			le.Uint64(b[48:]) == 0 || le.Uint64(b[48:]) > s.Layout.Epoch || le.Uint64(b[56:])%64 != uint64(i) {
			t.Errorf("mark in block %d: % x", i, b[:72])
		}
		top = max(top, le.Uint64(b[64:]))
	}
	if top != 1 {
		t.Errorf("the highest mark is of generation %d after one put", top)
	}
}

func checkSlabs(t *testing.T, raw []byte, s *stat) {
	d, slab, c := s.Layout.Devices[0], s.Layout.SlabBytes, int64(len(raw))
	blocks := int64(d.Slabs) * slab / (4 * kib)
	if d.TableOff != mib || d.TableBytes < 64*blocks || d.TableBytes >= 64*blocks+4*kib {
		t.Errorf("table at %d of %d bytes for %d blocks", d.TableOff, d.TableBytes, blocks)
	}
	end := d.SlabOff + int64(d.Slabs)*slab
	if d.SlabOff%slab != 0 || d.SlabOff < d.TableOff+d.TableBytes || end > c-256*kib {
		t.Errorf("%d slabs at %d end at %d of %d", d.Slabs, d.SlabOff, end, c)
	}
	at := int64(bytes.Index(raw, []byte("the value")))
	if at < d.SlabOff || at >= end || (at-d.SlabOff)%(4*kib) != 0 {
		t.Errorf("the value lies at %d", at)
	}
	if !bytes.Equal(raw[at+9:at+4*kib], make([]byte, 4*kib-9)) {
		t.Error("the rest of its block is not zero")
	}
}

func checkIdentity(t *testing.T, path string, s *stat) {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := len(b) - 4
	if string(b[:8]) != "uGDSmeta" || le.Uint32(b[8:]) != 1 || le.Uint32(b[12:]) != 1 || le.Uint32(b[16:]) != 1 ||
		hex.EncodeToString(b[20:36]) != s.Layout.StoreID || le.Uint64(b[36:]) != s.Layout.Epoch ||
		hex.EncodeToString(b[44:60]) != s.Layout.Devices[0].ID || n != 60 ||
		crc32.Checksum(b[:n], crc32.MakeTable(crc32.Castagnoli)) != le.Uint32(b[n:]) {
		t.Errorf("IDENTITY % x", b)
	}
}
