package doctest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
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

// TestReadmeCode: the README shows exactly what Example compiles and runs.
func TestReadmeCode(t *testing.T) {
	code, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	want, err := Between(string(code), "example")
	if err != nil {
		t.Fatal(err)
	}
	got := Fenced(readme(t), "go")
	if len(got) != 1 || got[0] != want {
		t.Errorf("the README shows\n%s\nthe example is\n%s", strings.Join(got, "\n"), want)
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

func TestBetween(t *testing.T) {
	got, err := Between("a\n\t// begin n\n\tx\n\t\ty\n\t// end n\nb\n", "n")
	if err != nil || got != "x\n\ty\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := Between("a\n", "n"); err == nil {
		t.Error("a missing part was found")
	}
}
