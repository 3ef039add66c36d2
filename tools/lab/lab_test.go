package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestArchiveOf(t *testing.T) {
	stanza := "Types: deb\n# a comment\nURIs: http://example.org/debian\nSuites: twig twig-updates\nComponents: main\nSigned-By: /usr/share/keyrings/k.gpg\n"
	security := strings.ReplaceAll(strings.ReplaceAll(stanza, "twig twig-updates", "twig-security"), "/debian", "/security")
	for name, c := range map[string]struct{ text, uri, key string }{
		"deb822":            {security + "\n" + stanza, "http://example.org/debian", "/usr/share/keyrings/k.gpg"},
		"one line":          {"# x\ndeb http://example.org/d twig main\n", "http://example.org/d", ""},
		"one line, options": {"deb [arch=amd64 signed-by=/k.gpg] http://example.org/d twig main\n", "http://example.org/d", "/k.gpg"},
		"other suite":       {security + "\ndeb http://example.org/d twig-security main\n", "", ""},
		"sources only":      {"deb-src http://example.org/d twig main\n", "", ""},
	} {
		if uri, key := archiveOf(c.text, "twig"); uri != c.uri || key != c.key {
			t.Errorf("%s: %q, %q", name, uri, key)
		}
	}
}

func TestCompareVersions(t *testing.T) {
	sorted := []string{"6.1.170+deb12", "6.12.9+deb12", "6.12.95+deb12", "6.12.95+deb13", "6.12.117+deb13"}
	if !slices.IsSortedFunc(sorted, compareVersions) {
		t.Error("order of versions")
	}
	if compareVersions("6.12.9", "6.12.9") != 0 {
		t.Error("equal versions differ")
	}
}

// TestArchive: cpio reads back what was written.
func TestArchive(t *testing.T) {
	program, err := exec.LookPath("cpio")
	if err != nil {
		if program, err = exec.LookPath("busybox"); err != nil {
			testenv.Skip(t, "needs cpio or busybox")
		}
	}
	want := tree{"init": {[]byte("#!x\n"), true}, "a/b/c": {[]byte("xyz"), false}, "a/empty": {nil, false}}
	var out bytes.Buffer
	if err := want.writeCPIO(&out); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	args := []string{"-idm", "--quiet"}
	if filepath.Base(program) == "busybox" {
		args = []string{"cpio", "-idm"}
	}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdin = dir, &out
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for name, f := range want {
		data, err := os.ReadFile(filepath.Join(dir, name))
		info, err2 := os.Stat(filepath.Join(dir, name))
		if err != nil || err2 != nil || !bytes.Equal(data, f.data) || (info.Mode()&0o100 != 0) != f.exec {
			t.Errorf("%s: %q, %v, %v", name, data, err, err2)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "proc")); err != nil || !info.IsDir() {
		t.Errorf("no folder to mount on: %v", err)
	}
}

// guestText is the output of a guest in which all is well.
const guestText = "noise\r\nLAB INIT kernel 6\r\nLAB SUITE a\r\n=== RUN   TestX\r\n    x_test.go:1: said\r\n" +
	"=== RUN   TestX/sub\r\n--- PASS: TestX (0.10s)\r\n    --- PASS: TestX/sub (0.01s)\r\nPASS\r\n\r\nLAB END a 0\r\n" +
	"LAB COVER\r\nmode: set\r\ngithub.com/x/y.go:1.2,3.4 5 1\r\nLAB DMESG\r\n[    0.0] Linux version 6\r\nLAB DONE\r\n"

