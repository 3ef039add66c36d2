package doctest

import (
	"go/format"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/tools/ctl"
)

const repo = "../.."

func readme(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repo, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestReadmeCode runs the program of the README as it stands there, twice on one store.
func TestReadmeCode(t *testing.T) {
	blocks := Fenced(readme(t), "go")
	if len(blocks) != 1 {
		t.Fatalf("%d blocks", len(blocks))
	}
	if pretty, err := format.Source([]byte(blocks[0])); err != nil || string(pretty) != blocks[0] {
		t.Errorf("%v; gofmt makes it\n%s", err, pretty)
	}
	dir := t.TempDir()
	source, program, made := filepath.Join(dir, "try.go"), filepath.Join(dir, "try"), filepath.Join(dir, "made")
	if err := os.WriteFile(source, []byte(blocks[0]), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"vet", source}, {"build", "-o", program, source}} {
		cmd := exec.Command("go", args...)
		cmd.Dir = repo
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
	}
	e := &ctl.Env{Stdout: io.Discard, Stderr: io.Discard}
	if err := ctl.Format(t.Context(), e, &ctl.Target{Dir: made}, ctl.FormatOptions{Size: 64 << 20, Yes: true}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		out, err := exec.Command(program, made).CombinedOutput()
		if want := "leading blocks present: 1\nthe keys and values of some attention heads\n"; err != nil || string(out) != want {
			t.Errorf("%v, %q, want %q", err, out, want)
		}
	}
}

// TestReadmeCommands runs the commands that the README tells a newcomer to type,
// on a copy of what they need and with a directory of its own.
func TestReadmeCommands(t *testing.T) {
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "bin")+"/", "./cmd/ugdsctl")
	build.Dir = repo
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "README.md"), []byte(readme(t)), 0o644); err != nil {
		t.Fatal(err)
	}
	var script string
	for _, block := range Fenced(readme(t), "sh") {
		if strings.Contains(block, "bin/ugdsctl") {
			script += strings.ReplaceAll(block, "/tmp/try-ugds", filepath.Join(dir, "try"))
		}
	}
	script = strings.ReplaceAll(script, "make build\n", "")
	if strings.Count(script, "bin/ugdsctl") < 8 {
		t.Fatalf("too few commands found:\n%s", script)
	}
	cmd := exec.Command("sh", "-euxc", script)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"hello, world", "uGDS Store", "clean"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestFenced(t *testing.T) {
	doc := "a\n```go\nx\ny\n```\nb\n```sh\nz\n```\n```go\nw\n```\nopen\n```go\nnever closed\n"
	got := Fenced(doc, "go")
	if len(got) != 2 || got[0] != "x\ny\n" || got[1] != "w\n" {
		t.Errorf("got %q", got)
	}
}
