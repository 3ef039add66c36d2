package gputool_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/gpu/cuda"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/tools/gputool"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestSimulated(t *testing.T) {
	for _, name := range []string{"host", "host:0"} {
		g, err := gputool.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if g.String() != "host memory (host 0)" {
			t.Error(g)
		}
		m, err := g.NewMemory(100_000)
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Repeat([]byte("value"), 20_000)
		copy(m.Host(), want)
		if err := m.Upload(0, m.Size()); err != nil {
			t.Fatal(err)
		}
		clear(m.Host())
		if err := m.Download(1000, 5000); err != nil || !bytes.Equal(m.Host()[1000:6000], want[1000:6000]) || m.Host()[6000] != 0 {
			t.Errorf("other bytes, %v", err)
		}
		if err := m.Upload(99_999, 2); !errors.Is(err, base.ErrOutOfRange) {
			t.Error(err)
		}
		if err := errors.Join(m.Close(), g.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestNames: what is no name, what is not there, and that the reasons are told.
func TestNames(t *testing.T) {
	for _, name := range []string{"", "gpu", "-1", "cuda:", "cuda:x", "1:2", "host:-1"} {
		if _, err := gputool.Open(name); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := gputool.Open("host:1"); !errors.Is(err, base.ErrNotFound) {
		t.Error(err)
	}
	if cuda.Available() {
		t.Log("there is a GPU: the rest is about machines without")
		return
	}
	for name, words := range map[string][]string{"0": {"NVIDIA", "AMD", "libcuda", "--gpu host"}, "cuda:0": {"libcuda"}, "hip:0": {"libamdhip64"}} {
		_, err := gputool.Open(name)
		if !errors.Is(err, base.ErrNotSupported) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v does not tell of %s", name, err, w)
			}
		}
	}
}
