package ctl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/store"
)

// attachLoop makes a block device over what path names, until the test ends.
func attachLoop(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command("losetup", "-f", "--show", path).Output()
	if err != nil {
		testenv.Skip(t, "losetup: "+err.Error())
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "-d", dev).CombinedOutput(); err != nil {
			t.Errorf("losetup -d: %v %s", err, out)
		}
	})
	return dev
}

// failsWith checks the status of an error and what it says.
func failsWith(t *testing.T, what string, err error, status int, says string) {
	t.Helper()
	if ExitCode(err) != status || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v, want status %d and %q", what, err, status, says)
	}
}

// TestGetToBlockDevice: get writes over a block device only with --force, says before what
// that holds, and refuses one on which a store lies or that is in use.
func TestGetToBlockDevice(t *testing.T) {
	testenv.NeedRoot(t)
	l := newLab(t)
	l.put(t, "k", []byte("value"))
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, isoLike("CD001"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 64*base.MiB); err != nil {
		t.Fatal(err)
	}
	dev := attachLoop(t, path)
	get := func(force bool) error {
		return Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: dev, Force: force})
	}
	begins := func(want string) {
		t.Helper()
		b := make([]byte, len(want))
		f, err := os.Open(dev)
		if err == nil {
			_, err = f.Read(b)
			_ = f.Close()
		}
		if err != nil || string(b) != want {
			t.Errorf("it begins with %q, want %q, %v", b, want, err)
		}
	}
	failsWith(t, "without --force", get(false), ExitExists, "which holds an ISO 9660 image (--force writes over it)")
	begins("\x00\x00\x00\x00\x00")
	if err := get(true); err != nil {
		t.Errorf("--force: %v", err)
	}
	begins("value")
	small := filepath.Join(t.TempDir(), "small")
	if err := os.WriteFile(small, bytes.Repeat([]byte("x"), base.MiB), 0o600); err != nil {
		t.Fatal(err)
	}
	l.put(t, "large", make([]byte, base.MiB+1))
	err := Get(t.Context(), l.Env, l.target, GetOptions{Key: "large", File: attachLoop(t, small), Force: true})
	failsWith(t, "larger than it", err, ExitFailure, "it has 1048576 bytes, 1048577 are to be written")
	if kept, err := os.ReadFile(small); err != nil || !bytes.Equal(kept, bytes.Repeat([]byte("x"), base.MiB)) {
		t.Errorf("larger than it: written over, %v", err)
	}
	t.Run("another one is built on it", func(t *testing.T) {
		second := attachLoop(t, dev)
		failsWith(t, "--force", get(true), ExitLocked, second)
	})
	page := smallBench(t)
	page.HTML, page.Force = dev, true
	failsWith(t, "a page", Bench(t.Context(), l.Env, &Target{}, page), ExitUsage, "is a block device")
	theirs := &Target{Devices: []string{dev}, Meta: filepath.Join(t.TempDir(), "m")}
	if err := Format(t.Context(), l.Env, theirs, FormatOptions{Yes: true}); err != nil {
		t.Fatal(err)
	}
	failsWith(t, "a store", get(true), ExitExists, "it holds device 0 of 1")
	s, err := l.open(t.Context(), "put", theirs, false)
	if err != nil {
		t.Fatal(err)
	}
	failsWith(t, "an open store", get(true), ExitLocked, "has it open")
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

// TestGetToCharacterDevice: only terminals and devices that keep nothing are written to
// without --force.
func TestGetToCharacterDevice(t *testing.T) {
	l := newLab(t)
	l.put(t, "k", []byte("value"))
	err := Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: "/dev/random"})
	failsWith(t, "a device that takes bytes", err, ExitExists, "it is a character device (--force writes over it)")
	if err := Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: "/dev/null"}); err != nil {
		t.Error(err)
	}
	if err := mayOutput(t.Context(), "get", "/dev/tty", false); err != nil {
		t.Errorf("a terminal: %v", err)
	}
	if err := mayOutput(t.Context(), "get", "/dev/random", true); err != nil {
		t.Errorf("--force: %v", err)
	}
}

