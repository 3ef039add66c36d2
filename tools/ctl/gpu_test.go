package ctl

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/gpu/cuda"
	"github.com/ugds-store/ugds/gpu/hip"
	"github.com/ugds-store/ugds/internal/base"
)

// TestDemoOnGPU: every byte comes from a GPU and goes to one, and the way is told.
func TestDemoOnGPU(t *testing.T) {
	out, err := runDemoOn(t, "host", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"host memory (host 0)", "from the GPU to the device through host memory: no transport takes dma-bufs",
		"from the device to the GPU through host memory", "every byte as it was put"} {
		if !strings.Contains(flat(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "read direct") {
		t.Errorf("bytes of a GPU that went direct:\n%s", out)
	}
}

// TestNoGPU: without a GPU the verbs say why, and make nothing.
func TestNoGPU(t *testing.T) {
	for name, want := range map[string]error{"host:7": base.ErrNotFound, "what": base.ErrInvalid, "0": base.ErrNotSupported} {
		if name == "0" && (cuda.Available() || amd()) {
			continue
		}
		if _, err := runDemoOn(t, name, nil); !errors.Is(err, want) {
			t.Errorf("demo on %s: %v", name, err)
		}
		dir := filepath.Join(t.TempDir(), "s")
		e := &Env{Stdout: io.Discard, Stderr: io.Discard, Stdin: strings.NewReader("")}
		if err := Format(t.Context(), e, &Target{Dir: dir}, FormatOptions{Size: 64 * base.MiB, Yes: true}); err != nil {
			t.Fatal(err)
		}
		if err := Replay(t.Context(), e, &Target{Dir: dir, GPU: name}, ReplayOptions{Trace: Std, BlockBytes: 4096}); !errors.Is(err, want) {
			t.Errorf("replay on %s: %v", name, err)
		}
	}
}

// TestExplainWithoutGPU: what helps is not to leave out what was left out.
func TestExplainWithoutGPU(t *testing.T) {
	var out bytes.Buffer
	if err := Explain(t.Context(), &Env{Stdout: &out}, &Target{}, []string{"sim:size=64MiB"}, 4096); err != nil {
		t.Fatal(err)
	}
	there := cuda.Available() || amd()
	if text := flat(out.String()); strings.Contains(text, "leave --gpu") || strings.Contains(text, "(--gpu host simulates one") == there {
		t.Errorf("%s", text)
	}
}

// TestModelOpenedForReading: a model is write protected because of how it was opened, and
// only then.
func TestModelOpenedForReading(t *testing.T) {
	var out bytes.Buffer
	e := &Env{Stdout: &out, Stderr: io.Discard}
	at := &Target{Devices: []string{"sim:size=64MiB,path=" + filepath.Join(t.TempDir(), "model")}, Meta: filepath.Join(t.TempDir(), "m")}
	if err := Format(t.Context(), e, at, FormatOptions{Yes: true}); err != nil {
		t.Fatal(err)
	}
	const why = "stat opens it for reading only"
	if err := Stat(t.Context(), e, at); err != nil || !strings.Contains(flat(out.String()), why) {
		t.Errorf("%v, %s", err, &out)
	}
	out.Reset()
	if err := DeviceInfo(t.Context(), e, &Target{}, at.Devices); err != nil || strings.Contains(flat(out.String()), "for reading only") {
		t.Errorf("%v, %s", err, &out)
	}
	l := newLab(t)
	if err := Stat(t.Context(), l.Env, l.target); err != nil || strings.Contains(l.out.String(), why) {
		t.Errorf("of a file: %v, %s", err, l.out)
	}
}

func amd() bool {
	_, err := hip.Open(hip.Options{})
	return err == nil
}

// TestReplayOnGPU: what was put from a GPU verifies from host memory, and the other
// way round.
func TestReplayOnGPU(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	e := &Env{Stdout: io.Discard, Stderr: io.Discard}
	if err := Format(t.Context(), e, &Target{Dir: dir}, FormatOptions{Size: 128 * base.MiB, Yes: true}); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct{ gpu, trace string }{
		{"host", `{"timestamp": 0, "hash_ids": [1, 2, 3, 1]}`},
		{"", `{"timestamp": 0, "hash_ids": [1, 2, 3, 4, 5]}`},
		{"host", `{"timestamp": 0, "hash_ids": [1, 2, 3, 4, 5]}`},
	} {
		var out bytes.Buffer
		e := &Env{Stdout: &out, Stderr: io.Discard, Stdin: strings.NewReader(c.trace), JSON: true}
		o := ReplayOptions{Trace: Std, BlockBytes: 70_001, Verify: true}
		if err := Replay(t.Context(), e, &Target{Dir: dir, GPU: c.gpu}, o); err != nil {
			t.Fatal(err)
		}
		var d replayDoc
		if err := json.Unmarshal(out.Bytes(), &d); err != nil {
			t.Fatal(err)
		}
		if want := []int64{1, 3, 5}[i]; d.Hits != want || d.Verified != want {
			t.Errorf("round %d: %+v", i, d)
		}
		if (d.GPU != nil) != (c.gpu != "") || d.GPU != nil && (len(d.GPU.Paths) == 0 || d.GPU.Paths[0].Path != "staged") {
			t.Errorf("round %d: gpu %+v", i, d.GPU)
		}
	}
}
