package probe_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestParse(t *testing.T) {
	for in, want := range map[string]probe.Target{
		"/a/b":             {Scheme: "file", Rest: "/a/b"},
		"a":                {Scheme: "file", Rest: "a"},
		"./pci:x":          {Scheme: "file", Rest: "./pci:x"},
		"file:rel:ative":   {Scheme: "file", Rest: "rel:ative"},
		"pci:0000:01:00.0": {Scheme: "pci", Rest: "0000:01:00.0"},
		"sim:size=1GiB":    {Scheme: "sim", Rest: "size=1GiB"},
	} {
		if got, err := probe.Parse(in); got != want || err != nil {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "file:", "http://x", "nvme:1"} {
		if _, err := probe.Parse(in); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestOpen(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "data")
	if err := file.Create(path, base.MiB, false); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{path, "file:" + path} {
		d, err := probe.Open(ctx, target, probe.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if d.Info().Capacity != base.MiB || d.Info().Target != "file:"+path {
			t.Errorf("%+v", d.Info())
		}
		if err := d.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	for target, want := range map[string]error{
		"pci:0000:01:00.0": base.ErrNotSupported,
		"sim:size=1GiB":    base.ErrNotSupported,
		"nvme:1":           base.ErrInvalid,
		path + "x":         base.ErrNotFound,
	} {
		d, err := probe.Open(ctx, target, probe.Options{})
		if !errors.Is(err, want) || d != nil {
			t.Errorf("%s: %v, %v", target, d, err)
		}
	}
}

func TestExplain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	if err := file.Create(path, base.MiB, false); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{
		path:               "regular file",
		path + "x":         "format makes it",
		"/":                "directory",
		"/dev/null":        "cannot be a device",
		"pci:0000:01:00.0": "not built into",
		"x:y":              "unknown scheme",
	} {
		if got := strings.Join(probe.Explain(target), "\n"); !strings.Contains(got, want) {
			t.Errorf("%s: %q lacks %q", target, got, want)
		}
	}
}