// TestGetToDescriptor: a name of an open file is no file that can be replaced; - is for that.
func TestGetToDescriptor(t *testing.T) {
	l := newLab(t)
	l.put(t, "k", []byte("value"))
	f, err := os.Create(filepath.Join(t.TempDir(), "open"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	link := filepath.Join(t.TempDir(), "link") // as /dev/stdout is one
	if err := os.Symlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{fmt.Sprintf("/dev/fd/%d", f.Fd()), fmt.Sprintf("/proc/self/fd/%d", f.Fd()), link} {
		for _, force := range []bool{false, true} {
			err := Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: name, Force: force})
			failsWith(t, name, err, ExitUsage, "write to - instead")
		}
	}
	plain := filepath.Join(t.TempDir(), "plain") // a link to a file is one still
	if err := errors.Join(os.Remove(link), os.WriteFile(plain, nil, 0o600), os.Symlink(plain, link)); err != nil {
		t.Fatal(err)
	}
	if err := Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: link, Force: true}); err != nil {
		t.Error(err)
	}
}

// TestNothingInMetadata: no verb replaces or makes a file in the metadata of another
// store, or replaces what names the parts of one, under whatever name.
func TestNothingInMetadata(t *testing.T) {
	l, other := newLab(t), newLab(t)
	l.put(t, "k", []byte("value"))
	other.put(t, "k", []byte("value"))
	in := func(name string) string { return filepath.Join(other.target.Dir, name) }
	logs, err := filepath.Glob(in("meta/db/*"))
	if err != nil || len(logs) < 4 {
		t.Fatal(logs, err)
	}
	dir := t.TempDir()
	copied, link := filepath.Join(dir, "copy"), filepath.Join(dir, "link")
	text, err := os.ReadFile(in(ConfigName))
	if err := errors.Join(err, os.WriteFile(copied, text, 0o600), os.Symlink(in("meta"), link)); err != nil {
		t.Fatal(err)
	}
	outputs := append(logs, in("meta/IDENTITY"), in("meta/LOCK"), in("meta/new"), in("meta/db/new"), in(ConfigName), copied,
		filepath.Join(link, "IDENTITY"), filepath.Join(link, "new"))
	outFails := func(what, name string) {
		t.Helper()
		page := smallBench(t)
		page.HTML, page.Force = name, true
		for verb, err := range map[string]error{
			"get":   Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: name, Force: true}),
			"bench": Bench(t.Context(), l.Env, &Target{}, page),
		} {
			failsWith(t, what+verb+" "+name, err, ExitUsage, " of a store")
		}
	}
	for _, name := range outputs {
		outFails("", name)
	}
	table := in("meta/BALLAST") // the largest file
	o := smallBench(t)
	o.Raw, o.Yes = table, true
	d := BenchOptions{Ops: []string{"write"}, Sizes: []string{"4KiB"}, Callers: []int{1}, Depths: []int{1}, Batches: []int{1}, Bytes: 1, Yes: true}
	format := func(target *Target) error {
		return Format(t.Context(), l.Env, target, FormatOptions{Size: 64 * base.MiB, Yes: true})
	}
	o2, demo := smallBench(t), DemoOptions{Size: DemoMinSize}
	o2.Dir = in("meta/new")
	for what, err := range map[string]error{
		"bench --raw":     Bench(t.Context(), l.Env, &Target{}, o),
		"bench --device":  Bench(t.Context(), l.Env, &Target{Devices: []string{table}}, d),
		"bench --dir":     Bench(t.Context(), l.Env, &Target{}, o2),
		"demo":            Demo(t.Context(), l.Env, &Target{Dir: in("meta/new")}, demo),
		"man":             Man(t.Context(), l.Env, ManOptions{Dir: in("meta"), Pages: map[string][]byte{"x.1": nil}}),
		"format --device": format(&Target{Devices: []string{in("meta/new")}, Meta: filepath.Join(dir, "m")}),
		"format --meta":   format(&Target{Devices: []string{filepath.Join(dir, "d")}, Meta: in("meta/db/new")}),
		"format --store":  format(&Target{Dir: in("meta/new")}),
	} {
		failsWith(t, what, err, ExitUsage, "in the metadata of a store")
	}
	if r, err := check(t.Context(), other.Env, other.target, FsckOptions{}, store.Check); err != nil || !r.Clean() {
		t.Errorf("the other store: %v, %v", r, err)
	}
	if err := os.WriteFile(in(ConfigName), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	outFails("damaged: ", in(ConfigName))
	if err := os.Remove(in("meta/IDENTITY")); err != nil {
		t.Fatal(err)
	}
	outFails("without its identity: ", in("meta/new"))
}