// TestRead: what is wrong with a guest is found, whatever it is.
func TestRead(t *testing.T) {
	suites := []suite{{name: "a"}}
	r := read(guestText, suites, io.Discard)
	if r.passed != 2 || r.failed != 0 || len(r.faults) != 0 || len(r.cover) != 2 {
		t.Errorf("%+v", r)
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"failed test":     {"--- PASS: TestX (", "--- FAIL: TestX (", ""},
		"status":          {"LAB END a 0", "LAB END a 2", "ended with status 2"},
		"no PASS":         {"\nPASS\r", "\n\r", "ended with status 0"},
		"killed":          {"PASS\r\n\r\nLAB END a 0\r\n", "", "did not end"},
		"suite is gone":   {"LAB SUITE a", "x", "did not run"},
		"panic":           {"LAB DONE", "", "not done"},
		"module":          {"noise", "insmod mods/x.ko failed", "insmod"},
		"warning":         {"[    0.0]", "[    0.0] WARNING: CPU: 0\r\n[    0.0]", "WARNING"},
		"DMA fault":       {"[    0.0]", "[    0.0] DMAR: [DMA Write NO_PASID] Request device [00:04.0] fault addr 0x1\r\n[    0.0]", "DMAR"},
		"no log":          {"[    0.0] Linux version 6\r\n", "", "log is missing"},
		"after no more":   {"[    0.0]", "[1] ugds-lab: expect DMAR\r\n[1] ugds-lab: no more\r\n[1] DMAR: x fault\r\n[    0.0]", "DMAR"},
		"another trouble": {"[    0.0]", "[1] ugds-lab: expect DMAR\r\n[1] BUG: x\r\n[    0.0]", "BUG"},
	} {
		text := strings.Replace(guestText, c.old, c.new, 1)
		if text == guestText {
			t.Fatalf("%s: nothing to replace", name)
		}
		var out bytes.Buffer
		r := read(text, suites, &out)
		if r.ok() || !strings.Contains(strings.Join(r.faults, "\n"), c.want) {
			t.Errorf("%s: %+v", name, r)
		}
		if name == "failed test" && !strings.Contains(out.String(), "x_test.go:1: said") {
			t.Errorf("%s: what it said is not shown: %q", name, out.String())
		}
	}
	expected := strings.Replace(guestText, "[    0.0]", "[1] ugds-lab: expect DMAR\r\n[1] DMAR: x fault\r\n[2] ugds-lab: no more\r\n[    0.0]", 1)
	if r := read(expected, suites, io.Discard); !r.ok() {
		t.Errorf("an expected fault: %+v", r)
	}
}

// TestCovered: a block that any guest ran counts as run.
func TestCovered(t *testing.T) {
	c := covered{}
	for _, line := range []string{"mode: set", "a.go:1.2,3.4 3 0", "a.go:5.2,6.4 1 1", "noise", "a.go:1.2,3.4 3 1", "mode: set", "a.go:5.2,6.4 1 0",
		"a.go:7.1,8.1 6 0", ""} {
		c.add(line)
	}
	file := filepath.Join(t.TempDir(), "cover")
	percent, err := c.write(file)
	text, err2 := os.ReadFile(file)
	if want := "mode: set\na.go:1.2,3.4 3 1\na.go:5.2,6.4 1 1\na.go:7.1,8.1 6 0\n"; err != nil || err2 != nil || string(text) != want || percent != 40 {
		t.Errorf("%v %%, %q, %v, %v", percent, text, err, err2)
	}
}

// TestShapes: names are unique, and every device has its image.
func TestShapes(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range shapes {
		if seen[s.name] {
			t.Errorf("two shapes %s", s.name)
		}
		seen[s.name] = true
		args := strings.Join(s.args("/d"), " ")
		if strings.Contains(args, "DIR") {
			t.Errorf("%s: %s", s.name, args)
		}
		for _, i := range s.images {
			if strings.Count(args, "filename=/d/"+i.name) != 1 {
				t.Errorf("%s: image %s is not used once", s.name, i.name)
			}
		}
	}
}

// TestFirstLines: at most so many lines of a file, whole.
func TestFirstLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(file, []byte("a\nbb\nc"), 0o600); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]string{1: "a\n", 2: "a\nbb\n", 3: "a\nbb\nc", 9: "a\nbb\nc"} {
		if got, err := firstLines(file, n); err != nil || string(got) != want {
			t.Errorf("%d lines: %q, %v", n, got, err)
		}
	}
}
