package ctl

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/cuda"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/gpu/xfer"
)

// checked runs check twice and gives the text and the document.
func checked(t *testing.T, e Env, target Target) (string, checkDoc, int) {
	t.Helper()
	var text, doc bytes.Buffer
	e.Stdout = &text
	err := Check(t.Context(), &e, &target, false)
	e.Stdout, e.JSON = &doc, true
	again := Check(t.Context(), &e, &target, false)
	var d checkDoc
	if jerr := json.Unmarshal(doc.Bytes(), &d); jerr != nil || ExitCode(err) != ExitCode(again) {
		t.Fatalf("%v, %v, %v: %s", jerr, err, again, &doc)
	}
	return text.String(), d, ExitCode(err)
}

// TestT16Check: text and document tell of the same things, each setting with its
// source; a GPU is looked at if it is named; what the settings ask for and is not
// there makes the exit status.
func TestT16Check(t *testing.T) {
	getenv := func(name string) (string, bool) { return "3", name == "UGDS_NUM_THREADS" }
	for _, c := range []struct {
		target Target
		gpus   bool
		code   int
	}{
		{Target{}, false, 0},
		{Target{GPU: "host"}, true, 0},
		{Target{GPU: "host", GPUSet: []string{"gds_threshold=1MiB"}}, true, 0},
		{Target{GPU: "host", GPUSet: []string{"compat_mode=OFF"}}, true, ExitFailure}, // the module is not loaded here
		{Target{GPUSet: []string{"strict=on"}}, false, ExitFailure},
	} {
		text, d, code := checked(t, Env{Getenv: getenv}, c.target)
		if len(d.Findings) == 0 || len(d.Settings) != len(xfer.SettingNames()) {
			t.Fatalf("%+v", d)
		}
		words := flat(text)
		for _, f := range d.Findings {
			if !strings.Contains(words, flat(Plain(f.Name)+" "+f.Verdict+" "+Plain(f.Reason)+" "+Plain(f.Mend))) && f.Mend == "" {
				t.Errorf("%+v is not in\n%s", f, text)
			}
			if f.Mend != "" && !strings.Contains(words, flat(Plain(f.Reason)+" → "+Plain(f.Mend))) {
				t.Errorf("%+v is not in\n%s", f, text)
			}
		}
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(line); n > screenColumns+1 {
				t.Errorf("%d columns: %s", n, line)
			}
		}
		if !strings.Contains(words, "setting num_threads = 3 (environment)") ||
			len(c.target.GPUSet) == 0 != !strings.Contains(words, "(--gpu-set)") {
			t.Errorf("%+v: the sources are not in\n%s", c.target, text)
		}
		_, err := os.Stat("/sys/module/" + probe.DriverModule)
		if loaded := err == nil; code != c.code && !loaded || strings.Contains(text, "gpu 0 export") != c.gpus {
			t.Errorf("%+v: exit status %d\n%s", c.target, code, text)
		}
	}
	if err := Check(t.Context(), &Env{Stdout: new(bytes.Buffer)}, &Target{GPU: "what"}, false); ExitCode(err) != ExitUsage {
		t.Error(err)
	}
}

// TestCheckNoGPU: a GPU that is not there is a finding, with what to do; it counts when
// the settings ask for it, and when it is to be tested.
func TestCheckNoGPU(t *testing.T) {
	names := []string{"host:7"}
	if !cuda.Available() && !amd() {
		names = append(names, "cuda:0", "0")
	}
	for _, name := range names {
		text, d, code := checked(t, Env{}, Target{GPU: name})
		last := d.Findings[len(d.Findings)-1]
		if code != 0 || last.Name != "gpu "+name || last.Verdict != probe.Refused || last.Reason == "" || !strings.Contains(text, "IOMMU") {
			t.Errorf("%s: exit status %d, %+v\n%s", name, code, last, text)
		}
		if name != "host:7" && last.Mend == "" {
			t.Errorf("%s: nothing to do: %+v", name, last)
		}
	}
	if _, _, code := checked(t, Env{}, Target{GPU: "host:7", GPUSet: []string{"strict=on"}}); code != ExitFailure {
		t.Errorf("required: exit status %d", code)
	}
	l := newLab(t)
	if err := Check(t.Context(), l.Env, &Target{Dir: l.target.Dir, GPU: "host:7"}, true); ExitCode(err) != ExitFailure || !strings.Contains(l.out.String(), "gpu host:7") {
		t.Errorf("--pairs: %v\n%s", err, l.out)
	}
}