// TestOutputsSpareLoops: --force does not replace a file that is behind a loop device.
func TestOutputsSpareLoops(t *testing.T) {
	testenv.NeedRoot(t)
	l := newLab(t)
	l.put(t, "k", []byte("value"))
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, base.MiB), 0o600); err != nil {
		t.Fatal(err)
	}
	dev := attachLoop(t, path)
	page := smallBench(t)
	for _, page.Force = range []bool{false, true} {
		page.HTML = path
		failsWith(t, "bench", Bench(t.Context(), l.Env, &Target{}, page), ExitLocked, dev)
		err := Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: path, Force: page.Force})
		failsWith(t, "get", err, ExitLocked, dev)
	}
}

// TestNoFalseForce: what --force would refuse as well is refused for that without it.
func TestNoFalseForce(t *testing.T) {
	l, other := newLab(t), newLab(t)
	l.put(t, "k", []byte("value"))
	for name, says := range map[string]string{dataName: "it holds device 0 of 1", "meta/IDENTITY": "in the metadata of a store"} {
		for _, force := range []bool{false, true} {
			page := smallBench(t)
			page.HTML, page.Force = filepath.Join(other.target.Dir, name), force
			for verb, err := range map[string]error{
				"get":   Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: page.HTML, Force: force}),
				"bench": Bench(t.Context(), l.Env, &Target{}, page),
			} {
				if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "--force") {
					t.Errorf("%s %s, force %v: %v", verb, name, force, err)
				}
			}
		}
	}
}

// TestGetTellsOfPart: a get to a block device that fails midway says that the device is
// written over in part.
func TestGetTellsOfPart(t *testing.T) {
	testenv.NeedRoot(t)
	l := newLab(t)
	value := bytes.Repeat([]byte("0123456789abcdef"), 6<<20/16)
	l.put(t, "k", value)
	damage(t, filepath.Join(l.target.Dir, dataName), value[:64], 5<<20)
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, 16*base.MiB), 0o600); err != nil {
		t.Fatal(err)
	}
	err := Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: attachLoop(t, path), Force: true})
	failsWith(t, "damaged", err, ExitFailure, "it was written over in part, ")
	if !errors.Is(err, base.ErrCorrupt) {
		t.Errorf("%v", err)
	}
}

