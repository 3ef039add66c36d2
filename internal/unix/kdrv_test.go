package unix_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

// TestKdrvLayout compiles a program against the header and compares what it says of
// every structure, offset and number with this side. TestKdrvLayoutIsFixed tells why
// the answer is that of every 64-bit machine.
func TestKdrvLayout(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		testenv.Skip(t, "no C compiler")
	}
	header, err := filepath.Abs("../../kmod/uapi/ugds.h")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]uint64{}
	src := "#include <stdio.h>\n#include <stddef.h>\n#include \"" + header + "\"\nint main(void) {\n"
	say := func(name, expr string, v uint64) {
		want[name] = v
		src += fmt.Sprintf("printf(\"%s=%%llu\\n\", (unsigned long long)(%s));\n", name, expr)
	}
	for _, s := range unix.KdrvStructs {
		typ := reflect.TypeOf(s.V)
		fields := strings.Fields(s.Fields)
		if typ.NumField() != len(fields) {
			t.Fatalf("%s: %d fields here, %d in C", s.C, typ.NumField(), len(fields))
		}
		say("sizeof "+s.C, "sizeof(struct "+s.C+")", uint64(typ.Size()))
		for i, f := range fields {
			say(s.C+"."+f, "offsetof(struct "+s.C+", "+f+")", uint64(typ.Field(i).Offset))
			say("sizeof "+s.C+"."+f, "sizeof(((struct "+s.C+" *)0)->"+f+")", uint64(typ.Field(i).Type.Size()))
		}
	}
	for name, v := range unix.KdrvValues {
		say(name, name, v)
	}
	dir := t.TempDir()
	file, prog := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	if err := os.WriteFile(file, []byte(src+"return 0;\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-Wall", "-Werror", "-o", prog, file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command(prog).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), "=")
		got, err := strconv.ParseUint(text, 10, 64)
		if err != nil || got != want[name] {
			t.Errorf("%s: C says %s, this side %d", name, text, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not answered: %v", want)
	}
}

// TestKdrvLayoutIsFixed: the structures consist of integers of fixed width, each at a
// multiple of its size right behind the one before, and end at a multiple of their
// largest. So neither side can lay them out differently on another machine, amd64 or
// arm64.
func TestKdrvLayoutIsFixed(t *testing.T) {
	fixed := map[reflect.Kind]bool{reflect.Int8: true, reflect.Int16: true, reflect.Int32: true, reflect.Int64: true,
		reflect.Uint8: true, reflect.Uint16: true, reflect.Uint32: true, reflect.Uint64: true}
	for _, s := range unix.KdrvStructs {
		typ := reflect.TypeOf(s.V)
		end, largest := uintptr(0), uintptr(1)
		for i := range typ.NumField() {
			f := typ.Field(i)
			one := f.Type
			if one.Kind() == reflect.Array {
				one = one.Elem()
			}
			if !fixed[one.Kind()] || f.Offset != end || end%one.Size() != 0 {
				t.Errorf("%s.%s, %v at %d after %d bytes, is not of the same width and place everywhere", s.C, f.Name, f.Type, f.Offset, end)
			}
			end, largest = end+f.Type.Size(), max(largest, one.Size())
		}
		if typ.Size() != end || end%largest != 0 {
			t.Errorf("%s has %d bytes, its fields %d", s.C, typ.Size(), end)
		}
	}
}

// TestKdrvWords: every reason has words, and an unknown one does not fail.
func TestKdrvWords(t *testing.T) {
	seen := map[string]bool{}
	for w := unix.KdrvWhy(1); w < unix.KdrvWhys; w++ {
		if s := w.String(); s == "" || seen[s] {
			t.Errorf("reason %d: %q", w, s)
		}
		seen[w.String()] = true
	}
	if unix.KdrvWhy(1000).String() == "" || unix.KdrvIOMMU(9).String() != "unknown" || unix.KdrvIOMMUStrict.String() != "strict" {
		t.Error("unknown values")
	}
}

// TestKdrvSegmentsListStaysWhereItIs: the kernel fills the list at an address that it
// gets as a number. Short lists that do not outlive their function may be on the stack,
// which moves when it grows: what the kernel says would be lost, and hit other memory.
func TestKdrvSegmentsListStaysWhereItIs(t *testing.T) {
	f, err := unix.Open(os.DevNull, unix.ReadOnly, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, n := range []uint32{1, 2} {
		allocs := testing.AllocsPerRun(10, func() {
			list := make([]unix.KdrvSegment, min(n, unix.KdrvSegmentsMax))
			if got, err := unix.KdrvSegments(f, 2, 0, list); err != unix.ENOTTY {
				t.Errorf("%d, %v", got, err)
			}
		})
		if allocs < 1 {
			t.Errorf("a list of %d segments is on the stack", n)
		}
	}
}
