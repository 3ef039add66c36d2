package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/tools/ctl"
)

// asProgram makes the test binary behave as ugdsctl itself, so that tests can
// start it as another process.
const asProgram = "UGDSCTL_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "1" {
		os.Exit(run())
	}
	os.Setenv(asProgram, "1") // for the processes that verbs start
	testenv.Main(m)
}

// call runs one command line in this process.
func call(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	env := &ctl.Env{Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs}
	code = execute(context.Background(), env, args)
	return out.String(), errs.String(), code
}

var (
	someID     = regexp.MustCompile(`\b[0-9a-f]{32}\b`)
	someFree   = regexp.MustCompile(`[0-9.]+ [KMGT]?i?B free`)
	someQueues = regexp.MustCompile(`asked for [0-9]+ in all`) // depends on the processors
	someFits   = regexp.MustCompile(`(--size [0-9]+[MG]iB fits, )?(--sparse reserves|--store DIR goes|free space or go elsewhere; --sparse)`)
)

// TestScripts runs the golden scripts. Each command is one command line; what
// follows the first line is standard input. The output holds standard output,
// standard error and the exit status if it is not 0. Rewrite with -rewrite.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		dir := t.TempDir()
		clean := func(s string) string {
			s = strings.ReplaceAll(s, dir, "$T")
			s = someID.ReplaceAllString(s, "<id>")
			s = someQueues.ReplaceAllString(s, "asked for <n> in all")
			s = someFits.ReplaceAllString(s, "<fits> $2")
			return someFree.ReplaceAllString(s, "<n> free")
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			line, stdin, _ := strings.Cut(d.Input, "\n")
			args := split(t, strings.ReplaceAll(line, "$T", dir))
			switch d.Cmd {
			case "ugdsctl":
				out, errs, code := call(t, stdin, args...)
				if code != 0 {
					errs += fmt.Sprintf("exit %d\n", code)
				}
				return clean(out + errs)
			case "file": // writes a file
				if err := os.WriteFile(args[0], []byte(stdin), 0o644); err != nil {
					t.Fatal(err)
				}
				return ""
			case "cat": // reads one
				data, err := os.ReadFile(args[0])
				if err != nil {
					return clean(err.Error()) + "\n"
				}
				return string(data) + "\n"
			case "damage": // overwrites bytes: FILE OFFSET
				damageAt(t, args[0], args[1])
				return ""
			case "copy": // copies a directory: FROM TO
				if err := os.CopyFS(args[1], os.DirFS(args[0])); err != nil {
					t.Fatal(err)
				}
				return ""
			case "big": // makes a file of a size: FILE SIZE
				n, err := base.ParseBytes(args[1])
				if err == nil {
					err = os.WriteFile(args[0], make([]byte, n), 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
				return ""
			case "cut": // sets the size of a file: FILE SIZE
				n, err := base.ParseBytes(args[1])
				if err == nil {
					err = os.Truncate(args[0], n)
				}
				if err != nil {
					t.Fatal(err)
				}
				return ""
			case "rm":
				if err := os.RemoveAll(args[0]); err != nil {
					t.Fatal(err)
				}
				return ""
			case "tree": // lists what is below a directory
				return tree(t, args[0])
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

// split cuts a line into arguments; single quotes keep spaces.
func split(t *testing.T, line string) []string {
	var args []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			args = append(args, part)
			continue
		}
		args = append(args, strings.Fields(part)...)
	}
	if strings.Count(line, "'")%2 != 0 {
		t.Fatalf("quote left open: %s", line)
	}
	return args
}

func damageAt(t *testing.T, path, offset string) {
	t.Helper()
	n, err := base.ParseBytes(offset)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("damage"), n); err != nil {
		t.Fatal(err)
	}
}

func tree(t *testing.T, dir string) string {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p) // p is below dir
		info, err := d.Info()
		if err != nil {
			return err
		}
		if rel == filepath.Join("meta", "db") {
			fmt.Fprintf(&b, "%v %s\n", info.Mode(), rel)
			return filepath.SkipDir
		}
		fmt.Fprintf(&b, "%v %s\n", info.Mode(), rel)
		return nil
	})
	if err != nil {
		return "none\n"
	}
	return b.String()
}