// TestLookingChangesNothing: no verb but format makes a model's file larger, and none takes
// one of a store's metadata.
func TestLookingChangesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "empty")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLab(t)
	l.Stdin = strings.NewReader("value")
	target := "sim:size=64MiB,path=" + path
	at := &Target{Devices: []string{target}, Meta: filepath.Join(dir, "m")}
	writes := BenchOptions{Ops: []string{"write"}, Sizes: []string{"4KiB"}, Callers: []int{1}, Depths: []int{1}, Batches: []int{1}, Bytes: 1}
	says := "it has only 0 bytes of 67108864"
	for verb, err := range map[string]error{
		"info":   DeviceInfo(t.Context(), l.Env, &Target{}, []string{target}),
		"health": DeviceHealth(t.Context(), l.Env, &Target{}, []string{target}),
		"put":    Put(t.Context(), l.Env, at, PutOptions{Key: "k", File: Std}),
		"format": Format(t.Context(), l.Env, at, FormatOptions{}),
		"bench":  Bench(t.Context(), l.Env, &Target{Devices: []string{target}}, writes),
	} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", verb, err, says)
		}
	}
	repair := FsckOptions{Repair: true, Yes: true}
	if err := Fsck(t.Context(), l.Env, at, repair); ExitCode(err) != ExitFaultsLeft || !strings.Contains(l.out.String(), says) {
		t.Errorf("fsck: %v, %s", err, l.out)
	}
	if st, err := os.Stat(path); err != nil || st.Size() != 0 {
		t.Errorf("it has %d bytes, %v", st.Size(), err)
	}
	for _, name := range []string{"meta/BALLAST", ConfigName} {
		target := "sim:size=64MiB,path=" + filepath.Join(l.target.Dir, name)
		failsWith(t, "bench", Bench(t.Context(), l.Env, &Target{Devices: []string{target}}, writes), ExitUsage, " of a store")
		err := Format(t.Context(), l.Env, &Target{Devices: []string{target}, Meta: filepath.Join(dir, "m")}, FormatOptions{Yes: true})
		failsWith(t, "format", err, ExitUsage, " of a store")
	}
}

// TestManSparesOthers: without --force man replaces no pipe and no link.
func TestManSparesOthers(t *testing.T) {
	page := []byte(".TH \"X\" \"1\" \"Nov 2026\" \"uGDS Store\" \"uGDS Store\"\n")
	for what, place := range map[string]func(path string) error{
		"pipe":         func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"link to null": func(path string) error { return os.Symlink(os.DevNull, path) },
		"link to a page": func(path string) error {
			return errors.Join(os.WriteFile(path+".real", page, 0o600), os.Symlink(path+".real", path))
		},
		"link to none": func(path string) error { return os.Symlink(path+".none", path) },
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "x.1")
		if err := place(path); err != nil {
			t.Fatal(err)
		}
		before, _ := os.Lstat(path)
		o := ManOptions{Dir: dir, Pages: map[string][]byte{"x.1": page}}
		e := &Env{Stdout: new(strings.Builder)}
		failsWith(t, what, Man(t.Context(), e, o), ExitExists, "--force replaces it")
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: replaced, %v", what, err)
		}
		o.Force = true
		if err := Man(t.Context(), e, o); err != nil {
			t.Errorf("%s, --force: %v", what, err)
		}
	}
}

// TestOutputPlaces: a file whose directory is missing, is none, or lies among the device
// nodes is refused before the work begins.
func TestOutputPlaces(t *testing.T) {
	l := newLab(t) // without the key, which would be the later error
	none, plain := filepath.Join(t.TempDir(), "none"), filepath.Join(l.target.Dir, dataName)
	for _, c := range []struct {
		file   string
		status int
		says   string
	}{
		{filepath.Join(none, "x"), ExitNotFound, "there is no directory " + none},
		{filepath.Join(plain, "x"), ExitFailure, "not a directory"},
		{"/dev/ugds-no-disk", ExitNotFound, "create /dev/ugds-no-disk: not found: there is no such device, and a file there would lie in memory"},
	} {
		err := Get(t.Context(), l.Env, l.target, GetOptions{Key: "k", File: c.file})
		failsWith(t, "get", err, c.status, c.says)
		o := smallBench(t)
		o.HTML = c.file
		failsWith(t, "bench", Bench(t.Context(), l.Env, &Target{}, o), c.status, c.says)
	}
	const odd = "/dev/ugds-no-disk/x"
	data := filepath.Join(t.TempDir(), "d")
	o := smallBench(t)
	o.Dir = odd
	yes := FormatOptions{Size: 64 * base.MiB, Yes: true}
	for what, err := range map[string]error{
		"format --store": Format(t.Context(), l.Env, &Target{Dir: odd, Devices: []string{data}, Meta: data + ".meta"}, yes),
		"format --meta":  Format(t.Context(), l.Env, &Target{Devices: []string{data}, Meta: odd}, yes),
		"bench --dir":    Bench(t.Context(), l.Env, &Target{}, o),
		"demo":           Demo(t.Context(), l.Env, &Target{Dir: odd}, DemoOptions{Size: DemoMinSize}),
		"man":            Man(t.Context(), l.Env, ManOptions{Dir: odd, Pages: map[string][]byte{"x.1": nil}}),
	} {
		failsWith(t, what, err, ExitNotFound, "a file there would lie in memory")
	}
	if _, err := os.Lstat(filepath.Dir(odd)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("made: %v", err)
	}
}

