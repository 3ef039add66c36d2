package mmio_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/testenv"
)

// golden are the instructions of each routine, for each machine: one access, and
// the barrier on the right side of it. $1 is OSHLD, $2 is OSHST.
var golden = map[string]string{
	"amd64": `load32
MOVQ 0x8(SP), AX
MOVL 0(AX), AX
MOVL AX, 0x10(SP)
RET
store32
MOVQ 0x8(SP), AX
MOVL 0x10(SP), CX
SFENCE
MOVL CX, 0(AX)
RET
`,
	"arm64": `load32
MOVD 8(RSP), R0
MOVWU (R0), R1
DMB $1
MOVW R1, 16(RSP)
RET
store32
MOVD 8(RSP), R0
MOVW 16(RSP), R1
DMB $2
MOVW R1, (R0)
RET
`,
}

// TestGoldenDisassembly assembles the routines for both machines and reads back
// what the assembler made of them.
func TestGoldenDisassembly(t *testing.T) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	include := filepath.Join(strings.TrimSpace(string(root)), "pkg", "include")
	for arch, want := range golden {
		obj := filepath.Join(t.TempDir(), arch+".o")
		asm := exec.Command("go", "tool", "asm", "-p", "mmio", "-I", include, "-o", obj, "access_"+arch+".s")
		asm.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch)
		if out, err := asm.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", arch, err, out)
		}
		out, err := exec.Command("go", "tool", "objdump", obj).Output()
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		if got := instructions(string(out)); got != want {
			t.Errorf("%s: got\n%swant\n%s", arch, got, want)
		}
	}
}

// instructions strips addresses and encodings, and the padding between routines.
func instructions(dump string) string {
	var out strings.Builder
	for line := range strings.Lines(dump) {
		if name, ok := strings.CutPrefix(line, "TEXT mmio."); ok {
			fmt.Fprintln(&out, name[:strings.Index(name, "(")])
			continue
		}
		f := strings.Fields(line)
		if len(f) < 4 || f[3] == "?" {
			continue
		}
		fmt.Fprintln(&out, strings.Join(f[3:], " "))
	}
	return out.String()
}

// TestUnderEmulation runs this package's other tests for arm64 under qemu-user; on
// arm64 they have run already.
func TestUnderEmulation(t *testing.T) {
	if runtime.GOARCH == "arm64" || testing.Short() {
		return
	}
	qemu, err := exec.LookPath("qemu-aarch64-static")
	if err != nil {
		testenv.Skip(t, "needs qemu-aarch64-static")
	}
	bin := filepath.Join(t.TempDir(), "mmio.test")
	build := exec.Command("go", "test", "-c", "-o", bin, ".")
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	cmd := exec.Command(qemu, bin, "-test.run=TestAccess|TestBadOffsets|TestH04|TestEntryOrder|TestOverlay", "-test.v")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), "--- PASS") != 5 {
		t.Errorf("%v:\n%s", err, out)
	}
}
