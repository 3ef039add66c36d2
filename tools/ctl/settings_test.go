package ctl

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
)

// TestGPUSettings: flags go before the environment, and that before store.toml;
// what is unknown is refused by name.
func TestGPUSettings(t *testing.T) {
	dir := t.TempDir()
	config := func(text string) {
		t.Helper()
		head := "version = 1\ndevices = [\"d\"]\nmeta = \"m\"\n"
		if err := os.WriteFile(filepath.Join(dir, ConfigName), []byte(head+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config("[gpu]\ncompat_mode = \"on\"\nnum_threads = 4\nstrict = true\nbounce_buffer_size = \"1MiB\"\n")
	e := &Env{Getenv: func(name string) (string, bool) {
		v, ok := map[string]string{"UGDS_COMPAT_MODE": "off", "UGDS_GDS_THRESHOLD": "8KiB"}[name]
		return v, ok
	}}
	s, err := e.gpuSettings(&Target{Dir: dir, GPUSet: []string{"gds_threshold=1MiB"}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]xfer.Setting{
		"compat_mode":        {Name: "compat_mode", Value: "OFF", Source: "environment"},
		"gds_threshold":      {Name: "gds_threshold", Value: "1.0 MiB", Source: "--gpu-set"},
		"num_threads":        {Name: "num_threads", Value: "4", Source: "store.toml"},
		"strict":             {Name: "strict", Value: "true", Source: "store.toml"},
		"bounce_buffer_size": {Name: "bounce_buffer_size", Value: "1.0 MiB", Source: "store.toml"},
		"task_size":          {Name: "task_size", Value: "by the size of the transfer", Source: "default"},
	}
	for _, got := range s.List() {
		if got != want[got.Name] {
			t.Errorf("%+v, want %+v", got, want[got.Name])
		}
	}
	for text, what := range map[string]string{
		"[gpu]\nmode = 1\n": "gpu.mode", "[gpu]\nnum_threads = 0\n": "num_threads", "[gpu]\ncompat_mode = \"maybe\"\n": "compat_mode",
	} {
		config(text)
		if _, err := (&Env{}).gpuSettings(&Target{Dir: dir}); !errors.Is(err, base.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestConfigFields: the messages about store.toml know each of its fields, and what it
// holds.
func TestConfigFields(t *testing.T) {
	_, err := parseConfig("store.toml", []byte("foobar = 1\n"))
	if err == nil {
		t.Fatal("an unknown field was taken")
	}
	for f := range reflect.TypeFor[config]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
		if !strings.Contains(err.Error(), name) {
			t.Errorf("no %s in: %v", name, err)
		}
		if _, err := parseConfig("store.toml", []byte(name+" = 1.5\n")); !strings.Contains(err.Error(), name+" must be ") {
			t.Errorf("of another type: %v", err)
		}
	}
}