// TestManSpares: man replaces its own pages of another version, and files of others only
// with --force.
func TestManSpares(t *testing.T) {
	const title = `.nh
.TH "UGDSCTL-X" "1" "%" "uGDS Store" "uGDS Store"
`
	e := &Env{Stdout: new(strings.Builder)}
	page := []byte(strings.ReplaceAll(title, "%", "Nov 2026") + "new\n")
	for _, c := range []struct {
		there string
		spare bool
	}{
		{"notes", true}, {"", true}, {strings.ReplaceAll(title, "UGDSCTL-X", "OTHER"), true},
		{strings.ReplaceAll(title, "%", "Jan 2026") + "old\n", false}, {string(page), false},
	} {
		dir := t.TempDir()
		mine := filepath.Join(dir, "ugdsctl-x.1")
		if err := os.WriteFile(mine, []byte(c.there), 0o600); err != nil {
			t.Fatal(err)
		}
		o := ManOptions{Dir: dir, Pages: map[string][]byte{"a.1": page, "ugdsctl-x.1": page}}
		if c.spare {
			failsWith(t, c.there, Man(t.Context(), e, o), ExitExists, "--force replaces it")
			if b, _ := os.ReadFile(mine); string(b) != c.there {
				t.Errorf("%q became %q", c.there, b)
			}
			if _, err := os.Stat(filepath.Join(dir, "a.1")); err == nil {
				t.Error("a page was written before the refusal")
			}
			o.Force = true
		}
		if err := Man(t.Context(), e, o); err != nil {
			t.Error(err)
		}
		if b, _ := os.ReadFile(mine); string(b) != string(page) {
			t.Errorf("%q became %q", c.there, b)
		}
	}
}

// TestDeviceListBehindLoop: a file behind a loop device is not usable, and the list says by
// which.
func TestDeviceListBehindLoop(t *testing.T) {
	testenv.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "disk")
	if err := file.Create(path, 64*base.MiB, true); err != nil {
		t.Fatal(err)
	}
	describe := func() targetDoc {
		t.Helper()
		d, err := new(Env).describeTarget(t.Context(), &Target{}, path)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := describe(); !d.Usable {
		t.Errorf("%+v", d)
	}
	dev := attachLoop(t, path)
	if d := describe(); d.Usable || d.Transport != "file" || !strings.Contains(d.Why, dev) {
		t.Errorf("%+v", d)
	}
}

// TestFormatBehindLoop: format does not take a loop device while a model of a controller
// has the file behind it, and the list says so.
func TestFormatBehindLoop(t *testing.T) {
	testenv.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "disk")
	if err := file.Create(path, 64*base.MiB, true); err != nil {
		t.Fatal(err)
	}
	model, err := probe.Open(t.Context(), "sim:path="+path, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = model.Close(t.Context()) }()
	dev := attachLoop(t, path)
	e := &Env{Stdout: io.Discard, Stderr: io.Discard}
	target := &Target{Dir: filepath.Join(t.TempDir(), "s"), Devices: []string{dev}}
	failsWith(t, "format", Format(t.Context(), e, target, FormatOptions{Yes: true}), ExitLocked, path+" is behind it")
	if d, err := e.describeTarget(t.Context(), &Target{}, dev); err != nil || d.Usable {
		t.Errorf("%+v, %v", d, err)
	}
}
