package unix

import (
	"encoding/binary"
	"reflect"
	"testing"
)

// TestVFIOLayout: sizes and offsets as include/uapi/linux/vfio.h and iommufd.h give them.
func TestVFIOLayout(t *testing.T) {
	for _, c := range []struct {
		v      any
		size   uintptr
		fields map[string]uintptr
	}{
		{vfioGroupStatus{}, 8, map[string]uintptr{"Flags": 4}},
		{vfioDeviceInfo{}, 24, map[string]uintptr{"Flags": 4, "Regions": 8, "IRQs": 12, "CapOffset": 16}},
		{vfioRegionInfo{}, 32, map[string]uintptr{"Flags": 4, "Index": 8, "CapOffset": 12, "Size": 16, "Offset": 24}},
		{vfioIRQInfo{}, 16, map[string]uintptr{"Flags": 4, "Index": 8, "Count": 12}},
		{vfioIRQSet{}, 20, map[string]uintptr{"Flags": 4, "Index": 8, "Start": 12, "Count": 16}},
		{vfioDMAMap{}, 32, map[string]uintptr{"Flags": 4, "Vaddr": 8, "IOVA": 16, "Size": 24}},
		{vfioDMAUnmap{}, 24, map[string]uintptr{"Flags": 4, "IOVA": 8, "Size": 16}},
		{vfioIOMMUInfo{}, 24, map[string]uintptr{"Flags": 4, "PageSizes": 8, "CapOffset": 16}},
		{vfioBindIOMMUFD{}, 16, map[string]uintptr{"Flags": 4, "IOMMUFD": 8, "DevID": 12}},
		{vfioAttachIOMMUFD{}, 12, map[string]uintptr{"Flags": 4, "PT": 8}},
		{iommuAllocArg{}, 12, map[string]uintptr{"Flags": 4, "ID": 8}},
		{iommuRange{}, 16, map[string]uintptr{"Last": 8}},
		{iommuRangesArg{}, 32, map[string]uintptr{"ID": 4, "Count": 8, "Reserved": 12, "Ranges": 16, "Alignment": 24}},
		{iommuMapArg{}, 40, map[string]uintptr{"Flags": 4, "ID": 8, "Reserved": 12, "Addr": 16, "Length": 24, "IOVA": 32}},
		{iommuUnmapArg{}, 24, map[string]uintptr{"ID": 4, "IOVA": 8, "Length": 16}},
	} {
		typ := reflect.TypeOf(c.v)
		if typ.Size() != c.size {
			t.Errorf("%v has %d bytes, want %d", typ, typ.Size(), c.size)
		}
		for name, off := range c.fields {
			if f, ok := typ.FieldByName(name); !ok || f.Offset != off {
				t.Errorf("%v.%s is at %d, want %d", typ, name, f.Offset, off)
			}
		}
	}
}

// TestVFIOCaps: a chain is walked to its end, and a broken one is refused.
func TestVFIOCaps(t *testing.T) {
	const head = 24
	caps := make([]byte, 128)
	put := func(at int, id uint16, next uint32) {
		binary.NativeEndian.PutUint16(caps[at:], id)
		binary.NativeEndian.PutUint32(caps[at+4:], next)
	}
	put(0, 1, head+64)
	binary.NativeEndian.PutUint32(caps[8:], 2)
	for i, v := range []uint64{1, 2, 3, 4} {
		binary.NativeEndian.PutUint64(caps[16+8*i:], v)
	}
	put(64, 3, 0)
	var ids []uint16
	var got [][2]uint64
	walk := func(at uint32) error {
		return eachCap(at, head, caps, func(id uint16, body []byte) {
			if ids = append(ids, id); id == 1 {
				got = pairs(body)
			}
		})
	}
	if err := walk(head); err != nil || !reflect.DeepEqual(ids, []uint16{1, 3}) || !reflect.DeepEqual(got, [][2]uint64{{1, 2}, {3, 4}}) {
		t.Errorf("%v, %v, %v", err, ids, got)
	}
	if err := walk(0); err != nil {
		t.Errorf("no capability: %v", err)
	}
	for _, at := range []uint32{1, head - 1, head + 121, 1 << 31} {
		if walk(at) == nil {
			t.Errorf("a capability at %d was taken", at)
		}
	}
	put(64, 3, head) // a circle
	if walk(head) == nil {
		t.Error("a circle was walked")
	}
}
