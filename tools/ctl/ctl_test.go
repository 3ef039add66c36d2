package ctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/meta"
)

func TestMain(m *testing.M) { testenv.Main(m, meta.ExemptGoroutine) }

// lab is a store in a temporary directory and the Env of its verbs.
type lab struct {
	*Env
	target   *Target
	out, err *bytes.Buffer
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{out: new(bytes.Buffer), err: new(bytes.Buffer), target: &Target{Dir: filepath.Join(t.TempDir(), "s")}}
	l.Env = &Env{Stdin: strings.NewReader(""), Stdout: l.out, Stderr: l.err}
	if err := Format(t.Context(), l.Env, l.target, FormatOptions{Size: 64 * base.MiB, Yes: true}); err != nil {
		t.Fatal(err)
	}
	l.out.Reset()
	return l
}

func (l *lab) put(t *testing.T, key string, value []byte) {
	t.Helper()
	l.Stdin = bytes.NewReader(value)
	if err := Put(t.Context(), l.Env, l.target, PutOptions{Key: key, File: Std}); err != nil {
		t.Fatal(err)
	}
}

func (l *lab) keys(t *testing.T) string {
	t.Helper()
	l.out.Reset()
	if err := Ls(t.Context(), l.Env, l.target, LsOptions{}); err != nil {
		t.Fatal(err)
	}
	return l.out.String()
}

