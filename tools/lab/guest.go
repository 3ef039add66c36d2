package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// Marks in what the guest writes. Each stands at the beginning of a line.
const (
	markInit  = "LAB INIT "  // userland has begun
	markSuite = "LAB SUITE " // a suite begins
	markEnd   = "LAB END "   // a suite has ended: its name and exit status
	markCover = "LAB COVER"  // the cover profiles follow, up to the next mark
	markLog   = "LAB DMESG"  // the kernel's log follows, up to the next mark
	markDone  = "LAB DONE"
)

// initScript starts the guest. Output of the tests goes to the second serial line,
// so that nothing of the kernel lands in the middle of it.
const initScript = `#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/ TMPDIR=/tmp UGDS_NO_SKIP=1
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp; mount -t debugfs debug /sys/kernel/debug 2>/dev/null
for l in 1 2; do stty -F /dev/ttyS$l raw -echo 115200; done
exec >/dev/ttyS1 2>&1
echo "LAB INIT kernel $(uname -r)"
for m in $(cat /mods/order); do insmod /$m || echo "insmod $m failed"; done
echo 8 >/proc/sys/kernel/printk_ratelimit_burst
echo 32 >/proc/sys/vm/nr_hugepages
sh /suites
echo "LAB COVER"
cat /tmp/*.cover 2>/dev/null
echo "LAB DMESG"
dmesg
echo "LAB DONE"
sync
poweroff -f
`

// builder makes the RAM disks of the guests, one at a time.
type builder struct {
	mu      sync.Mutex
	accel   string     // what QEMU runs with
	archive sync.Mutex // the package manager works for one at a time
	root    string     // of the module
	cache   string
	tmp     string
	kernel  *kernel
	mods    moduleIndex
	built   map[string]string // test binary by package
}

// tags of the test binaries: no loader in the guest, and the tests that need it.
const tags = "nogpu ugds_lab"

// testBinary builds the tests of a package, once.
func (b *builder) testBinary(pkg string) (string, error) {
	if file := b.built[pkg]; file != "" {
		return file, nil
	}
	file := filepath.Join(b.tmp, strings.ReplaceAll(pkg, "/", "-")+".test")
	args := []string{"test", "-c", "-tags", tags, "-ldflags=-s -w", "-o", file}
	if options.cover != "" {
		args = append(args, "-cover", "-covermode=set", "-coverpkg=./driver/...")
	}
	cmd := exec.Command("go", append(args, "./"+pkg)...)
	cmd.Dir = b.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build tests of %s: %w\n%s", pkg, err, out)
	}
	if err := static(file); err != nil {
		return "", err
	}
	b.built[pkg] = file
	return file, nil
}

// static refuses programs that need a loader, which the guest lacks.
func static(file string) error {
	f, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is not static", file)
		}
	}
	return nil
}

// accelerator is what the next QEMU runs with.
func (b *builder) accelerator() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.accel
}

// noKVM remembers that KVM does not work here.
func (b *builder) noKVM() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.accel = "tcg"
	return os.WriteFile(filepath.Join(b.cache, kvmFails), nil, 0o644)
}

// initrd writes the RAM disk of a shape.
func (b *builder) initrd(s *shape, file string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := tree{"init": {[]byte(initScript), true}}
	busybox, err := exec.LookPath("busybox")
	if err == nil {
		err = static(busybox)
	}
	if err == nil {
		err = t.copyIn("bin/busybox", busybox)
	}
	if err != nil {
		return fmt.Errorf("busybox (package busybox-static): %w", err)
	}
	var order []string
	for _, m := range s.modules {
		if err := b.mods.add(t, &order, m); err != nil {
			return err
		}
	}
	if s.kmod {
		if err := b.addOwn(t, &order, s.bare); err != nil {
			return err
		}
	}
	if options.trace != "" {
		text, err := firstLines(options.trace, replayRequests)
		if err != nil {
			return err
		}
		t[traceFile] = treeFile{data: text}
	}
	t["mods/order"] = treeFile{data: []byte(strings.Join(order, "\n") + "\n")}
	var first, next []suite
	for _, u := range s.suites {
		if u.next {
			next = append(next, u)
		} else {
			first = append(first, u)
		}
	}
	if err := b.addSuites(t, first); err != nil {
		return err
	}
	if next != nil {
		if err := b.addNext(t, next); err != nil {
			return err
		}
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := t.writeCPIO(out); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}

// addNext puts the kernel into t once more, with a RAM disk that runs other suites and
// loads no module.
func (b *builder) addNext(t tree, suites []suite) error {
	next := tree{"init": t["init"], "bin/busybox": t["bin/busybox"], "mods/order": {}}
	if err := b.addSuites(next, suites); err != nil {
		return err
	}
	var disk bytes.Buffer
	if err := next.writeCPIO(&disk); err != nil {
		return err
	}
	t["next/initrd"] = treeFile{data: disk.Bytes()}
	return t.copyIn("next/kernel", b.kernel.Image)
}

// addSuites puts test binaries into t, and the script that runs them.
func (b *builder) addSuites(t tree, suites []suite) error {
	var script strings.Builder
	for _, u := range suites {
		bin, err := b.testBinary(u.pkg)
		if err != nil {
			return err
		}
		name := "tests/" + filepath.Base(bin)
		if err := t.copyIn(name, bin); err != nil {
			return err
		}
		args := u.args
		if options.count > 1 {
			args = append([]string{"-test.count", fmt.Sprint(options.count)}, args...)
		}
		if options.trace != "" {
			args = append([]string{"-trace", "/" + traceFile}, args...)
		}
		if options.cover != "" {
			args = append([]string{"-test.coverprofile", "/tmp/" + u.name + ".cover"}, args...)
		}
		fmt.Fprintf(&script, "echo '%s%s'\n/%s -test.v -test.timeout %s %s\ncode=$?; echo; echo \"%s%s $code\"\n", markSuite, u.name,
			name, patience*suiteLimit, shellWords(args), markEnd, u.name)
	}
	t["suites"] = treeFile{data: []byte(script.String())}
	return nil
}

// traceFile is where the guest has the trace, if one is given.
const traceFile = "trace"

// firstLines gives at most n lines of a file.
func firstLines(file string, n int) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	lines := bytes.SplitAfterN(text, []byte("\n"), n+1)
	return bytes.Join(lines[:min(n, len(lines))], nil), nil
}

func shellWords(words []string) string {
	var out []string
	for _, w := range words {
		out = append(out, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
	}
	return strings.Join(out, " ")
}
