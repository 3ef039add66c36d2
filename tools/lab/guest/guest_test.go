//go:build ugds_lab

package guest

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// qmp asks the machine outside for something, and gives what it returned.
func qmp(t testing.TB, execute string, arguments map[string]any) json.RawMessage {
	t.Helper()
	answer, desc := ask(t, execute, arguments)
	if desc != "" {
		t.Fatalf("%s: %s", execute, desc)
	}
	return answer
}

// qmpTry is qmp for what may not work yet; it gives why not.
func qmpTry(t testing.TB, execute string, arguments map[string]any) (desc string) {
	t.Helper()
	_, desc = ask(t, execute, arguments)
	return desc
}

func ask(t testing.TB, execute string, arguments map[string]any) (answer json.RawMessage, desc string) {
	t.Helper()
	f, err := os.OpenFile("/dev/ttyS2", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if arguments == nil {
		arguments = map[string]any{}
	}
	line, err := json.Marshal(map[string]any{"execute": execute, "arguments": arguments})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	text, err := bufio.NewReader(f).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var a struct {
		Return json.RawMessage
		Error  *struct{ Desc string }
	}
	if err := json.Unmarshal(text, &a); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	if a.Error != nil {
		return nil, a.Error.Desc
	}
	return a.Return, ""
}

// monitor runs a command of QEMU's monitor for people, for what QMP lacks. It gives
// what was said: nothing, when all is well.
func monitor(t testing.TB, line string) (said string) {
	t.Helper()
	if err := json.Unmarshal(qmp(t, "human-monitor-command", map[string]any{"command-line": line}), &said); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(said)
}

// TestMachine: the guest is what the shape says, and the wire to the outside works.
func TestMachine(t *testing.T) {
	for _, d := range devicesOf(t, classNVMe) {
		t.Log("NVMe controller", d)
	}
	if len(devicesOf(t, classNVMe)) == 0 {
		t.Error("no NVMe controller")
	}
	var status struct{ Running bool }
	if err := json.Unmarshal(qmp(t, "query-status", nil), &status); err != nil || !status.Running {
		t.Errorf("%+v, %v", status, err)
	}
}