func TestParseRange(t *testing.T) {
	for text, want := range map[string]byteRange{
		"": {0, -1}, "0:0": {0, 0}, "5:": {5, -1}, ":7": {0, 7}, "1KiB:2MiB": {1024, 2 << 20},
		"9223372036854775807:1": {1<<63 - 1, 1},
	} {
		if got, err := parseRange(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{":", "5", "-1:2", "1:-2", "a:b", "1:2:3", "99999999999999999999:1"} {
		if _, err := parseRange(text); ExitCode(err) != ExitUsage {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, r := range []byteRange{{0, 11}, {11, 0}, {10, 1}, {11, -1}, {12, -1}, {1<<63 - 1, 1}, {0, 1<<63 - 1}} {
		_, n, err := r.of("k", 10)
		if good := r.off <= 10 && r.len <= 10-r.off; good != (err == nil) || n < 0 && good {
			t.Errorf("%v of 10 bytes: %d, %v", r, n, err)
		}
	}
}

func TestKeys(t *testing.T) {
	hexed := &Target{Hex: true}
	for key, shown := range map[string]string{
		"plain": "plain", "sp ace/é": "sp ace/é", "\x00\xff": "hex:00ff", "tab\t": "hex:74616209",
		"hex:61": "hex:6865783a3631", "\xc3": "hex:c3", "new\nline": "hex:6e65770a6c696e65",
	} {
		if got := (&Target{}).showKey([]byte(key)); got != shown {
			t.Errorf("%q is shown as %q, want %q", key, got, shown)
		}
		back, err := hexed.parseKey("get", hexed.showKey([]byte(key)))
		if err != nil || string(back) != key {
			t.Errorf("%q came back as %q, %v", key, back, err)
		}
	}
	for n, good := range map[int]bool{0: false, 1: true, 1024: true, 1025: false} {
		if _, err := (&Target{}).parseKey("get", strings.Repeat("k", n)); good != (err == nil) {
			t.Errorf("%d bytes: %v", n, err)
		}
		if _, err := hexed.parseKey("get", strings.Repeat("6b", n)); good != (err == nil) {
			t.Errorf("%d bytes in hexadecimal: %v", n, err)
		}
	}
}

// TestConfig covers K-07: what looks like a value of another type is refused,
// and so is a name that nobody knows.
func TestConfig(t *testing.T) {
	const whole = "version = 1\ndevices = ['d']\nmeta = 'm'\n"
	for _, text := range []string{whole, whole + "discard = true\n", whole + "discard = false\n"} {
		if _, err := parseConfig("x", []byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for text, want := range map[string]string{
		whole + "discard = 'true'\n":                "discard must be true or false",
		whole + "discard = 1\n":                     "discard must be true or false",
		whole + "discard = yes\n":                   "line 4",
		whole + "discard = TRUE\n":                  "line 4",
		whole + "discard = ''\n":                    "discard must be true or false",
		whole + "metta = 'x'\n":                     `unknown field "metta" (did you mean "meta"?)`,
		whole + "[more]\nx = 1\n":                   `unknown field "more`,
		"version = 1\nversion = 1\n":                "line 2",
		"":                                          "version is missing; devices has 0 entries, 1 to 64 are possible; meta is missing",
		"version = 1\ndevices = ['']\nmeta = 'm'\n": "entry 1 is empty",
		"version = 1\ndevices = [" + strings.Repeat("'d',", 65) + "]\nmeta = 'm'\n": "65 entries",
		"version = 1\ndevices = 'd'\nmeta = 'm'\n":                                  "devices must be a list of strings",
		"version = 1\ndevices = [1]\nmeta = 'm'\n":                                  "line 2",
		"version = 1.5\ndevices = ['d']\nmeta = 'm'\n":                              "version must be a number",
		"version = 99999999999999999999\ndevices = ['d']\nmeta = 'm'\n":             "line 1",
	} {
		_, err := parseConfig("x", []byte(text))
		if !errors.Is(err, base.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestConfigMoves: a directory can be moved, and what lies outside stays where
// it is.
func TestConfigMoves(t *testing.T) {
	c := newConfig(&Target{Dir: "/a/s"}, []string{"/a/s/data.ugds", "file:/a/s/x", "file:/b/y", "/a/so"}, "/a/s/meta", true)
	want := []string{"data.ugds", "file:x", "file:/b/y", "/a/so"}
	if fmt.Sprint(c.Devices) != fmt.Sprint(want) || c.Meta != "meta" || !c.Discard {
		t.Errorf("%+v", c)
	}
	for i, p := range []string{"/c/data.ugds", "file:/c/x", "file:/b/y", "/a/so"} {
		if got := targetAt("/c", c.Devices[i]); got != p {
			t.Errorf("%s, want %s", got, p)
		}
	}
	if got := targetAt("/c", "pci:0000:01:00.0"); got != "pci:0000:01:00.0" {
		t.Error(got)
	}
}

// TestExitCodes: each class has a name and a status, also through wrappers.
func TestExitCodes(t *testing.T) {
	for _, c := range classes {
		name, code := classify(base.WithHint(base.Wrap("op", "object", fmt.Errorf("x: %w", c.err)), "hint"))
		if name != c.name || code != c.code {
			t.Errorf("%v: %s %d", c.err, name, code)
		}
	}
	for err, want := range map[error]int{
		nil: 0, errors.New("x"): 1, usage("v", "x"): 2, base.ErrNotFound: 3, base.ErrExists: 4, base.ErrLocked: 5,
		interrupted{}: 130, syscall.EPIPE: 141, quietly(4): 4, FsckArgs(usage("fsck", "x")): 8,
		base.Errorf("wait", "x", base.ErrTimeout, "%w", context.Canceled): 130,
	} {
		if got := ExitCode(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
	if FsckArgs(nil) != nil || Quiet(errors.New("x")) || !Quiet(quietly(1)) || !Quiet(base.Wrap("write", "x", syscall.EPIPE)) {
		t.Error("quiet errors")
	}
}

// TestPutFailsWhole: an input that breaks in the middle leaves nothing, a
// replaced value included.
func TestPutFailsWhole(t *testing.T) {
	l := newLab(t)
	l.put(t, "old", []byte("first"))
	for _, key := range []string{"new", "old"} {
		l.Stdin = io.MultiReader(bytes.NewReader(make([]byte, 9<<20)), iotest.ErrReader(syscall.EIO))
		err := Put(t.Context(), l.Env, l.target, PutOptions{Key: key, File: Std, Replace: true})
		if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "read standard input") {
			t.Errorf("%s: %v", key, err)
		}
	}
	if got := l.keys(t); got != "old\n" {
		t.Errorf("keys %q", got)
	}
	l.out.Reset()
	if err := Get(t.Context(), l.Env, l.target, GetOptions{Key: "old", File: Std}); err != nil || l.out.String() != "first" {
		t.Errorf("%q, %v", l.out, err)
	}
}

// TestGetFailsWhole: a value that is damaged on the device leaves the file as it
// was, and no other file either.
func TestGetFailsWhole(t *testing.T) {
	l := newLab(t)
	value := bytes.Repeat([]byte("0123456789abcdef"), 6<<20/16)
	l.put(t, "k", value)
	damage(t, filepath.Join(l.target.Dir, dataName), value[:64], 5<<20)
	dir := t.TempDir()
	name := filepath.Join(dir, "out")
	if err := os.WriteFile(name, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: name, Force: true})
	if !errors.Is(err, base.ErrCorrupt) || ExitCode(err) != ExitFailure {
		t.Errorf("%v", err)
	}
	got, _ := os.ReadFile(name)
	entries, _ := os.ReadDir(dir)
	if string(got) != "before" || len(entries) != 1 {
		t.Errorf("%q, %d files", got, len(entries))
	}
	// The range before the damage is good, and verified.
	l.out.Reset()
	if err := Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: Std, Range: "100:1MiB"}); err != nil ||
		!bytes.Equal(l.out.Bytes(), value[100:100+1<<20]) {
		t.Errorf("a range before the damage: %v", err)
	}
}

// damage flips a bit of a value, which begins on the device with the given
// bytes, at or after off.
func damage(t *testing.T, path string, begin []byte, off int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	i := bytes.Index(data, begin)
	if i < 0 {
		t.Fatal("the value is not on the device")
	}
	data[i+off] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRanges reads every kind of range of a value of several pieces.
func TestRanges(t *testing.T) {
	l := newLab(t)
	value := make([]byte, 9<<20+123)
	for i := range value {
		value[i] = byte(i * 7 >> 3)
	}
	l.put(t, "k", value)
	for _, r := range [][2]int{{0, len(value)}, {0, 1}, {1, 4 << 20}, {4<<20 - 1, 2}, {3, 9 << 20}, {len(value) - 1, 1}, {len(value), 0}, {4096, 4096}} {
		l.out.Reset()
		err := Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: Std, Range: fmt.Sprintf("%d:%d", r[0], r[1])})
		if err != nil || !bytes.Equal(l.out.Bytes(), value[r[0]:r[0]+r[1]]) {
			t.Errorf("%v: %d bytes, %v", r, l.out.Len(), err)
		}
	}
}

// TestFormatLeavesNothing: a format that fails removes the file it made.
func TestFormatLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	e := &Env{Stdout: io.Discard, Stderr: io.Discard}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	target := &Target{Dir: filepath.Join(dir, "s"), Meta: filepath.Join(dir, "file", "meta")}
	if err := Format(t.Context(), e, target, FormatOptions{Size: 64 * base.MiB, Yes: true}); err == nil {
		t.Fatal("metadata below a file")
	}
	if _, err := os.Stat(filepath.Join(target.Dir, dataName)); err == nil {
		t.Error("the data file is left")
	}
	if _, err := os.Stat(filepath.Join(target.Dir, ConfigName)); err == nil {
		t.Error("store.toml is left")
	}
}

// TestSparse: a sparse store takes no space before something is put.
func TestSparse(t *testing.T) {
	e := &Env{Stdout: io.Discard, Stderr: io.Discard}
	target := &Target{Dir: t.TempDir()}
	if err := Format(t.Context(), e, target, FormatOptions{Size: base.TiB, Yes: true, Sparse: true}); err != nil {
		if errors.Is(err, base.ErrNoSpace) || errors.Is(err, syscall.EFBIG) {
			testenv.Skip(t, "the file system has no files of 1 TiB")
		}
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(target.Dir, dataName))
	if err != nil {
		t.Fatal(err)
	}
	if sys := st.Sys().(*syscall.Stat_t); sys.Blocks*512 > 64*base.MiB {
		t.Errorf("%d bytes allocated", sys.Blocks*512)
	}
}

// TestSparseGivesBack: a store made with --sparse gives the space of what was
// removed back, although each command has it open only for a moment.
func TestSparseGivesBack(t *testing.T) {
	l := &lab{out: new(bytes.Buffer), err: new(bytes.Buffer), target: &Target{Dir: filepath.Join(t.TempDir(), "s")}}
	l.Env = &Env{Stdout: l.out, Stderr: l.err}
	if err := Format(t.Context(), l.Env, l.target, FormatOptions{Size: 128 * base.MiB, Sparse: true, Yes: true}); err != nil {
		t.Fatal(err)
	}
	blocks := func() int64 {
		st, err := unix.StatPath(filepath.Join(l.target.Dir, dataName))
		if err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	empty := blocks()
	l.put(t, "big", make([]byte, 40*base.MiB))
	if blocks() < empty+40*base.MiB {
		testenv.Skip(t, "the file system does not tell how much space a file takes")
	}
	if err := Rm(t.Context(), l.Env, l.target, RmOptions{Keys: []string{"big"}}); err != nil {
		t.Fatal(err)
	}
	if n := blocks(); n > empty+4*base.MiB {
		t.Errorf("%d bytes are left of %d", n-empty, 40*base.MiB)
	}
	l.out.Reset()
	if err := Stat(t.Context(), l.Env, l.target); err != nil || strings.Contains(l.out.String(), "no discard") {
		t.Errorf("%v, %s", err, l.out)
	}
}

// TestPutChangedFile: a file whose size changes while it is read is not stored, and the
// value that was there stays.
func TestPutChangedFile(t *testing.T) {
	for _, size := range []int64{0, 100, 12 << 20} {
		l := newLab(t)
		l.put(t, "k", []byte("before"))
		file := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(file, make([]byte, 9<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		l.Progress = func(string, int64, bool) Bar {
			return barFunc(func(int64) {
				if err := os.Truncate(file, size); err != nil {
					t.Error(err)
				}
			})
		}
		err := Put(t.Context(), l.Env, l.target, PutOptions{Key: "k", File: file, Replace: true})
		if ExitCode(err) != ExitFailure || !strings.Contains(err.Error(), fmt.Sprintf("from 9437184 to %d bytes", size)) {
			t.Errorf("%d: %v", size, err)
		}
		l.Progress = nil
		l.out.Reset()
		if err := Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: Std}); err != nil || l.out.String() != "before" {
			t.Errorf("%d: %v, %d bytes", size, err, l.out.Len())
		}
	}
}
