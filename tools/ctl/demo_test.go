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
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

const smallDemo = 48 * base.MiB

// runDemo runs the demo with its second half in this process; between the
// halves it calls tamper.
func runDemo(t *testing.T, tamper func(dir string)) (string, error) {
	return runDemoOn(t, "", tamper)
}

func runDemoOn(t *testing.T, gpu string, tamper func(dir string)) (string, error) {
	t.Helper()
	var out bytes.Buffer
	e := &Env{Stdout: &out, Stderr: io.Discard}
	o := DemoOptions{Size: smallDemo, Seed: 7, TempDir: t.TempDir()}
	o.Restart = func(ctx context.Context, dir string, o DemoOptions) ([]byte, error) {
		if tamper != nil {
			tamper(dir)
		}
		var doc bytes.Buffer
		err := DemoVerify(ctx, &Env{Stdout: &doc, Stderr: io.Discard}, &Target{Dir: dir, GPU: o.GPU}, o)
		return doc.Bytes(), err
	}
	err := Demo(t.Context(), e, &Target{GPU: gpu}, o)
	if left, _ := os.ReadDir(o.TempDir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	return out.String(), err
}

func TestDemo(t *testing.T) {
	out, err := runDemo(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"MB/s", "every byte as it was put", "clean", "Try next"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestDemoTakesOver: what a demo that was killed left is removed, a running one and what
// somebody else has is not.
func TestDemoTakesOver(t *testing.T) {
	write := func(path ...string) {
		t.Helper()
		name := filepath.Join(path...)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	temp := t.TempDir()
	for _, name := range []string{"ugds-demo-1/" + runningName, "ugds-demo-1/data.ugds", "ugds-demo-2/kept", "other/" + runningName, "ugds-demo-4/" + runningName} {
		write(temp, name)
	}
	lock, err := lockDir(filepath.Join(temp, "ugds-demo-4"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	var errs bytes.Buffer
	e := &Env{Stdout: io.Discard, Stderr: &errs}
	w, err := e.workDir("demo", "", temp, "ugds-demo-", func(string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if again, err := e.workDir("demo", "", temp, "ugds-demo-", nil); err != nil {
		t.Error(err)
	} else if err := again.close(true); err != nil {
		t.Error(err)
	} else if _, err := os.Stat(w.path); err != nil {
		t.Errorf("a second one removed the first: %v", err)
	} else if err := os.Remove(again.path); err != nil { // kept, with nothing in it
		t.Error(err)
	}
	if err := w.close(false); err != nil {
		t.Error(err)
	}
	left, err := filepath.Glob(filepath.Join(temp, "*"))
	if got := strings.ReplaceAll(fmt.Sprint(left), temp+"/", ""); err != nil || got != "[other ugds-demo-2 ugds-demo-4]" ||
		strings.Count(errs.String(), "\n") != 1 || !strings.Contains(errs.String(), "ugds-demo-1,") {
		t.Errorf("%v %s, %q", err, got, &errs)
	}

	named := filepath.Join(temp, "other")
	write(named, metaName, "LOCK")
	write(named, "mine")
	o := DemoOptions{Size: DemoMinSize}
	if err := Demo(t.Context(), e, &Target{Dir: named}, o); !errors.Is(err, base.ErrExists) {
		t.Errorf("with a file of the user: %v", err)
	}
	if left, err := os.ReadDir(named); err != nil || len(left) != 1 || left[0].Name() != "mine" {
		t.Errorf("left: %v %v", left, err)
	}
	mine := filepath.Join(temp, "mine")
	write(mine, runningName)
	if err := Format(t.Context(), e, &Target{Dir: mine}, FormatOptions{Size: 64 * base.MiB, Yes: true}); err != nil {
		t.Fatal(err)
	}
	if err := Demo(t.Context(), e, &Target{Dir: mine}, o); !errors.Is(err, base.ErrExists) {
		t.Errorf("with a store that was made since: %v", err)
	}
	if _, err := os.Stat(filepath.Join(mine, ConfigName)); err != nil {
		t.Error(err)
	}
	running := filepath.Join(temp, "ugds-demo-4")
	if err := Demo(t.Context(), e, &Target{Dir: running}, o); !errors.Is(err, base.ErrInUse) {
		t.Errorf("where another one runs: %v", err)
	}
	if err := os.Remove(filepath.Join(running, runningName)); err != nil {
		t.Fatal(err)
	}
	if err := Demo(t.Context(), e, &Target{Dir: running}, o); !errors.Is(err, base.ErrInUse) {
		t.Errorf("where another one begins: %v", err)
	}
}

// TestDemoSeesDamage: each kind of wrong store fails the demo.
func TestDemoSeesDamage(t *testing.T) {
	w := newDemoWork(7, smallDemo)
	w.change()
	var kept, gone *demoBlock
	for i := range w.blocks {
		switch b := &w.blocks[i]; {
		case b.deleted:
			gone = b
		case b.version == 1:
			kept = b
		}
	}
	if kept == nil || gone == nil {
		t.Fatal("the workload has no such block")
	}
	value := make([]byte, kept.size)
	w.fill(kept, value)
	change := func(do func(n *store.Namespace) error) func(dir string) {
		return func(dir string) {
			err := (&Env{Stderr: io.Discard}).withNamespace(t.Context(), "test", &Target{Dir: dir}, false, do)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, tamper := range map[string]func(dir string){
		"a bit on the device": func(dir string) { damage(t, filepath.Join(dir, dataName), value[:64], len(value)-1) },
		"another value, well stored": change(func(n *store.Namespace) error {
			value[len(value)/2] ^= 1
			return n.Put(t.Context(), kept.key, store.Bytes(value), store.PutOptions{Replace: true})
		}),
		"a shorter value": change(func(n *store.Namespace) error {
			return n.Put(t.Context(), kept.key, store.Bytes(value[:100]), store.PutOptions{Replace: true})
		}),
		"a key lost": change(func(n *store.Namespace) error {
			return n.Delete(t.Context(), kept.key, store.DeleteOptions{})
		}),
		"a deleted key back": change(func(n *store.Namespace) error {
			return n.Put(t.Context(), gone.key, store.Bytes(value), store.PutOptions{})
		}),
		"a key too many": change(func(n *store.Namespace) error {
			return n.Put(t.Context(), []byte("extra"), store.Bytes(value), store.PutOptions{})
		}),
	} {
		out, err := runDemo(t, tamper)
		if err == nil || !strings.Contains(err.Error(), "second process") {
			t.Errorf("%s was not seen: %v\n%s", name, err, out)
		}
	}
}

func TestDemoWork(t *testing.T) {
	a, b := newDemoWork(3, smallDemo), newDemoWork(3, smallDemo)
	a.change()
	b.change()
	if fmt.Sprint(a.chains) != fmt.Sprint(b.chains) || fmt.Sprint(a.blocks) != fmt.Sprint(b.blocks) {
		t.Error("the same seed made two workloads")
	}
	if c := newDemoWork(4, smallDemo); fmt.Sprint(a.blocks) == fmt.Sprint(c.blocks) {
		t.Error("two seeds made the same workload")
	}
	if a.bytes < smallDemo || a.bytes > smallDemo+demoMaxValue {
		t.Errorf("%d bytes", a.bytes)
	}
	keys, shared := map[string]bool{}, 0
	used := map[int]int{}
	for _, c := range a.chains {
		for _, i := range c {
			if used[i]++; used[i] == 2 {
				shared++
			}
		}
	}
	odd := 0
	for i := range a.blocks {
		blk := &a.blocks[i]
		keys[string(blk.key)] = true
		if blk.size < demoMinValue || blk.size > demoMaxValue {
			t.Errorf("size %d", blk.size)
		}
		if blk.size%base.StoreBlock != 0 {
			odd++
		}
	}
	if len(keys) != len(a.blocks) || odd == 0 || len(a.chains) > 1 && shared == 0 {
		t.Errorf("%d keys of %d blocks, %d odd sizes, %d shared", len(keys), len(a.blocks), odd, shared)
	}
}

// TestFirstDifference: every single changed byte is found where it is.
func TestFirstDifference(t *testing.T) {
	w := &demoWork{seed: 9}
	for _, size := range []int{1, 7, 8, 9, 64, 1001} {
		b := &demoBlock{key: []byte("k"), size: size, version: 1}
		v := make([]byte, size)
		w.fill(b, v)
		if at := w.firstDifference(b, v); at != -1 {
			t.Errorf("size %d: equal values differ at %d", size, at)
		}
		for i := range v {
			v[i] ^= 0x80
			if at := w.firstDifference(b, v); at < 0 || at > i || i-at >= 8 {
				t.Errorf("size %d: byte %d changed, found %d", size, i, at)
			}
			v[i] ^= 0x80
		}
		other := &demoBlock{key: []byte("k"), size: size, version: 2}
		if size > 8 && w.firstDifference(other, v) < 0 {
			t.Errorf("size %d: two versions are equal", size)
		}
	}
}

func TestDemoLimits(t *testing.T) {
	e := &Env{Stdout: io.Discard, Stderr: io.Discard}
	for _, size := range []int64{0, -1, DemoMinSize - 1, DemoMaxSize + 1} {
		if err := Demo(t.Context(), e, &Target{}, DemoOptions{Size: size}); ExitCode(err) != ExitUsage {
			t.Errorf("size %d: %v", size, err)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := Demo(t.Context(), e, &Target{Dir: dir}, DemoOptions{Size: smallDemo})
	if !errors.Is(err, base.ErrExists) {
		t.Errorf("a directory with files: %v", err)
	}
}

// TestDemoRefusesFirst: a setting that there is not is refused before the demo says what
// it does, and a temporary directory that cannot be made is named.
func TestDemoRefusesFirst(t *testing.T) {
	var out bytes.Buffer
	e := &Env{Stdout: &out, Stderr: &out}
	o := DemoOptions{Size: DemoMinSize, TempDir: t.TempDir()}
	if err := Demo(t.Context(), e, &Target{GPUSet: []string{"foo=1"}}, o); ExitCode(err) != ExitUsage || out.Len() > 0 {
		t.Errorf("%v, %q", err, &out)
	}
	o.TempDir = filepath.Join(o.TempDir, "none")
	if err := Demo(t.Context(), e, &Target{}, o); ExitCode(err) != ExitNotFound || !strings.Contains(err.Error(), o.TempDir) {
		t.Errorf("%v", err)
	}
}
