//go:build !nogpu

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ugds-store/ugds/internal/testenv"
)

// loadedC is the source of a library that only tells, by a file, that it was loaded.
const loadedC = `#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void)
{
	close(open(getenv("UGDS_TEST_LOADED"), O_CREAT | O_WRONLY, 0600));
}
`

// TestD22NoGPULibraryUnlessAsked: the linker would find a library of every name that
// a GPU has, and no verb loads one unless a GPU is named. Those that name one do, which
// shows that the libraries tell.
func TestD22NoGPULibraryUnlessAsked(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		testenv.Skip(t, "needs gcc")
	}
	dir := t.TempDir()
	source, libs, told := filepath.Join(dir, "loaded.c"), filepath.Join(dir, "libs"), filepath.Join(dir, "told")
	if err := os.WriteFile(source, []byte(loadedC), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(libs, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"libcuda.so.1", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"} {
		if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", filepath.Join(libs, name), source).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
	}
	store := newStore(t)
	value := filepath.Join(dir, "value")
	if err := os.WriteFile(value, []byte("value"), 0o600); err != nil {
		t.Fatal(err)
	}
	loads := func(args ...string) bool {
		t.Helper()
		_ = os.Remove(told)
		c := program(t, args...)
		c.Env = append(c.Env, "LD_LIBRARY_PATH="+libs, "UGDS_TEST_LOADED="+told)
		out, err := c.CombinedOutput()
		_, none := os.Stat(told)
		if none != nil && err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		return none == nil
	}
	for _, args := range [][]string{{"put", "--store", store, "key", value}, {"get", "--store", store, "key", "-"},
		{"fsck", "--store", store}, {"check"}, {"version"}, {"device", "list", "sim:size=64MiB"},
		{"demo", "--size", "16MiB", "--store", filepath.Join(dir, "demo")}, {"demo", "--size", "16MiB", "--store", filepath.Join(dir, "demo2"), "--gpu=host"}} {
		if loads(args...) {
			t.Errorf("%v loaded the library of a GPU", args)
		}
	}
	for _, args := range [][]string{{"check", "--gpu", "cuda:0"}, {"check", "--gpu", "hip:0"}, {"explain", value}} {
		if !loads(args...) {
			t.Errorf("%v did not load the library of a GPU: the test sees nothing", args)
		}
	}
}