// TestCheckGPU: what a GPU lacks is a fallback with its reason, and it is required
// only by those who ask for the direct path.
func TestCheckGPU(t *testing.T) {
	b, err := host.Open(host.Options{Faults: host.Faults{NoDMABuf: true, NoFlush: true, NoMover: true, NoMemOps: true}})
	if err != nil {
		t.Fatal(err)
	}
	p := &probedGPU{dev: b.Devices()[0], doc: explainGPU{Register: gpu.ReasonNoDMABuf}}
	all := p.findings(t.TempDir())
	bad := 0
	for _, f := range all {
		if f.Verdict == probe.Fallback && f.Mend != "" {
			bad++
		}
	}
	if bad != 4 || !slices.ContainsFunc(all, func(f probe.Finding) bool { return strings.Contains(f.Reason, gpu.ReasonNoDMABuf) }) {
		t.Errorf("%+v", all)
	}
	if l := lacking(all, xfer.Settings{}); len(l) > 0 {
		t.Errorf("%+v", l)
	}
	none := probe.Finding{Name: probe.NoControllers, Verdict: probe.Fallback, Reason: "this machine has none"}
	if l := lacking([]probe.Finding{none}, xfer.Settings{Strict: true}); len(l) != 1 || !strings.Contains(l[0].Reason, none.Reason) {
		t.Errorf("no controller: %+v", l)
	}
	if l := lacking(all, xfer.Settings{Compat: xfer.CompatOff}); len(l) != 1 || !strings.Contains(l[0].Reason, gpu.ReasonNoDMABuf) ||
		strings.Contains(l[0].Reason, "await") {
		t.Errorf("%+v", l)
	}
}

func TestBARBytes(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "sys/bus/pci/devices/0000:17:00.0")
	text := "0x00000000f0000000 0x00000000f0ffffff 0x0000000000040200\n" +
		"0x0000024000000000 0x0000025fffffffff 0x000000000014220c\n0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
	if err := errors.Join(os.MkdirAll(path, 0o700), os.WriteFile(filepath.Join(path, "resource"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	if n := barBytes(root, "0000:17:00.0"); n != 128<<30 {
		t.Error(n)
	}
	if n := barBytes(root, "0000:18:00.0"); n != 0 {
		t.Error(n)
	}
}

// TestCheckPairs: the devices of a store are tested with a GPU.
func TestCheckPairs(t *testing.T) {
	l := newLab(t)
	dir := t.TempDir()
	model := &Target{Dir: filepath.Join(dir, "s"), Devices: []string{"sim:size=64MiB,path=" + filepath.Join(dir, "model")}}
	if err := Format(t.Context(), l.Env, model, FormatOptions{Yes: true}); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{l.target.Dir: "staged: the device takes no dma-bufs", model.Dir: "both directions"} {
		l.out.Reset()
		if err := Check(t.Context(), l.Env, &Target{Dir: dir, GPU: "host"}, true); err != nil {
			t.Fatal(err)
		}
		_, rest, found := strings.Cut(l.out.String(), "gpu 0 and ")
		if pair, _, _ := strings.Cut(rest, "setting"); !found || !strings.Contains(flat(pair), want) {
			t.Errorf("%q, want %q", pair, want)
		}
	}
	for _, bad := range []*Target{{GPU: "host"}, {Dir: model.Dir}} {
		if err := Check(t.Context(), l.Env, bad, true); ExitCode(err) != ExitUsage {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
